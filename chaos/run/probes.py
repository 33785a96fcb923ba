"""Judges the probes: how long commits took, and how long each fault kept a group without one."""

import bisect
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from musterd.chaos.run.result import FaultRun, ProbeTrack, Spread

MS_NS = 1_000_000
BEFORE_NS = 5_000 * MS_NS
"""The span before a fault that its latency is compared with."""


@dataclass(slots=True)
class Probe:
    """One group's commits, by the time that they were sent."""

    group: str
    sent: list[int] = field(default_factory=list)
    """ns"""
    ended: list[int] = field(default_factory=list)
    ok: list[bool] = field(default_factory=list)
    nodes: list[int | None] = field(default_factory=list)

    def gap_ms(self, from_ns: int, until_ns: int) -> float | None:
        """The longest time without an acknowledgement within the span.

        What was missing before it belongs to an earlier fault, what is missing after it to the next
        one. Where nothing was acknowledged that is all of the span. None: nothing was ever sent.
        """
        if not self.sent:
            return None
        inside = [from_ns, *self._acked(from_ns, until_ns), max(from_ns, until_ns)]
        return max((b - a) / MS_NS for a, b in pairwise(inside))

    def calm_ms(self, from_ns: int, until_ns: int) -> float | None:
        """The same of a span without a fault: from the first acknowledgement in it.

        What is missing before that one belongs to the fault that was there before. None: there is
        no acknowledgement in the span.
        """
        acked = self._acked(from_ns, until_ns)
        until_ns = min(until_ns, max(self.ended, default=until_ns))  # it ended with the workloads
        return self.gap_ms(acked[0], until_ns) if acked else None

    def _acked(self, from_ns: int, until_ns: int) -> list[int]:
        ends = (e for e, ok in zip(self.ended, self.ok, strict=True) if ok)
        return sorted(e for e in ends if from_ns < e < until_ns)

    def first_ms(self, after_ns: int) -> float | None:
        """Until the first acknowledgement of a commit that was sent after this moment."""
        ends = [
            e
            for s, e, ok in zip(self.sent, self.ended, self.ok, strict=True)
            if ok and s >= after_ns
        ]
        return (min(ends) - after_ns) / MS_NS if ends else None

    def latencies_ms(self, from_ns: int, until_ns: int) -> list[float]:
        """Of acknowledged commits that were sent in the span."""
        return [
            (e - s) / MS_NS
            for s, e, ok in zip(self.sent, self.ended, self.ok, strict=True)
            if ok and from_ns <= s < until_ns
        ]


@dataclass(frozen=True, slots=True)
class Leaders:
    """The leader of each shard over time, as the watcher saw it."""

    at_ns: Sequence[int]
    led: Sequence[Mapping[int, int]]
    """Node by shard, from `at_ns` of the same place on; of a shard that no node said to lead then
    (or that was slow to say so), who did last."""

    def at(self, moment_ns: int) -> Mapping[int, int]:
        place = bisect.bisect_left(self.at_ns, moment_ns) - 1
        return self.led[place] if place >= 0 else {}


def probes_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, Probe]:
    """By group, from the lines of the tracks."""
    found: dict[str, Probe] = {}
    ordered = sorted((one for one in lines if one["what"] == "probe"), key=lambda o: o["sent_ns"])
    for one in ordered:
        probe = found.setdefault(one["group"], Probe(one["group"]))
        probe.sent.append(one["sent_ns"])
        probe.ended.append(one["ended_ns"])
        probe.ok.append(one["ok"])
        probe.nodes.append(one["node"])
    return found


def leaders_of(lines: Iterable[Mapping[str, Any]]) -> Leaders:
    """Who led which shard when, by what the watcher saw."""
    seen = sorted((one for one in lines if one["what"] == "led"), key=lambda o: o["at_ns"])
    looks = accumulate((dict(one["led"]) for one in seen), operator.or_)
    return Leaders([one["at_ns"] for one in seen], list(looks))


def hit_nodes(targets: Iterable[str]) -> set[int]:
    """The nodes that a fault is about: those in all of its links, else all that it names."""
    named = [
        {int(place.removeprefix("node-")) for place in one.split(">") if place.startswith("node-")}
        for one in targets
    ]
    named = [nodes for nodes in named if nodes]
    if not named:
        return set()
    common = set.intersection(*named)
    whole = all(len(nodes) == 1 for nodes in named)  # not links, but nodes
    return set.union(*named) if whole or not common else common


def judge_fault(
    fault: FaultRun,
    until_ns: int,
    probes: Mapping[str, Probe],
    shard_of: Mapping[str, int],
    leaders: Leaders,
) -> None:
    """Fill in what the probes saw of a fault, from its beginning until `until_ns`.

    A group of whose leader nothing is known is neither a hit one nor another one.
    """
    led = leaders.at(fault.began_ns)
    hit = hit_nodes(fault.targets)
    known = [
        (one, led[shard]) for group, one in probes.items() if (shard := shard_of[group]) in led
    ]
    those = [one for one, node in known if node in hit]
    others = [one for one, node in known if node not in hit]
    fault.hit_ms = _longest(those, fault.began_ns, until_ns)
    fault.other_ms = _longest(others, fault.began_ns, until_ns)
    firsts = [ms for one in those if (ms := one.first_ms(fault.began_ns)) is not None]
    # The slowest of the groups that were hit: all of them are served again then.
    fault.first_commit_ms = max(firsts) if firsts and len(firsts) == len(those) else None
    everyone = probes.values()
    began = fault.began_ns
    fault.latency_before = Spread.of(
        [ms for one in everyone for ms in one.latencies_ms(began - BEFORE_NS, began)]
    )
    fault.latency_during = Spread.of(
        [ms for one in everyone for ms in one.latencies_ms(began, until_ns)]
    )


def _longest(probes: Sequence[Probe], from_ns: int, until_ns: int) -> float | None:
    gaps = [gap for one in probes if (gap := one.gap_ms(from_ns, until_ns)) is not None]
    return max(gaps, default=None)


def calm_of(
    faults: Sequence[FaultRun], began_ns: int, ended_ns: int, probes: Iterable[Probe]
) -> float | None:
    """The longest gap, in ms, of all spans in which no fault was injected or unsettled."""
    spans, from_ns = [], began_ns
    for one in faults:
        spans.append((from_ns, one.began_ns))
        from_ns = ended_ns if one.settled_ns is None else one.settled_ns
    spans.append((from_ns, ended_ns))
    found = [probe.calm_ms(*span) for probe in probes for span in spans]
    return max((gap for gap in found if gap is not None), default=None)


def track_of(probe: Probe, shard: int, began_ns: int) -> ProbeTrack:
    """As the result has it."""
    leaders: list[tuple[float, int]] = []
    for ended, node in zip(probe.ended, probe.nodes, strict=True):
        if node is not None and (not leaders or leaders[-1][1] != node):
            leaders.append(((ended - began_ns) / MS_NS, node))
    return ProbeTrack(
        probe.group,
        shard,
        [round((sent - began_ns) / MS_NS, 1) for sent in probe.sent],
        [
            round((ended - sent) / MS_NS, 2) if ok else None
            for sent, ended, ok in zip(probe.sent, probe.ended, probe.ok, strict=True)
        ],
        leaders,
    )
