"""Checks the invariants that hold of every modern group at all times (gp-1.4)."""

from dataclasses import fields

from musterd.coordinator.machine.commands import NO_OWNER, RoundTimer
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.modern.group import Consumer, Held, ModernGroup, derive
from musterd.coordinator.machine.state import Group
from musterd.invariant import invariant


def check_modern(group: Group, modern: ModernGroup, where: str) -> None:
    """Check all of a group: one owner of each partition, tokens, targets, what is derived."""
    invariant(not group.members, where + "classic members in it")
    invariant(bool(modern.members), where + "has no members (I2)")
    invariant(modern.planned_epoch <= modern.target_epoch, where + "a plan of a later epoch (I6)")
    invariant(modern.target_epoch <= group.generation, where + "a target of a later epoch (I6)")
    held = _check_members(group, modern, where)
    invariant(held == modern.held, where + "who holds what is not its members' (I5)")
    for consumer in modern.members.values():
        invariant(consumer.size == len(consumer.grants()), where + "grants that are not counted")
    for names in modern.patterns.values():
        invariant(names == tuple(sorted(names)), where + "topics of a pattern out of order")
    for topic, owners in modern.target.items():
        invariant(bool(owners), where + "a topic without partitions in the target (I7)")
        invariant(
            all(owner == NO_OWNER or owner < modern.next_join_seq for owner in owners),
            where + "an owner that never joined (I7)",
        )
        invariant(modern.topics.get(topic) == len(owners), where + "another count (I7)")
    storing = bool(modern.storing) or not modern.replaced
    invariant(storing, where + "owners of before a plan that is in force (I7)")
    invariant(all(seq in modern.by_seq for seq in modern.behind), where + "somebody gone is behind")
    again = ModernGroup(
        members=dict(modern.members),
        target=modern.target,
        patterns=modern.patterns,
        replaced=modern.replaced,
    )
    derive(again)
    for one in fields(ModernGroup):
        if one.metadata.get("derived"):
            same = getattr(again, one.name) == getattr(modern, one.name)
            invariant(same, where + f"{one.name} does not follow from the rest")
    if not (modern.storing or modern.behind) and group.generation == modern.target_epoch:
        _check_carried_out(modern, where)


def _check_carried_out(modern: ModernGroup, where: str) -> None:
    """Where nobody is behind each has what the target gives it, or whoever has that releases it."""
    for topic, owners in modern.target.items():
        held = modern.held.get(topic, {})
        for partition, owner in enumerate(owners):
            consumer = modern.members.get(modern.by_seq.get(owner, ""))
            if consumer is None or consumer.is_away or consumer.revoking:
                continue
            if modern.reads(consumer, topic):
                invariant(partition in held, where + "a partition that nobody is to get")
    for consumer in modern.members.values():
        if consumer.revoking:
            continue  # it goes on when it has confirmed
        wanted = modern.wanted.get(consumer.join_seq, {})
        for topic, tokens in consumer.assigned.items():
            kept = tokens.keys() <= wanted.get(topic, {}).keys()
            invariant(kept, where + "a partition beyond the target that nobody is told to release")


def _check_members(group: Group, modern: ModernGroup, where: str) -> Held:
    """Each member by itself; returns who holds what."""
    held: Held = {}
    last_seq = -1
    for member_id, consumer in modern.members.items():
        invariant(consumer.member_id == member_id, where + "a member under another's id (I7)")
        invariant(consumer.join_seq > last_seq, where + "members not in join order (I7)")
        last_seq = consumer.join_seq
        invariant(consumer.epoch <= group.generation, where + "a member of a later epoch (I6)")
        invariant(
            (consumer.timer not in (None, RoundTimer.AWAY)) == bool(consumer.deadline_ms),
            where + "a deadline for nothing, or something without a deadline",
        )
        goes_on = bool(consumer.revoking) and consumer.join_seq in modern.behind
        invariant(
            goes_on or not (consumer.telling or consumer.has_stopped),
            where + "somebody is to be told of more, or was, and no entry goes on with it",
        )
        invariant(
            not (consumer.telling and consumer.has_stopped), where + "told after it has stopped"
        )
        invariant(
            not (consumer.is_away and consumer.revoking), where + "somebody away is to release"
        )
        _check_begun(consumer, where)
        invariant(consumer.renewed <= group.fence, where + "renewed by a token not taken yet (I9)")
        topics = consumer.said.topics
        invariant(topics == tuple(sorted(topics)), where + "topics out of order")
        for tokens in (consumer.assigned, consumer.revoking):
            for topic, partitions in tokens.items():
                invariant(bool(partitions), where + "an empty topic among the grants")
                for partition, token in partitions.items():
                    owners = held.setdefault(topic, {})
                    invariant(partition not in owners, where + "a partition with two owners (I5)")
                    owners[partition] = consumer.join_seq
                    invariant(0 < token <= group.fence, where + "a token not taken yet (I9)")
                    now = max(token, consumer.renewed)
                    began = bool(consumer.begun) and now >= consumer.begun[0][0]
                    invariant(began, where + "a grant that began at no epoch")
    invariant(last_seq < modern.next_join_seq, where + "join sequence behind its members (I7)")
    return held


def _check_begun(consumer: Consumer, where: str) -> None:
    """Tokens rise with epochs, up to the member's own."""
    few = len(consumer.begun) <= LIMITS.member_grant_epochs
    invariant(few, where + "too many epochs of grants")
    last_token = last_epoch = -1
    for token, epoch in consumer.begun:
        invariant(token > last_token and epoch > last_epoch, where + "epochs of grants fell")
        last_token, last_epoch = token, epoch
    invariant(last_epoch <= consumer.epoch, where + "a grant of a later epoch (I6)")
