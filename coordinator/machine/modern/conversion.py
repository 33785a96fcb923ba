"""What a classic group becomes as a modern one, and the other way round (gp-1.11).

Nobody's work moves by that. Upgraded, each member has what it was assigned, under the token that
it knows; downgraded, each has what it was granted, and goes on under its own generation until the
round that opens is over.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from musterd.coordinator.machine.commands import NO_OWNER
from musterd.coordinator.machine.events import GroupDowngraded, Subscription
from musterd.coordinator.machine.limits import Limits
from musterd.coordinator.machine.modern.consumer_protocol import (
    Budget,
    UnreadableError,
    is_awaited,
    read_assignment,
    read_zone,
    write_assignment,
)
from musterd.coordinator.machine.modern.group import Consumer, ModernGroup, Tokens, derive
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.state import Group, Member, Phase, Tally, recount

CONVERTIBLE: Final = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""Assignors in whose place the coordinator may assign. What others mean by it nobody else knows."""

READ_MAX: Final = 200_000
"""Fields and partitions that are read of what all members of a group say, before it is converted;
a topic that is assigned has three fields. The shortest fields take 0.1 to 0.4 s."""

MIGRATION_POLICY: Final = "consumer.migration.policy"
POLICIES: Final = ("disabled", "upgrade", "downgrade", "bidirectional")
"""What the setting may be; the number that is stored has a bit for each way."""
_UPGRADE: Final = 1
_DOWNGRADE: Final = 2
_BOTH: Final = _UPGRADE | _DOWNGRADE


def _allows(group: Group, way: int) -> bool:
    return bool(group.config.get(MIGRATION_POLICY, _BOTH) & way)


def goes_back(group: Group, left: Sequence[Consumer], limits: Limits) -> bool:
    """True where a modern group of which these members are left becomes a classic one (gp-1.11).

    All of them are classic, and its policy allows it. Nor are they more than a classic group takes
    in: a round would cost those beyond it their seats.
    """
    only_classic = bool(left) and all(one.is_classic for one in left)
    return only_classic and _allows(group, _DOWNGRADE) and len(left) <= limits.group_max_members


def why_never(group: Group) -> str:
    """Return what forbids that a classic group becomes a modern one, whatever its members say."""
    if not _allows(group, _UPGRADE):
        policy = POLICIES[group.config[MIGRATION_POLICY]]
        return f"its setting {MIGRATION_POLICY} is {policy}"
    name = group.protocol_name
    if name and name not in CONVERTIBLE:
        return f"its members use the assignor {quoted(name)}, which is their own"
    return ""


def why_not(group: Group, limits: Limits) -> str:
    """Return why a classic group with an assignment cannot become a modern one; "" = it can.

    All that its members say is read for that, where nothing forbids it (`why_never`).
    """
    never = why_never(group)
    if never:
        return never
    held: dict[tuple[str, int], None] = {}
    read: dict[bytes, None] = {}
    budget = Budget(READ_MAX)
    for member in group.members.values():
        try:
            for protocol in member.protocols:
                if protocol.metadata not in read:  # most say the same under each name
                    read_zone(protocol.metadata, budget)
                    read[protocol.metadata] = None
            assigned = read_assignment(member.assignment, budget)
        except UnreadableError:
            if budget.left < 0:
                return "its members say more than the 200,000 fields that are read at once"
            return f"what member {quoted(member.member_id)} says cannot be read"
        if assigned and not member.subscribed_topics:
            return f"member {quoted(member.member_id)} does not say what it reads"
        if any(one in held for one in assigned):
            return "a partition was assigned to two members"
        held.update(assigned)
    last: dict[str, int] = {}
    for topic, partition in held:
        last[topic] = max(last.get(topic, 0), partition + 1)
    if sum(last.values()) > limits.modern_max_partitions:
        return f"its members read more than {limits.modern_max_partitions} partitions"
    return ""


def hands_over(group: Group) -> bool:
    """True where a cooperative member may still work on partitions that it was assigned no more.

    It gives them up and joins once more, and the round of that gives them to others. Nothing of its
    members may be unreadable (`why_not`).
    """
    return any(is_awaited(member.assignment) for member in group.members.values())


def upgraded(group: Group) -> Group:
    """Return the group as a modern one; what it shares with the former is not written to."""
    modern = ModernGroup(
        target_epoch=group.generation,
        planned_epoch=group.generation,
        next_join_seq=group.next_join_seq,
        topics_version=group.topics_version,  # what was assigned is of the topics as of then
    )
    for member in group.members.values():
        consumer = _consumer(group, member)
        modern.members[member.member_id] = consumer
        for topic, tokens in consumer.assigned.items():
            owners = modern.target.setdefault(topic, [])
            owners += [NO_OWNER] * (max(tokens) + 1 - len(owners))
            for partition in tokens:
                owners[partition] = member.join_seq
    derive(modern)
    return replace(
        group,
        phase=Phase.MODERN,
        protocol_name="",
        leader_id="",
        members={},
        timer=None,
        deadline_ms=0,
        remaining_ms=0,
        new_member_added=False,
        fence=max(group.fence, group.generation),
        modern=modern,
        tally=Tally(),
    )


def _consumer(group: Group, member: Member) -> Consumer:
    assigned: Tokens = {}
    token = group.token_of(member)
    for topic, partition in read_assignment(member.assignment):
        assigned.setdefault(topic, {})[partition] = token
    has_synced = group.has_synced(member)
    said = Subscription(
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topics=tuple(sorted(dict.fromkeys(member.subscribed_topics))),
        zone=read_zone(member.metadata_of(group.protocol_name)),
    )
    return Consumer(
        member_id=member.member_id,
        instance_id=member.instance_id,
        said=said,
        join_seq=member.join_seq,
        epoch=group.generation,
        joined_epoch=group.generation,
        joined_ms=member.joined_ms,
        principal=member.principal,
        replaced_id=member.replaced_id,
        protocols=member.protocols,
        generation=group.generation,
        given=1,
        synced=1 if has_synced else 0,
        deadline_ms=0 if has_synced else group.deadline_ms,
        assigned=assigned,
        begun=((token, group.generation),),
    )


def downgraded(group: Group, modern: ModernGroup, event: GroupDowngraded) -> Group:
    """Return the modern group as a classic one with an assignment; nothing shared is written to."""
    classic = replace(
        group,
        phase=Phase.STABLE,
        protocol_name=event.protocol_name,
        generation=event.generation,
        leader_id=next(iter(modern.members)),
        members={
            one.member_id: _member(group, one, event.generation) for one in modern.members.values()
        },
        next_join_seq=modern.next_join_seq,
        former={one.member_id: one.generation for one in modern.members.values()},
        modern=None,
    )
    classic.tally = recount(classic)
    return classic


def _member(group: Group, consumer: Consumer, generation: int) -> Member:
    # Who replaced a static member before the upgrade has a token above its generation.
    token = max([consumer.generation, *(grant.token for grant in consumer.grants())])
    return Member(
        member_id=consumer.member_id,
        client_id=consumer.said.client_id,
        client_host=consumer.said.client_host,
        session_timeout_ms=consumer.said.session_timeout_ms,
        rebalance_timeout_ms=consumer.said.rebalance_timeout_ms,
        protocols=consumer.protocols,
        subscribed_topics=consumer.said.topics,
        join_seq=consumer.join_seq,
        joined_round=group.round,
        synced_generation=generation,
        assignment=write_assignment(consumer.assigned, {}),
        instance_id=consumer.instance_id,
        replaced_id=consumer.replaced_id,
        joined_ms=consumer.joined_ms,
        token=token,
        principal=consumer.principal,
    )
