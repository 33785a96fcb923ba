"""The edge: passes what other nodes coordinate to them, for clients that speak to this node alone.

A call is passed on once: the coordinator never passes it on again. Where it says that it is not the
coordinator, and nothing of the call came near the log, the edge looks again, LOOKS_MAX times.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from muster.v1.errors_pb2 import Status
from musterd.coordinator.api.forward.coordinator_link import CoordinatorLink, PassedRequest
from musterd.coordinator.api.forward.heartbeat_parts import beat_in_parts
from musterd.coordinator.api.forward.member_ways import MemberRequest, MemberWays
from musterd.coordinator.api.forward.methods import (
    CLUSTER_SHARD,
    HEARTBEAT,
    PASSED,
    PassedMethod,
    is_elsewhere,
)
from musterd.coordinator.api.frame.bounds import HEARTBEAT_MEMBERS_MAX
from musterd.coordinator.api.frame.coordination import Coordination
from musterd.coordinator.api.frame.forwarding import PassingFailed, ShownCaller
from musterd.coordinator.api.frame.handler import Failure
from musterd.coordinator.api.limits.requests_under_way import AT_ONCE_BYTES_MAX
from musterd.coordinator.api.stream.member_order import IN_LOG_REQUESTS, Member, members_of
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.timeouts import FORWARD_MOVED_MS, LOADING_HOLD_MS
from musterd.raft.contract import ForwardLink, NodeId

LOOKS_MAX: Final = 5
"""Coordinators that one call is passed to, one after the other."""

REFUSALS_MAX: Final = 64
"""Nodes whose refusal, or failure, is kept: more than a cluster has."""

ELSEWHERE: Final = "The group's coordinator is being looked for: ask FindCoordinator."

NEVER: Final = "it does not answer at its peer port"

HELD_BACK: Final = (
    "An earlier request of the member is with a former coordinator; nothing was done: repeat."
)

Here = Callable[[Any], Awaitable[Any]]


class Edge:
    """This node as an edge. A `ForwardEnd` of the connections that it dialled."""

    def __init__(self, core: Coordination) -> None:
        self._core = core
        self._links: dict[ForwardLink, CoordinatorLink] = {}
        self._by_node: dict[NodeId, CoordinatorLink] = {}
        self.refusals: dict[NodeId, str] = {}
        """Nodes that take no calls, and why: what they lead is named as without forwarding."""
        self.failures: dict[NodeId, str] = {}
        """Nodes to which no connection stands, and how the last one failed."""
        self._ways = MemberWays()
        self.passed_total = 0
        self.looked_again_total = 0
        self.held_back_total = 0
        """Requests of members that were to be repeated, since one before them was elsewhere."""

    @property
    def open(self) -> Mapping[NodeId, int]:
        """By coordinator, the calls that wait for it."""
        return {node: len(link) for node, link in self._by_node.items()}

    def unconnected(self, nodes: Iterable[int]) -> Mapping[int, str]:
        """The ones of these nodes to which no connection stands, and why."""
        said = {**self.failures, **self.refusals}
        missing = [node for node in map(NodeId, nodes) if node not in self._by_node]
        return {node: said.get(node, NEVER) for node in missing}

    # ---- connections

    def opened(self, link: ForwardLink) -> None:
        self.refusals.pop(link.node, None)
        self.failures.pop(link.node, None)
        self._links[link] = self._by_node[link.node] = CoordinatorLink(link)

    def arrived(self, link: ForwardLink, frame: memoryview) -> None:
        try:
            self._links[link].arrived(frame)
        except DecodeError as error:
            raise ValueError(str(error)) from error

    def writable(self, link: ForwardLink) -> None:
        self._links[link].send()

    def closed(self, link: ForwardLink) -> None:
        gone = self._links.pop(link)
        if self._by_node.get(link.node) is gone:
            del self._by_node[link.node]
        gone.over()

    def refused(self, node: NodeId, reason: str) -> None:
        self.failures.pop(node, None)
        if node not in self._by_node and len(self.refusals) < REFUSALS_MAX:
            self.refusals[node] = reason

    def failed(self, node: NodeId, reason: str) -> None:
        if node not in self._by_node and len(self.failures) < REFUSALS_MAX:
            self.failures[node] = reason

    def look(self) -> None:
        """To be called every FORWARD_LOOK_MS."""
        for link in list(self._links.values()):
            link.look()

    def close(self) -> None:
        """The node ends: clients are told so, and coordinators nothing of clients."""
        for link in list(self._links.values()):
            link.hang_up()

    # ---- where calls go

    def reaches(self, leader: NodeId) -> bool:
        """See `frame.forwarding.Edge`."""
        return leader in self._by_node

    def names_itself(self, leader: NodeId) -> bool:
        """See `frame.forwarding.Edge`: but for what a node leads that refuses its calls."""
        return leader not in self.refusals

    def _taker(self, shard: Shard) -> NodeId | None:
        """The node to which calls about this shard are passed, or None."""
        if not shard.coordinator_state.elsewhere:
            return None
        leader = shard.log.leader
        return leader if leader is not None and leader in self._by_node else None

    def _is_settled(self, shard: Shard) -> bool:
        """Whether it is known who serves calls about the shard: this node, another, or nobody."""
        if not shard.coordinator_state.elsewhere:
            return True
        leader = shard.log.leader
        return leader is not None and (leader in self._by_node or leader in self.refusals)

    def _shards(self, method: PassedMethod, request: Any) -> Sequence[Shard]:
        """The shard of each thing that a request is about; none where it is about nothing here."""
        shards = self._core.shards
        if method.on_cluster:
            return (shards[CLUSTER_SHARD],)
        if method.shard:
            number: int = getattr(request, method.shard)
            return (shards[number],) if 0 <= number < len(shards) else ()
        return [self._core.shard_for(group_id) for group_id in method.groups(request)]

    def concerns(self, name: str, request: Any) -> bool:
        """See `frame.forwarding.Edge`."""
        method = PASSED.get(name)
        if method is None:
            return False
        if name == HEARTBEAT and len(request.members) > HEARTBEAT_MEMBERS_MAX:
            return False  # to be refused here
        if self._ways and self.is_awaited(_members_of(request)):
            return True
        return any(shard.coordinator_state.elsewhere for shard in self._shards(method, request))

    def is_awaited(self, members: Sequence[Member]) -> bool:
        """See `frame.forwarding.Edge`."""
        return self._ways.is_taken(members)

    # ---- calls

    async def pass_on(
        self,
        name: str,
        request: Any,
        caller: ShownCaller,
        entered: Callable[[], None] | None,
        here: Here,
    ) -> Any:
        """See `frame.forwarding.Edge`."""
        method = PASSED[name]
        shards = self._shards(method, request)
        await self._core.watch.until(lambda: all(map(self._is_settled, shards)), LOADING_HOLD_MS)
        if len(set(shards)) == 1:
            return await self._pass_one(method, request, shards[0], caller, entered, here)
        takers = tuple(dict.fromkeys(map(self._taker, shards)))
        if len(takers) == 1:  # some may have moved since: of each the client is told at once
            return await self._part(method, request, takers[0], caller, here)
        if name == HEARTBEAT:
            return await self._beat(method, request, caller, here)
        return await self._in_parts(method, request, caller, here)

    async def _pass_one(
        self,
        method: PassedMethod,
        request: Any,
        shard: Shard,
        caller: ShownCaller,
        entered: Callable[[], None] | None,
        here: Here,
    ) -> Any:
        """Pass a request to the one node that it is for, or to that one's successor."""
        node, members = self._taker(shard), _members_of(request)
        if node is None:
            return self._not_now(method) if self._ways.is_taken(members) else await here(request)
        way = self._ways.begin(members, node)
        if way is None:
            return self._not_now(method)
        passed = _passed(method, request, caller)
        try:
            response = await self._look(method, passed, shard, way, entered)
        finally:
            way.ended()
        if response is None:
            return await here(request)
        return _without_names(method, response)

    async def _look(
        self,
        method: PassedMethod,
        passed: PassedRequest,
        shard: Shard,
        way: MemberRequest,
        entered: Callable[[], None] | None,
    ) -> Any:
        """The response of the node that takes it; None: it may be served here."""
        response = None
        for _ in range(LOOKS_MAX):
            node, term = self._taker(shard), shard.log.term
            if node is None:
                return response if way.has_members else None
            way.go(node)
            self.passed_total += 1
            answer = await self._by_node[node].call(passed, entered)
            response, entered = method.parse(answer.message), None
            refused = not answer.in_log and any(map(is_elsewhere, method.statuses(response)))
            if not refused or not way.may_move or self._core.watch.is_full:
                break
            self.looked_again_total += 1
            way.go(None)
            await self._moved(shard, node, term)
            await self._core.watch.until(lambda: self._is_settled(shard), LOADING_HOLD_MS)
        return response

    def _not_now(self, method: PassedMethod) -> Any:
        """A member's request that would pass one before it: it is to be repeated."""
        self.held_back_total += 1
        response = method.parse(b"")
        error = Error.COORDINATOR_LOAD_IN_PROGRESS
        response.status.CopyFrom(self._core.statuses.error(error, HELD_BACK))
        return response

    async def _moved(self, shard: Shard, node: NodeId, term: int) -> None:
        """Wait until another node, or term, is known of a shard than that which was wrong."""

        def is_other() -> bool:
            return self._taker(shard) != node or shard.log.term != term

        await self._core.watch.until(is_other, FORWARD_MOVED_MS)

    async def _part(
        self,
        method: PassedMethod,
        request: Any,
        node: NodeId | None,
        caller: ShownCaller,
        here: Here,
    ) -> Any:
        """Pass on once what is for one node, of a request about several shards. None: `here`."""
        link = None if node is None else self._by_node.get(node)
        if link is None:
            return await here(request)
        self.passed_total += 1
        answer = await link.call(_passed(method, request, caller), None)
        return _without_names(method, method.parse(answer.message))

    async def _beat(
        self, method: PassedMethod, request: Any, caller: ShownCaller, here: Here
    ) -> Any:
        """A heartbeat for several nodes: see heartbeat_parts.py."""
        takers = [self._taker(self._core.shard_for(member.group_id)) for member in request.members]

        async def ask(node: NodeId | None, part: Any) -> Any:
            return await self._part(method, part, node, caller, here)

        return await beat_in_parts(request, takers, ask)

    async def _in_parts(
        self, method: PassedMethod, request: Any, caller: ShownCaller, here: Here
    ) -> Any:
        """Each node answers for its groups; the answers are put together in the request's order."""
        places: dict[NodeId | None, list[int]] = {}
        for place, group_id in enumerate(method.groups(request)):
            places.setdefault(self._taker(self._core.shard_for(group_id)), []).append(place)
        parts = [
            self._told(method, _part_of(method, request, of_node), node, caller, here)
            for node, of_node in places.items()
        ]
        asked = [asyncio.ensure_future(part) for part in parts]
        try:
            responses = await asyncio.gather(*asked)
        except BaseException:
            for one in asked:
                one.cancel()
            raise
        return _together(method, responses, list(places.values()))

    async def _told(
        self,
        method: PassedMethod,
        part: Any,
        node: NodeId | None,
        caller: ShownCaller,
        here: Here,
    ) -> Any:
        """What is to be told of a part. Where it changes something, each of its groups is told of.

        The other parts may be carried out: that one is refused, or lost, is no answer to the call.
        """
        if not method.changes:
            return await self._part(method, part, node, caller, here)
        statuses = self._core.statuses
        try:
            response = await self._part(method, part, node, caller, here)
        except Failure as failure:
            return _each_told(method, part, statuses.of(failure.answer))
        except PassingFailed as failed:
            shed = failed.code is grpc.StatusCode.RESOURCE_EXHAUSTED  # nothing was done
            error = Error.COORDINATOR_NOT_AVAILABLE if shed else Error.REQUEST_TIMED_OUT
            return _each_told(method, part, statuses.error(error, failed.details))
        if int(response.status.code) and not getattr(response, method.results):
            return _each_told(method, part, response.status)
        return response


def _members_of(request: Any) -> tuple[Member, ...]:
    """Whose request it is, where it enters the log in the order in which they make them."""
    return members_of(request) if isinstance(request, IN_LOG_REQUESTS) else ()


def _passed(method: PassedMethod, request: Any, caller: ShownCaller) -> PassedRequest:
    message = request.SerializeToString()
    members = _members_of(request) if len(message) > AT_ONCE_BYTES_MAX else ()
    group_id = members[0][0] if members else ""
    return PassedRequest(method.path, message, caller, group_id, [one for _, one in members])


def _part_of(method: PassedMethod, request: Any, places: Sequence[int]) -> Any:
    """What of a request is at these places of its items."""
    items = getattr(request, method.items)
    part = type(request)()
    part.CopyFrom(request)
    part.ClearField(method.items)
    getattr(part, method.items).extend(items[place] for place in places)
    if getattr(request, "first_member", 0) and places[0] != 0:
        part.first_member = 0  # it is about the first group alone
    return part


def _each_told(method: PassedMethod, part: Any, status: Status) -> Any:
    response = method.parse(b"")
    for group_id in method.groups(part):
        getattr(response, method.results).add(group_id=group_id, status=status)
    return response


def _together(
    method: PassedMethod, responses: Sequence[Any], places: Sequence[Sequence[int]]
) -> Any:
    """One response of the parts', whose results were for these places of the request.

    A part that is refused as a whole makes the response: the call is to be repeated. Results come
    up to the first that is missing, since a page says of what comes after it that there is more.
    """
    whole = type(responses[0])()
    found: dict[int, Any] = {}
    for response, of_part in zip(responses, places, strict=True):
        results = getattr(response, method.results)
        if method.has_status and int(response.status.code) and not results:
            return response
        found.update(zip(of_part, results, strict=False))
        if getattr(response, "more", False):
            whole.more = True
    for place in range(sum(map(len, places))):
        if place not in found:
            break
        getattr(whole, method.results).append(found[place])
    return whole


def _without_names(method: PassedMethod, response: Any) -> Any:
    """The client stays here: it is not told who coordinates its groups."""
    for status in method.statuses(response):
        if is_elsewhere(status):
            status.ClearField("coordinator")
            status.message = ELSEWHERE
    return response
