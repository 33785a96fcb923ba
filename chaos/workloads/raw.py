"""Single attempts at one node, without the SDK's retries: a deposed leader answers for itself.

inv-I2 and inv-I15 are about what a node says that does not know yet that it is deposed.
"""

import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from muster.errors import ErrorCode
from muster.net.nodes import CHANNEL_OPTIONS
from muster.net.tls import Tls
from muster.v1 import admin_pb2, admin_pb2_grpc, errors_pb2, group_pb2, group_pb2_grpc
from musterd.chaos.history import SUPERSEDED, Key, Outcome
from musterd.chaos.workloads.operation_log import OperationLog
from musterd.chaos.workloads.outcomes import of_code, refused

ATTEMPT_S = 2.0
JOIN_S = 20.0
"""A Join is parked while its round is open: the initial delay, and a rebalance timeout at most."""
REBALANCE_MS = 10_000
PROTOCOL = "chaos"
"""Type and name of the protocol of a raw member's group, whose assignments are empty."""

_Read = group_pb2.OffsetFetchResponse | group_pb2.OffsetFetchResponse.Group


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity by which a member's calls are accepted."""

    group: str
    member_id: str
    generation: int

    def fields(self) -> dict[str, Any]:
        """As requests and histories have them, beside the group."""
        return {"member_id": self.member_id, "generation": self.generation}


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
        for channel in self._channels.values():
            await channel.close()

    async def leader(self, group: str, ask: str) -> str:
        """Where one node says that the group's coordinator is; "" where it does not know."""
        request = group_pb2.FindCoordinatorRequest()
        request.keys.add(group_id=group)
        call = self._stubs[ask].FindCoordinator(request, timeout=ATTEMPT_S)
        answer = await self._book.tried(call)
        for result in () if answer is None else answer.results:
            if int(result.status.code) == ErrorCode.NONE:
                return self._by_id.get(result.coordinator.node_id, "")
        return ""

    async def commit(self, at: str, key: Key, value: int, held: Identity | None = None) -> bool:
        """One commit, one attempt; whether it was acknowledged.

        Without `held` it is a simple one, outside of a membership.
        """
        who = {"member_id": "", "generation": -1} if held is None else held.fields()
        request = group_pb2.OffsetCommitRequest(group_id=key.group, **who)
        request.partitions.add(topic=key.topic, partition=key.partition, offset=value)
        number = self._book.begin("commit", key, value=value, node=self.nodes[at], **who)
        call = self._stubs[at].OffsetCommit(request, timeout=ATTEMPT_S)
        answer = await self._book.tried(call, [number])
        if answer is None:
            return False
        codes = [int(answer.status.code), *(int(one.status.code) for one in answer.partitions)]
        code = next((one for one in codes if one != ErrorCode.NONE), ErrorCode.NONE)
        outcome, error = of_code(code), _name(code)
        if outcome is Outcome.OK and any(one.superseded for one in answer.partitions):
            outcome, error = Outcome.UNKNOWN, SUPERSEDED
        self._book.end(number, outcome, error=error)
        return outcome is Outcome.OK

    async def read(self, at: str, key: Key, beside: Sequence[Key] = ()) -> bool:
        """One linearizable read, one attempt. A node that does not lead refuses it.

        Every second one of a group at a node is a fetch of many groups, and has `beside`, keys of
        other groups, in the same call. Each key is an operation; returns whether `key` was read.
        """
        self._reads[at, key.group] += 1
        is_of_many = self._reads[at, key.group] % 2 == 0
        keys = (key, *beside) if is_of_many else (key,)
        numbers = [self._book.begin("read", one, node=self.nodes[at]) for one in keys]
        request = group_pb2.OffsetFetchRequest()
        for one in keys:
            query = request.groups.add() if is_of_many else request
            query.group_id = one.group
            query.partitions.add(topic=one.topic, partition=one.partition)
        call = self._stubs[at].OffsetFetch(request, timeout=ATTEMPT_S)
        answer = await self._book.tried(call, numbers, refused)
        if answer is None:
            return False
        told: dict[str, _Read] = {one.group: answer for one in keys}
        if is_of_many and int(answer.status.code) == ErrorCode.NONE:
            told = {one.group_id: one for one in answer.groups}
        were_read = [
            self._end_read(number, told.get(one.group))
            for one, number in zip(keys, numbers, strict=True)
        ]
        return were_read[0]

    def _end_read(self, number: int, answer: _Read | None) -> bool:
        """By what was answered for its group; None: nothing."""
        value, error = None, ""
        if answer is None:
            error = "NO_ANSWER_FOR_GROUP"
        elif int(answer.status.code) != ErrorCode.NONE:
            error = _name(answer.status.code)
        elif len(answer.partitions) != 1:
            error = "NO_ANSWER_FOR_PARTITION"
        else:
            value = answer.partitions[0].offset
        outcome = Outcome.FAIL if error else Outcome.OK
        self._book.end(number, outcome, value=value, error=error)
        return not error

    async def heartbeat(self, at: str, held: Identity) -> int | None:
        """One beat of one member, answered at once; the code, or None where no answer came."""
        # A nonce of its own each time: a newer call of the same client would end this one.
        request = group_pb2.HeartbeatRequest(
            client_nonce=secrets.token_hex(16), call_seq=1, at_once=True
        )
        request.members.add(group_id=held.group, **held.fields())
        key = Key(held.group, "", -1)
        number = self._book.begin("heartbeat", key, node=self.nodes[at], **held.fields())
        call = self._stubs[at].Heartbeat(request, timeout=ATTEMPT_S)
        answer = await self._book.tried(call, [number], lambda _: Outcome.UNKNOWN)
        if answer is None:
            return None
        if len(answer.results) != 1:
            self._book.end(number, Outcome.FAIL, error="NO_ANSWER_FOR_MEMBER")
            return None
        code = int(answer.results[0].status.code)
        outcome = Outcome.OK if code == ErrorCode.NONE else Outcome.FAIL
        self._book.end(number, outcome, error=_name(code))
        return code

    async def join(
        self, at: str, group: str, nonce: str, member_id: str, session_ms: int
    ) -> tuple[int | None, Identity | None, tuple[str, ...]]:
        """Join and sync, one attempt each; `member_id`: "" at first.

        The code (None: no answer), who it is in the generation that was formed, and all its members
        where it leads them. Nothing of it is written down.
        """
        request = group_pb2.JoinGroupRequest(
            group_id=group,
            member_id=member_id,
            client_id=self._book.client,
            join_nonce=nonce,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type=PROTOCOL,
        )
        request.protocols.add(name=PROTOCOL)
        joined = await self._book.tried(self._stubs[at].JoinGroup(request, timeout=JOIN_S))
        if joined is None or joined.status.code != errors_pb2.NONE or joined.park_again:
            return None if joined is None else int(joined.status.code), None, ()
        held = Identity(group, joined.member_id, joined.generation)
        members = tuple(sorted(one.member_id for one in joined.members))
        sync = group_pb2.SyncGroupRequest(group_id=group, **held.fields())
        for one in members:
            sync.assignments.add(member_id=one)
        synced = await self._book.tried(self._stubs[at].SyncGroup(sync, timeout=JOIN_S))
        if synced is None or synced.status.code != errors_pb2.NONE or synced.park_again:
            return None if synced is None else int(synced.status.code), None, ()
        return int(synced.status.code), held, members

    async def leave(self, at: str, held: Identity) -> bool:
        """One attempt; whether the member is gone. Nothing of it is written down."""
        request = group_pb2.LeaveGroupRequest(group_id=held.group)
        request.members.add(member_id=held.member_id)
        call = self._stubs[at].LeaveGroup(request, timeout=ATTEMPT_S)
        answer = await self._book.tried(call)
        if answer is None:
            return False
        gone = {int(ErrorCode.NONE), int(ErrorCode.UNKNOWN_MEMBER_ID)}
        codes = {int(one.status.code) for one in answer.results}
        return int(answer.status.code) == ErrorCode.NONE and codes <= gone

    async def partitions(self, at: str, topic: str) -> bool:
        """Write down how many partitions a topic has at a node; whether it was answered."""
        began_ns = time.monotonic_ns()
        request = admin_pb2.DescribeTopicsRequest(names=[topic])
        answer = await self._book.tried(self._topics[at].DescribeTopics(request, timeout=ATTEMPT_S))
        if answer is None:
            return False
        count = sum(one.topic.partitions for one in answer.results if one.topic.name == topic)
        node = self.nodes[at]
        self._book.operated("partitions", topic, began_ns, Outcome.OK, value=count, node=node)
        return True

    async def groups(
        self, at: str, names: Sequence[str], timeout_s: float = ATTEMPT_S
    ) -> list[tuple[str, int, tuple[str, ...]]]:
        """Stable groups that a node coordinates: name, generation, owners, after it asked a quorum.

        Owners are all members, as `Ownership.owner` names them.
        """
        found = []
        for group in await self._described(at, names, timeout_s):
            if group.state == "Stable":
                instances = [(one.group_instance_id, one.member_id) for one in group.members]
                owners = sorted(
                    f"instance:{name}" if name else member for name, member in instances
                )
                found.append((group.group_id, group.generation, tuple(owners)))
        return found

    async def members(
        self, at: str, names: Sequence[str], timeout_s: float = ATTEMPT_S
    ) -> list[tuple[str, tuple[str, ...]]]:
        """Groups that a node coordinates, each with its members' ids, after it asked a quorum."""
        return [
            (group.group_id, tuple(sorted(one.member_id for one in group.members)))
            for group in await self._described(at, names, timeout_s)
        ]

    async def _described(
        self, at: str, names: Sequence[str], timeout_s: float
    ) -> list[admin_pb2.DescribeGroupsResponse.Group]:
        """Those that were told whole."""
        request = admin_pb2.DescribeGroupsRequest(group_ids=names, linearizable=True)
        call = self.admins[at].DescribeGroups(request, timeout=timeout_s)
        answer = await self._book.tried(call)
        return [
            group
            for group in (() if answer is None else answer.groups)
            if int(group.status.code) == ErrorCode.NONE and group.next_member == 0
        ]


def _name(code: int) -> str:
    """As histories have it; "": no error."""
    if code == ErrorCode.NONE:
        return ""
    return ErrorCode(code).name if code in list(ErrorCode) else str(code)
