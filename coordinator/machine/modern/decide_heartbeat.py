"""ConsumerGroupHeartbeat (gp-2.6): members of a modern group join, confirm, change, leave, go away.

Who a member is, is checked as in classic groups, by instance id first. An epoch that is older than
the member's is taken where the member says what it works on, and that is all its own: its answer
was lost, or the coordinator granted more meanwhile (C8; epochs rise here without a heartbeat).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from musterd.coordinator.machine.commands import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    UNCHANGED_MS,
    ConsumerGroupHeartbeat,
)
from musterd.coordinator.machine.decide.decision import (
    Decision,
    refuse,
    unavailable,
    unknown_member,
)
from musterd.coordinator.machine.decide.fencing import next_token
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import (
    ConsumerAway,
    ConsumerJoined,
    ConsumerRejoined,
    ConsumerUpdated,
    GroupEvent,
    GroupUpgraded,
    PendingRemoved,
    RemovalCause,
    Subscription,
    Trigger,
)
from musterd.coordinator.machine.modern.conversion import (
    hands_over,
    upgraded,
    why_never,
    why_not,
)
from musterd.coordinator.machine.modern.departures import (
    refuse_weight,
    removal,
    remove,
    spec_changed,
)
from musterd.coordinator.machine.modern.evolve_modern import consumer_from, regranted, rejoined
from musterd.coordinator.machine.modern.group import (
    NO_GRANTS,
    Consumer,
    ModernGroup,
    reads_others,
    said_bytes,
)
from musterd.coordinator.machine.modern.reconciler import Reconciler, by_topic, is_known
from musterd.coordinator.machine.plan.spec import UNIT
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.replies import Heard
from musterd.coordinator.machine.state import Group, Phase
from musterd.coordinator.machine.subscriptions import CONSUMER
from musterd.invariant import InvariantError

IS_MODERN: Final = "the coordinator assigns now"


def heard(consumer: Consumer) -> Heard:
    """Return how a member stands, from applied state."""
    return Heard(
        consumer.member_id,
        consumer.epoch,
        consumer.version,
        consumer.grants(),
        consumer.away_until_ms,
    )


def unchanged(group: Group | None, command: ConsumerGroupHeartbeat) -> Heard | None:
    """Return the answer to a heartbeat that changes nothing; None: the log decides, or refuses."""
    consumer = unchanged_member(group, command)
    return None if consumer is None else heard(consumer)


def unchanged_member(group: Group | None, command: ConsumerGroupHeartbeat) -> Consumer | None:
    """Return the member whose heartbeat changes nothing; its answer may name many partitions."""
    if group is None or group.modern is None or command.member_epoch <= JOIN_EPOCH:
        return None
    consumer = group.modern.members.get(command.member_id)
    if (
        consumer is None
        or consumer.is_classic
        or consumer.is_away
        or _refuse_member(group, consumer, command)
    ):
        return None
    if _confirms(consumer, command) or _said(consumer.said, command) != consumer.said:
        return None
    return consumer


def decide_consumer_heartbeat(
    group: Group | None, command: ConsumerGroupHeartbeat, env: Envelope
) -> Decision:
    """Decide by gp-2.6, C5 to C10; what no state could accept is refused before (requests.py)."""
    if group is not None and group.phase is Phase.DEAD:
        return unavailable()
    joins = command.member_epoch == JOIN_EPOCH
    if group is None or group.phase is Phase.EMPTY:
        if joins:
            return _join_first(group or Group(command.group_id), command, env)
        message = f"There is no modern group {quoted(command.group_id)}."
        return refuse(Error.GROUP_ID_NOT_FOUND, message)
    modern = group.modern
    if modern is None:
        return _upgrade(group, command, env)
    if joins:
        return _join_modern(group, modern, command, env)
    consumer = modern.members.get(command.member_id)
    stranger = _refuse_stranger(group, consumer, command)
    if stranger is not None or consumer is None or consumer.is_classic:
        return stranger or unknown_member(command.member_id)
    if command.member_epoch < JOIN_EPOCH and 0 < command.subscription_seq < consumer.said.seq:
        return _comes_late()
    if command.member_epoch == LEAVE_EPOCH:
        gone = removal(group, consumer, RemovalCause.LEFT, command.reason, env)
        events = remove(group, modern, env, (gone,), Trigger.MEMBER_LEFT)
        return Decision(events, Heard(consumer.member_id, LEAVE_EPOCH, 0, NO_GRANTS, left=True))
    if command.member_epoch == AWAY_EPOCH:
        return _away(group, modern, consumer, command, env)
    refused = _refuse_member(group, consumer, command)
    return refused or _go_on(group, modern, consumer, command, env)


# ---- joins


def _join_modern(
    group: Group, modern: ModernGroup, command: ConsumerGroupHeartbeat, env: Envelope
) -> Decision:
    """Take in a member that joins again, a static one's new process, or a new member (C6, C7, C9).

    The process of a static member is replaced where it is away or its connection is gone.
    """
    consumer = modern.members.get(command.member_id)
    if consumer is not None:
        if consumer.is_classic:
            return refuse(Error.INVALID_REQUEST, "The member id is that of a classic member.")
        if consumer.instance_id != command.group_instance_id:
            message = "A member's instance id stays what it was when it joined first."
            return refuse(Error.INVALID_REQUEST, message)
        if 0 < command.subscription_seq <= consumer.said.seq:
            return _repeat_join(consumer, command)
        return _join_again(group, modern, consumer, command, env)
    holder = modern.members.get(group.instances.get(command.group_instance_id, ""))
    if holder is None or not command.group_instance_id:
        return _join(group, modern, command, env)
    if command.member_id == holder.replaced_id:
        return refuse(
            Error.FENCED_INSTANCE_ID,
            f"Member {quoted(holder.member_id)} has taken the place of this one.",
        )
    if holder.is_away or command.holder_disconnected:
        return _join_again(group, modern, holder, command, env)
    return refuse(
        Error.UNRELEASED_INSTANCE_ID,
        f"Instance id {quoted(command.group_instance_id)} is held by member "
        f"{quoted(holder.member_id)} of {holder.said.client_host or 'an unknown host'}, which is "
        "connected: stop it, or wait until its session is over.",
    )


def _join_first(group: Group, command: ConsumerGroupHeartbeat, env: Envelope) -> Decision:
    """Take in the first member of a modern group; ids that were handed out and not used go."""
    decision = _join(group, ModernGroup(), command, env)
    if not (decision.events and group.pending):
        return decision
    return Decision((*_pending_removed(group, env), *decision.events), decision.reply)


def _upgrade(group: Group, command: ConsumerGroupHeartbeat, env: Envelope) -> Decision:
    """Take the first modern member into a classic group, which goes on as a modern one (gp-1.11).

    While a round is open nobody knows what the members work on, nor before the second one of a
    cooperative group, in which partitions move: the newcomer tries again after it.
    """
    if command.member_epoch != JOIN_EPOCH or group.protocol_type != CONSUMER:
        message = f"Group {quoted(command.group_id)} is a classic one, and no group of consumers."
        return refuse(Error.GROUP_ID_NOT_FOUND, message)
    is_open = group.phase is not Phase.STABLE
    reason = why_never(group) if is_open else why_not(group, env.limits)
    if reason:
        head = f"Group {quoted(command.group_id)} is a classic one, and "
        return refuse(Error.GROUP_ID_NOT_FOUND, head + reason + ": stop its members first.")
    if is_open or hands_over(group):
        message = "The group is a classic one, and a round of it is open: try again after it."
        return refuse(Error.REBALANCE_IN_PROGRESS, message)
    after = upgraded(group)
    if after.modern is None:
        raise InvariantError("a group is upgraded and is no modern one")
    decision = _join_modern(after, after.modern, command, env)
    if not decision.events:
        return decision
    dropped = _pending_removed(group, env)
    return Decision((*dropped, GroupUpgraded(group.group_id), *decision.events), decision.reply)


def _pending_removed(group: Group, env: Envelope) -> list[PendingRemoved]:
    """Return the end of the ids that were handed out and not used.

    No session would end them in a modern group, and no Join may use them.
    """
    return [
        PendingRemoved(group.group_id, member_id, RemovalCause.LEFT, IS_MODERN, env.noted_ms)
        for member_id in sorted(group.pending)
    ]


def _join(
    group: Group, modern: ModernGroup, command: ConsumerGroupHeartbeat, env: Envelope
) -> Decision:
    """Take in a new member, which holds nothing until a plan gives it something."""
    limits = env.limits
    if len(modern.members) >= limits.group_max_members:
        message = f"The group has its {limits.group_max_members} members."
        return refuse(Error.GROUP_MAX_SIZE_REACHED, message)
    said = _said(_NOTHING, command)
    changed = spec_changed(group, modern, env, Trigger.MEMBER_JOINED, command.member_id, "")
    joined = ConsumerJoined(
        command.group_id,
        command.member_id,
        command.group_instance_id,
        said,
        changed.epoch,
        env.time_ms,
        command.principal,
    )
    consumer = consumer_from(joined, modern.next_join_seq)
    refused = refuse_weight(modern, 0, consumer, env)
    return refused or Decision((joined, changed), heard(consumer))


def _repeat_join(consumer: Consumer, command: ConsumerGroupHeartbeat) -> Decision:
    """Answer a Join that was taken before: it says nothing of what the member works on since.

    Where the member has joined again, or gone away, since then, nobody waits for the answer.
    """
    if command.subscription_seq < consumer.said.seq or consumer.is_away:
        return _comes_late()
    return Decision((), heard(consumer))


def _join_again(
    group: Group,
    modern: ModernGroup,
    former: Consumer,
    command: ConsumerGroupHeartbeat,
    env: Envelope,
) -> Decision:
    """Take back a member that works on nothing: what is its own gets a new token (C9, C11).

    Its epoch rises with that, so that commits from before are told by their epoch, too (KIP-1251).
    Where no plan is due the target goes on under the new epoch.
    """
    said = _said(former.said, command)
    after = replace(former, said=said, member_id=command.member_id)
    refused = refuse_weight(modern, said_bytes(former), after, env)
    if refused is not None:
        return refused
    replaced_id = former.member_id if former.member_id != command.member_id else ""
    events: list[GroupEvent] = []
    epoch = max(group.generation, env.generation_floor) + 1
    plans = reads_others(former.said, said)
    trigger = Trigger.METADATA_CHANGED
    is_due = group.generation > modern.target_epoch
    misses_plan = former.is_away and former.away_epoch != modern.planned_epoch
    if not plans and (is_due or misses_plan):
        plans, trigger = True, Trigger.RETURNED
    if plans or former.is_away or _is_other_spec(former.said, said) or replaced_id:
        changed = spec_changed(group, modern, env, trigger, command.member_id, "", plans=plans)
        events.append(replace(changed, epoch=epoch))
    event = ConsumerRejoined(
        group.group_id,
        command.member_id,
        replaced_id,
        said,
        epoch,
        next_token(group, env),
        env.time_ms,
        command.principal,
        target_epoch=0 if plans else epoch,
    )
    after = rejoined(former, event)
    reconciler = Reconciler(group, modern, env, event.token)
    for topic, partitions in former.revoking.items():
        reconciler.free(topic, partitions)
    reconciler.takes = after.size  # it is to hear of nothing that it would have to release
    reconciler.reconcile(after, {}, confirmed=False)
    return _with_grants(after, (event, *events), reconciler)


# ---- members


def _go_on(
    group: Group,
    modern: ModernGroup,
    consumer: Consumer,
    command: ConsumerGroupHeartbeat,
    env: Envelope,
) -> Decision:
    """Take in what a member says of itself, and then decide its grants (gp-2.6 C10)."""
    if consumer.is_away:
        return unknown_epoch(consumer)
    said = _said(consumer.said, command)
    refused = refuse_weight(modern, said_bytes(consumer), replace(consumer, said=said), env)
    if refused is not None:
        return refused
    events: list[GroupEvent] = []
    if said != consumer.said:
        events.append(ConsumerUpdated(group.group_id, consumer.member_id, said))
    plans = reads_others(consumer.said, said)
    if plans or _is_other_spec(consumer.said, said):
        trigger = Trigger.METADATA_CHANGED
        events.append(
            spec_changed(group, modern, env, trigger, consumer.member_id, "", plans=plans)
        )
    knows = command.owned is not None and command.member_epoch == consumer.epoch
    owned = by_topic(command.owned or ()) if knows else None
    after = replace(consumer, said=said)
    reconciler = Reconciler(group, modern, env)
    confirmed, known_token = _confirms(consumer, command), command.known_token
    reconciler.reconcile(after, owned, confirmed=confirmed, known_token=known_token)
    return _with_grants(after, events, reconciler)


def _away(
    group: Group,
    modern: ModernGroup,
    consumer: Consumer,
    command: ConsumerGroupHeartbeat,
    env: Envelope,
) -> Decision:
    """Leave a member what it has for as long as it says, within the group's limit; plan nothing."""
    back_in_ms = min(command.back_in_ms, env.limits.away_max_ms)
    until_ms = env.time_ms + back_in_ms
    reason = command.reason[: env.limits.reason_max_chars]
    away = ConsumerAway(group.group_id, consumer.member_id, until_ms, reason)
    reconciler = Reconciler(group, modern, env)
    reconciler.done[consumer.join_seq] = None
    for topic, partitions in consumer.revoking.items():
        reconciler.free(topic, partitions)
    reconciler.go_on_with(consumer)  # what it has beyond the target is free at once
    reconciler.follow()
    trigger = Trigger.METADATA_CHANGED
    changed = spec_changed(
        group, modern, env, trigger, consumer.member_id, away.reason, plans=False
    )
    answer = Heard(consumer.member_id, AWAY_EPOCH, consumer.version + 1, NO_GRANTS, until_ms)
    return Decision((away, *reconciler.decided, changed), answer)


def _with_grants(
    consumer: Consumer, events: Sequence[GroupEvent], reconciler: Reconciler
) -> Decision:
    """Return the events so far with the reconciler's, and the member's answer after all of them.

    Who is behind comes first, as the plan goes on for them.
    """
    reconciler.follow()
    for event in reconciler.events:
        if event.member_id == consumer.member_id:
            consumer = regranted(consumer, event)
    return Decision((*reconciler.late, *events, *reconciler.events), heard(consumer))


# ---- refusals


def _comes_late() -> Decision:
    """Refuse what was sent before the member joined last: it is not what the member wants now."""
    return refuse(
        Error.FENCED_MEMBER_EPOCH,
        "The member has said something later: join with epoch 0 and a larger subscription_seq.",
    )


def unknown_epoch(consumer: Consumer) -> Decision:
    """Refuse a member that is at another epoch: it gives up what it has, and joins again."""
    return refuse(
        Error.FENCED_MEMBER_EPOCH,
        f"The member epoch is {consumer.epoch}: give up all partitions, and join with epoch 0.",
    )


def _refuse_stranger(
    group: Group, consumer: Consumer | None, command: ConsumerGroupHeartbeat
) -> Decision | None:
    """Refuse a caller that is no member (C7).

    Its instance id is asked first, so that an old process is told that it was fenced (gp-2.0.4).
    """
    instance_id = command.group_instance_id
    if instance_id:
        holder = group.instances.get(instance_id)
        if holder is None:
            return unknown_member(command.member_id)
        if holder != command.member_id:
            return refuse(
                Error.FENCED_INSTANCE_ID,
                f"Instance id {quoted(instance_id)} is held by member {quoted(holder)} now.",
            )
    return unknown_member(command.member_id) if consumer is None else None


def _refuse_member(
    group: Group, consumer: Consumer, command: ConsumerGroupHeartbeat
) -> Decision | None:
    """Refuse a caller that is no member, or that is at another epoch (C7, C8)."""
    stranger = _refuse_stranger(group, consumer, command)
    if stranger is not None:
        return stranger
    epoch = command.member_epoch
    if epoch == consumer.epoch:
        return None
    if epoch > consumer.epoch or epoch < consumer.joined_epoch or command.owned is None:
        return unknown_epoch(consumer)
    return None if consumer.has_all(command.owned) else unknown_epoch(consumer)


# ---- what a heartbeat says


_NOTHING: Final = Subscription("", "", 0, 0, ())


def _said(before: Subscription, command: ConsumerGroupHeartbeat) -> Subscription:
    """Return what counts of the member from now on: what it does not say is as before.

    What has a smaller number than what counts was sent before that, and comes late.
    """
    joins = command.member_epoch == JOIN_EPOCH
    if not joins and 0 < command.subscription_seq < before.seq:
        return before
    timeout_ms, capacity = command.rebalance_timeout_ms, command.capacity
    return Subscription(
        client_id=command.client_id if joins else before.client_id,
        client_host=command.client_host if joins else before.client_host,
        session_timeout_ms=command.session_timeout_ms if joins else before.session_timeout_ms,
        rebalance_timeout_ms=before.rebalance_timeout_ms
        if timeout_ms == UNCHANGED_MS
        else timeout_ms,
        topics=_topics(before.topics, command.topics),
        pattern=before.pattern if command.pattern is None else command.pattern,
        assignor=before.assignor if command.assignor is None else command.assignor,
        zone=before.zone if command.zone is None else command.zone,
        capacity=(before.capacity or UNIT) if capacity == UNCHANGED_MS else capacity,
        seq=command.subscription_seq if joins else command.subscription_seq or before.seq,
    )


def _topics(before: tuple[str, ...], topics: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the topics that the member names, in order of names, each once."""
    return before if topics is None else tuple(sorted(dict.fromkeys(topics)))


def _is_other_spec(before: Subscription, said: Subscription) -> bool:
    """True where plans would be made from something else, though none is due for that alone."""
    return (before.zone, before.capacity, before.assignor) != (
        said.zone,
        said.capacity,
        said.assignor,
    )


def _confirms(consumer: Consumer, command: ConsumerGroupHeartbeat) -> bool:
    """True where it has partitions to release, and works on none of them any more.

    Whoever was told to release them knows its epoch, which stays until then: what says an older one
    was sent before, and comes late. Several grants may come under one epoch, so what knows of fewer
    than are to be released was sent before, too.
    """
    if command.owned is None or not consumer.revoking or command.member_epoch != consumer.epoch:
        return False
    for topic, partitions in command.owned:
        tokens = consumer.revoking.get(topic)
        if tokens and any(partition in tokens for partition in partitions):
            return False
    return is_known(consumer.revoking, command.known_token)
