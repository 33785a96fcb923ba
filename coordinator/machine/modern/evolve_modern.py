"""Applies the events of a modern group. Only `evolve` calls this."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import assert_never

from musterd.coordinator.machine.events import (
    ConsumerAway,
    ConsumerGroupEmptied,
    ConsumerJoined,
    ConsumerRejoined,
    ConsumerRemoved,
    ConsumerUpdated,
    GrantsChanged,
    GroupDowngraded,
    GroupUpgraded,
    MembersBehind,
    MemberSynced,
    ModernEvent,
    PartDropped,
    SpecChanged,
    TargetStored,
    TopicsNoted,
)
from musterd.coordinator.machine.modern.conversion import downgraded, upgraded
from musterd.coordinator.machine.modern.group import (
    Consumer,
    ModernGroup,
    Tokens,
    begin_grants,
    count_in,
    count_out,
    forget_part,
    hold,
    let_go,
    note_timer,
    remember_owners,
    resize,
    retarget,
)
from musterd.coordinator.machine.modern.history_of_plans import (
    note_cause,
    note_dropped,
    note_gone,
    note_no_members,
    note_settled,
    note_target,
    note_topics,
)
from musterd.coordinator.machine.state import Group, Phase, modern_of
from musterd.invariant import InvariantError, invariant


def evolve_modern(  # noqa: PLR0912 - one arm per event
    group: Group, event: ModernEvent
) -> None:
    """Apply one event of a modern group."""
    if isinstance(event, ConsumerJoined):
        _joined(group, event)
        return
    modern = group.modern
    if modern is None:
        raise InvariantError(f"{type(event).__name__} in a group that is not modern")
    match event:
        case ConsumerUpdated():
            consumer = modern.members[event.member_id]
            count_out(modern, consumer)
            consumer.said = event.said
            count_in(modern, consumer)
        case ConsumerRejoined():
            _rejoined(group, modern, event)
        case ConsumerAway():
            _away(modern, event)
        case ConsumerRemoved():
            note_gone(group, modern, event)
            _removed(group, modern, event)
        case SpecChanged():
            note_cause(group, modern, event)
            _spec_changed(group, modern, event)
        case TopicsNoted():
            note_topics(group, modern, event)
            _topics_noted(group, modern, event)
        case TargetStored():
            note_target(group, modern, event)
            _target_stored(group, modern, event)
        case PartDropped():
            note_dropped(group, modern)
            _part_dropped(modern)
        case GrantsChanged():
            _grants_changed(group, modern, event)
        case MembersBehind():
            gone = [seq for seq in event.join_seqs if seq not in modern.by_seq]
            invariant(not gone, "somebody gone is behind")
            modern.behind.update(dict.fromkeys(event.join_seqs))
        case ConsumerGroupEmptied():
            note_no_members(group, event.epoch)
            _emptied(group, modern, event)
        case _:
            assert_never(event)
    if isinstance(event, ConsumerRejoined | SpecChanged | TargetStored | GrantsChanged):
        note_settled(group, modern, event.time_ms)


def convert(group: Group, event: GroupUpgraded | GroupDowngraded) -> None:
    """Apply one event that makes a classic group a modern one, or the other way round."""
    if isinstance(event, GroupUpgraded):
        invariant(group.phase is Phase.STABLE, "a group without an assignment is upgraded")
        other = upgraded(group)
    else:
        modern = modern_of(group)
        if modern is None or not all(one.is_classic for one in modern.members.values()):
            raise InvariantError("a group with modern members is downgraded")
        invariant(event.generation >= max(group.generation, group.fence), "it fell (I6)")
        other = downgraded(group, modern, event)
    for one in fields(Group):
        setattr(group, one.name, getattr(other, one.name))


def _joined(group: Group, event: ConsumerJoined) -> None:
    if group.modern is None:
        invariant(group.phase is Phase.EMPTY, "a classic group with members (gp-1.11)")
        group.modern = ModernGroup()
        group.phase, group.protocol_type = Phase.MODERN, "consumer"
        group.emptied_wall_ms = 0
    modern = group.modern
    invariant(event.member_id not in modern.members, "a member joined twice")
    if event.group_instance_id:
        held = event.group_instance_id in group.instances
        invariant(not held, "an instance id held twice (sc-G24)")
        group.instances[event.group_instance_id] = event.member_id
    if event.token:
        take_token(group, event.token)
    consumer = consumer_from(event, modern.next_join_seq)
    modern.next_join_seq += 1
    modern.members[event.member_id] = consumer
    count_in(modern, consumer)


def consumer_from(event: ConsumerJoined, join_seq: int) -> Consumer:
    """Return the member that the event adds, at this place in join order."""
    return Consumer(
        member_id=event.member_id,
        instance_id=event.group_instance_id,
        said=event.said,
        join_seq=join_seq,
        epoch=event.member_epoch,
        joined_epoch=event.member_epoch,
        joined_ms=event.time_ms,
        principal=event.principal,
        timer_seq=1 if event.protocols else 0,
        deadline_ms=event.time_ms + event.said.rebalance_timeout_ms if event.protocols else 0,
        protocols=event.protocols,
        generation=event.token,
        given=1,
    )


def rejoined(former: Consumer, event: ConsumerRejoined) -> Consumer:
    """Return the member that comes back in the former's place, with its grants under a new token.

    It is a new value: the former stays as it is. A deadline to release stands where something of
    that is left; else a classic member has one to sync.
    """
    keeps = {one.topic: dict.fromkeys(one.partitions, event.token) for one in event.keeps}
    version = former.version + 1
    syncs_by_ms = event.time_ms + event.said.rebalance_timeout_ms if event.protocols else 0
    return Consumer(
        member_id=event.member_id,
        instance_id=former.instance_id,
        said=event.said,
        join_seq=former.join_seq,
        epoch=event.member_epoch,
        joined_epoch=event.member_epoch,
        joined_ms=event.time_ms,
        principal=event.principal,
        joins=former.joins + 1,
        version=version,
        timer_seq=former.timer_seq if keeps else former.timer_seq + 1,
        deadline_ms=former.deadline_ms if keeps else syncs_by_ms,
        protocols=event.protocols,
        generation=event.token if event.protocols else 0,
        former_generation=0 if event.replaced_id or not event.protocols else former.generation,
        given=version,
        replaced_id=event.replaced_id or former.replaced_id,
        assigned=former.assigned,
        revoking=keeps,
        begun=((event.token, event.member_epoch),),
        renewed=event.token,
    )


def regranted(consumer: Consumer, event: GrantsChanged) -> Consumer:
    """Return the member with the grants that the event leaves it, as a new value."""
    assigned, revoking = dict(consumer.assigned), dict(consumer.revoking)
    has_stopped = consumer.has_stopped
    for topic, partitions in event.released:
        told = consumer.revoking.get(topic, {})
        if _drop(revoking, topic, [one for one in partitions if one in told]):
            has_stopped = True
        _drop(assigned, topic, [one for one in partitions if one not in told])
    has_stopped = has_stopped and bool(revoking)
    for topic, partitions in event.revoking:
        revoking[topic] = {**revoking.get(topic, {}), **_drop(assigned, topic, partitions)}
    for topic, partitions in event.granted:
        assigned[topic] = {**assigned.get(topic, {}), **dict.fromkeys(partitions, event.token)}
    after = replace(consumer, assigned=assigned, revoking=revoking)
    if event.released or event.revoking or event.granted:
        after.version += 1
    after.epoch = event.member_epoch
    if event.deadline_ms:
        after.timer_seq += 1
        after.deadline_ms = event.deadline_ms
    elif has_stopped or not (revoking or consumer.is_classic):
        after.deadline_ms = 0
    after.has_stopped = has_stopped
    after.telling = event.behind and bool(
        event.revoking or (consumer.telling and revoking and not has_stopped)
    )
    if event.granted:
        begin_grants(after, event.token)
    return after


def _rejoined(group: Group, modern: ModernGroup, event: ConsumerRejoined) -> None:
    former_id = event.replaced_id or event.member_id
    invariant(former_id in modern.members, "a stranger came back")
    former = modern.members[former_id]
    consumer = rejoined(former, event)
    take_token(group, event.token)
    if event.target_epoch:
        invariant(group.generation == modern.target_epoch, "a plan is due, and not made (I6)")
        invariant(event.target_epoch > group.generation, "the group epoch fell (I6)")
        group.generation = modern.target_epoch = event.target_epoch
    count_out(modern, former)
    if event.replaced_id:
        invariant(event.member_id not in modern.members, "replaced by a member")
        group.instances[consumer.instance_id] = event.member_id
    members = [consumer if one is former else one for one in modern.members.values()]
    modern.members = {member.member_id: member for member in members}
    count_in(modern, consumer)
    for topic, partitions in former.revoking.items():
        kept = consumer.revoking.get(topic, {})
        let_go(modern, topic, [one for one in partitions if one not in kept])


def synced(modern: ModernGroup, event: MemberSynced) -> None:
    """Note that a classic member heard what its last Join gave it: it has no deadline for that."""
    invariant(event.member_id in modern.members, "a stranger synced")
    consumer = modern.members[event.member_id]
    invariant(event.generation == consumer.generation, "synced in another generation")
    invariant(consumer.synced != consumer.given == consumer.version, "synced twice, or too late")
    consumer.synced = consumer.given
    if not consumer.revoking:
        consumer.deadline_ms = 0
    note_timer(modern, consumer)


def _away(modern: ModernGroup, event: ConsumerAway) -> None:
    """Note until when the member is away; what it was to release is free, as it has stopped."""
    consumer = modern.members[event.member_id]
    for topic, partitions in consumer.revoking.items():
        let_go(modern, topic, partitions)
    consumer.revoking = {}
    consumer.recount()
    consumer.deadline_ms = 0
    consumer.telling = consumer.has_stopped = False
    consumer.timer_seq += 1
    if not consumer.is_away:  # who says so once more missed plans since it went
        consumer.away_epoch = modern.planned_epoch
    consumer.away_until_ms = event.until_ms
    consumer.version += 1
    note_timer(modern, consumer)


def _removed(group: Group, modern: ModernGroup, event: ConsumerRemoved) -> None:
    invariant(event.member_id in modern.members, "a stranger was removed")
    consumer = modern.members.pop(event.member_id)
    count_out(modern, consumer)
    for tokens in (consumer.assigned, consumer.revoking):
        for topic, partitions in tokens.items():
            let_go(modern, topic, partitions)
    modern.behind.pop(consumer.join_seq, None)
    if consumer.instance_id:
        del group.instances[consumer.instance_id]


def _spec_changed(group: Group, modern: ModernGroup, event: SpecChanged) -> None:
    invariant(event.spec_version == modern.spec_version + 1, "a spec version was left out")
    invariant(event.epoch >= group.generation, "the group epoch fell (I6)")
    modern.spec_version = event.spec_version
    group.generation = event.epoch


def _topics_noted(group: Group, modern: ModernGroup, event: TopicsNoted) -> None:
    for pattern, added, removed in event.patterns:
        gone = frozenset(removed)
        names = [name for name in modern.patterns.get(pattern, ()) if name not in gone]
        modern.patterns[pattern] = tuple(sorted(dict.fromkeys((*names, *added))))
        for seq in _reads_again(modern, pattern, added):
            modern.behind[seq] = None
    for pattern in sorted(modern.patterns):
        if pattern not in modern.pattern_readers:
            del modern.patterns[pattern]
    for topic, partitions, zones in event.counts:
        for seq in resize(modern, topic, partitions, zones):
            if seq in modern.by_seq:
                modern.behind[seq] = None
    modern.topics_version = event.topics_version
    group.topics_version = max(group.topics_version, event.topics_version)


def _reads_again(modern: ModernGroup, pattern: str, added: tuple[str, ...]) -> Iterator[int]:
    """Yield who has this pattern and a share of these topics in the target already.

    It may have given that up while it read none of them, and the next plan need not change it.
    """
    assigned = frozenset(topic for topic in added if topic in modern.target)
    if not assigned:
        return
    for consumer in modern.members.values():
        wanted = modern.wanted.get(consumer.join_seq, {})
        if consumer.said.pattern == pattern and not assigned.isdisjoint(wanted):
            yield consumer.join_seq


def _target_stored(group: Group, modern: ModernGroup, event: TargetStored) -> None:
    invariant(event.spec_version == modern.spec_version, "a target of another spec (I7)")
    invariant(
        event.part == 0
        or (event.spec_version == modern.storing and event.part == modern.next_part),
        "a part of a target was left out (I7)",
    )
    modern.storing, modern.next_part = event.spec_version, event.part + 1
    if not event.target_epoch:
        remember_owners(modern, event.changes)
    for change in event.changes:
        for seq in retarget(modern, change):
            if seq in modern.by_seq:
                modern.behind[seq] = None
    if event.target_epoch:
        invariant(event.target_epoch == group.generation, "a target of another epoch (I6)")
        modern.storing = modern.next_part = 0
        modern.replaced, modern.in_force = [], {}
        modern.target_epoch = modern.planned_epoch = event.target_epoch


def _part_dropped(modern: ModernGroup) -> None:
    """Give what the last stored part changed back to its owners in the target in force.

    Nothing was granted or revoked by it. No other part of its plan is taken any more.
    """
    invariant(bool(modern.storing), "a part of no plan is dropped (I7)")
    part = modern.replaced.pop() if modern.replaced else ()
    for change in part:
        for seq in retarget(modern, change):
            if seq in modern.by_seq:
                modern.behind[seq] = None
    forget_part(modern, part)
    modern.next_part = 0
    if not modern.replaced:
        modern.storing = 0


def _grants_changed(group: Group, modern: ModernGroup, event: GrantsChanged) -> None:
    invariant(event.member_id in modern.members, "grants of a stranger")
    consumer = regranted(modern.members[event.member_id], event)
    modern.members[event.member_id] = consumer
    for topic, partitions in event.released:
        let_go(modern, topic, partitions)
    if event.granted:
        take_token(group, event.token)
    for topic, partitions in event.granted:
        held = modern.held.get(topic, {})
        invariant(not any(p in held for p in partitions), "a partition with two owners (I5)")
        hold(modern, consumer.join_seq, topic, partitions)
    note_timer(modern, consumer)
    if event.behind:
        modern.behind[consumer.join_seq] = None
    else:
        modern.behind.pop(consumer.join_seq, None)


def _emptied(group: Group, modern: ModernGroup, event: ConsumerGroupEmptied) -> None:
    invariant(not modern.members, "emptied with members (I2)")
    invariant(event.epoch >= group.generation, "the group epoch fell (I6)")
    group.phase, group.modern = Phase.EMPTY, None
    group.generation = event.epoch
    group.topics_version = 0
    group.emptied_wall_ms = event.wall_ms


def take_token(group: Group, token: int) -> None:
    """Take a token for new grants, which has to be larger than every one before (I9)."""
    invariant(token > group.fence, "a fencing token is taken once (I9)")
    group.fence = token


def _drop(tokens: Tokens, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    """Take partitions of a topic out, whose map is replaced, and return their tokens."""
    if not partitions:
        return {}
    had = tokens.get(topic, {})
    if len(had) == len(partitions) and all(map(had.__contains__, partitions)):
        return tokens.pop(topic)
    left = dict(had)
    gone = {partition: left.pop(partition, 0) for partition in partitions}
    invariant(all(gone.values()), "a grant that is not there changed")
    if left:
        tokens[topic] = left
    else:
        del tokens[topic]
    return gone
