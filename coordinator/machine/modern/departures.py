"""Decides how members of a modern group go: they leave, fall silent, or miss a deadline."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from musterd.coordinator.machine.commands import (
    CloseRound,
    ExpireMember,
    LeaveGroup,
    LeavingMember,
    RoundTimer,
)
from musterd.coordinator.machine.decide.decision import NOTHING, Decision, refuse
from musterd.coordinator.machine.decide.rebalance_rounds import Roster, rebalance
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import (
    ConsumerGroupEmptied,
    ConsumerRemoved,
    GroupDowngraded,
    GroupEvent,
    RebalanceStarted,
    RemovalCause,
    SpecChanged,
    Trigger,
)
from musterd.coordinator.machine.modern.conversion import downgraded, goes_back
from musterd.coordinator.machine.modern.group import Consumer, ModernGroup, said_bytes
from musterd.coordinator.machine.modern.reconciler import Reconciler
from musterd.coordinator.machine.replies import Done, LeaveResult, Left
from musterd.coordinator.machine.state import Group
from musterd.invariant import InvariantError

NOT_RELEASED = "did not release its partitions within the rebalance timeout"
NOT_BACK = "was not back in the time that it had named"
NOT_REJOINED = "was told to join and did not within the rebalance timeout"
NOT_SYNCED = "joined and did not sync within the rebalance timeout"

_IN_VAIN: Final = {
    RoundTimer.AWAY: (RemovalCause.NOT_BACK, NOT_BACK),
    RoundTimer.REVOCATION: (RemovalCause.NOT_RELEASED, NOT_RELEASED),
    RoundTimer.JOIN: (RemovalCause.NOT_REJOINED, NOT_REJOINED),
    RoundTimer.SYNC: (RemovalCause.NOT_SYNCED, NOT_SYNCED),
}
"""Why a member is removed whose deadline passed, by what it is of."""


def spec_changed(
    group: Group,
    modern: ModernGroup,
    env: Envelope,
    trigger: Trigger,
    member_id: str,
    reason: str,
    *,
    plans: bool = True,
) -> SpecChanged:
    """Return the event that what plans are made from is another, of this cause (gp-1.10).

    Where it `plans` the group epoch rises, by which a plan is due; else the next plan reads it.
    """
    epoch = group.generation
    if plans:
        epoch = max(epoch, env.generation_floor) + 1
    return SpecChanged(
        group_id=group.group_id,
        epoch=epoch,
        spec_version=modern.spec_version + 1,
        trigger=trigger,
        member_id=member_id,
        reason=reason[: env.limits.reason_max_chars],
        time_ms=env.time_ms,
        wall_ms=env.wall_ms,
    )


def refuse_weight(
    modern: ModernGroup, before: int, consumer: Consumer, env: Envelope
) -> Decision | None:
    """Refuse a pattern too many, and what members say beyond the group's limit of bytes.

    `consumer` is the member as it would be, and `before` the bytes that it has so far. A member
    that says no more than before is never refused for the bytes.
    """
    pattern, patterns = consumer.said.pattern, env.limits.group_max_patterns
    is_new = bool(pattern) and pattern not in modern.pattern_readers
    if is_new and len(modern.pattern_readers) >= patterns:
        return refuse(
            Error.GROUP_MAX_SIZE_REACHED,
            f"The members of a group have at most {patterns} different patterns.",
        )
    more = said_bytes(consumer) - before
    most = env.limits.group_metadata_max_bytes
    if more <= 0 or modern.said_bytes + more <= most:
        return None
    return refuse(
        Error.GROUP_MAX_SIZE_REACHED,
        f"The members' ids, topics and patterns together are at most {most} bytes.",
    )


def to_classic(
    group: Group,
    members: Sequence[Consumer],
    env: Envelope,
    trigger: Trigger,
    member_id: str,
    reason: str,
) -> tuple[GroupEvent, ...]:
    """Return what follows when only these classic members are left: a classic group, and a round.

    Raises InvariantError where the group is a classic one already.
    """
    modern = group.modern
    if modern is None:
        raise InvariantError("a classic group is downgraded")
    left = ModernGroup(
        members={one.member_id: one for one in members}, next_join_seq=modern.next_join_seq
    )
    used = max(one.generation for one in members)
    generation = max(group.generation, group.fence, env.generation_floor, used)
    others = [dict.fromkeys(p.name for p in one.protocols) for one in members]
    first = next(p.name for p in members[0].protocols if all(p.name in names for names in others))
    event = GroupDowngraded(group.group_id, generation, first)
    classic = downgraded(group, left, event)
    # Nobody missed a generation: the round comes from the oldest that a member is of.
    since = min(one.generation for one in members)
    opened = rebalance(classic, env, Roster(classic), trigger, member_id, reason)
    started, *rest = opened
    if not isinstance(started, RebalanceStarted):
        raise InvariantError("a group is downgraded and no round opens")
    started = replace(started, from_generation=since, members_before=len(modern.members))
    gone = modern.members.get(member_id)
    if gone is not None:  # the round knows those by name who are left
        client_id, instance_id = gone.said.client_id, gone.instance_id
        started = replace(started, client_id=client_id, group_instance_id=instance_id)
    return (event, started, *rest)


def remove(
    group: Group,
    modern: ModernGroup,
    env: Envelope,
    gone: Sequence[ConsumerRemoved],
    trigger: Trigger,
) -> tuple[GroupEvent, ...]:
    """Return what follows when these members are gone: a plan, and grants of what they had.

    What the target gives to others goes to them at once; the rest waits for the plan. The cause of
    the plan comes first, so that the history has a record in which the members are missed.
    """
    first = gone[0]
    names = dict.fromkeys(event.member_id for event in gone)
    left = [one for one in modern.members.values() if one.member_id not in names]
    if goes_back(group, left, env.limits):
        after = to_classic(group, left, env, trigger, first.member_id, first.reason)
        return (*gone, *after)
    changed = spec_changed(group, modern, env, trigger, first.member_id, first.reason)
    if len(gone) == len(modern.members):
        # Tokens were generations of its classic members: the next generation is above them.
        epoch = max(changed.epoch, group.fence)
        return (changed, *gone, ConsumerGroupEmptied(group.group_id, epoch, env.wall_ms))
    reconciler = Reconciler(group, modern, env)
    for event in gone:
        consumer = modern.members[event.member_id]
        reconciler.done[consumer.join_seq] = None
        for tokens in (consumer.assigned, consumer.revoking):
            for topic, partitions in tokens.items():
                reconciler.free(topic, partitions)
    reconciler.follow()
    return (changed, *gone, *reconciler.decided)


def removal(
    group: Group, consumer: Consumer, cause: RemovalCause, reason: str, env: Envelope
) -> ConsumerRemoved:
    """Return the event that removes a member; a long reason is cut (KIP-800)."""
    cut = reason[: env.limits.reason_max_chars]
    return ConsumerRemoved(group.group_id, consumer.member_id, cause, cut, env.time_ms)


def decide_departure(
    group: Group,
    modern: ModernGroup,
    command: LeaveGroup | ExpireMember | CloseRound,
    env: Envelope,
) -> Decision:
    """Decide what classic groups know, too: members leave, fall silent, or let a deadline pass."""
    match command:
        case LeaveGroup():
            return _decide_leave(group, modern, command, env)
        case ExpireMember():
            return _decide_expiry(group, modern, command, env)
        case CloseRound():
            return _decide_timer(group, modern, command, env)


def _decide_leave(
    group: Group, modern: ModernGroup, command: LeaveGroup, env: Envelope
) -> Decision:
    """Judge each entry by itself, after the earlier ones; the batch causes one plan (gp-L2)."""
    cause = RemovalCause.KICKED if command.kicked else RemovalCause.LEFT
    trigger = Trigger.MEMBER_KICKED if command.kicked else Trigger.MEMBER_LEFT
    gone: dict[str, ConsumerRemoved] = {}
    results: list[LeaveResult] = []
    for entry in command.members:
        error, consumer = _leaving(group, modern, entry)
        if consumer is not None and consumer.member_id in gone:
            error = Error.UNKNOWN_MEMBER_ID
        elif consumer is not None and error is Error.NONE:
            gone[consumer.member_id] = removal(group, consumer, cause, entry.reason, env)
        results.append(LeaveResult(entry.member_id, error, entry.group_instance_id))
    events = remove(group, modern, env, tuple(gone.values()), trigger) if gone else ()
    return Decision(events, Left(tuple(results)))


def _leaving(
    group: Group, modern: ModernGroup, entry: LeavingMember
) -> tuple[Error, Consumer | None]:
    member_id = entry.member_id
    if entry.group_instance_id:
        holder = group.instances.get(entry.group_instance_id)
        if holder is None:
            return Error.UNKNOWN_MEMBER_ID, None
        if member_id and member_id != holder:
            return Error.FENCED_INSTANCE_ID, None
        member_id = holder
    consumer = modern.members.get(member_id)
    return (Error.NONE if consumer else Error.UNKNOWN_MEMBER_ID), consumer


def _decide_expiry(
    group: Group, modern: ModernGroup, command: ExpireMember, env: Envelope
) -> Decision:
    """Remove the member if it has not joined again since and is not away (sc-H17)."""
    consumer = modern.members.get(command.member_id)
    if consumer is None or consumer.joins != command.joined_round or consumer.is_away:
        return NOTHING
    gone = removal(group, consumer, RemovalCause.SESSION_EXPIRED, command.reason, env)
    return Decision(remove(group, modern, env, (gone,), Trigger.SESSION_EXPIRY), Done())


def _decide_timer(
    group: Group, modern: ModernGroup, command: CloseRound, env: Envelope
) -> Decision:
    """Act if the firing names the armed deadline, and it is reached (sc-Y25)."""
    named = (command.deadline_ms, command.timer, command.round)
    if modern.timers.get(command.member_id) != named or env.time_ms < command.deadline_ms:
        return NOTHING
    consumer = modern.members[command.member_id]
    gone = removal(group, consumer, *_IN_VAIN[command.timer], env)
    return Decision(remove(group, modern, env, (gone,), Trigger.SESSION_EXPIRY), Done())
