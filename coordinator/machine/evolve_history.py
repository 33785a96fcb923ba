"""Adds an event to the history of its group's rounds. Only `evolve` calls these functions.

Called before the event changes anything else. A round that opened under rules 1 has no record,
and nothing is noted of it.
"""

from collections.abc import Iterator

from musterd.coordinator.machine.commands import RoundTimer
from musterd.coordinator.machine.events import (
    AssignmentPublished,
    GenerationFormed,
    GroupEmptied,
    MemberRemoved,
    PendingRemoved,
    RebalanceStarted,
    RemovalCause,
    Trigger,
)
from musterd.coordinator.machine.history import (
    HISTORY_ROUNDS,
    NAMES_MAX,
    Rebalance,
    RoundEnd,
    Who,
    put_rebalance,
    take_rebalance,
)
from musterd.coordinator.machine.state import Group, Phase


def last_round(group: Group) -> Rebalance | None:
    """The open round, or the one that was the last; None where it left no history."""
    kept = group.rebalances.get(group.round)
    return None if isinstance(kept, bytes) else kept


def rounds_of(group: Group) -> Iterator[tuple[int, Rebalance]]:
    """All rounds that are kept, with their numbers, the newest first."""
    for number, kept in reversed(group.rebalances.items()):
        yield number, take_rebalance(kept) if isinstance(kept, bytes) else kept


def is_missed(group: Group, event: MemberRemoved | PendingRemoved) -> bool:
    """True where the round ends without somebody it counted on: who does not join, or goes again.

    While it joins that is everybody who was there when it began, joined or not; later, who does
    not sync in time. An id that was handed out holds up every round but an initial one (gp-P8).
    """
    current = last_round(group)
    if current is None:
        return False
    if isinstance(event, PendingRemoved):
        return group.phase is Phase.PREPARING_REBALANCE and not group.from_empty
    if group.phase is Phase.PREPARING_REBALANCE:
        member = group.members.get(event.member_id)
        if member is None:
            return False
        return not group.has_joined(member) or member.join_seq < current.first_join_seq
    return event.cause is RemovalCause.NOT_SYNCED


def pushed_out(group: Group) -> list[int]:
    """The rounds that make room for one more."""
    return list(group.rebalances)[: max(0, len(group.rebalances) + 1 - HISTORY_ROUNDS)]


def note_removal(group: Group, event: MemberRemoved | PendingRemoved) -> None:
    """Only of whom the round counted on."""
    current = last_round(group)
    if current is not None and is_missed(group, event):
        current.miss(_who(group, event.member_id), event.cause, event.time_ms)


def note_start(group: Group, event: RebalanceStarted) -> None:
    """Another round: the one before is superseded, unless it had ended."""
    make_room(group, event.time_ms)
    if not event.wall_ms:
        return
    group.rebalances[event.round] = Rebalance(
        started_ms=event.time_ms,
        started_wall_ms=event.wall_ms,
        from_generation=event.from_generation,
        trigger=event.trigger,
        culprit=Who(event.member_id, event.client_id, event.group_instance_id),
        reason=event.reason,
        initial=event.timer is RoundTimer.INITIAL_DELAY,
        members_before=event.members_before,
        first_join_seq=group.next_join_seq - (event.trigger is Trigger.MEMBER_JOINED),
    )


def make_room(group: Group, time_ms: int) -> None:
    """The last round is over, and stored as it is; of those that are kept the oldest goes."""
    before = last_round(group)
    if before is not None:
        if before.ended is RoundEnd.OPEN:
            before.ended = RoundEnd.SUPERSEDED
            before.syncing_ms = time_ms - before.started_ms - (before.joining_ms or 0)
        group.rebalances[group.round] = put_rebalance(before)
    for number in pushed_out(group):
        del group.rebalances[number]


def note_generation(group: Group, event: GenerationFormed) -> None:
    """Everybody who will has joined: who came last, who is new, who is missing and stays.

    Ids that were handed out stay, too; a round that they hold up ends with its timer.
    """
    current = last_round(group)
    if current is None:
        return
    _close_joining(current, event)
    last = None
    for member in group.members.values():
        if group.has_joined(member) and (last is None or member.joined_ms >= last.joined_ms):
            last = member
    if last is not None:
        current.last_joined = _who(group, last.member_id)
        current.last_join_ms = last.joined_ms - current.started_ms
    current.members_after = len(group.members)
    current.leader = _who(group, event.leader_id)
    fresh = []
    for member in reversed(group.members.values()):
        if member.join_seq < current.first_join_seq:
            break
        fresh.append(member.member_id)
    current.new_members = len(fresh)
    current.new_ids = tuple(reversed(fresh[-NAMES_MAX:]))
    if group.tally.joined != len(group.members):
        for member in group.members.values():
            if not group.has_joined(member):
                current.miss(_who(group, member.member_id), None, event.time_ms)
    if not group.from_empty:
        for member_id in sorted(group.pending):
            current.miss(Who(member_id), None, event.time_ms)


def note_assignment(group: Group, event: AssignmentPublished) -> None:
    """The round is over: the group leader's assignment stands."""
    current = last_round(group)
    if current is not None:
        current.syncing_ms = event.time_ms - current.started_ms - (current.joining_ms or 0)
        current.ended = RoundEnd.STABLE


def note_emptied(group: Group, event: GroupEmptied) -> None:
    """The round is over: nobody is left."""
    current = last_round(group)
    if current is not None:
        _close_joining(current, event)
        current.ended = RoundEnd.EMPTIED


def _close_joining(current: Rebalance, event: GenerationFormed | GroupEmptied) -> None:
    current.generation = event.generation
    current.joining_ms = event.time_ms - current.started_ms


def _who(group: Group, member_id: str) -> Who:
    """Name a member. For one that is no member, or not any more, the id is all there is."""
    member = group.members.get(member_id)
    return Who(member_id, member.client_id, member.instance_id) if member else Who(member_id)
