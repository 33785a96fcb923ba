"""Single attempts at one node, without the SDK's retries: a deposed leader answers for itself.

What a node says that does not know yet that it is deposed is what inv-I2 and inv-I15 are about.
"""

import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc

from muster.errors import ErrorCode
from muster.net.nodes import CHANNEL_OPTIONS, Tls
from muster.v1 import admin_pb2, admin_pb2_grpc, group_pb2, group_pb2_grpc
from musterd.chaos.history import SUPERSEDED, Key, Outcome
from musterd.chaos.workloads.operation_log import Note, OperationLog
from musterd.chaos.workloads.outcomes import name_of, of_code, of_rpc

ATTEMPT_S = 2.0
JOIN_S = 20.0
"""A Join is parked while its round is open: the initial delay, and a rebalance timeout at most."""
PROTOCOL = "chaos"
"""Type and name of the protocol of a raw member's group, whose assignments are empty."""

_Read = group_pb2.OffsetFetchResponse | group_pb2.OffsetFetchResponse.Group


@dataclass(frozen=True, slots=True)
class Membership:
    """What a raw member joins with."""

    group: str
    nonce: str
    member_id: str
    """"" at first."""
    session_ms: int
    rebalance_ms: int
    client: str


@dataclass(frozen=True, slots=True)
class Identity:
    """What a member proves itself with."""

    group: str
    member_id: str
    generation: int


class RawNodes:
    """A channel to each of some addresses."""

    def __init__(
        self, nodes: Mapping[str, int], book: OperationLog, tls: Tls | None = None
    ) -> None:
        """`nodes`: ids by address. Raises InvalidConfig where a file of `tls` cannot be read."""
        self.nodes = dict(nodes)
        self.endpoints = list(nodes)
        self._book = book
        self._reads: Counter[tuple[str, str]] = Counter()
        """By node and group."""
        self._channels = {
            one: grpc.aio.insecure_channel(one, options=CHANNEL_OPTIONS)
            if tls is None
            else grpc.aio.secure_channel(one, tls.credentials(), options=CHANNEL_OPTIONS)
            for one in nodes
        }
        channels = self._channels.items()
        self._stubs: dict[str, group_pb2_grpc.GroupCoordinatorAsyncStub] = {
            one: group_pb2_grpc.GroupCoordinatorStub(channel)  # type: ignore[misc]
            for one, channel in channels
        }
        self.admins: dict[str, admin_pb2_grpc.AdminAsyncStub] = {
            one: admin_pb2_grpc.AdminStub(channel)  # type: ignore[misc]
            for one, channel in channels
        }
        self._topics: dict[str, admin_pb2_grpc.TopicsAsyncStub] = {
            one: admin_pb2_grpc.TopicsStub(channel)  # type: ignore[misc]
            for one, channel in channels
        }
        self._by_id = {node: one for one, node in nodes.items()}

    async def aclose(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            await channel.close()

    async def leader(self, group: str, ask: str) -> str:
        """Where one node says that the group's coordinator is; "" where it does not know."""
        request = group_pb2.FindCoordinatorRequest()
        request.keys.add(group_id=group)
        try:
            answer = await self._stubs[ask].FindCoordinator(request, timeout=ATTEMPT_S)
        except grpc.RpcError:
            return ""
        for result in answer.results:
            if int(result.status.code) == ErrorCode.NONE:
                return self._by_id.get(result.coordinator.node_id, "")
        return ""

    async def commit(self, at: str, key: Key, value: int, held: Identity | None = None) -> Outcome:
        """One commit, one attempt; without `held` a simple one, outside of a membership."""
        member_id, generation = ("", -1) if held is None else (held.member_id, held.generation)
        request = group_pb2.OffsetCommitRequest(
            group_id=key.group, member_id=member_id, generation=generation
        )
        request.partitions.add(topic=key.topic, partition=key.partition, offset=value)
        note = self._book.begin(
            "commit",
            key,
            value=value,
            member_id=member_id,
            generation=generation,
            node=self.nodes[at],
        )
        try:
            answer = await self._stubs[at].OffsetCommit(request, timeout=ATTEMPT_S)
        except grpc.RpcError as error:
            return note.end(of_rpc(error), error=name_of(error))
        codes = [int(answer.status.code), *(int(one.status.code) for one in answer.partitions)]
        code = next((one for one in codes if one != ErrorCode.NONE), ErrorCode.NONE)
        if code == ErrorCode.NONE and any(one.superseded for one in answer.partitions):
            return note.end(Outcome.UNKNOWN, error=SUPERSEDED)
        return note.end(of_code(code), error="" if code == ErrorCode.NONE else _name(code))

    async def read(self, at: str, key: Key, beside: Sequence[Key] = ()) -> Outcome:
        """One linearizable read, one attempt. A node that does not lead refuses it.

        Every second one of a group at a node is a fetch of many groups, and has `beside`, keys of
        other groups, in the same call. Each key is an operation; returns the outcome of `key`.
        """
        self._reads[at, key.group] += 1
        is_of_many = self._reads[at, key.group] % 2 == 0
        keys = (key, *beside) if is_of_many else (key,)
        notes = [self._book.begin("read", one, node=self.nodes[at]) for one in keys]
        request = group_pb2.OffsetFetchRequest()
        for one in keys:
            query = request.groups.add() if is_of_many else request
            query.group_id = one.group
            query.partitions.add(topic=one.topic, partition=one.partition)
        try:
            answer = await self._stubs[at].OffsetFetch(request, timeout=ATTEMPT_S)
        except grpc.RpcError as error:
            outcomes = [note.end(Outcome.FAIL, error=name_of(error)) for note in notes]
            return outcomes[0]
        told: dict[str, _Read] = {one.group: answer for one in keys}
        if is_of_many and int(answer.status.code) == ErrorCode.NONE:
            told = {one.group_id: one for one in answer.groups}
        outcomes = [
            _end_read(note, told.get(one.group)) for one, note in zip(keys, notes, strict=True)
        ]
        return outcomes[0]

    async def heartbeat(self, at: str, held: Identity) -> int | None:
        """One beat of one member, answered at once; the code, or None where no answer came."""
        # A nonce of its own each time: a newer call of the same client would end this one.
        request = group_pb2.HeartbeatRequest(
            client_nonce=secrets.token_hex(16), call_seq=1, at_once=True
        )
        request.members.add(
            group_id=held.group, member_id=held.member_id, generation=held.generation
        )
        note = self._book.begin(
            "heartbeat",
            Key(held.group, "", -1),
            member_id=held.member_id,
            generation=held.generation,
            node=self.nodes[at],
        )
        try:
            answer = await self._stubs[at].Heartbeat(request, timeout=ATTEMPT_S)
        except grpc.RpcError as error:
            note.end(Outcome.UNKNOWN, error=name_of(error))
            return None
        if len(answer.results) != 1:
            note.end(Outcome.FAIL, error="NO_ANSWER_FOR_MEMBER")
            return None
        code = int(answer.results[0].status.code)
        if code == ErrorCode.NONE:
            note.end(Outcome.OK)
        else:
            note.end(Outcome.FAIL, error=_name(code))
        return code

    async def join(
        self, at: str, wanted: Membership
    ) -> tuple[int | None, Identity | None, tuple[str, ...]]:
        """Join and sync, one attempt each.

        The code (None: no answer), who it is in the generation that was formed, and all its members
        where it leads them. Nothing of it is written down.
        """
        request = group_pb2.JoinGroupRequest(
            group_id=wanted.group,
            member_id=wanted.member_id,
            client_id=wanted.client,
            join_nonce=wanted.nonce,
            session_timeout_ms=wanted.session_ms,
            rebalance_timeout_ms=wanted.rebalance_ms,
            protocol_type=PROTOCOL,
        )
        request.protocols.add(name=PROTOCOL)
        try:
            joined = await self._stubs[at].JoinGroup(request, timeout=JOIN_S)
            code = int(joined.status.code)
            if code != ErrorCode.NONE or joined.park_again:
                return code, None, ()
            members = tuple(sorted(one.member_id for one in joined.members))
            sync = group_pb2.SyncGroupRequest(
                group_id=wanted.group, member_id=joined.member_id, generation=joined.generation
            )
            for one in members:
                sync.assignments.add(member_id=one)
            synced = await self._stubs[at].SyncGroup(sync, timeout=JOIN_S)
        except grpc.RpcError:
            return None, None, ()
        code = int(synced.status.code)
        if code != ErrorCode.NONE or synced.park_again:
            return code, None, ()
        return code, Identity(wanted.group, joined.member_id, joined.generation), members

    async def leave(self, at: str, held: Identity) -> bool:
        """One attempt; whether the member is gone. Nothing of it is written down."""
        request = group_pb2.LeaveGroupRequest(group_id=held.group)
        request.members.add(member_id=held.member_id)
        try:
            answer = await self._stubs[at].LeaveGroup(request, timeout=ATTEMPT_S)
        except grpc.RpcError:
            return False
        codes = {int(one.status.code) for one in answer.results}
        return int(answer.status.code) == ErrorCode.NONE and codes <= {
            int(ErrorCode.NONE),
            int(ErrorCode.UNKNOWN_MEMBER_ID),
        }

    async def partitions(self, at: str, topic: str) -> bool:
        """Write down how many partitions a topic has at a node; whether it was answered."""
        began_ns = time.monotonic_ns()
        request = admin_pb2.DescribeTopicsRequest(names=[topic])
        node = self.nodes[at]
        try:
            answer = await self._topics[at].DescribeTopics(request, timeout=ATTEMPT_S)
        except grpc.RpcError as error:
            self._book.operated(
                "partitions", topic, began_ns, Outcome.FAIL, node=node, error=name_of(error)
            )
            return False
        count = sum(one.topic.partitions for one in answer.results if one.topic.name == topic)
        self._book.operated("partitions", topic, began_ns, Outcome.OK, value=count, node=node)
        return True

    async def groups(
        self, at: str, names: Sequence[str], timeout_s: float = ATTEMPT_S
    ) -> list[tuple[str, int, tuple[str, ...]]]:
        """Stable groups that a node coordinates: name, generation, owners, after it asked a quorum.

        Owners are all members, as `Ownership.owner` names them.
        """
        request = admin_pb2.DescribeGroupsRequest(group_ids=names, linearizable=True)
        try:
            answer = await self.admins[at].DescribeGroups(request, timeout=timeout_s)
        except grpc.RpcError:
            return []
        found = []
        for group in answer.groups:
            whole = int(group.status.code) == ErrorCode.NONE and group.next_member == 0
            if whole and group.state == "Stable":
                instances = [(one.group_instance_id, one.member_id) for one in group.members]
                owners = sorted(
                    f"instance:{name}" if name else member for name, member in instances
                )
                found.append((group.group_id, group.generation, tuple(owners)))
        return found


def _end_read(note: Note, answer: _Read | None) -> Outcome:
    """By what was answered for its group; None: nothing."""
    if answer is None:
        return note.end(Outcome.FAIL, error="NO_ANSWER_FOR_GROUP")
    if int(answer.status.code) != ErrorCode.NONE:
        return note.end(Outcome.FAIL, error=_name(answer.status.code))
    if len(answer.partitions) != 1:
        return note.end(Outcome.FAIL, error="NO_ANSWER_FOR_PARTITION")
    return note.end(Outcome.OK, value=answer.partitions[0].offset)


def _name(code: int) -> str:
    return ErrorCode(code).name if code in list(ErrorCode) else str(code)
