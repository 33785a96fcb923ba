"""Lists and describes groups."""

import asyncio
import random
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from muster import timeouts
from muster.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    MusterError,
)
from muster.group.consumer_protocol import (
    PROTOCOL_TYPE,
    NotOurMetadataError,
    decode_assignment,
)
from muster.net import backoff
from muster.net.any_node_call import call_any
from muster.net.calls import DESCRIBE_GROUPS, Caller, client_closed, raise_status
from muster.net.discovery import coordinator_of
from muster.net.nodes import Answers
from muster.types import (
    ColocatedTopics,
    GrantDescription,
    GroupDescription,
    GroupListing,
    MemberDescription,
    PartitionClaim,
    Phase,
    TopicPartition,
    TopicWeights,
    UnownedPartitions,
)
from muster.v1 import admin_pb2

_CLUSTER = "/muster.v1.Admin/DescribeCluster"
_LIST = "/muster.v1.Admin/ListGroups"

R = TypeVar("R", bound=Message)
_Group = admin_pb2.DescribeGroupsResponse.Group


async def list_groups(caller: Caller, timeout_ms: float) -> list[GroupListing]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    failures = 0
    while True:
        left_ms = (deadline - loop.time()) * 1000
        cluster = await call_any(
            caller,
            _CLUSTER,
            admin_pb2.DescribeClusterResponse.FromString,
            lambda r: r.status,
            admin_pb2.DescribeClusterRequest(),
            max(left_ms, 1),
        )
        raise_status(cluster.status)
        listing = _Listing(caller, deadline, cluster)
        if await listing.run():
            return listing.result()
        failures += 1
        delay_s = backoff.CALL.delay_ms(failures, random.random) / 1000
        if loop.time() + delay_s >= deadline:
            raise listing.incomplete()
        await asyncio.sleep(delay_s)


class _Listing:
    """All nodes are asked beside each other, until the shards of those that answered are all.

    A node lists the groups of the shards that it leads. It is believed for a shard that it led in
    one term before and after its list, as in `muster group list`.
    """

    def __init__(
        self, caller: Caller, deadline: float, cluster: admin_pb2.DescribeClusterResponse
    ) -> None:
        self._nodes = caller.nodes
        self._deadline = deadline
        self._endpoints = [node.endpoint for node in cluster.nodes if node.endpoint]
        self._shards = set(range(cluster.shards))
        self._found: dict[str, GroupListing] = {}
        self._silent: list[str] = []

    async def run(self) -> bool:
        """Whether every shard has answered."""
        asked = {asyncio.create_task(self._ask(endpoint)) for endpoint in self._endpoints}
        try:
            while asked and self._shards:
                done, asked = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return not self._shards

    def result(self) -> list[GroupListing]:
        """The groups that were found, in the order of their ids."""
        return [self._found[group_id] for group_id in sorted(self._found)]

    def incomplete(self) -> MusterError:
        shards = ", ".join(map(str, sorted(self._shards)))
        silent = f"; {'; '.join(self._silent)}" if self._silent else ""
        return CoordinatorNotAvailable(
            f"not all groups can be listed: no coordinator answered for shards {shards}{silent}"
        )

    async def _ask(self, endpoint: str) -> None:
        try:
            await self._list(endpoint)
        except grpc.aio.AioRpcError as error:
            self._silent.append(f"{endpoint}: {error.code().name} {error.details() or ''}".strip())
        except MusterError as error:
            if self._nodes.closed:
                raise
            self._silent.append(f"{endpoint}: {error}")

    async def _list(self, endpoint: str) -> None:
        led = await self._led(endpoint)
        found: list[admin_pb2.ListGroupsResponse.Group] = []
        request = admin_pb2.ListGroupsRequest()
        more = True
        while more:
            page = await self._call(
                endpoint,
                _LIST,
                admin_pb2.ListGroupsResponse.FromString,
                request.SerializeToString(),
            )
            raise_status(page.status)
            found.extend(page.groups)
            more = page.more and bool(page.groups)
            request.after_group_id = page.groups[-1].group_id if page.groups else ""
        led &= await self._led(endpoint)
        for group in found:
            # A change of leader meanwhile: two nodes name one group, and the later one is right.
            earlier = self._found.get(group.group_id)
            if earlier is None or group.generation >= earlier.generation:
                self._found[group.group_id] = _listing(group)
        self._shards -= {shard for shard, _ in led}

    async def _led(self, endpoint: str) -> set[tuple[int, int]]:
        """Shard and term of what this node leads now."""
        view = await self._call(
            endpoint,
            _CLUSTER,
            admin_pb2.DescribeClusterResponse.FromString,
            admin_pb2.DescribeClusterRequest().SerializeToString(),
        )
        raise_status(view.status)
        return {(one.shard, one.term) for one in view.shard_states if one.role == "Leader"}

    async def _call(self, endpoint: str, path: str, parse: Answers[R], request: bytes) -> R:
        loop = asyncio.get_running_loop()
        left_ms = min(timeouts.ADMIN_ATTEMPT_MS, (self._deadline - loop.time()) * 1000)
        call = self._nodes.unary(endpoint, path, parse, request, max(left_ms, 1))
        try:
            return await call
        except asyncio.CancelledError:
            if self._nodes.closed:
                raise client_closed() from None
            raise
        finally:
            if not call.done():
                call.cancel()


def _listing(group: admin_pb2.ListGroupsResponse.Group) -> GroupListing:
    return GroupListing(
        group.group_id, group.state, group.protocol_type, group.members, group.generation
    )


async def describe_group(caller: Caller, group_id: str, timeout_ms: float) -> GroupDescription:
    """See `Client.describe_group`.

    Page by page: a group may be large. Where it moves on between two pages this begins anew.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    request = admin_pb2.DescribeGroupsRequest(group_ids=[group_id], linearizable=True)
    first: _Group | None = None
    members: list[MemberDescription] = []
    while True:
        left_ms = max((deadline - loop.time()) * 1000, 1)
        answer, _ = await caller.call(
            group_id, DESCRIBE_GROUPS, request.SerializeToString(), timeout_ms=left_ms
        )
        (page,) = answer.groups
        raise_status(page.status)
        if page.state == "Dead":
            raise GroupIdNotFound(f"there is no group {group_id!r}")
        if first is None or _header(page) != _header(first):
            members.clear()
            if request.first_member:
                first, request.first_member = None, 0
                continue
            first = page
        members.extend(_member(page.protocol_type, one) for one in page.members)
        if page.next_member <= request.first_member:
            return GroupDescription(
                group_id=group_id,
                state=page.state,
                protocol_type=page.protocol_type,
                protocol_name=page.protocol_name,
                generation=page.generation,
                leader_id=page.leader_id,
                members=tuple(members),
                coordinator=coordinator_of(page.coordinator),
                type=page.type or "classic",
                target_epoch=page.target_epoch if page.type == "consumer" else None,
                colocated=tuple(
                    ColocatedTopics(tuple(one.topics), tuple(one.problems))
                    for one in page.colocated
                ),
                weights=tuple(
                    TopicWeights(one.topic, one.text, tuple(one.problems)) for one in page.weights
                ),
                unowned=tuple(map(_unowned, first.unowned)),
                unowned_by_reason=dict(first.unowned_by_reason),
                claims=tuple(map(_claim, first.claims)),
            )
        request.first_member = page.next_member


def _unowned(one: admin_pb2.DescribeGroupsResponse.Unowned) -> UnownedPartitions:
    return UnownedPartitions(
        partitions=tuple(TopicPartition(one.topic, number) for number in one.partitions),
        reason=one.reason,
        since_wall_ms=one.since_wall_ms,
        member_id=one.member_id,
        until_wall_ms=one.until_wall_ms or None,
    )


def _claim(one: admin_pb2.DescribeGroupsResponse.Claim) -> PartitionClaim:
    return PartitionClaim(
        partition=TopicPartition(one.topic, one.partition),
        partitions=one.partitions,
        claimant=one.claimant,
        owner=one.owner,
        last_wall_ms=one.last_wall_ms,
        requests=one.requests,
    )


def _header(group: _Group) -> tuple[str, int, int]:
    return group.state, group.generation, group.coordinator.term


def _member(
    protocol_type: str, member: admin_pb2.DescribeGroupsResponse.Member
) -> MemberDescription:
    return MemberDescription(
        member_id=member.member_id,
        client_id=member.client_id,
        host=member.host,
        instance_id=member.group_instance_id,
        topics=tuple(member.subscribed_topics),
        partitions=_partitions(protocol_type, member.assignment),
        fencing_token=member.fencing_token or None,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        epoch=member.member_epoch or None,
        grants=_grants(member),
        away_until_wall_ms=member.away_until_wall_ms or None,
        pattern=member.subscribed_pattern,
        rack=member.rack,
        target=tuple(
            TopicPartition(one.topic, number) for one in member.target for number in one.partitions
        ),
        type=member.type or "classic",
        awaited_for=member.awaited_for,
        awaited_until_wall_ms=member.awaited_until_wall_ms or None,
    )


def _grants(member: admin_pb2.DescribeGroupsResponse.Member) -> tuple[GrantDescription, ...]:
    found = [
        GrantDescription(
            TopicPartition(grants.topic, number),
            token,
            Phase.REVOKING if grants.revoking else Phase.ACTIVE,
        )
        for grants in member.grants
        for number, token in zip(grants.partitions, grants.fencing_tokens, strict=True)
    ]
    return tuple(sorted(found, key=lambda one: one.partition))


def _partitions(protocol_type: str, assignment: bytes) -> tuple[TopicPartition, ...] | None:
    if protocol_type != PROTOCOL_TYPE:
        return None
    try:
        return decode_assignment(assignment)
    except NotOurMetadataError:
        return None
