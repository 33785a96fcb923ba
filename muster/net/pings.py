"""Checks that a node is alive while it parks calls.

A Join or Sync is parked for 25 s at most, so that it is not answered says nothing about its node.
While a client has such calls at a node it asks that node, once for all of them, what it answers at
once where it knows a leader of one of them: a FindCoordinator for any coordinator of their shards,
each by one of its groups. A node that leaves this unanswered is suspect, and so is one that says of
a group that it knows no leader: it was deposed, and may not be able to say so to the calls that it
holds. One that refuses the question for overload is alive; any other failure of the question makes
it suspect. A node that was slow before is asked less often and has longer, and a process that was
busy itself gives the answer the same time again: it may have come, and not be read yet.
"""

import asyncio
from collections.abc import Callable

import grpc

from muster import timeouts
from muster.errors import ErrorCode
from muster.net import background_tasks
from muster.net.discovery import Route, Routes, coordinator_of
from muster.net.nodes import Nodes
from muster.types import Counters
from muster.v1 import group_pb2

_PATH = "/muster.v1.GroupCoordinator/FindCoordinator"
PAUSE_GROWS = 1.5
"""The pause after each question: who is parked for long is found less soon, and costs less."""

PATIENCE = 4
"""A node is silent when it takes so many times as long as it took the last time."""

OWN_LAG_S = 0.05
"""A timer that is later than this was held up by this process."""

KEYS_MAX = 50
"""Groups in one question, each of another shard as far as that is known; others come next."""


class Watch:
    """One call's interest in a node, until `close`."""

    def __init__(self, pinged: "_Pinged", group_id: str, wake: Callable[[], None]) -> None:
        self.group_id = group_id
        self.wake = wake
        """Called when `silent` changes, of one call for each shard: what it finds all are told."""
        self._pinged = pinged

    @property
    def silent(self) -> bool:
        """The node knows no leader of this group, or left the last question unanswered too long.

        That is PING_SILENCE_MS, longer where it was slow before (PING_SILENCE_MS_MAX at most), and
        as long again where this process was busy when it ended.
        """
        return self._pinged.is_silent_for(self.group_id)

    def close(self) -> None:
        self._pinged.drop(self)


class Pings:
    """All nodes at which this client has calls that may be parked."""

    def __init__(self, nodes: Nodes, routes: Routes, counters: Counters) -> None:
        self.nodes = nodes
        self.routes = routes
        self.counters = counters
        self._pinged: dict[str, _Pinged] = {}

    @property
    def watches(self) -> int:
        """How many calls there are that may be parked."""
        return sum(len(pinged.watches) for pinged in self._pinged.values())

    def watch(self, endpoint: str, group_id: str, wake: Callable[[], None]) -> Watch:
        """Begin to ask, if nobody does; see `Watch`."""
        pinged = self._pinged.get(endpoint)
        if pinged is None:
            pinged = self._pinged[endpoint] = _Pinged(self, endpoint)
            pinged.task = background_tasks.start(self._run(endpoint, pinged))
        watch = Watch(pinged, group_id, wake)
        pinged.watches[watch] = None
        return watch

    async def _run(self, endpoint: str, pinged: "_Pinged") -> None:
        """While somebody watches. A question that is open then ends by itself."""
        pause_ms: float = timeouts.PING_MS
        try:
            while True:
                await asyncio.sleep(max(pause_ms, pinged.rest_ms) / 1000)
                if not pinged.watches:
                    return
                await pinged.ping()
                pause_ms = min(pause_ms * PAUSE_GROWS, timeouts.PING_MS_MAX)
        finally:
            del self._pinged[endpoint]

    async def close(self) -> None:
        running = [pinged.task for pinged in self._pinged.values() if pinged.task is not None]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


class _Pinged:
    """One node and who wants to know of it."""

    def __init__(self, pings: Pings, endpoint: str) -> None:
        self.silent = False
        self.leaderless: set[Route] = set()
        self.watches: dict[Watch, None] = {}
        self._woken: dict[Watch, None] = {}
        """For each silent route, the watch that looks for another coordinator."""
        self.task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._took_s = 0.0
        self._pings = pings
        self._endpoint = endpoint

    def is_silent_for(self, group_id: str) -> bool:
        return self.silent or (
            bool(self.leaderless) and self._pings.routes.route(group_id) in self.leaderless
        )

    async def ping(self) -> None:
        """Ask once, and take what comes of it."""
        self._pings.counters.pings += 1
        began = self._loop.time()
        self._arm()
        call = self._pings.nodes.unary(
            self._endpoint,
            _PATH,
            group_pb2.FindCoordinatorResponse.FromString,
            self._question(),
            timeouts.FIND_ATTEMPT_MS,
        )
        try:
            response = await call
            self._took_s = self._loop.time() - began
            self._say(silent=False)
            self._learn(response)
        except grpc.aio.AioRpcError as error:
            self._say(silent=error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._say(silent=True)  # its channel was closed
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if not call.done():
                call.cancel()

    def _question(self) -> bytes:
        """Return a question about as many waiting shards as fit; these come last the next time."""
        route = self._pings.routes.route
        groups: dict[Route, str] = {}
        asked = []
        for watch in self.watches:
            if groups.setdefault(route(watch.group_id), watch.group_id) == watch.group_id:
                asked.append(watch)
            if len(groups) >= KEYS_MAX:
                break
        for watch in asked:
            del self.watches[watch]
            self.watches[watch] = None
        if self.leaderless:
            self.leaderless &= {route(watch.group_id) for watch in self.watches}
        keys = [group_pb2.FindCoordinatorRequest.Key(group_id=one) for one in groups.values()]
        return group_pb2.FindCoordinatorRequest(keys=keys).SerializeToString()

    def _learn(self, response: group_pb2.FindCoordinatorResponse) -> None:
        before = set(self.leaderless)
        for one in response.results:
            route = self._pings.routes.route(one.group_id)
            self.leaderless.discard(route)
            if one.pending:
                self.leaderless.add(route)
            elif int(one.status.code) == ErrorCode.NONE:
                self._pings.routes.learn(
                    one.group_id, coordinator_of(one.coordinator, self._endpoint)
                )
        if self.leaderless != before:
            self._wake()

    def drop(self, watch: Watch) -> None:
        """See `Watch.close`; where it was to look for another coordinator the next one is."""
        self.watches.pop(watch, None)
        if watch in self._woken:
            self._wake()

    def _wake(self) -> None:
        """One for each silent route, and those that are silent no more."""
        before, self._woken = self._woken, {}
        routes: set[Route] = set()
        for watch in (*before, *self.watches) if self.silent or self.leaderless else ():
            route = self._pings.routes.route(watch.group_id)
            if watch in self.watches and watch.silent and route not in routes:
                routes.add(route)
                self._woken[watch] = None
        for watch in self._woken | before:
            watch.wake()

    @property
    def rest_ms(self) -> float:
        """For so long it is left alone, because it was slow."""
        return min(PATIENCE * self._took_s * 1000, timeouts.PING_REST_MS_MAX)

    def _arm(self) -> None:
        least, most = timeouts.PING_SILENCE_MS / 1000, timeouts.PING_SILENCE_MS_MAX / 1000
        due = self._loop.time() + min(max(least, PATIENCE * self._took_s), most)
        self._timer = self._loop.call_at(due, self._unanswered, due)

    def _unanswered(self, due: float) -> None:
        if self._loop.time() - due > OWN_LAG_S:
            self._arm()
        else:
            self._say(silent=True)

    def _say(self, *, silent: bool) -> None:
        if silent != self.silent:
            self.silent = silent
            self._wake()
