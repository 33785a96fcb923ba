"""Who coordinates a group: the cache, and the search for a later coordinator.

A node says in which shard a group is. All groups of a shard have one coordinator: what is heard of
one of them holds for all, and one is asked about for all.

A search runs while somebody wants it. It asks two nodes at a time, never first the one that has
gone quiet, with (group id, known term) pairs; the node holds the question until it knows a leader
of a later term, 1 s at most. Pairs that come up in the same turn of the loop share one call, and so
do those that come soon after one (FIND_GAP_MS, twice as long for each call that the node has not
answered yet): a node's death costs a process two calls, not two per group, and a node that is busy
is asked ever less often.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from muster import backoff, tasks, timeouts
from muster.errors import ErrorCode, MusterError, error_from_status
from muster.nodes import NODES_MAX, Nodes
from muster.types import Coordinator, Counters
from muster.v1 import errors_pb2, group_pb2

ROUTES_MAX = 20_000
"""Groups whose coordinator a client remembers: some 6 MiB."""

KEYS_MAX = 1000
"""Pairs in one call."""

SHARDS_MAX = 10_000
"""That a client tells apart: more than a cluster may have."""

GAP_MS_PER_KEY = 0.5
"""After a question for many groups the next one to that node comes later: it is work for both."""

ASKED_AT_ONCE = 2
_PATH = "/muster.v1.GroupCoordinator/FindCoordinator"
_ASK_AGAIN = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)

Results = dict[str, group_pb2.FindCoordinatorResponse.Result]


def coordinator_of(message: errors_pb2.Coordinator) -> Coordinator:
    """From the wire."""
    return Coordinator(message.node_id, message.endpoint, message.term)


@dataclass(eq=False, slots=True)
class Route:
    """The way to all groups of a shard, or to one group whose shard is not known yet."""

    shard: int | None = None
    coordinator: Coordinator | None = None
    watchers: "dict[object, tuple[str, Callable[[], None]]]" = field(default_factory=dict)
    """Each with the group that it is about."""

    def taken_off(self, group_id: str) -> "dict[object, tuple[str, Callable[[], None]]]":
        """Remove the watchers of one group."""
        mine = {key: one for key, one in self.watchers.items() if one[0] == group_id}
        for key in mine:
            del self.watchers[key]
        return mine


class Routes:
    """Group id -> the latest coordinator known, of the groups used last.

    Whoever looks after groups meets new names for as long as it runs: ROUTES_MAX are kept, and
    those that a call is waiting on. One that was let go costs a question when it is needed again.
    """

    def __init__(self, counters: Counters) -> None:
        self._of: dict[str, Route] = {}  # what was used last is last
        self._of_shard: dict[int, Route] = {}
        self._watched: dict[str, int] = {}  # by how many
        self._counters = counters

    def route(self, group_id: str) -> Route:
        """The same one for all groups that are known to be in one shard."""
        route = self._of.pop(group_id, None)
        if route is None:
            if len(self._of) >= ROUTES_MAX:
                self._let_go()
            route = Route()
        self._of[group_id] = route
        return route

    def get(self, group_id: str) -> Coordinator | None:
        """The latest known; None before the first answer."""
        return self.route(group_id).coordinator if group_id in self._of else None

    def place(self, group_id: str, shard: int) -> None:
        """A node says that the group is in this shard: from now on it shares that one's route."""
        if self.route(group_id).shard not in {None, shard}:
            self.forget(group_id)  # the cluster was set up anew
        own, shared = self.route(group_id), self._of_shard.get(shard)
        if own is shared:
            return
        if shared is None:
            if len(self._of_shard) < SHARDS_MAX:
                own.shard, self._of_shard[shard] = shard, own
            return
        self._of[group_id] = shared
        moved = own.taken_off(group_id)
        shared.watchers |= moved
        found, known = own.coordinator, shared.coordinator
        if found is not None and (known is None or _is_news(known, found)):
            self._set(shared, found)
        elif known != found:
            for _, wake in moved.values():
                wake()

    def learn(
        self, group_id: str, found: Coordinator, *, denied: Coordinator | None = None
    ) -> bool:
        """Take what an answer said, unless something later is known; tell who watches.

        A term has one leader, so the first that is heard of stays. Where that was wrong only the
        node itself can say so: it is `denied`, and names the one that leads in this term.
        """
        route = self.route(group_id)
        known = route.coordinator
        corrected = known is not None and known == denied and found.term == known.term
        if not found.endpoint or (known and not corrected and not _is_news(known, found)):
            return False
        self._set(route, found)
        return True

    def _set(self, route: Route, found: Coordinator) -> None:
        known, route.coordinator = route.coordinator, found
        if known and found.term > known.term:
            self._counters.coordinator_changes += 1
        for _, wake in list(route.watchers.values()):
            wake()

    def _let_go(self) -> None:
        """Of what was not used for longest and nobody waits on, so much that there is room."""
        surplus = len(self._of) + 1 - ROUTES_MAX + ROUTES_MAX // 10
        for group_id in [one for one in self._of if one not in self._watched][:surplus]:
            del self._of[group_id]

    def known(self) -> dict[str, Coordinator]:
        """A copy of all of them."""
        found = {group_id: route.coordinator for group_id, route in self._of.items()}
        return {group_id: one for group_id, one in found.items() if one is not None}

    def forget(self, group_id: str) -> None:
        """As if nothing had been learned of it; see `Discovery.forget`.

        Its shard's coordinator is forgotten, and which shard that is: a cluster that was set up
        anew behind the same addresses may have others.
        """
        if group_id in self._of:
            route = self.route(group_id)
            route.coordinator = None
            if route.shard is not None:
                self._of[group_id] = Route(watchers=route.taken_off(group_id))

    def watch(self, group_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` after each change of this route, until the returned function is called."""
        key = object()
        self.route(group_id).watchers[key] = group_id, wake
        self._watched[group_id] = self._watched.get(group_id, 0) + 1

        def unwatch() -> None:
            if self.route(group_id).watchers.pop(key, None) is not None:
                self._watched[group_id] -= 1
                if not self._watched[group_id]:
                    del self._watched[group_id]

        return unwatch


def _is_news(known: Coordinator, found: Coordinator) -> bool:
    """A later term, or the same node elsewhere. A term has one leader (thesis Figure 3.2)."""
    if found.term == known.term:
        return found.node_id == known.node_id and found.endpoint != known.endpoint
    return found.term > known.term


@dataclass(eq=False, slots=True)
class _Search:
    """The running search for the coordinator of a route, shared by all who want it."""

    route: Route
    known_term: int
    avoid: str
    wants: "dict[Want, None]" = field(default_factory=dict)
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    @property
    def group_id(self) -> str:
        """Of those who want it, one that is asked about for all; empty where nobody does."""
        return next((want.group_id for want in self.wants), "")

    @property
    def ended(self) -> bool:
        """Nobody asks any more; who still wants it has not seen that yet."""
        return all(task.done() for task in self.tasks)


class Want:
    """One interest in a coordinator of a later term. It ends by `close`, or when one is found."""

    def __init__(
        self, discovery: "Discovery", search: _Search, group_id: str, wake: Callable[[], None]
    ) -> None:
        self.search = search
        self.group_id = group_id
        self.error: MusterError | None = None
        """Set where searching is of no use: the group id is refused."""
        self._discovery = discovery
        self._wake = wake

    def fail(self, error: MusterError) -> None:
        """The cluster refuses the question itself."""
        self.error = error
        self._wake()

    @property
    def is_met(self) -> bool:
        """The coordinator that is known now is what was searched for: nobody looks further."""
        return self._discovery.has_found(self.search, self.group_id)

    def close(self) -> None:
        """No interest any more."""
        self._discovery.drop(self)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one call brought; nothing where the node did not answer."""

    results: Results
    any_found: bool
    """A coordinator of at least one of its groups."""


@dataclass(slots=True)
class _Batch:
    keys: dict[str, int]
    answer: "asyncio.Future[_Answer]"


@dataclass(slots=True)
class _Asked:
    """What one node is asked."""

    batch: _Batch | None = None
    """The next call's."""
    open: int = 0
    """Calls that it has not answered yet."""
    next_at: float = 0.0
    """No call before."""


class Discovery:
    """Searches for coordinators; what it finds goes into the routes."""

    def __init__(self, nodes: Nodes, routes: Routes, counters: Counters) -> None:
        self._nodes = nodes
        self._routes = routes
        self._counters = counters
        self._searches: dict[Route, _Search] = {}
        self._asked: dict[str, _Asked] = {}
        self._asking: set[asyncio.Task[None]] = set()

    def want(self, group_id: str, *, known: Coordinator | None, wake: Callable[[], None]) -> Want:
        """Search for a later coordinator than `known`, or for any.

        Args:
            group_id: whose.
            known: the one that is quiet, gone or wrong; it is asked last.
            wake: called where searching is of no use. What is found is told by `Routes.watch`.
        """
        search = self.search_for(group_id)
        term = known.term if known else 0
        if search is None:
            search = _Search(self._routes.route(group_id), term, known.endpoint if known else "")
            self._searches[search.route] = search
            is_new = True
        else:
            is_new = search.ended or search.known_term < term
            if is_new:
                self._stop(search)
                search.known_term, search.avoid = term, known.endpoint if known else ""
        want = Want(self, search, group_id, wake)
        search.wants[want] = None
        if is_new:
            self._begin(search)
        return want

    def search_for(self, group_id: str) -> _Search | None:
        """The one that runs for the route of this group, or has ended and is wanted still."""
        return self._searches.get(self._routes.route(group_id))

    def forget(self, group_id: str) -> None:
        """Begin anew: whatever answers next is right, with an earlier term too.

        For all who search now as well: their later coordinator than the one that is forgotten may
        never come, and what they need is any.
        """
        search = self.search_for(group_id)
        self._routes.forget(group_id)
        if search is not None and (search.known_term or search.ended):
            search.known_term = 0
            self._stop(search)
            self._begin(search)

    def has_found(self, search: _Search, group_id: str) -> bool:
        """See `Want.is_met`."""
        known = self._routes.get(group_id)
        return known is not None and known.term > search.known_term

    def _begin(self, search: _Search) -> None:
        slots = max(1, min(ASKED_AT_ONCE, self._nodes.others_count(search.avoid)))
        search.tasks = [tasks.start(self._run(search, slot)) for slot in range(slots)]

    def drop(self, want: Want) -> None:
        """See `Want.close`."""
        search = want.search
        search.wants.pop(want, None)
        if not search.wants:
            self._stop(search)
            if self._searches.get(search.route) is search:
                del self._searches[search.route]

    async def close(self) -> None:
        """Stop searching."""
        for search in self._searches.values():
            self._stop(search)
        self._searches.clear()
        self._asked.clear()  # what was about to be sent finds no channel any more
        for task in list(self._asking):
            task.cancel()
        if self._asking:
            await asyncio.wait(list(self._asking))

    def _stop(self, search: _Search) -> None:
        for task in search.tasks:
            task.cancel()

    async def _run(self, search: _Search, turn: int) -> None:
        """One of a search's askers: the same node while it answers, another one after a failure."""
        loop = asyncio.get_running_loop()
        idle = 0
        while group_id := search.group_id:
            order = self._nodes.order(search.avoid)
            asked_at = loop.time()
            answer = await self._ask(order[turn % len(order)], group_id, search.known_term)
            result = answer.results.get(group_id)
            if result is None:
                turn += 1
            elif self._is_over(search, group_id, result):
                return
            held_ms = (loop.time() - asked_at) * 1000
            if answer.any_found:
                idle = (
                    0  # shards elect one by one: another group of this call was found, ours is next
                )
                continue
            if held_ms >= timeouts.SUSPECT_MS:
                idle = 0
            else:
                idle += 1
                await asyncio.sleep(backoff.CALL.delay_ms(idle, random.random) / 1000)

    def _is_over(
        self, search: _Search, group_id: str, result: group_pb2.FindCoordinatorResponse.Result
    ) -> bool:
        if self.has_found(search, group_id):
            return True
        if int(result.status.code) in _ASK_AGAIN or result.status.retriable:
            return False
        for want in [one for one in search.wants if one.group_id == group_id]:
            del search.wants[want]
            want.fail(error_from_status(result.status))
        return not search.wants

    # ---- one call for all pairs of this turn of the loop, or of the time since the last call

    async def _ask(self, endpoint: str, group_id: str, known_term: int) -> _Answer:
        asked = self._asked.setdefault(endpoint, _Asked())
        batch = asked.batch
        if batch is None:
            loop = asyncio.get_running_loop()
            batch = asked.batch = _Batch({}, loop.create_future())
            wait_s = asked.next_at - loop.time()
            if wait_s > 0:
                loop.call_later(wait_s, self._send, endpoint, batch)
            else:
                loop.call_soon(self._send, endpoint, batch)
        batch.keys[group_id] = known_term
        if len(batch.keys) >= KEYS_MAX:
            self._send(endpoint, batch)
        return await asyncio.shield(batch.answer)

    def _send(self, endpoint: str, batch: _Batch) -> None:
        """Unless it was sent when it was full."""
        asked = self._asked.get(endpoint)
        if asked is not None and asked.batch is batch:
            asked.batch = None
            gap_ms = min(timeouts.FIND_GAP_MS << asked.open, timeouts.FIND_GAP_MS_MAX)
            gap_s = max(gap_ms, len(batch.keys) * GAP_MS_PER_KEY) / 1000
            asked.open += 1
            asked.next_at = asyncio.get_running_loop().time() + gap_s
            # The call is never cancelled for want of interest: it ends by itself within its second.
            task = tasks.start(self._find(endpoint, batch))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
            task.add_done_callback(lambda _: self._ended(endpoint))

    def _ended(self, endpoint: str) -> None:
        asked = self._asked.get(endpoint)
        if asked is not None:
            asked.open -= 1
            if len(self._asked) > NODES_MAX and asked == _Asked(next_at=asked.next_at):
                del self._asked[endpoint]

    async def _find(self, endpoint: str, batch: _Batch) -> None:
        keys = [
            group_pb2.FindCoordinatorRequest.Key(group_id=g, known_term=t)
            for g, t in batch.keys.items()
        ]
        self._counters.find_coordinator += 1
        answer = _Answer({}, any_found=False)
        try:
            call = self._nodes.unary(
                endpoint,
                _PATH,
                group_pb2.FindCoordinatorResponse.FromString,
                group_pb2.FindCoordinatorRequest(keys=keys).SerializeToString(),
                timeouts.FIND_ATTEMPT_MS,
            )
            try:
                response = await call
            finally:
                if not call.done():
                    call.cancel()
            answer = _Answer(
                {one.group_id: one for one in response.results},
                any(not one.pending for one in response.results),
            )
            self._learn(response)
        except grpc.aio.AioRpcError:
            pass  # the askers see no results and turn to another node
        finally:
            if not batch.answer.done():
                batch.answer.set_result(answer)

    def _learn(self, response: group_pb2.FindCoordinatorResponse) -> None:
        self._nodes.learn(node.endpoint for node in response.nodes)
        for one in response.results:
            if one.HasField("shard"):
                self._place(one.group_id, one.shard)
            if int(one.status.code) == ErrorCode.NONE and not one.pending:
                self._routes.learn(one.group_id, coordinator_of(one.coordinator))

    def _place(self, group_id: str, shard: int) -> None:
        """Who searches for the group alone then searches with all others of its shard."""
        own = self._routes.route(group_id)
        self._routes.place(group_id, shard)
        shared = self._routes.route(group_id)
        search = None if shared is own else self._searches.pop(own, None)
        if search is None:
            return
        goes_on = self._searches.setdefault(shared, search)
        if goes_on is search:
            search.route = shared
            return
        self._stop(search)
        for want in search.wants:
            want.search = goes_on
        goes_on.wants |= search.wants
