"""The RPC DescribeGroups: what a coordinator knows of groups and their members (gp-2.12)."""

from collections.abc import Iterable
from itertools import dropwhile
from typing import Final, NamedTuple

from muster.v1 import admin_pb2 as pb
from muster.v1.group_pb2 import ConsumerAssignment
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.bounds import refuse_group
from musterd.coordinator.api.frame.group_state import state_of, type_of
from musterd.coordinator.api.frame.handler import (
    ActiveCall,
    CoordinatorService,
    handler,
    with_first_group,
)
from musterd.coordinator.api.frame.paging import PAGE_BYTES
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.api.limits.cooperative_yield import GROUP_ENTRIES, KEYS_PER_ENTRY, Slices
from musterd.coordinator.api.rpcs.describe_rebalances import is_awaited, wait_of
from musterd.coordinator.machine.commands import RoundTimer
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.modern.colocation import COLOCATE, colocated, sets_of
from musterd.coordinator.machine.modern.group import Consumer, GrantPhase, ModernGroup
from musterd.coordinator.machine.modern.spec import assignor_of
from musterd.coordinator.machine.modern.weights import WEIGHTS, weighed
from musterd.coordinator.machine.state import Group, Member, Phase
from musterd.coordinator.runtime.shard import Shard

Described = pb.DescribeGroupsResponse.Group

UNOWNED_PARTITIONS: Final = 1_000
"""Partitions without an owner that are named of one group; all of them are counted."""

UNOWNED_ROWS: Final = 200
"""Topics, reasons and times by which they are named."""


TEXT_BYTES_PER_ENTRY: Final = 24
"""Bytes of the setting of weights that are read in the time that one entry takes."""


class _Seen(NamedTuple):
    """A member, and what of it may change while a page is filled."""

    member: Member
    assignment: bytes
    joined: bool
    synced: bool
    awaited: bool
    token: int


_failed = with_first_group(pb.DescribeGroupsResponse, "groups", lambda request: request.group_ids)


class GroupDescriptions(CoordinatorService):
    """DescribeGroups, page by page: by group, and a large group by its members."""

    @handler(Kind.ORDINARY, bounds.DESCRIBE_GROUPS, _failed, reads=True)
    async def DescribeGroups(
        self, request: pb.DescribeGroupsRequest, call: ActiveCall
    ) -> pb.DescribeGroupsResponse:
        """One answer per id; each group as it stood at one index of its shard's log (gp-2.12).

        `linearizable`: after a quorum confirmed that this node leads, one round per shard.
        """
        response = pb.DescribeGroupsResponse()
        async with call.slices() as slices:
            await slices.turn(GROUP_ENTRIES * len(request.group_ids))
            group_ids = {
                one: call.denied_item(one) or refuse_group(one) for one in request.group_ids
            }
            shards = [self.core.shard_for(one) for one, no in group_ids.items() if no is None]
        reads = await call.reads(shards, linearizable=request.linearizable)
        first, size = request.first_member, 0
        async with call.slices() as slices:
            await slices.turn(GROUP_ENTRIES * len(group_ids))
            for group_id, refused in group_ids.items():
                if response.more or size >= PAGE_BYTES:
                    response.more = True
                    break
                one = response.groups.add(group_id=group_id)
                shard = self.core.shard_for(group_id)
                if refused is None:
                    one.shard = shard.number
                if reads.refused(one.status, shard, refused):
                    size += one.ByteSize()
                else:
                    group = shard.state.groups.get(group_id)
                    if group is not None and group.modern is not None:
                        await _settings(one, group, group.modern, slices)
                    ahead_ms = shard.envelope().wall_ms - shard.time_ms
                    listed = await _unowned(one, shard, ahead_ms, slices) if not first else 0
                    seen, assignor = self._head(one, shard, first)
                    group = shard.state.groups.get(group_id)
                    if group is not None and group.modern is not None:
                        taken = _consumers(one, group.modern, first, PAGE_BYTES - size, ahead_ms)
                        await slices.did(listed + taken)
                        size += one.ByteSize()
                    else:
                        size += await _members(one, seen, assignor, PAGE_BYTES - size, slices)
                first = 0
                response.more = one.next_member > 0
                await slices.did(GROUP_ENTRIES)
        return response

    def _head(self, described: Described, shard: Shard, first: int) -> tuple[list[_Seen], str]:
        """All but the members; those, and the protocol whose metadata is shown."""
        core = self.core
        described.applied_index = shard.log.applied_index
        own = core.directory.own
        described.coordinator.CopyFrom(core.statuses.coordinator(own, shard.log.term))
        group = shard.state.groups.get(described.group_id)
        if group is None:
            described.state = Phase.DEAD.value
            message = f"There is no group {described.group_id!r}."
            described.status.CopyFrom(core.statuses.error(Error.GROUP_ID_NOT_FOUND, message))
            return [], ""
        described.state, described.type = state_of(group), type_of(group)
        described.protocol_type = group.protocol_type
        # Elsewhere than in Stable what was said may be changing (gp-2.12, gp-0.4).
        described.protocol_name = group.protocol_name if group.phase is Phase.STABLE else ""
        described.generation = group.generation
        described.leader_id = group.leader_id
        if group.modern is not None:
            described.protocol_name = assignor_of(group.modern.members.values())
            described.target_epoch = group.modern.target_epoch
        wait = wait_of(group, shard.time_ms, shard.envelope().wall_ms)
        if wait is not None:
            described.wait.CopyFrom(wait)
        return _seen(group, first), described.protocol_name


def _seen(group: Group, first: int) -> list[_Seen]:
    """The members from this place on, in join order, as they stand now."""
    members = dropwhile(lambda member: member.join_seq < first, group.members.values())
    return [
        _Seen(
            member,
            member.assignment,
            member.joined_round >= group.round,
            group.has_synced(member),
            is_awaited(group, member),
            group.token_of(member) if group.has_synced(member) else 0,
        )
        for member in members
    ]


async def _settings(
    described: Described, group: Group, modern: ModernGroup, slices: Slices
) -> None:
    """Add the settings from which plans are made, with what of them cannot be done."""
    together = sets_of(group.texts.get(COLOCATE, ""))
    for sets in await slices.finish(colocated(modern, together)) if together else ():
        described.colocated.add(topics=sets.topics, problems=sets.problems)
    text, assignor = group.texts.get(WEIGHTS, ""), assignor_of(modern.members.values())
    await slices.did(len(text) // TEXT_BYTES_PER_ENTRY)
    for one in weighed(modern, text, assignor):
        described.weights.add(topic=one.topic, text=one.text, problems=one.problems)


async def _unowned(described: Described, shard: Shard, ahead_ms: int, slices: Slices) -> int:
    """Add the partitions of a modern group that are nobody's, and the last claims of others'.

    `ahead_ms` is how far the node's clock is ahead of the shard's time. Returns the count of
    entries. Nothing is awaited after the last slice: where one is enough, what is nobody's and what
    members have are of one moment.
    """
    group, leadership = shard.state.groups.get(described.group_id), shard.leadership
    if group is None or group.modern is None or leadership is None:
        return 0
    found = await slices.finish(leadership.unowned_now(group))
    room = UNOWNED_PARTITIONS
    for one, since_ms in found:
        described.unowned_by_reason[one.why] += len(one.partitions)
        if room > 0 and len(described.unowned) < UNOWNED_ROWS:
            described.unowned.add(
                topic=one.topic,
                partitions=one.partitions[:room],
                reason=one.why,
                since_wall_ms=since_ms + ahead_ms,
                member_id=one.member_id,
                until_wall_ms=one.until_ms + ahead_ms if one.until_ms else 0,
            )
            room -= len(one.partitions)
    for kept in leadership.claims.of(described.group_id):
        described.claims.add(
            topic=kept.claim.topic,
            partition=kept.claim.partition,
            partitions=kept.partitions,
            claimant=kept.claim.claimant,
            owner=kept.claim.owner,
            last_wall_ms=kept.wall_ms,
            requests=kept.requests,
        )
    return len(described.unowned) + len(described.claims) + len(found) // KEYS_PER_ENTRY


def _consumers(
    described: Described, modern: ModernGroup, first: int, room: int, ahead_ms: int
) -> int:
    """Add members of a modern group until the page is full, one at least.

    They are added in one go, so that they are of one moment: a page bounds what that takes. Returns
    the count of entries. `ahead_ms` is how far the node's clock is ahead of the shard's time.
    """
    size, entries = described.ByteSize(), 0
    for consumer in dropwhile(lambda one: one.join_seq < first, modern.members.values()):
        if size >= room and described.members:
            described.next_member = consumer.join_seq
            break
        one = described.members.add(
            member_id=consumer.member_id,
            client_id=consumer.said.client_id,
            host=consumer.said.client_host,
            session_timeout_ms=consumer.said.session_timeout_ms,
            rebalance_timeout_ms=consumer.said.rebalance_timeout_ms,
            joined=not consumer.is_away,
            synced=modern.is_settled(consumer),
            group_instance_id=consumer.instance_id,
            subscribed_topics=consumer.said.topics,
            member_epoch=consumer.epoch,
            subscribed_pattern=consumer.said.pattern,
            rack=consumer.said.zone,
            type="classic" if consumer.is_classic else "consumer",
        )
        if consumer.is_away:
            one.away_until_wall_ms = consumer.away_until_ms + ahead_ms
        elif consumer.timer is not None:
            one.awaited, one.awaited_for = True, _awaited_for(consumer)
            one.awaited_until_wall_ms = consumer.deadline_ms + ahead_ms
        listed = _add_grants(one, consumer) + _add_target(one, modern, consumer)
        size += one.ByteSize()
        entries += 1 + (listed + len(one.subscribed_topics)) // KEYS_PER_ENTRY
    return entries


def _awaited_for(consumer: Consumer) -> str:
    """Return what a member has a deadline for (gp-4.2). A classic one releases by joining."""
    if consumer.timer is RoundTimer.SYNC:
        return "sync"
    return "join" if consumer.is_classic else "release"


def _add_grants(one: pb.DescribeGroupsResponse.Member, consumer: Consumer) -> int:
    """Add a member's grants; return how many there are."""
    granted = consumer.grants()
    assignment = ConsumerAssignment()
    for topic, phase, partitions, tokens in granted.runs():
        assignment.assigned.add(topic=topic, partitions=partitions)
        one.grants.add(
            topic=topic,
            revoking=phase is GrantPhase.REVOKING,
            partitions=partitions,
            fencing_tokens=tokens,
        )
    one.assignment = assignment.SerializeToString()
    return len(granted)


def _add_target(
    one: pb.DescribeGroupsResponse.Member, modern: ModernGroup, consumer: Consumer
) -> int:
    """Add the partitions that the target gives a member; return how many there are."""
    wanted = modern.wanted.get(consumer.join_seq, {})
    for topic in sorted(wanted):
        one.target.add(topic=topic, partitions=sorted(wanted[topic]))
    return sum(map(len, wanted.values()))


async def _members(
    described: Described, seen: Iterable[_Seen], assignor: str, room: int, slices: Slices
) -> int:
    """Add members until the page is full, one at least; returns the bytes the group takes."""
    size = described.ByteSize()
    for member, assignment, joined, synced, awaited, token in seen:
        if size >= room and described.members:
            described.next_member = member.join_seq
            break
        one = described.members.add(
            member_id=member.member_id,
            client_id=member.client_id,
            host=member.client_host,
            metadata=member.metadata_of(assignor) if assignor else b"",
            assignment=assignment,
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            joined=joined,
            synced=synced,
            group_instance_id=member.instance_id,
            subscribed_topics=member.subscribed_topics,
            awaited=awaited,
            fencing_token=token,
        )
        size += one.ByteSize()
        await slices.did(1 + len(member.subscribed_topics) // KEYS_PER_ENTRY)
    return size
