"""Whether a node that holds calls on purpose is still there.

A Join or Sync is parked for 25 s at most, so that it is not answered says nothing about its node.
While a client has such calls at a node it asks that node, once for all of them, what is answered at
once: a FindCoordinator without keys. Only a node that leaves this unanswered is suspect. One that
refuses it for overload is alive. A node that was slow before has longer, and a process that was
busy itself gives the answer the same time again: it may have come, and not be read yet.
"""

import asyncio
from collections.abc import Callable

import grpc

from muster import tasks, timeouts
from muster.nodes import Nodes
from muster.types import Counters
from muster.v1 import group_pb2

_PATH = "/muster.v1.GroupCoordinator/FindCoordinator"
PATIENCE = 4
"""A node is silent when it takes so many times as long as it took the last time."""

OWN_LAG_S = 0.05
"""A timer that is later than this was held up by this process."""

_QUESTION = group_pb2.FindCoordinatorRequest().SerializeToString()


class Watch:
    """One call's interest in a node, until `close`."""

    def __init__(self, pinged: "_Pinged", wake: Callable[[], None]) -> None:
        self.wake = wake
        """Called when `silent` changes."""
        self._pinged = pinged

    @property
    def silent(self) -> bool:
        """The node has left the last question unanswered for too long.

        That is PING_SILENCE_MS, longer where it was slow before, PING_SILENCE_MS_MAX at most.
        """
        return self._pinged.silent

    def close(self) -> None:
        """No interest any more."""
        self._pinged.watches.pop(self, None)


class Pings:
    """All nodes at which this client has calls that may be parked."""

    def __init__(self, nodes: Nodes, counters: Counters) -> None:
        self.nodes = nodes
        self.counters = counters
        self._pinged: dict[str, _Pinged] = {}

    @property
    def watches(self) -> int:
        """How many calls there are that may be parked."""
        return sum(len(pinged.watches) for pinged in self._pinged.values())

    def watch(self, endpoint: str, wake: Callable[[], None]) -> Watch:
        """Begin to ask, if nobody does; see `Watch`."""
        pinged = self._pinged.get(endpoint)
        if pinged is None:
            pinged = self._pinged[endpoint] = _Pinged(self, endpoint)
            pinged.task = tasks.start(self._run(endpoint, pinged))
        watch = Watch(pinged, wake)
        pinged.watches[watch] = None
        return watch

    async def _run(self, endpoint: str, pinged: "_Pinged") -> None:
        """While somebody watches. A question that is open then ends by itself."""
        pause_ms = timeouts.PING_FIRST_MS
        try:
            while True:
                await asyncio.sleep(pause_ms / 1000)
                if not pinged.watches:
                    return
                await pinged.ping()
                pause_ms = timeouts.PING_MS
        finally:
            del self._pinged[endpoint]

    async def close(self) -> None:
        """Stop asking."""
        running = [pinged.task for pinged in self._pinged.values() if pinged.task is not None]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


class _Pinged:
    """One node and who wants to know of it."""

    def __init__(self, pings: Pings, endpoint: str) -> None:
        self.silent = False
        self.watches: dict[Watch, None] = {}
        self.task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._took_s = 0.0
        self._pings = pings
        self._endpoint = endpoint

    async def ping(self) -> None:
        """Ask once, and take what comes of it."""
        self._pings.counters.pings += 1
        began = self._loop.time()
        self._arm()
        call = self._pings.nodes.unary(
            self._endpoint,
            _PATH,
            group_pb2.FindCoordinatorResponse.FromString,
            _QUESTION,
            timeouts.FIND_ATTEMPT_MS,
        )
        try:
            await call
            self._took_s = self._loop.time() - began
            self._say(silent=False)
        except grpc.aio.AioRpcError as error:
            self._say(silent=error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if not call.done():
                call.cancel()

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
            for watch in list(self.watches):
                watch.wake()
