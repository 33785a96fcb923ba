"""Takes calls from gRPC's core, many at a time, and refuses the surplus before it is read.

Left to itself grpc.aio hands over one call per method in four passes of the loop. A flood then
waits inside the library, unseen, until every call that is taken has run out of time already. Here
many requests for calls are open at once, so what has arrived is taken in the next pass; and a call
that finds the node full is answered where it stands, for about three quarters of what a handled
call costs that does nothing (docs/adr/0004).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import grpc

from coordinator.admission import CALL, Admission, Admitted, Kind
from coordinator.grpc_seam import Calls, Stopped
from coordinator.timeouts import REQUEST_MS_MAX

MS: Final = 1_000
TAKEN_AT_ONCE: Final = 64
"""Requests for a call that are open per method: so many calls are taken in one pass."""

EXEMPT: Final = frozenset({"/muster.v1.GroupCoordinator/Heartbeat"})
"""Cheap, bounded elsewhere, and a member that cannot be heard would expire for our slowness."""

KINDS: Final = {
    "/muster.v1.GroupCoordinator/FindCoordinator": Kind.DISCOVERY,
    "/muster.v1.GroupCoordinator/JoinGroup": Kind.JOIN,
    "/muster.v1.GroupCoordinator/SyncGroup": Kind.PATIENT,
    "/muster.v1.GroupCoordinator/LeaveGroup": Kind.PATIENT,
}
"""The others are ordinary; see admission.py."""

OVERLOADED: Final = "this node has more calls than it can serve: nothing was done; repeat later."

Handler = Any


class Door:
    """A server's registered methods, served by many takers each.

    Services are added to the door as to a server; it passes them on. `start` after the server's.
    """

    def __init__(
        self,
        server: grpc.aio.Server,
        admission: Admission,
        interceptors: tuple[grpc.aio.ServerInterceptor, ...],
        ended: Callable[["asyncio.Task[None]"], None],
    ) -> None:
        """`interceptors`: the server's own. `ended` is told of each taker that has ended."""
        self._server = server
        self._taker_ended = ended
        self._admission = admission
        self._interceptors = interceptors
        self._handlers: dict[str, Handler] = {}
        self._loop = asyncio.get_running_loop()
        self._taken: deque[tuple[float, Admitted]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def add_generic_rpc_handlers(self, handlers: tuple[grpc.GenericRpcHandler, ...]) -> None:
        """As `grpc.aio.Server` has it; called by generated code."""
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Handler]) -> None:
        """As `grpc.aio.Server` has it; called by generated code."""
        self._server.add_registered_method_handlers(service, handlers)
        self._handlers.update({f"/{service}/{name}": one for name, one in handlers.items()})

    def start(self) -> None:
        """Take calls from now on, until the server stops."""
        calls = Calls(self._server, self._handlers, self._interceptors)
        for method in self._handlers:
            for _ in range(TAKEN_AT_ONCE):
                taker = asyncio.create_task(self._take(calls, method))
                taker.add_done_callback(self._taker_ended)
                self._keep(taker)

    async def stop(self) -> None:
        """After the server's stop: nothing is open any more."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _take(self, calls: Calls, method: str) -> None:
        key, exempt, kind = method.encode(), method in EXEMPT, KINDS.get(method, Kind.ORDINARY)
        while True:
            await self._admission.room(kind)
            try:
                state = await calls.next(key)
            except Stopped:
                return
            self._give_up_unread()
            admitted = None if exempt else self._admission.enter(kind)
            if exempt or admitted is not None:
                CALL.set(admitted)  # the handler's task inherits it
                task = asyncio.create_task(calls.handle(state, method))
                self._keep(task)
                if admitted is not None:
                    task.add_done_callback(admitted.left)
                    self._taken.append((self._loop.time(), admitted))
            else:
                await calls.refuse(state, OVERLOADED)
            del state

    def _give_up_unread(self) -> None:
        """Calls whose request is not there after a while give their places to others.

        They may still be served: whoever reads the request at last takes a place then.
        """
        limit_s = self._loop.time() - REQUEST_MS_MAX / MS
        while self._taken and self._taken[0][0] < limit_s:
            admitted = self._taken.popleft()[1]
            if not admitted.read:
                admitted.leave()

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
