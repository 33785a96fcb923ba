"""Adds an event of a modern group to its history of plans. Only `evolve_modern` calls these.

A plan is due from the first cause after the last one was stored; what else changes until its target
is in force has the same plan, and the same record. It ends when everybody holds what it gives them.
"""

from musterd.coordinator.machine.events import (
    ConsumerRemoved,
    SpecChanged,
    TargetStored,
    TopicsNoted,
    Trigger,
)
from musterd.coordinator.machine.evolve_history import last_round, make_room
from musterd.coordinator.machine.history import NAMES_MAX, Moves, Rebalance, RoundEnd, Who
from musterd.coordinator.machine.modern.group import Consumer, ModernGroup
from musterd.coordinator.machine.state import Group


def open_plan(group: Group) -> Rebalance | None:
    """The plan that is due, or whose target somebody does not hold yet; None: there is none."""
    last = last_round(group)
    if last is None or last.moves is None or last.ended is not RoundEnd.OPEN:
        return None
    return last


def note_cause(group: Group, modern: ModernGroup, event: SpecChanged) -> None:
    """Called before the epoch rises: another plan is due, or one that is has one more cause."""
    if event.epoch == group.generation:
        return
    current = open_plan(group)
    joins = event.trigger is Trigger.MEMBER_JOINED
    if current is None or current.generation:
        make_room(group, event.time_ms)
        group.round += 1
        current = group.rebalances[group.round] = Rebalance(
            started_ms=event.time_ms,
            started_wall_ms=event.wall_ms,
            from_generation=modern.target_epoch,
            trigger=event.trigger,
            culprit=_who(modern, event.member_id),
            reason=event.reason,
            initial=False,
            members_before=len(modern.members) - joins,
            first_join_seq=modern.next_join_seq - joins,
            moves=Moves(),
        )
    if joins:
        current.new_members += 1
        if len(current.new_ids) < NAMES_MAX:
            current.new_ids = (*current.new_ids, event.member_id)


def note_gone(group: Group, modern: ModernGroup, event: ConsumerRemoved) -> None:
    """Called before the member is removed: it is among those that the plan does without."""
    current = open_plan(group)
    if current is None or current.moves is None:
        return
    current.miss(_who(modern, event.member_id), event.cause, event.time_ms)
    consumer = modern.members.get(event.member_id)
    if consumer is not None:
        current.moves.note_gone(consumer.join_seq, name_of(consumer))


def note_topics(group: Group, modern: ModernGroup, event: TopicsNoted) -> None:
    """Called before the target is changed: partitions that are no more have not moved."""
    current = open_plan(group)
    if current is None or current.moves is None:
        return
    for topic, partitions, _ in event.counts:
        for partition, (former, why) in modern.in_force.get(topic, {}).items():
            owner = modern.target[topic][partition]
            if partition >= partitions and owner != former:
                current.moves.add(former, owner, why, -1)


def note_dropped(group: Group, modern: ModernGroup) -> None:
    """Called before the target is changed: what the last stored part moved has not moved."""
    current = open_plan(group)
    if current is None or current.moves is None or not modern.replaced:
        return
    for topic, partitions, owners, reasons in modern.replaced[-1]:
        for partition, former, why in zip(partitions, owners, reasons, strict=True):
            owner = modern.target[topic][partition]
            if owner != former:
                current.moves.add(former, owner, why, -1)


def note_target(group: Group, modern: ModernGroup, event: TargetStored) -> None:
    """Called before the target is changed: what this part moves, from whom to whom and why.

    What a part of another plan had given to somebody moves once, from its owner in the target that
    is in force, for the reason that it had first; or not at all, where that owner has it again.
    """
    current = open_plan(group)
    if current is None or current.moves is None:
        return
    for change in event.changes:
        owners, known = modern.target[change.topic], modern.in_force.get(change.topic, {})
        for partition, owner, why in zip(
            change.partitions, change.owners, change.reasons, strict=True
        ):
            before = owners[partition]
            former, first = known.get(partition, (before, why))
            if before != former:
                current.moves.add(former, before, first, -1)
            if owner != former and current.moves.add(former, owner, first):
                _name(modern, current.moves, former)
                _name(modern, current.moves, owner)
    if event.target_epoch:
        current.generation = event.target_epoch
        current.joining_ms = event.time_ms - current.started_ms
        current.members_after = len(modern.members)


def note_settled(group: Group, modern: ModernGroup, time_ms: int) -> None:
    """Called after an event: the plan is over once everybody holds what its target gives them."""
    current = open_plan(group)
    if current is None or not current.generation or group.generation > modern.target_epoch:
        return
    if modern.is_carried_out:
        current.ended = RoundEnd.STABLE
        current.syncing_ms = time_ms - current.started_ms - (current.joining_ms or 0)


def note_no_members(group: Group, epoch: int) -> None:
    """The plan is not needed any more: nobody is left."""
    current = open_plan(group)
    if current is not None:
        current.generation, current.ended = epoch, RoundEnd.EMPTIED


def name_of(consumer: Consumer) -> str:
    """What a member is called by in the history of plans."""
    return consumer.instance_id or consumer.member_id


def _name(modern: ModernGroup, moves: Moves, seq: int) -> None:
    """Remember what an owner is called; of many that are gone only the first are known by name."""
    member_id = modern.by_seq.get(seq)
    if member_id is not None:
        moves.names[seq] = name_of(modern.members[member_id])


def _who(modern: ModernGroup, member_id: str) -> Who:
    consumer = modern.members.get(member_id)
    if consumer is None:
        return Who(member_id)
    return Who(member_id, consumer.said.client_id, consumer.instance_id)
