"""Who coordinates a group: the cache, and the search for a later coordinator.

A search runs while somebody wants it. It asks two nodes at a time, never first the one that has
gone quiet, with (group id, known term) pairs; the node holds the question until it knows a leader
of a later term, 1 s at most. Pairs that come up in the same turn of the loop share one call, and so
do those that come within FIND_GAP_MS after one: a node's death costs a process two calls, not two
per group, and thousands of groups that search ask no more often than one.
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


class Routes:
    """Group id -> the latest coordinator known, of the groups used last.

    Whoever looks after groups meets new names for as long as it runs: ROUTES_MAX are kept, and
    those that a call is waiting on. One that was let go costs a question when it is needed again.
    """

    def __init__(self, counters: Counters) -> None:
        self._known: dict[str, Coordinator] = {}  # what was used last is last
        self._watchers: dict[str, dict[object, Callable[[], None]]] = {}
        self._counters = counters

    def get(self, group_id: str) -> Coordinator | None:
        """The latest known; None before the first answer."""
        known = self._known.pop(group_id, None)
        if known is not None:
            self._known[group_id] = known
        return known

    def learn(
        self, group_id: str, found: Coordinator, *, denied: Coordinator | None = None
    ) -> bool:
        """Take what an answer said, unless something later is known; tell who watches.

        A term has one leader, so the first that is heard of stays. Where that was wrong only the
        node itself can say so: it is `denied`, and names the one that leads in this term.
        """
        known = self._known.get(group_id)
        corrected = known is not None and known == denied and found.term == known.term
        if not found.endpoint or (known and not corrected and not _is_news(known, found)):
            return False
        self._known[group_id] = found
        if len(self._known) > ROUTES_MAX:
            self._let_go()
        if known and found.term > known.term:
            self._counters.coordinator_changes += 1
        for wake in list(self._watchers.get(group_id, {}).values()):
            wake()
        return True

    def _let_go(self) -> None:
        """Of what was not used for longest and nobody waits on, so much that there is room."""
        surplus = len(self._known) - ROUTES_MAX + ROUTES_MAX // 10
        for group_id in [one for one in self._known if one not in self._watchers][:surplus]:
            del self._known[group_id]

    def known(self) -> dict[str, Coordinator]:
        """A copy of all of them."""
        return dict(self._known)

    def forget(self, group_id: str) -> None:
        """As if nothing had been learned of it; see `Discovery.forget`."""
        self._known.pop(group_id, None)

    def watch(self, group_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` after each change of this route, until the returned function is called."""
        key = object()
        self._watchers.setdefault(group_id, {})[key] = wake

        def unwatch() -> None:
            watchers = self._watchers.get(group_id, {})
            watchers.pop(key, None)
            if not watchers:
                self._watchers.pop(group_id, None)

        return unwatch


def _is_news(known: Coordinator, found: Coordinator) -> bool:
    """A later term, or the same node elsewhere. A term has one leader (thesis Figure 3.2)."""
    if found.term == known.term:
        return found.node_id == known.node_id and found.endpoint != known.endpoint
    return found.term > known.term


@dataclass(eq=False, slots=True)
class _Search:
    """The running search for one group's coordinator, shared by all who want it."""

    group_id: str
    known_term: int
    avoid: str
    wants: "dict[Want, None]" = field(default_factory=dict)
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Nobody asks any more; who still wants it has not seen that yet."""
        return all(task.done() for task in self.tasks)


class Want:
    """One interest in a coordinator of a later term. It ends by `close`, or when one is found."""

    def __init__(self, discovery: "Discovery", group_id: str, wake: Callable[[], None]) -> None:
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
        return self._discovery.has_found(self.group_id)

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


class Discovery:
    """Searches for coordinators; what it finds goes into the routes."""

    def __init__(self, nodes: Nodes, routes: Routes, counters: Counters) -> None:
        self._nodes = nodes
        self._routes = routes
        self._counters = counters
        self._searches: dict[str, _Search] = {}
        self._batches: dict[str, _Batch] = {}
        self._next_at: dict[str, float] = {}  # no call to that endpoint before
        self._asking: set[asyncio.Task[None]] = set()

    def want(self, group_id: str, *, known: Coordinator | None, wake: Callable[[], None]) -> Want:
        """Search for a later coordinator than `known`, or for any.

        Args:
            group_id: whose.
            known: the one that is quiet, gone or wrong; it is asked last.
            wake: called where searching is of no use. What is found is told by `Routes.watch`.
        """
        want = Want(self, group_id, wake)
        search = self._searches.get(group_id)
        term = known.term if known else 0
        if search is None or search.ended or search.known_term < term:
            wants = search.wants if search else {}
            self._stop(search)
            search = _Search(group_id, term, known.endpoint if known else "", wants)
            self._searches[group_id] = search
            self._begin(search)
        search.wants[want] = None
        return want

    def forget(self, group_id: str) -> None:
        """Begin anew: whatever answers next is right, with an earlier term too.

        For all who search now as well: their later coordinator than the one that is forgotten may
        never come, and what they need is any.
        """
        self._routes.forget(group_id)
        search = self._searches.get(group_id)
        if search is not None and (search.known_term or search.ended):
            search.known_term = 0
            self._stop(search)
            self._begin(search)

    def has_found(self, group_id: str) -> bool:
        """See `Want.is_met`."""
        search = self._searches.get(group_id)
        known = self._routes.get(group_id)
        return search is not None and known is not None and known.term > search.known_term

    def _begin(self, search: _Search) -> None:
        slots = max(1, min(ASKED_AT_ONCE, self._nodes.others_count(search.avoid)))
        search.tasks = [tasks.start(self._run(search, slot)) for slot in range(slots)]

    def drop(self, want: Want) -> None:
        """See `Want.close`."""
        search = self._searches.get(want.group_id)
        if search is not None:
            search.wants.pop(want, None)
            if not search.wants:
                self._stop(self._searches.pop(want.group_id))

    async def close(self) -> None:
        """Stop searching."""
        for search in self._searches.values():
            self._stop(search)
        self._searches.clear()
        self._batches.clear()  # what was about to be sent finds no channel any more
        for task in list(self._asking):
            task.cancel()
        if self._asking:
            await asyncio.wait(list(self._asking))

    def _stop(self, search: _Search | None) -> None:
        for task in search.tasks if search else ():
            task.cancel()

    async def _run(self, search: _Search, turn: int) -> None:
        """One of a search's askers: the same node while it answers, another one after a failure."""
        loop = asyncio.get_running_loop()
        idle = 0
        while True:
            order = self._nodes.order(search.avoid)
            asked_at = loop.time()
            answer = await self._ask(order[turn % len(order)], search)
            result = answer.results.get(search.group_id)
            if result is None:
                turn += 1
            elif self._is_over(search, result):
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

    def _is_over(self, search: _Search, result: group_pb2.FindCoordinatorResponse.Result) -> bool:
        if self.has_found(search.group_id):
            return True
        if int(result.status.code) in _ASK_AGAIN or result.status.retriable:
            return False
        for want in list(search.wants):
            want.fail(error_from_status(result.status))
        return True

    # ---- one call for all pairs of this turn of the loop, or of the time since the last call

    async def _ask(self, endpoint: str, search: _Search) -> _Answer:
        batch = self._batches.get(endpoint)
        if batch is None:
            loop = asyncio.get_running_loop()
            batch = self._batches[endpoint] = _Batch({}, loop.create_future())
            wait_s = self._next_at.get(endpoint, 0.0) - loop.time()
            if wait_s > 0:
                loop.call_later(wait_s, self._send, endpoint, batch)
            else:
                loop.call_soon(self._send, endpoint, batch)
        batch.keys[search.group_id] = search.known_term
        if len(batch.keys) >= KEYS_MAX:
            self._send(endpoint, batch)
        return await asyncio.shield(batch.answer)

    def _send(self, endpoint: str, batch: _Batch) -> None:
        """Unless it was sent when it was full."""
        if self._batches.get(endpoint) is batch:
            del self._batches[endpoint]
            if len(self._next_at) >= NODES_MAX:
                self._next_at.clear()
            now = asyncio.get_running_loop().time()
            gap_ms = max(timeouts.FIND_GAP_MS, len(batch.keys) * GAP_MS_PER_KEY)
            self._next_at[endpoint] = now + gap_ms / 1000
            # The call is never cancelled for want of interest: it ends by itself within its second.
            task = tasks.start(self._find(endpoint, batch))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

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
            if int(one.status.code) == ErrorCode.NONE and not one.pending:
                self._routes.learn(one.group_id, coordinator_of(one.coordinator))
