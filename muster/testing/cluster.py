"""Nodes of a cluster in memory: gRPC servers on loopback that share one set of groups."""

import asyncio
import contextlib
import re
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from google.protobuf.message import Message

from muster.errors import ErrorCode
from muster.group.offsets import PARTITIONS_MAX
from muster.testing import conversions
from muster.testing.groups import Group, Member, Phase, join_refusal, sync_refusal
from muster.testing.modern_groups import Consumer, ModernGroup
from muster.testing.statuses import status
from muster.testing.streams import Aborted, Behaviour, ServedStream
from muster.types import TopicPartition
from muster.v1 import admin_pb2, errors_pb2, group_pb2

Code = ErrorCode

FETCH_PAGE = 400
GROUPS_PAGE = 400
MEMBERS_PAGE = 400
"""Offsets, groups, members of a group in one answer. A real node counts bytes."""

T = TypeVar("T", bound=Message)


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with this error instead."""

    code: int
    message: str = ""
    retriable: bool = False


@dataclass(frozen=True, slots=True)
class Abort:
    """End the call with this gRPC status instead."""

    code: grpc.StatusCode
    details: str = ""


@dataclass(frozen=True, slots=True)
class Hang:
    """Do nothing and never answer."""


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """Do what was asked, and never answer."""


Step = Refuse | Abort | Hang | LoseAnswer | Message
"""What a scripted call meets; a message is the answer as it stands."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that arrived at a node."""

    method: str
    node_id: int
    request: Any


class _Node:
    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.port = 0
        self.server: grpc.aio.Server | None = None
        self.awake = asyncio.Event()
        self.awake.set()
        self.beats: dict[str, tuple[int, asyncio.Event]] = {}  # by client nonce: newest call

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_alive(self) -> bool:
        return self.server is not None and self.awake.is_set()


_RPCS: dict[str, dict[str, tuple[type[Message], type[Message]]]] = {
    "GroupCoordinator": {
        name: (getattr(group_pb2, f"{name}Request"), getattr(group_pb2, f"{name}Response"))
        for name in (
            "FindCoordinator",
            "JoinGroup",
            "SyncGroup",
            "Heartbeat",
            "LeaveGroup",
            "OffsetCommit",
            "OffsetFetch",
            "ConsumerGroupHeartbeat",
        )
    },
    "Admin": {
        name: (getattr(admin_pb2, f"{name}Request"), getattr(admin_pb2, f"{name}Response"))
        for name in (
            "DescribeCluster",
            "ListGroups",
            "DescribeGroups",
            "DeleteGroups",
            "OffsetDelete",
            "DescribeRebalances",
            "KickMembers",
        )
    },
    "Topics": {
        name: (getattr(admin_pb2, f"{name}Request"), getattr(admin_pb2, f"{name}Response"))
        for name in (
            "CreateTopic",
            "ListTopics",
            "DescribeTopics",
            "AddPartitions",
            "SetTopicZones",
            "DeleteTopic",
        )
    },
}
_COORDINATOR_ONLY = frozenset(
    {
        "ConsumerGroupHeartbeat",
        "JoinGroup",
        "SyncGroup",
        "LeaveGroup",
        "OffsetCommit",
        "OffsetFetch",
    }
)
_SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    # Clients keep their channels alive with pings; a server that is not told so hangs up on them.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)
_TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
HEARTBEAT_MEMBERS_MAX = 2_000
CALLS_MAX = 100_000
"""Kept in `Cluster.calls`; older ones are dropped."""


class Cluster:
    """A cluster for tests; see the head of `muster.testing`.

    Args:
        nodes: how many; node ids are 1, 2, ...
        topics: name -> partitions, there from the start.
        initial_delay_ms: of the first round of an empty group.
        interval_ms: for which heartbeats are held.
        longest_park_ms: of Join and Sync; then they are let go with `park_again`.
        election_ms: from a leader's end to the next one.
        credentials: of the servers; without them connections are plain.
        streams: whether nodes have streams of client processes; those of former builds have none.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        topics: Mapping[str, int] | None = None,
        initial_delay_ms: int = 0,
        interval_ms: int = 2_000,
        longest_park_ms: int = 25_000,
        election_ms: int = 30,
        credentials: grpc.ServerCredentials | None = None,
        streams: bool = True,
    ) -> None:
        self._credentials = credentials
        self._has_streams = streams
        self.topics = dict(topics or {})
        self._creation_versions: dict[str, int] = {}
        """Creation versions of topics that were made after another one was deleted."""
        self._zones: dict[str, str] = {}
        self._topics_version = 0
        self.groups: dict[str, Group] = {}
        self.modern: dict[str, ModernGroup] = {}
        """Groups that the coordinator assigns to, by id; their offsets are in `groups`."""
        self.term = 1
        self.leader = 1
        """The node that coordinates every group; 0 = none at the moment."""
        self.calls: deque[Call] = deque(maxlen=CALLS_MAX)
        """Every call that arrived, in order."""
        self.open_calls: Counter[str] = Counter()
        """By method: how many are being answered now."""
        self.most_open: Counter[str] = Counter()
        """By method: how many were, at most, at one time."""
        self._nodes_count = nodes
        self._nodes: dict[int, _Node] = {}
        self._initial_delay_ms = initial_delay_ms
        self._interval_ms = interval_ms
        self._longest_park_ms = longest_park_ms
        self._election_ms = election_ms
        self._scripts: defaultdict[str, deque[Step]] = defaultdict(deque)
        self._changed: asyncio.Future[None] | None = None
        self._observed: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- life

    async def __aenter__(self) -> Self:
        for node_id in range(1, self._nodes_count + 1):
            self._nodes[node_id] = _Node(node_id)
            await self.restart(node_id)
        self._spawn(self._expire_often())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in list(self._tasks):
            task.cancel()
        for node in self._nodes.values():
            if node.server is not None:
                await node.server.stop(None)
        for group in self.groups.values():
            group.close()

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes, for a client."""
        return ",".join(self.endpoint(node_id) for node_id in self._nodes)

    def endpoint(self, node_id: int) -> str:
        return self._nodes[node_id].endpoint

    # ---- what a test does to it

    def script(self, method: str, *steps: Step) -> None:
        """The next calls of this method (`"OffsetCommit"`), at any node, meet these steps."""
        self._scripts[method].extend(steps)

    def seen(self, method: str) -> list[Call]:
        """The calls of one method, in order."""
        return [call for call in self.calls if call.method == method]

    async def kill(self, node_id: int) -> None:
        """The process is gone: connections break, calls are never answered. The others elect."""
        node = self._nodes[node_id]
        server, node.server = node.server, None
        if server is not None:
            await server.stop(None)
        self._elect_after_loss_of(node_id)

    async def restart(self, node_id: int) -> None:
        """Start it (again), at the same address."""
        node = self._nodes[node_id]
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        server.add_generic_rpc_handlers(tuple(self._handlers(node)))
        address = f"127.0.0.1:{node.port}"
        if self._credentials is None:
            node.port = server.add_insecure_port(address)
        else:
            node.port = server.add_secure_port(address, self._credentials)
        await server.start()
        node.server = server
        node.awake.set()
        if self.leader == 0:
            self._elect_after_loss_of(0)

    def hang(self, node_id: int) -> None:
        """SIGSTOP: connections stay, nothing is answered until `resume`. The others elect."""
        self._nodes[node_id].awake.clear()
        self._elect_after_loss_of(node_id)

    def resume(self, node_id: int) -> None:
        self._nodes[node_id].awake.set()
        if self.leader == 0:
            self._elect_after_loss_of(0)

    def elect(self, node_id: int) -> None:
        """Another node leads from now on; parked joins are answered NOT_COORDINATOR and a hint."""
        self.term += 1
        self.leader = node_id
        for modern in self.modern.values():
            modern.rearm()
        for group in self.groups.values():
            group.rearm()
            for parked in group.parked():
                if not parked.done():
                    refusal = join_refusal(Code.NOT_COORDINATOR, "another node leads")
                    refusal.status.coordinator.CopyFrom(self._coordinator())
                    parked.set_result(refusal)
        self._notify()

    def remove_member(self, group_id: str, member_id: str) -> None:
        """As if its session had ended."""
        modern = self._assigning(group_id)
        if modern is not None:
            modern.remove(member_id)
        else:
            self.groups[group_id].remove(member_id)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is looked at whenever a call arrives or ends."""
        while not condition():
            if self._observed is None:
                self._observed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._observed)

    # ---- inside: elections

    def _elect_after_loss_of(self, node_id: int) -> None:
        if self.leader in (node_id, 0):
            self.leader = 0
            self._spawn(self._elect_soon())

    async def _elect_soon(self) -> None:
        await asyncio.sleep(self._election_ms / 1000)
        alive = [n.node_id for n in self._nodes.values() if n.is_alive]
        if self.leader == 0 and alive:
            self.elect(alive[0])

    async def _expire_often(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            if self.leader:
                for group in list(self.groups.values()):
                    group.expire()
                for modern in list(self.modern.values()):
                    modern.expire()

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _observe(self) -> None:
        if self._observed is not None and not self._observed.done():
            self._observed.set_result(None)
        self._observed = None

    def _notify(self) -> None:
        """Something changed that a held call may wait for."""
        self._observe()
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    async def _change(self, timeout_s: float, *more: asyncio.Event) -> None:
        """Wait until something changes."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(e.wait()) for e in more]
        try:
            await asyncio.wait(
                [self._changed, *waits],
                timeout=max(timeout_s, 0),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for wait in waits:
                wait.cancel()

    # ---- inside: calls

    def _handlers(self, node: _Node) -> list[grpc.GenericRpcHandler]:
        handlers = {
            service: {name: self._unary(node, name, *kinds) for name, kinds in rpcs.items()}
            for service, rpcs in _RPCS.items()
        }
        if self._has_streams:
            handlers["GroupCoordinator"]["Session"] = self._session(node)
        return [
            grpc.method_handlers_generic_handler(f"muster.v1.{service}", methods)
            for service, methods in handlers.items()
        ]

    def _unary(
        self, node: _Node, name: str, request: type[Message], response: type[Message]
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        behave = self._behaviour(node, name, response)

        async def call(request: Message, context: grpc.aio.ServicerContext[Any, Any]) -> Message:
            try:
                return await behave(request, context)
            except Aborted as aborted:
                await context.abort(aborted.code, aborted.details)

        return grpc.unary_unary_rpc_method_handler(
            call,
            request_deserializer=request.FromString,
            response_serializer=response.SerializeToString,
        )

    def _session(self, node: _Node) -> "grpc.RpcMethodHandler[Any, Any]":
        """One stream for all calls of a client process."""

        def encoded(name: str) -> Behaviour:
            request, response = _RPCS["GroupCoordinator"][name]
            behave = self._behaviour(node, name, response)

            async def call(raw: bytes, context: Any) -> bytes:
                return (await behave(request.FromString(raw), context)).SerializeToString()

            return call

        behaviours = {name: encoded(name) for name in _RPCS["GroupCoordinator"]}

        async def serve(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            await ServedStream(context, behaviours, node.awake.wait).serve()

        return grpc.stream_stream_rpc_method_handler(serve)

    def _behaviour(
        self, node: _Node, name: str, kind: type[Message]
    ) -> Callable[[Message, Any], Awaitable[Message]]:
        """`context` is that of the call, or of its stream. A status is raised as Aborted."""
        answer_to = getattr(self, f"_on_{_snake(name)}")

        async def behave(request: Message, _context: Any) -> Message:
            self.open_calls[name] += 1
            self.most_open[name] = max(self.most_open[name], self.open_calls[name])
            try:
                await node.awake.wait()
                self.calls.append(Call(name, node.node_id, request))
                self._observe()
                return await answer(request)
            finally:
                self.open_calls[name] -= 1
                self._observe()

        async def answer(request: Message) -> Message:
            step = self._scripts[name].popleft() if self._scripts[name] else None
            match step:
                case Abort(code, details):
                    raise Aborted(code, details)
                case Hang():
                    await asyncio.Event().wait()
                case Refuse(code, message, retriable):
                    refused = status(code, message, retriable=retriable)
                    return self._refused(kind, name, request, refused)
                case Message():
                    return step
            if name in _COORDINATOR_ONLY and self.leader != node.node_id:
                return kind(status=self._elsewhere())
            response: Message = await answer_to(node, request)
            if isinstance(step, LoseAnswer):
                await asyncio.Event().wait()
            await node.awake.wait()
            return response

        return behave

    def _refused(
        self, kind: type[Message], name: str, request: Message, refused: errors_pb2.Status
    ) -> Message:
        """The response that carries this error where the method has its errors."""
        if name == "Heartbeat" and isinstance(request, group_pb2.HeartbeatRequest):
            beat = group_pb2.HeartbeatResponse(interval_ms=self._interval_ms)
            for one in request.members:
                beat.results.add(group_id=one.group_id, member_id=one.member_id, status=refused)
            return beat
        if name == "FindCoordinator" and isinstance(request, group_pb2.FindCoordinatorRequest):
            found = group_pb2.FindCoordinatorResponse()
            for key in request.keys:
                found.results.add(group_id=key.group_id, status=refused)
            return found
        return kind(status=refused)

    def _elsewhere(self) -> errors_pb2.Status:
        told = status(Code.NOT_COORDINATOR, "another node leads", retriable=True)
        if self.leader:
            told.coordinator.CopyFrom(self._coordinator())
        return told

    def _coordinator(self) -> errors_pb2.Coordinator:
        return errors_pb2.Coordinator(
            node_id=self.leader, endpoint=self._nodes[self.leader].endpoint, term=self.term
        )

    def _group(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(
                group_id,
                initial_delay_ms=self._initial_delay_ms,
                topics=self.topics,
                creation_versions=self._creation_versions,
                changed=self._notify,
            )
        return group

    def _modern(self, group_id: str) -> ModernGroup:
        group = self.modern.get(group_id)
        if group is None:
            group = self.modern[group_id] = ModernGroup(
                topics=self.topics,
                committed=self._group(group_id).committed,
                changed=self._notify,
                only_classic=lambda gone, trigger, reason: conversions.downgrade(
                    self.modern[group_id], self._group(group_id), gone, trigger, reason
                ),
                interval_ms=self._interval_ms,
            )
        return group

    def _assigning(self, group_id: str) -> ModernGroup | None:
        """The group, where it is a modern one with members."""
        modern = self.modern.get(group_id)
        return modern if modern is not None and modern.members else None

    async def _on_consumer_group_heartbeat(
        self, _node: _Node, request: group_pb2.ConsumerGroupHeartbeatRequest
    ) -> group_pb2.ConsumerGroupHeartbeatResponse:
        group, modern = self._group(request.group_id), self._modern(request.group_id)
        if not modern.members:
            modern.go_on_from(group.generation, group.fence)
        refused = None
        if group.members:
            refused = modern.refuse(request) or self._refuse_upgrade(group, request.member_epoch)
            if refused is None:
                conversions.upgrade(group, modern)
        if refused is not None:
            return group_pb2.ConsumerGroupHeartbeatResponse(status=refused)
        return modern.heartbeat(request)

    def _refuse_upgrade(self, group: Group, epoch: int) -> errors_pb2.Status | None:
        """Why a modern member cannot join a classic group now; None: it can."""
        reason = conversions.why_not(group)
        if epoch or reason:
            return status(Code.GROUP_ID_NOT_FOUND, f"the group is a classic one: {reason}")
        if group.phase is not Phase.STABLE or conversions.hands_over(group):
            return status(Code.REBALANCE_IN_PROGRESS, "a round is open: try again after it")
        return None

    def _member(self, group_id: str, member_id: str) -> Member | Consumer | None:
        """Whoever is heard of by heartbeats, in whichever kind of group."""
        modern = self.modern.get(group_id)
        if modern is not None and member_id in modern.members:
            return modern.members[member_id]
        return self._group(group_id).members.get(member_id)

    async def _on_find_coordinator(
        self, _node: _Node, request: group_pb2.FindCoordinatorRequest
    ) -> group_pb2.FindCoordinatorResponse:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 1
        while loop.time() < deadline:
            if self.leader and any(self.term > key.known_term for key in request.keys):
                break
            await self._change(deadline - loop.time())
        response = group_pb2.FindCoordinatorResponse()
        for node in self._nodes.values():
            response.nodes.add(node_id=node.node_id, endpoint=node.endpoint)
        for key in request.keys:
            result = response.results.add(group_id=key.group_id, shard=0)
            if self.leader and self.term > key.known_term:
                result.coordinator.CopyFrom(self._coordinator())
            else:
                result.pending = True
                result.status.CopyFrom(status(Code.COORDINATOR_NOT_AVAILABLE, retriable=True))
        return response

    async def _on_join_group(
        self, _node: _Node, request: group_pb2.JoinGroupRequest
    ) -> group_pb2.JoinGroupResponse:
        if not request.group_id:
            return join_refusal(Code.INVALID_GROUP_ID, "empty group id")
        assigning = self._assigning(request.group_id)
        if assigning is not None:
            return conversions.join(assigning, request, self._creation_versions)
        group = self._group(request.group_id)
        if request.group_id in self.modern:
            former = self.modern[request.group_id]
            group.go_on_from(former.epoch, former.fence)
        answer = group.join(request)
        if isinstance(answer, group_pb2.JoinGroupResponse):
            return answer
        member_id = request.member_id or f"{request.client_id}-{request.join_nonce}"
        let_go = join_refusal(Code.REBALANCE_IN_PROGRESS, "", member_id, park_again=True)
        return await self._parked(group, member_id, answer, let_go)

    async def _on_sync_group(
        self, _node: _Node, request: group_pb2.SyncGroupRequest
    ) -> group_pb2.SyncGroupResponse:
        assigning = self._assigning(request.group_id)
        if assigning is not None:
            return conversions.sync(assigning, request)
        group = self._group(request.group_id)
        answer = group.sync(request)
        if isinstance(answer, group_pb2.SyncGroupResponse):
            return answer
        let_go = sync_refusal(Code.REBALANCE_IN_PROGRESS, park_again=True)
        return await self._parked(group, request.member_id, answer, let_go)

    async def _parked(
        self, group: Group, member_id: str, answer: "asyncio.Future[T]", let_go: T
    ) -> T:
        """Hold a call; its member does not expire meanwhile."""
        member = group.members[member_id]
        member.open_calls += 1
        try:
            done, _ = await asyncio.wait([answer], timeout=self._longest_park_ms / 1000)
            return answer.result() if done else let_go
        finally:
            member.open_calls -= 1
            group.hear(member)

    async def _on_heartbeat(
        self, node: _Node, request: group_pb2.HeartbeatRequest
    ) -> group_pb2.HeartbeatResponse:
        loop = asyncio.get_running_loop()
        if len(request.members) > HEARTBEAT_MEMBERS_MAX:
            message = f"A heartbeat has at most {HEARTBEAT_MEMBERS_MAX} members."
            response = group_pb2.HeartbeatResponse(interval_ms=self._interval_ms)
            for one in request.members[:HEARTBEAT_MEMBERS_MAX]:
                refused = status(Code.INVALID_REQUEST, message)
                response.results.add(group_id=one.group_id, member_id=one.member_id, status=refused)
            return response
        newest = node.beats.get(request.client_nonce)
        if newest is not None:
            if newest[0] >= request.call_seq:
                return group_pb2.HeartbeatResponse(superseded=True, interval_ms=self._interval_ms)
            newest[1].set()
        superseded = asyncio.Event()
        node.beats[request.client_nonce] = (request.call_seq, superseded)
        deadline = loop.time() + (0 if request.at_once else self._interval_ms / 1000)
        with self._held(node, request):
            return await self._answer_heartbeat(node, request, superseded, deadline)

    @contextlib.contextmanager
    def _held(self, node: _Node, request: group_pb2.HeartbeatRequest) -> Iterator[None]:
        """A member with a call open here does not expire."""
        members = [
            self._member(one.group_id, one.member_id)
            for one in request.members
            if self.leader == node.node_id
        ]
        for member in members:
            if member is not None:
                member.open_calls += 1
        try:
            yield
        finally:
            for member in members:
                if member is not None:
                    member.open_calls -= 1
                    member.heard_at = asyncio.get_running_loop().time()

    async def _answer_heartbeat(
        self,
        node: _Node,
        request: group_pb2.HeartbeatRequest,
        superseded: asyncio.Event,
        deadline: float,
    ) -> group_pb2.HeartbeatResponse:
        loop = asyncio.get_running_loop()
        while True:
            await node.awake.wait()
            results = [self._heartbeat(node, one) for one in request.members]
            response = group_pb2.HeartbeatResponse(interval_ms=self._interval_ms)
            if superseded.is_set():
                response.superseded = True
                return response
            if any(r.status.code for r in results) or loop.time() >= deadline:
                response.results.extend(results)
                return response
            await self._change(deadline - loop.time(), superseded)

    def _heartbeat(
        self, node: _Node, one: group_pb2.HeartbeatRequest.Member
    ) -> group_pb2.HeartbeatResponse.Result:
        result = group_pb2.HeartbeatResponse.Result(group_id=one.group_id, member_id=one.member_id)
        if self.leader != node.node_id:
            result.status.CopyFrom(self._elsewhere())
            return result
        modern = self._assigning(one.group_id)
        if modern is not None:
            code = modern.check(one.member_id, one.generation, one.group_instance_id)
            result.status.CopyFrom(status(code))
            return result
        group = self._group(one.group_id)
        code = group.check(one.member_id, one.generation, one.group_instance_id)
        if code in (Code.NONE, Code.REBALANCE_IN_PROGRESS):
            group.hear(group.members[one.member_id])
        result.status.CopyFrom(status(code))
        return result

    async def _on_leave_group(
        self, _node: _Node, request: group_pb2.LeaveGroupRequest
    ) -> group_pb2.LeaveGroupResponse:
        group = self._assigning(request.group_id) or self._group(request.group_id)
        response = group_pb2.LeaveGroupResponse()
        for one in request.members:
            code = group.leave(one.member_id, one.group_instance_id, one.reason)
            response.results.add(
                member_id=one.member_id,
                group_instance_id=one.group_instance_id,
                status=status(code),
            )
        return response

    async def _on_offset_commit(
        self, _node: _Node, request: group_pb2.OffsetCommitRequest
    ) -> group_pb2.OffsetCommitResponse:
        modern = self._assigning(request.group_id)
        if modern is not None:
            return modern.commit(request)
        return self._group(request.group_id).commit(request)

    async def _on_offset_fetch(
        self, _node: _Node, request: group_pb2.OffsetFetchRequest
    ) -> group_pb2.OffsetFetchResponse:
        group = self.groups.get(request.group_id)
        stored = {} if group is None else group.offsets
        if len(request.partitions) > PARTITIONS_MAX:
            message = f"at most {PARTITIONS_MAX} partitions"
            return group_pb2.OffsetFetchResponse(status=status(Code.INVALID_REQUEST, message))
        after = (request.after.topic, request.after.partition)
        keys = (
            sorted(key for key in stored if not request.HasField("after") or key > after)
            if request.all
            else [TopicPartition(p.topic, p.partition) for p in request.partitions]
        )
        response = group_pb2.OffsetFetchResponse(term=self.term, applied_index=len(self.calls))
        response.more = len(keys) > FETCH_PAGE
        response.blob = b"" if group is None else group.committed.blob
        for key in keys[:FETCH_PAGE]:
            one = response.partitions.add(topic=key.topic, partition=key.partition, offset=-1)
            if key in stored:
                value = stored[key].value
                one.offset, one.metadata = value.offset, value.metadata
                one.generation = value.generation
                if value.end_offset is not None:
                    one.end_offset = value.end_offset
                if value.start_offset is not None:
                    one.start_offset = value.start_offset
                if value.leader_epoch is not None:
                    one.leader_epoch = value.leader_epoch
        return response

    async def _on_delete_groups(
        self, _node: _Node, request: admin_pb2.DeleteGroupsRequest
    ) -> admin_pb2.DeleteGroupsResponse:
        response = admin_pb2.DeleteGroupsResponse()
        for group_id in request.group_ids:
            result = response.results.add(group_id=group_id)
            group = self.groups.get(group_id)
            if group is None:
                result.status.CopyFrom(status(Code.GROUP_ID_NOT_FOUND, "no such group"))
            elif group.members or self._consumers(group_id):
                result.status.CopyFrom(status(Code.NON_EMPTY_GROUP, "it has members"))
            else:
                del self.groups[group_id]
        return response

    async def _on_offset_delete(
        self, _node: _Node, request: admin_pb2.OffsetDeleteRequest
    ) -> admin_pb2.OffsetDeleteResponse:
        group = self.groups.get(request.group_id)
        if group is None:
            missing = status(Code.GROUP_ID_NOT_FOUND, "no such group")
            return admin_pb2.OffsetDeleteResponse(status=missing)
        response = admin_pb2.OffsetDeleteResponse()
        for one in request.partitions:
            answer = response.partitions.add(topic=one.topic, partition=one.partition)
            if group.members:
                answer.status.CopyFrom(status(Code.GROUP_SUBSCRIBED_TO_TOPIC, "it is read"))
            else:
                group.offsets.pop(TopicPartition(one.topic, one.partition), None)
        return response

    async def _on_describe_cluster(
        self, node: _Node, _request: admin_pb2.DescribeClusterRequest
    ) -> admin_pb2.DescribeClusterResponse:
        """The nodes, and one shard."""
        response = admin_pb2.DescribeClusterResponse(node_id=node.node_id, shards=1)
        for one in self._nodes.values():
            response.nodes.add(node_id=one.node_id, endpoint=one.endpoint, connected=one.is_alive)
        role = "Leader" if self.leader == node.node_id else "Follower"
        response.shard_states.add(
            shard=0, role=role, term=self.term, leader_id=self.leader or -1, groups=len(self.groups)
        )
        return response

    async def _on_list_groups(
        self, node: _Node, request: admin_pb2.ListGroupsRequest
    ) -> admin_pb2.ListGroupsResponse:
        response = admin_pb2.ListGroupsResponse()
        ids = sorted(self.groups) if self.leader == node.node_id else []
        for group_id in (one for one in ids if one > request.after_group_id):
            if len(response.groups) == GROUPS_PAGE:
                response.more = True
                break
            group, modern = self.groups[group_id], self.modern.get(group_id)
            if modern is not None and modern.members:
                response.groups.add(
                    group_id=group_id,
                    state=modern.state,
                    protocol_type="consumer",
                    members=len(modern.members),
                    generation=modern.epoch,
                    type="consumer",
                )
                continue
            response.groups.add(
                group_id=group_id,
                state=group.phase,
                protocol_type=group.protocol_type,
                members=len(group.members),
                generation=group.generation,
                type="classic",
            )
        return response

    async def _on_describe_groups(
        self, node: _Node, request: admin_pb2.DescribeGroupsRequest
    ) -> admin_pb2.DescribeGroupsResponse:
        response = admin_pb2.DescribeGroupsResponse()
        first = request.first_member
        for group_id in request.group_ids:
            told = response.groups.add(group_id=group_id, state="Dead")
            if self.leader != node.node_id:
                told.status.CopyFrom(self._elsewhere())
                continue
            told.coordinator.CopyFrom(self._coordinator())
            group, modern = self.groups.get(group_id), self.modern.get(group_id)
            if group is None:
                continue
            if modern is not None and modern.members:
                modern.describe(told)
                first = 0
                continue
            told.type = "classic"
            told.state, told.generation = group.phase, group.generation
            told.protocol_type, told.protocol_name = group.protocol_type, group.protocol_name
            told.leader_id = group.leader_id
            members = list(group.members.values())
            for one in members[first : first + MEMBERS_PAGE]:
                told.members.add(**group.description(one))
            if len(members) > first + MEMBERS_PAGE:
                told.next_member = first + MEMBERS_PAGE
                response.more = True
            first = 0
        return response

    def _consumers(self, group_id: str) -> int:
        """How many members it has as a modern group."""
        return len(self.modern[group_id].members) if group_id in self.modern else 0

    async def _on_describe_rebalances(
        self, _node: _Node, request: admin_pb2.DescribeRebalancesRequest
    ) -> admin_pb2.DescribeRebalancesResponse:
        group = self.groups.get(request.group_id)
        if group is None:
            missing = status(Code.GROUP_ID_NOT_FOUND, "no such group")
            return admin_pb2.DescribeRebalancesResponse(status=missing, group_id=request.group_id)
        return admin_pb2.DescribeRebalancesResponse(
            group_id=request.group_id, rebalances=group.rebalances(request.max_rebalances)
        )

    async def _on_kick_members(
        self, _node: _Node, request: admin_pb2.KickMembersRequest
    ) -> admin_pb2.KickMembersResponse:
        group = self._assigning(request.group_id) or self.groups.get(request.group_id)
        if group is None:
            missing = status(Code.GROUP_ID_NOT_FOUND, "no such group")
            return admin_pb2.KickMembersResponse(status=missing)
        response = admin_pb2.KickMembersResponse()
        for one in request.members:
            reason = f"kicked by operator: {request.reason}"
            code = group.leave(one.member_id, one.group_instance_id, reason, "member_kicked")
            response.results.add(
                member_id=one.member_id,
                group_instance_id=one.group_instance_id,
                status=status(code, code.name),
            )
        return response

    # ---- inside: topics

    async def _on_create_topic(
        self, _node: _Node, request: admin_pb2.CreateTopicRequest
    ) -> admin_pb2.CreateTopicResponse:
        existing = self.topics.get(request.name)
        if existing is None and not _TOPIC_NAME.fullmatch(request.name):
            message = f"{request.name!r} is no name of a topic"
            return admin_pb2.CreateTopicResponse(
                status=status(Code.INVALID_TOPIC_EXCEPTION, message)
            )
        if existing is not None and existing != request.partitions:
            message = f"topic {request.name!r} has {existing} partitions"
            return admin_pb2.CreateTopicResponse(status=status(Code.INVALID_PARTITIONS, message))
        if existing is None:
            self._change_topic(request.name, request.partitions)
            self._zones[request.name] = request.zones
        elif request.zones not in ("", self._zones.get(request.name, "")):
            message = f"topic {request.name!r} is in other zones"
            return admin_pb2.CreateTopicResponse(status=status(Code.INVALID_REQUEST, message))
        topic = self._topic(request.name)
        return admin_pb2.CreateTopicResponse(topic=topic, created=existing is None)

    async def _on_list_topics(
        self, _node: _Node, _request: admin_pb2.ListTopicsRequest
    ) -> admin_pb2.ListTopicsResponse:
        return admin_pb2.ListTopicsResponse(topics=map(self._topic, self.topics))

    async def _on_describe_topics(
        self, _node: _Node, request: admin_pb2.DescribeTopicsRequest
    ) -> admin_pb2.DescribeTopicsResponse:
        response = admin_pb2.DescribeTopicsResponse()
        for name in request.names:
            result = response.results.add(name=name)
            if name in self.topics:
                result.topic.CopyFrom(self._topic(name))
            else:
                unknown = status(Code.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")
                result.status.CopyFrom(unknown)
        return response

    async def _on_delete_topic(
        self, _node: _Node, request: admin_pb2.DeleteTopicRequest
    ) -> admin_pb2.DeleteTopicResponse:
        if request.name not in self.topics:
            unknown = status(Code.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {request.name!r}")
            return admin_pb2.DeleteTopicResponse(status=unknown)
        topic = self._topic(request.name)
        meant = request.creation_version
        if request.HasField("creation_version") and meant != topic.creation_version:
            other = status(Code.UNKNOWN_TOPIC_OR_PARTITION, f"another topic {request.name!r}")
            return admin_pb2.DeleteTopicResponse(status=other)
        response = admin_pb2.DeleteTopicResponse(topic=topic)
        for group in self.groups.values():
            keys = [key for key in group.offsets if key.topic == request.name]
            response.groups += bool(keys)
            response.offsets += len(keys)
            for key in keys if not request.validate_only else ():
                del group.offsets[key]
        if not request.validate_only:
            self._change_topic(request.name, 0)
        return response

    async def _on_add_partitions(
        self, _node: _Node, request: admin_pb2.AddPartitionsRequest
    ) -> admin_pb2.AddPartitionsResponse:
        if request.partitions < self.topics.get(request.name, 0):
            refused = status(Code.INVALID_PARTITIONS, "a topic's count only grows")
            return admin_pb2.AddPartitionsResponse(status=refused)
        if request.name not in self.topics:
            unknown = status(Code.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {request.name!r}")
            return admin_pb2.AddPartitionsResponse(status=unknown)
        if request.partitions > self.topics[request.name]:
            self._change_topic(request.name, request.partitions)
        return admin_pb2.AddPartitionsResponse(topic=self._topic(request.name))

    async def _on_set_topic_zones(
        self, _node: _Node, request: admin_pb2.SetTopicZonesRequest
    ) -> admin_pb2.SetTopicZonesResponse:
        """Keep the zones, by which nothing is decided here."""
        if request.name not in self.topics:
            unknown = status(Code.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {request.name!r}")
            return admin_pb2.SetTopicZonesResponse(status=unknown)
        self._zones[request.name] = request.zones
        return admin_pb2.SetTopicZonesResponse(topic=self._topic(request.name))

    def _topic(self, name: str) -> admin_pb2.Topic:
        version, zones = self._creation_versions.get(name, 0), self._zones.get(name, "")
        return admin_pb2.Topic(
            name=name, partitions=self.topics[name], creation_version=version, zones=zones
        )

    def _change_topic(self, name: str, partitions: int) -> None:
        """0 deletes it. Groups that share it share it anew."""
        if not partitions:
            del self.topics[name]
            self._creation_versions.pop(name, None)
            self._zones.pop(name, None)
            self._topics_version += 1
        else:
            if name not in self.topics and self._topics_version:
                self._topics_version += 1
                self._creation_versions[name] = self._topics_version
            self.topics[name] = partitions
        for group in self.groups.values():
            group.topic_changed(name, partitions)
        for modern in self.modern.values():
            modern.topic_changed()


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
