"""inv-I9: a cooperative member never gives up a partition that stays with it."""

from bisect import bisect_right
from collections import defaultdict

from musterd.chaos.check.findings import Findings
from musterd.chaos.check.setup import owned_by_key
from musterd.chaos.history import Generation, History, Ownership
from musterd.chaos.verdict import Verdict


def check(history: History) -> Verdict:
    """Of the groups that are expected to be cooperative, every revoked partition was to move.

    Broken where the very next generation that the member was told of still has the partition
    (`Generation.assigned`), and none that it was told of before had not; or where it came back to
    the member although nobody had come or gone since it was given up. Looks at: revoked partitions
    of which something can be said.
    """
    found = Findings(history, "I9", "cooperative: what stays put is never revoked")
    groups = {one.group for one in history.expected if one.cooperative}
    if not groups:
        found.note("no cooperative group is named")
    told = _Told(history)
    unjudged = 0
    for key, owned in owned_by_key(history).items():
        following: list[Ownership | None] = [*owned[1:], None]
        for one, back in zip(owned, following, strict=True):
            if one.ended != "revoked" or key.group not in groups:
                continue
            why = told.wrong(found, one, back)
            if why is None:
                unjudged += 1
                continue
            found.looked_at += 1
            if why:
                found.broken(key, f"{one.owner} {why}", _asked(one))
    if unjudged:
        found.note(f"{unjudged} revoked partitions cannot be judged: too little is recorded")
    return found.verdict()


def _asked(one: Ownership) -> int:
    """When it was told to give the partition up, as far as that is known."""
    return one.revoking_ns if one.revoking_ns is not None else one.until_ns or one.from_ns


class _Told:
    """The generations that members were told of."""

    def __init__(self, history: History) -> None:
        self._of: dict[tuple[str, str], list[Generation]] = defaultdict(list)
        self._sets: dict[tuple[str, int], frozenset[str]] = {}
        self._formed: dict[str, list[Generation]] = defaultdict(list)
        self._removed: dict[str, list[int]] = defaultdict(list)
        for removal in history.removals:
            if removal.from_ns is not None:
                self._removed[removal.group].append(removal.from_ns)
        for one in sorted(history.generations, key=lambda one: one.at_ns):
            if one.whole:
                self._sets[one.group, one.generation] = frozenset(one.members)
                self._formed[one.group].append(one)
            elif one.assigned is not None and len(one.members) == 1:
                self._of[one.group, one.members[0]].append(one)

    def wrong(self, found: Findings, one: Ownership, back: Ownership | None) -> str | None:
        """Return what is wrong; "" if nothing, None if nothing can be said."""
        told = self._of.get((one.key.group, one.owner), [])
        index = bisect_right(told, _asked(one), key=lambda generation: generation.at_ns)
        before = told[index - 1] if index else None
        after = told[index] if index < len(told) else None
        kept = before is not None and one.key in (before.assigned or ())
        again = after is not None and one.key in (after.assigned or ())
        if before and after and kept and again and after.generation == before.generation + 1:
            return (
                f"was asked at {found.at(_asked(one))} to give it up, and has it in generation "
                f"{before.generation} and again in {after.generation}, the next one"
            )
        if back is not None and back.owner == one.owner:
            came = self._came(one, back)
            if came is False:
                return (
                    f"gave it up at {found.at(one.until_ns or 0)} and got it back in generation "
                    f"{back.generation}, though nobody had come or gone"
                )
            return "" if came else None
        # Another one has it now, or the member itself was told that it has it no more.
        return "" if back is not None or (after is not None and not again) else None

    def _came(self, one: Ownership, back: Ownership) -> bool | None:
        """Whether somebody came or went since it was given up, until the generation it is back in.

        A static member that was removed and is back has the name that it had.
        """
        group, until_ns = one.key.group, one.until_ns or one.from_ns
        if any(until_ns < at_ns < back.from_ns for at_ns in self._removed[group]):
            return True
        formed = self._formed[group]
        index = bisect_right(formed, until_ns, key=lambda generation: generation.at_ns)
        first = formed[index - 1].generation if index else back.generation - 1
        numbers = range(min(first, back.generation - 1), back.generation + 1)
        sets = [self._sets.get((group, number)) for number in numbers]
        return None if None in sets else len(set(sets)) > 1
