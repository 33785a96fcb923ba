"""inv-I4: one owner per partition and generation; what live members confirmed does not overlap.

Owners are processes: each has a member id of its own. Of one static member a generation may have
several, one after the other, each under a later fencing token.

A member confirms what it owns: from the moment it is told to the moment it has stopped to work. Of
two owners of a partition that overlap, the one of the older token is

* live, and this is a violation, where it was in the group when the newer one got the partition;
* a zombie where it had been removed from the group, and was not told yet: the group's log says so,
  or a whole generation after its own and up to the newer owner's does not have it, or the first
  answer on the members of a modern group that was asked for after that does not, or a call of it
  was refused because it is no member any more before the newer one got the partition, or another
  process had its instance id by then, or it ended as `lost` or `died` and is not known to be in the
  newer owner's generation, or it took longer than the rebalance timeout to give the partition up.
  Nobody can stop a zombie; its commits and its writes to a fenced store are refused (inv-I6,
  inv-I7). These overlaps are counted, and so are those that a `StaleJoin` brought about. One that
  goes on for longer than session timeout + rebalance timeout + 5 s to the end of the history is a
  violation again: a live process is told by then.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

from musterd.chaos.check.findings import Findings
from musterd.chaos.check.known import Removals
from musterd.chaos.check.setup import GRACE_NS, MS_NS, allowed_ns, end_of, owned_by_key
from musterd.chaos.history import Expected, History, Key, Members, Ownership
from musterd.chaos.verdict import Verdict

REMOVED = frozenset({"UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"})
"""Errors that say that the member is none any more."""


def check(history: History) -> Verdict:
    """See above. Looks at: ownerships."""
    found = Findings(history, "I4", "one owner per partition and generation, live ones never two")
    ends = end_of(history)
    groups = {one.group: one for one in history.expected}
    members = _Members(history)
    zombies = longest = unseen = 0
    for key, owned in owned_by_key(history).items():
        found.looked_at += len(owned)
        _one_each(found, key, owned)
        for older, newer in _overlaps(owned):
            setup = groups.get(key.group)
            until = min(_until(older, ends), _until(newer, ends))
            overlap = until - max(older.from_ns, newer.from_ns)
            if not _is_zombie(older, newer, members, setup):
                found.broken(
                    key,
                    f"{_word(found, newer)} while {_word(found, older)}, and it was "
                    f"in the group: both worked for {overlap / 1e9:.3f} s",
                    newer.from_ns,
                )
            elif older.until_ns is None and ends - newer.from_ns > (
                allowed_ns(setup) if setup else GRACE_NS
            ):
                found.broken(
                    key,
                    f"{_word(found, older)} to the end, and was not told that "
                    f"{_word(found, newer)}",
                    newer.from_ns,
                )
            else:
                zombies += 1
                unseen += not _was_removed(older, newer, members)
                longest = max(longest, overlap)
    if zombies:
        found.note(
            f"{zombies} overlaps with owners that had been removed and were not told yet, the "
            f"longest of {longest / 1e9:.3f} s; of {unseen} the older owner alone says so"
        )
    return found.verdict()


def _one_each(found: Findings, key: Key, owned: list[Ownership]) -> None:
    first: dict[int, Ownership] = {}
    for one in owned:
        known = first.setdefault(one.generation, one)
        shared = known.token == one.token != 0 and known.member_id != one.member_id
        if shared or known.owner != one.owner:
            found.broken(
                key,
                f"two owners in generation {one.generation}: {_word(found, known)}, "
                f"and {_word(found, one)}",
                one.from_ns,
            )


def _overlaps(owned: list[Ownership]) -> Iterator[tuple[Ownership, Ownership]]:
    """Pairs of different owners and generations or tokens that overlap, the older one first."""
    live: list[Ownership] = []
    for one in owned:
        live = [other for other in live if other.until_ns is None or other.until_ns > one.from_ns]
        for other in live:
            older, newer = sorted((other, one), key=_age)
            if older.member_id != newer.member_id and _age(older) < _age(newer):
                yield older, newer
        live.append(one)


def _age(one: Ownership) -> tuple[int, int]:
    return one.generation, one.token


class _Members(Removals):
    """The members of each generation, and those that were told that they are in none."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.stale = {(o.key, o.member_id, o.generation) for o in history.stale_joins}
        self._refused: dict[tuple[str, str], int] = {}
        for call in history.operations:
            if call.error in REMOVED and call.member_id and call.ended_ns is not None:
                self._refused.setdefault((call.key.group, call.member_id), call.ended_ns)
        self._processes: dict[tuple[str, str], list[Ownership]] = defaultdict(list)
        for owned in history.ownerships:
            if owned.instance_id:
                self._processes[owned.key.group, owned.instance_id].append(owned)
        self._members: dict[str, list[Members]] = defaultdict(list)
        for told in sorted(history.members, key=lambda told: told.asked_ns):
            self._members[told.group].append(told)
        self._of: dict[str, dict[int, frozenset[str]]] = defaultdict(dict)
        for one in history.generations:
            if one.whole:
                self._of[one.group].setdefault(one.generation, frozenset(one.members))
        self._numbers = {group: sorted(known) for group, known in self._of.items()}

    def refused_before(self, one: Ownership, at_ns: int) -> bool:
        """Whether a call of this member was refused before, because it was removed."""
        refused = self._refused.get((one.key.group, one.member_id))
        return refused is not None and refused <= at_ns

    def is_gone(self, one: Ownership, at_ns: int) -> bool:
        """Whether the coordinator of its modern group, asked next after this, names it no more."""
        told = self._members.get(one.key.group, [])
        for following, names in enumerate(told, 1):
            last_ns = told[following].former_ns if following < len(told) else None
            if last_ns is None or last_ns >= at_ns:
                return one.member_id not in names.members
        return False

    def replaced_before(self, one: Ownership, at_ns: int) -> bool:
        """Whether another process had its instance id by then, after it."""
        return any(
            other.member_id != one.member_id and _age(other) > _age(one) and other.from_ns <= at_ns
            for other in self._processes.get((one.key.group, one.instance_id), ())
        )

    def has(self, generation: int, one: Ownership) -> bool:
        """Whether it is known that this very member is in the generation.

        Of an instance that is not known: another process may have its place.
        """
        known = self._of.get(one.key.group, {}).get(generation, frozenset())
        return not one.instance_id and one.owner in known

    def left_out(self, group: str, owner: str, after: int, up_to: int) -> bool:
        """Whether a generation > `after` and <= `up_to` does not have `owner`."""
        numbers = self._numbers.get(group, [])
        known = self._of.get(group, {})
        between = numbers[bisect_right(numbers, after) : bisect_right(numbers, up_to)]
        return any(owner not in known[number] for number in between)


def _is_zombie(
    older: Ownership, newer: Ownership, members: _Members, setup: Expected | None
) -> bool:
    if _was_removed(older, newer, members):
        return True
    if older.ended in {"lost", "died"} and not members.has(newer.generation, older):
        return True
    if setup is None or older.until_ns is None or older.revoking_ns is None:
        return False
    return older.until_ns - older.revoking_ns > setup.rebalance_timeout_ms * MS_NS


def _was_removed(older: Ownership, newer: Ownership, members: _Members) -> bool:
    """Whether the group says so, or a node did."""
    between = older.generation, newer.generation
    begins_ns = max(older.from_ns, newer.from_ns)
    return (
        members.is_removed(older.key.group, older.member_id, begins_ns)
        or (older.key, older.member_id, newer.generation) in members.stale
        or members.left_out(newer.key.group, older.owner, *between)
        or members.is_gone(older, begins_ns)
        or members.refused_before(older, newer.from_ns)
        or members.replaced_before(older, newer.from_ns)
    )


def _until(one: Ownership, ends: int) -> int:
    return ends if one.until_ns is None else one.until_ns


def _word(found: Findings, one: Ownership) -> str:
    ended = f", {one.ended}" if one.ended else ""
    times = found.span(one.from_ns, one.until_ns)
    return f"{one.owner} of {one.client} owned it (generation {one.generation}, {times}{ended})"
