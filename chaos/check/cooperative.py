"""inv-I9: a cooperative member never gives up a partition that stays with it."""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass

from musterd.chaos.check.findings import Findings, named
from musterd.chaos.history import Generation, History, Key, Ownership
from musterd.chaos.verdict import Verdict


def check(history: History) -> Verdict:
    """Of the groups that are expected to be cooperative, every revoked partition was to move.

    Broken where the very next generation that the member was told of still has the partition
    (`Generation.assigned`), and none that it was told of before had not; or where it came back to
    the member although the generation has the same members as the one before. Looks at: revoked
    partitions of which something can be said.
    """
    found = Findings(history, "I9", "cooperative: what stays put is never revoked")
    groups = {one.group for one in history.expected if one.cooperative}
    if not groups:
        found.note("no cooperative group is named")
    told = _Told(history)
    keys: dict[Key, list[Ownership]] = defaultdict(list)
    for one in history.ownerships:
        if one.key.group in groups:
            keys[one.key].append(one)
    unjudged = 0
    for owned in keys.values():
        owned.sort(key=lambda one: one.from_ns)
        following: list[Ownership | None] = [*owned[1:], None]
        for one, back in zip(owned, following, strict=True):
            if one.ended != "revoked":
                continue
            why = told.wrong(found, one, back)
            if why is None:
                unjudged += 1
                continue
            found.looked_at += 1
            if why:
                found.broken(named(one.key), f"{one.owner} {why}", _asked(one))
    if unjudged:
        found.note(f"{unjudged} revoked partitions cannot be judged: too little is recorded")
    return found.verdict()


def _asked(one: Ownership) -> int:
    """When it was told to give the partition up, as far as that is known."""
    return one.revoking_ns if one.revoking_ns is not None else one.until_ns or one.from_ns


@dataclass(frozen=True, slots=True)
class _Around:
    """What the owner was told last before it was asked to give something up, and next."""

    before: Generation | None
    after: Generation | None


class _Told:
    """What members were told of the generations of their groups."""

    def __init__(self, history: History) -> None:
        self._of: dict[tuple[str, str], list[Generation]] = defaultdict(list)
        self._sets: dict[tuple[str, int], frozenset[str]] = {}
        for one in sorted(history.generations, key=lambda one: one.at_ns):
            if one.whole:
                self._sets[one.group, one.generation] = frozenset(one.members)
            elif one.assigned is not None and len(one.members) == 1:
                self._of[one.group, one.members[0]].append(one)

    def wrong(self, found: Findings, one: Ownership, back: Ownership | None) -> str | None:
        """What is wrong; "" if nothing, None if nothing can be said."""
        around = self._around(one)
        before, after = around.before, around.after
        kept = before is not None and one.key in (before.assigned or ())
        again = after is not None and one.key in (after.assigned or ())
        if before and after and kept and again and after.generation == before.generation + 1:
            return (
                f"was asked at {found.at(_asked(one))} to give it up, and has it in generation "
                f"{before.generation} and again in {after.generation}, the next one"
            )
        if back is not None and back.owner == one.owner:
            came = self._came(back)
            if came is False:
                return (
                    f"gave it up at {found.at(one.until_ns or 0)} and got it back in generation "
                    f"{back.generation}, whose members are those of the one before"
                )
            return "" if came else None
        # Another one has it now, or the member itself was told that it has it no more.
        return "" if back is not None or (after is not None and not again) else None

    def _around(self, one: Ownership) -> _Around:
        told = self._of.get((one.key.group, one.owner), [])
        index = bisect_right(told, _asked(one), key=lambda generation: generation.at_ns)
        return _Around(
            told[index - 1] if index else None, told[index] if index < len(told) else None
        )

    def _came(self, back: Ownership) -> bool | None:
        """Whether somebody came or went with the generation in which it came back."""
        now = self._sets.get((back.key.group, back.generation))
        last = self._sets.get((back.key.group, back.generation - 1))
        return None if now is None or last is None else now != last
