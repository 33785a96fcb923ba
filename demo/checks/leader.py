"""Checks that the killed leader cost no commit, no generation, and only a moment."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from musterd.demo.checks.base import Check, Figure, Series, first
from musterd.demo.events import Acknowledged, Attempt, Compared, Offsets, Took
from musterd.demo.evidence import Evidence, NodeKill
from musterd.demo.plan import SESSION_TIMEOUT_MS

MS = 1_000_000
"""Nanoseconds of a millisecond."""


@dataclass(frozen=True, slots=True)
class _Read:
    worker: str
    started_ns: int
    at_ns: int
    term: int
    committed: Offsets


def check_reads(evidence: Evidence) -> Check:
    """Acknowledged <= read <= attempted, before anybody commits again under a later coordinator.

    Acknowledged by anyone before the read began, attempted by anyone before it ended. After the
    kill there is such a record of every partition of the group.
    """
    reads = list(_reads(evidence))
    bad = [*_inconsistent(evidence, reads), *_unread(evidence)]
    kill = evidence.node_kill
    covered: set[int] = set()
    if kill is not None:
        for read in reads:
            if read.started_ns > kill.at_ns and read.term > kill.before.term:
                covered.update(read.committed)
    missing = len(evidence.lines) - len(covered)
    if missing:
        bad.append(f"{missing} partitions were not read after the kill")
    records = sum(len(read.committed) for read in reads)
    changes = len({read.term for read in reads})
    detail = first(bad) or (
        f"{records} records, {len(covered)} partitions after the kill, {changes} terms seen"
    )
    figures: dict[str, Figure] = {
        "records": records,
        "partitions_after_kill": len(covered),
        "terms": changes,
        "violations": len(bad),
    }
    return Check(
        "acknowledged <= read <= attempted after each change of term", not bad, detail, figures
    )


def _reads(evidence: Evidence) -> Iterator[_Read]:
    for worker, event in evidence.events:
        match event:
            case Compared() | Took():
                committed = dict(event.committed)
                yield _Read(worker, event.started_ns, event.at_ns, event.read_term, committed)
            case _:
                pass


def _inconsistent(evidence: Evidence, reads: list[_Read]) -> Iterator[str]:
    acknowledged, attempted = Series(), Series()
    for _, event in evidence.events:
        match event:
            case Acknowledged():
                acknowledged.add(event.at_ns, event.offsets)
            case Attempt():
                attempted.add(event.at_ns, event.offsets)
            case _:
                pass
    for read in reads:
        for number, offset in read.committed.items():
            low = acknowledged.up_to(number, read.started_ns)
            high = attempted.up_to(number, read.at_ns)
            if not low <= offset <= high:
                yield (
                    f"partition {number} in term {read.term}: acknowledged {low}, read {offset}, "
                    f"attempted {high}"
                )


def _unread(evidence: Evidence) -> Iterator[str]:
    """Commits that were acknowledged in a later term than the owner had read its offset in."""
    last: dict[str, int] = {}
    read: dict[tuple[str, int], int] = {}
    for worker, event in evidence.events:
        match event:
            case Compared() | Took():
                for number in event.committed:
                    read[worker, number] = event.read_term
            case Acknowledged():
                before = last.get(worker)
                last[worker] = event.term
                if before is None or event.term <= before:
                    continue
                for number in event.offsets:
                    if read.get((worker, number), 0) < event.term:
                        yield (
                            f"{worker} committed partition {number} in term {event.term} "
                            f"without reading it first"
                        )
            case _:
                pass


def check_gap(evidence: Evidence) -> Check:
    """The longest time without an acknowledged commit around the kill is below the session."""
    name = "commits go on after the kill"
    kill = evidence.node_kill
    if kill is None:
        return Check(name, False, "no node was killed")
    times = _acknowledged_around(evidence, kill)
    if not times:
        return Check(name, False, "no commit was acknowledged in a later term")
    group = _longest_ms([at for each in times.values() for at in each])
    worst = max(map(_longest_ms, times.values()))
    passed = worst < SESSION_TIMEOUT_MS
    detail = (
        f"longest time without an acknowledged commit: {group:.0f} ms for the group, "
        f"{worst:.0f} ms for one worker"
    )
    figures: dict[str, Figure] = {"gap_ms": round(group, 1), "worker_gap_ms": round(worst, 1)}
    return Check(name, passed, detail, figures)


def _acknowledged_around(evidence: Evidence, kill: NodeKill) -> dict[str, list[int]]:
    """When each worker's commits were acknowledged.

    From its last one before the kill to its first one in a later term. A worker without the latter
    is left out; its partitions are missing in `check_reads`.
    """
    times: dict[str, list[int]] = {}
    done = set()
    for worker, event in evidence.events:
        if not isinstance(event, Acknowledged) or worker in done:
            continue
        if event.at_ns <= kill.at_ns:
            times[worker] = [event.at_ns]
        elif worker in times:
            times[worker].append(event.at_ns)
            if event.term > kill.before.term:
                done.add(worker)
    return {worker: times[worker] for worker in sorted(done)}


def _longest_ms(times: list[int]) -> float:
    return max((b - a for a, b in pairwise(sorted(times))), default=0) / MS


def check_failover(evidence: Evidence) -> Check:
    """A later term, another leader, the same generation: a failover is no rebalance."""
    name = "a failover is no rebalance"
    kill = evidence.node_kill
    if kill is None or kill.after is None:
        return Check(name, False, "no leader before and after the kill was seen")
    before, after = kill.before, kill.after
    passed = (
        after.term > before.term
        and after.node_id != before.node_id
        and after.generation == before.generation
        and after.members == before.members
    )
    detail = (
        f"term {before.term} -> {after.term}, leader node {before.node_id} -> {after.node_id}, "
        f"generation {before.generation} -> {after.generation}, "
        f"{before.members} -> {after.members} members"
    )
    figures: dict[str, Figure] = {
        "shard": before.shard,
        "term_before": before.term,
        "term_after": after.term,
        "leader_before": before.node_id,
        "leader_after": after.node_id,
        "generation_before": before.generation,
        "generation_after": after.generation,
    }
    return Check(name, passed, detail, figures)
