"""Finds the coordinator of a group: a cache, and the search for a later coordinator.

All groups of a shard have one coordinator, and a node says in which shard a group is. So one group
is asked about for all of its shard, and what is heard of it holds for all of them.

A search runs while somebody wants it. It asks two nodes at a time, and never begins with the one
that has gone quiet. A question is a list of pairs (group id, known term); the node holds it until
it knows a leader of a later term, 1 s at most. Pairs that come up in the same turn of the loop
share one call, and so do those that come up within FIND_GAP_MS of a call. That gap doubles with
each call beyond two that the node has not answered yet. So a node's death costs a process two
calls, not two per group, and a busy node is asked ever less often.
"""

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from muster import timeouts
from muster.errors import ErrorCode, MusterError, error_from_status
from muster.net import background_tasks, backoff
from muster.net.nodes import NODES_MAX, Nodes
from muster.types import Coordinator, Counters
from muster.v1 import errors_pb2, group_pb2

ROUTES_MAX = 20_000
"""Groups whose coordinator a client remembers: some 6 MiB."""

KEYS_MAX = 1000
"""Pairs in one call."""

SHARDS_MAX = 10_000
"""That a client tells apart: more than a cluster may have."""

OPEN_AT_ONCE = 2
"""Calls that a node may hold, as it does while a shard has no leader, before it is asked less."""

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


def coordinator_of(message: errors_pb2.Coordinator, asked: str = "") -> Coordinator:
    """The coordinator that a message names.

    A node that forwards names itself: it is used at the address at which it was asked, which may be
    a load balancer's.
    """
    endpoint = asked if message.forwards and asked else message.endpoint
    return Coordinator(message.node_id, endpoint, message.term, message.forwards)


@dataclass(eq=False, slots=True)
class Route:
    """The way to all groups of a shard, or to one group that stands alone."""

    shard: int | None = None
    coordinator: Coordinator | None = None
    groups: dict[str, None] = field(default_factory=dict)


class Routes:
    """Group id -> the latest coordinator known, of the groups used last.

    Whoever looks after groups meets new names for as long as it runs: ROUTES_MAX are kept, and
    those that a call is waiting on. One that was let go costs a question when it is needed again.
    """

    def __init__(self, counters: Counters) -> None:
        self._of: dict[str, Route] = {}  # what was used last is last
        self._of_shard: dict[int, Route] = {}
        self._watchers: dict[str, dict[object, Callable[[], None]]] = {}
        self._counters = counters

    def route(self, group_id: str) -> Route:
        """Return the group's route. All groups that are known to be in one shard have one."""
        route = self._of.pop(group_id, None)
        if route is None:
            if len(self._of) >= ROUTES_MAX:
                self._let_go()
            route = Route()
        self._move(group_id, route)
        return route

    def get(self, group_id: str) -> Coordinator | None:
        """The latest known; None before the first answer."""
        return self.route(group_id).coordinator if group_id in self._of else None

    def place(self, group_id: str, shard: int, found: Coordinator | None) -> None:
        """A node says that the group is in this shard, and has this coordinator, if any.

        From now on it shares that one's route, unless more is known of the shard than this. Then
        the node is behind, or the cluster was set up anew and has other terms and shards: the group
        stands alone.
        """
        own, shared = self.route(group_id), self._of_shard.get(shard)
        if own is shared:
            return
        if own.shard is not None:
            own = Route()
            self._move(group_id, own)
        if shared is None:
            if len(self._of_shard) < SHARDS_MAX:
                own.shard, self._of_shard[shard] = shard, own
            return
        known = shared.coordinator
        if own.coordinator is not None and (found is None or _is_news(found, own.coordinator)):
            return
        if known is None or (found is not None and (found == known or _is_news(known, found))):
            self._move(group_id, shared)
            if own.coordinator != known:
                self._wake(group_id)

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
        route.coordinator = found
        if known and found.term > known.term:
            self._counters.coordinator_changes += 1
        for one in list(route.groups):
            self._wake(one)
        return True

    def doubt(self, group_id: str, known: Coordinator) -> None:
        """Take a node that forwards for no way any more: another one is as good in its term."""
        route = self.route(group_id)
        if route.coordinator == known:
            route.coordinator = None

    def _move(self, group_id: str, route: Route) -> None:
        left = self._of.pop(group_id, None)
        if left is not None:
            left.groups.pop(group_id, None)
        self._of[group_id] = route
        route.groups[group_id] = None

    def _wake(self, group_id: str) -> None:
        for wake in list(self._watchers.get(group_id, {}).values()):
            wake()

    def _let_go(self) -> None:
        """Forget unwatched routes, those unused for longest first, until there is room."""
        surplus = len(self._of) + 1 - ROUTES_MAX + ROUTES_MAX // 10
        for group_id in [one for one in self._of if one not in self._watchers][:surplus]:
            del self._of.pop(group_id).groups[group_id]

    def known(self) -> dict[str, Coordinator]:
        """A copy of all of them."""
        found = {group_id: route.coordinator for group_id, route in self._of.items()}
        return {group_id: one for group_id, one in found.items() if one is not None}

    def forget(self, group_id: str) -> None:
        """As if nothing had been learned of it, nor its shard; see `Discovery.forget`."""
        if group_id in self._of:
            self._move(group_id, Route())

    def watch(self, group_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` after each change of this route, until the returned function is called."""
        key = object()
        self.route(group_id)
        self._watchers.setdefault(group_id, {})[key] = wake

        def unwatch() -> None:
            watchers = self._watchers.get(group_id, {})
            watchers.pop(key, None)
            if not watchers:
                self._watchers.pop(group_id, None)

        return unwatch


def _spell(result: group_pb2.FindCoordinatorResponse.Result) -> str:
    if result.pending:
        return "knows no leader"
    if int(result.status.code) != ErrorCode.NONE:
        return result.status.message or errors_pb2.ErrorCode.Name(result.status.code)
    return f"names {result.coordinator.endpoint}, term {result.coordinator.term}"


def _is_news(known: Coordinator, found: Coordinator) -> bool:
    """A later term, or the same node elsewhere. A term has one leader (thesis Figure 3.2)."""
    if found.term == known.term:
        return found.node_id == known.node_id and found.endpoint != known.endpoint
    return found.term > known.term


@dataclass(eq=False, slots=True)
class _Search:
    """The running search for the coordinator of a route, shared by all who want it."""

    route: Route
    term: int
    """The latest that was known when somebody joined in."""
    avoid: str
    """Who had it: asked last."""
    wants: "dict[Want, None]" = field(default_factory=dict)
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    asked: dict[int, str] = field(default_factory=dict)
    """Asker -> the node whose answer it waits for."""
    said: dict[str, str] = field(default_factory=dict)
    """By node, the latest that it said."""

    @property
    def ended(self) -> bool:
        """Nobody asks any more; who still wants it has not seen that yet."""
        return all(task.done() for task in self.tasks)

    def unmet(self) -> "Want | None":
        """One that is asked about for all; None where all are met."""
        return next((want for want in self.wants if not want.is_met), None)

    def next(self, order: list[str], turn: int) -> int:
        """Which of the nodes comes next from this one on: one that no other asker waits for.

        Or all of them would come to wait for the one that is quiet, while others elect.
        """
        free = (n for n in range(turn, turn + len(order)) if not self._waits_for(order, n))
        return next(free, turn)

    def _waits_for(self, order: list[str], turn: int) -> bool:
        return order[turn % len(order)] in self.asked.values()


class Want:
    """One interest in a coordinator of a later term. It ends by `close`, or when one is found."""

    def __init__(
        self,
        discovery: "Discovery",
        group_id: str,
        known_term: int,
        wake: Callable[[], None],
        search: _Search,
    ) -> None:
        self.group_id = group_id
        self.known_term = known_term
        """What is found is later than this."""
        self.search = search
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
        return self._discovery.known_term(self.group_id) > self.known_term

    def close(self) -> None:
        self._discovery.drop(self)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer of one call; empty where the node did not answer."""

    results: Results
    any_found: bool
    """A coordinator of at least one of its groups."""
    error: str = ""
    """Why there was no answer."""


@dataclass(slots=True)
class _Batch:
    keys: dict[str, int]
    answer: "asyncio.Future[_Answer]"


@dataclass(slots=True)
class _Asked:
    """The questions for one node."""

    batch: _Batch | None = None
    """The next call's."""
    timer: asyncio.Handle | None = None
    """Sends it."""
    open: int = 0
    """Calls that it has not answered yet."""
    sent_at: float = -math.inf
    """The last one."""
    work_ms: float = 0.0
    """What that was."""


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
        term, avoid = (known.term, known.endpoint) if known else (0, "")
        if known is not None and known.forwards:
            term = 0
            self._routes.doubt(group_id, known)
        route = self._routes.route(group_id)
        search = self._searches.get(route)
        if search is None:
            search = self._searches[route] = _Search(route, term, avoid)
        elif search.term < term:
            self._stop(search)
            search.term, search.avoid = term, avoid
        want = Want(self, group_id, term, wake, search)
        search.wants[want] = None
        self._begin_if_ended(search)
        return want

    def search_for(self, group_id: str) -> _Search | None:
        """The one that runs for the route of this group, or has ended and is wanted still."""
        return self._searches.get(self._routes.route(group_id))

    def forget(self, group_id: str) -> None:
        """Begin anew: whatever answers next is right, with an earlier term too.

        For all who search for this group now as well: their later coordinator than the one that is
        forgotten may never come, and what they need is any. Others of its shard go on as they were.
        """
        search = self.search_for(group_id)
        self._routes.forget(group_id)
        mine = [want for want in search.wants if want.group_id == group_id] if search else []
        if search is None or not mine:
            return
        alone = _Search(self._routes.route(group_id), 0, search.avoid)
        self._searches[alone.route] = alone
        for want in mine:
            self.drop(want)
            want.known_term, want.search = 0, alone
            alone.wants[want] = None
        self._begin(alone)

    def known_term(self, group_id: str) -> int:
        """Return the term of the coordinator that is known; 0 where none is."""
        known = self._routes.get(group_id)
        return known.term if known else 0

    def _begin_if_ended(self, search: _Search) -> None:
        if search.ended:
            self._begin(search)

    def _begin(self, search: _Search) -> None:
        slots = max(1, min(ASKED_AT_ONCE, self._nodes.others_count(search.avoid)))
        search.asked.clear()
        search.tasks = [background_tasks.start(self._run(search, slot)) for slot in range(slots)]

    def drop(self, want: Want) -> None:
        """Forget the want; the last want of a search ends it."""
        search = want.search
        search.wants.pop(want, None)
        if not search.wants:
            self._stop(search)
            if self._searches.get(search.route) is search:
                del self._searches[search.route]

    async def close(self) -> None:
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
        search.tasks = []

    async def _run(self, search: _Search, asker: int) -> None:
        """One of a search's askers: one node after the other, as what each answers may be stale.

        A node that is cut off from the others answers for as long as it is, and knows no leader.
        """
        loop = asyncio.get_running_loop()
        idle, turn = 0, asker
        while (want := search.unmet()) is not None:
            order = self._nodes.order(search.avoid)
            asked_at = loop.time()
            turn = search.next(order, turn)
            endpoint = search.asked[asker] = order[turn % len(order)]
            answer = await self._ask(endpoint, want.group_id, want.known_term)
            del search.asked[asker]
            result = answer.results.get(want.group_id)
            turn += 1
            if len(search.said) < NODES_MAX:
                search.said[endpoint] = _spell(result) if result else answer.error
            if result is not None:
                self._heed_refusal(search, want.group_id, result)
            elif failure := self._nodes.tls_failure():
                self._fail(search, list(search.wants), failure)
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

    def _heed_refusal(
        self, search: _Search, group_id: str, result: group_pb2.FindCoordinatorResponse.Result
    ) -> None:
        if int(result.status.code) not in _ASK_AGAIN and not result.status.retriable:
            mine = [one for one in search.wants if one.group_id == group_id]
            self._fail(search, mine, error_from_status(result.status))

    def _fail(self, search: _Search, wants: list[Want], error: MusterError) -> None:
        for want in wants:
            del search.wants[want]
            want.fail(error)

    # ---- one call for all pairs of this turn of the loop, or of the time since the last call

    async def _ask(self, endpoint: str, group_id: str, known_term: int) -> _Answer:
        asked = self._asked.get(endpoint)
        if asked is None:
            if len(self._asked) >= NODES_MAX:
                self._asked = {e: one for e, one in self._asked.items() if one.open or one.batch}
            asked = self._asked[endpoint] = _Asked()
        batch = asked.batch
        if batch is None:
            batch = asked.batch = _Batch({}, asyncio.get_running_loop().create_future())
            self._send_when_due(endpoint, asked)
        batch.keys[group_id] = known_term
        if len(batch.keys) >= KEYS_MAX:
            self._send(endpoint, asked)
        return await asyncio.shield(batch.answer)

    def _send_when_due(self, endpoint: str, asked: _Asked) -> None:
        """With each answer that comes the next question is due sooner."""
        loop = asyncio.get_running_loop()
        if asked.timer is not None:
            asked.timer.cancel()
        gap_ms = timeouts.FIND_GAP_MS << max(0, asked.open - OPEN_AT_ONCE)
        gap_s = max(min(gap_ms, timeouts.FIND_GAP_MS_MAX), asked.work_ms) / 1000
        if (due := asked.sent_at + gap_s) > loop.time():
            asked.timer = loop.call_at(due, self._send, endpoint, asked)
        else:
            asked.timer = loop.call_soon(self._send, endpoint, asked)

    def _send(self, endpoint: str, asked: _Asked) -> None:
        """Unless it was sent when it was full, or there are no channels any more."""
        batch, asked.batch = asked.batch, None
        if batch is not None and self._asked.get(endpoint) is asked:
            asked.open += 1
            asked.sent_at = asyncio.get_running_loop().time()
            asked.work_ms = len(batch.keys) * GAP_MS_PER_KEY
            # The call is never cancelled for want of interest: it ends by itself within its second.
            task = background_tasks.start(self._find(endpoint, batch))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
            task.add_done_callback(lambda _: self._ended(endpoint, asked))

    def _ended(self, endpoint: str, asked: _Asked) -> None:
        asked.open -= 1
        if asked.batch is not None:
            self._send_when_due(endpoint, asked)

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
            self._learn(endpoint, response)
        except grpc.aio.AioRpcError as error:  # the askers turn to another node
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                self._nodes.renew()  # the next question shows what the files have
            why = f"{error.code().name} {error.details() or ''}"
            answer = _Answer({}, any_found=False, error=why)
        finally:
            if not batch.answer.done():
                batch.answer.set_result(answer)

    def _learn(self, asked: str, response: group_pb2.FindCoordinatorResponse) -> None:
        self._nodes.learn(node.endpoint for node in response.nodes)
        for one in response.results:
            found = None
            if int(one.status.code) == ErrorCode.NONE and not one.pending:
                found = coordinator_of(one.coordinator, asked)
            if one.HasField("shard"):
                self._place(one.group_id, one.shard, found)
            if found is not None:
                self._routes.learn(one.group_id, found)

    def _place(self, group_id: str, shard: int, found: Coordinator | None) -> None:
        """Who searches for the group alone then searches with all others of its shard."""
        own = self._routes.route(group_id)
        self._routes.place(group_id, shard, found)
        shared = self._routes.route(group_id)
        if shared is own or own.groups or own not in self._searches:
            return
        search = self._searches.pop(own)
        goes_on = self._searches.setdefault(shared, search)
        if goes_on is search:
            search.route = shared
            return
        self._stop(search)
        for want in search.wants:
            want.search = goes_on
        goes_on.wants |= search.wants
        self._begin_if_ended(goes_on)
