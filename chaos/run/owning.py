"""How long partitions had no owner, and which fault that is said of: the one in which it began."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from musterd.chaos.history import Key, Ownership
from musterd.chaos.run.probes import MS_NS
from musterd.chaos.run.result import FaultRun


@dataclass(frozen=True, slots=True)
class Gap:
    """A span in which nobody owned a partition that had had an owner."""

    key: Key
    from_ns: int
    until_ns: int | None
    """None: nobody owned it again."""


def gaps_of(ownerships: Iterable[Ownership], end_ns: int) -> list[Gap]:
    """All that began before `end_ns`, when members were let go and nothing has to be owned."""
    by_key: dict[Key, list[Ownership]] = defaultdict(list)
    for one in ownerships:
        by_key[one.key].append(one)
    found = []
    for key, held in by_key.items():
        held.sort(key=lambda one: one.from_ns)
        owned_ns = held[0].from_ns
        for one in held:
            if one.from_ns > owned_ns:
                found.append(Gap(key, owned_ns, one.from_ns))
            owned_ns = max(owned_ns, end_ns if one.until_ns is None else one.until_ns)
        found.append(Gap(key, owned_ns, None))
    return [one for one in found if one.from_ns < end_ns]


def judge_owned(fault: FaultRun, until_ns: int, gaps: Sequence[Gap]) -> None:
    """Fill in what became of ownership in a fault, from its beginning until `until_ns`.

    What is not owned again by then has no time, and is counted instead.
    """
    mine = [one for one in gaps if fault.began_ns <= one.from_ns < until_ns]
    left = [one for one in mine if one.until_ns is None or one.until_ns >= until_ns]
    fault.unowned = len(left)
    fault.never_owned = sum(one.until_ns is None for one in left)
    if left:
        fault.unowned_ms = round((until_ns - fault.began_ns) / MS_NS, 1)
        return
    last_ns = max((one.until_ns or 0 for one in mine), default=fault.began_ns)
    fault.owned_ms = round((last_ns - fault.began_ns) / MS_NS, 1)
