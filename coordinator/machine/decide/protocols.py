"""Decides which protocols fit a group, and which of them is used (gp-3.1, gp-3.2)."""

from collections.abc import Sequence

from musterd.coordinator.machine.commands import Protocol
from musterd.coordinator.machine.state import Group, Member
from musterd.invariant import invariant


def supports(
    group: Group | None, protocol_type: str, protocols: Sequence[Protocol], like: Member | None
) -> bool:
    """May a member with these protocols be in the group (gp-3.2)?

    Without members any type with any list. Else the group's type, and at least one name that every
    present member lists; a rejoining member's own old list counts. `like` is that member: an
    unchanged list fits.
    """
    if group is None or not group.members:
        return bool(protocol_type) and bool(protocols)
    if protocol_type != group.protocol_type:
        return False
    if like is not None and like.protocols == tuple(protocols):
        return True
    support = group.tally.support
    return any(support.get(p.name) == len(group.members) for p in protocols)


def select(members: Sequence[Member], leader: Member) -> str:
    """The protocol of a new generation (gp-3.1).

    Candidates are the names that all list; everyone votes for the first candidate of its own list;
    most votes win; a tie goes to the name that the group leader lists first. The leader lists every
    candidate, so that decides it. The cost is linear in the names listed: what remains after a
    member is never more than that member lists.
    """
    invariant(bool(members), "a protocol is selected among members (sc-G07)")
    votes = dict.fromkeys((p.name for p in leader.protocols), 0)
    before: list[str] = []
    for member in members:
        names = [protocol.name for protocol in member.protocols]
        if names != before:  # mostly all list the same
            listed = dict.fromkeys(names)
            votes = {name: 0 for name in votes if name in listed}
            before = names
    invariant(bool(votes), "members without a protocol in common (I5)")
    for member in members:
        votes[next(p.name for p in member.protocols if p.name in votes)] += 1
    return max(votes, key=votes.__getitem__)
