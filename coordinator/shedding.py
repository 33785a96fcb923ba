"""Refuses calls for overload before they cost anything: an interceptor and the probe behind it."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coordinator.admission import Admission
from coordinator.rpc import LIVE

EXEMPT: Final = frozenset(
    {
        "/muster.v1.GroupCoordinator/Heartbeat",
        "/muster.v1.Admin/Checkpoints",
        "/muster.v1.Admin/DescribeCluster",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
    }
)
"""Cheap, and needed most when a node is in trouble."""

PROBE_S: Final = 0.05
PROBE_TIMEOUT_S: Final = 5.0
BUSY_CALLS: Final = 10
"""With fewer calls since the last probe (200 a second) there is nothing to find out."""

Handler = Any
Continue = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]
OVERLOADED: Final = "calls wait too long on this node: nothing was done; repeat after a pause."


async def _refuse(_requests: AsyncIterator[bytes], context: Any) -> bytes:
    """Answer without reading the request, which is the half of what a call costs."""
    context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
    context.set_details(OVERLOADED)
    return b""


_REFUSE: Final[Handler] = grpc.stream_unary_rpc_method_handler(_refuse)


class Shedding(grpc.aio.ServerInterceptor):
    """The first interceptor: whom it refuses costs no handler, no decoding, no metrics."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._seen = 0
        self._folder = tempfile.TemporaryDirectory(prefix="muster-probe-")
        self._address = f"unix:{Path(self._folder.name) / 'probe'}"
        self._task: asyncio.Task[None] | None = None

    async def intercept_service(
        self, continuation: Continue, details: grpc.HandlerCallDetails
    ) -> Handler:
        """Let a call pass, or refuse it."""
        self._seen += 1
        if details.method not in EXEMPT and self._admission.refuses(time.monotonic()):
            return _REFUSE
        return await continuation(details)

    def listen(self, server: grpc.aio.Server) -> None:
        """Add the probe's own door: a socket that only this user can reach. Before the start."""
        server.add_insecure_port(self._address)

    def start(self) -> None:
        """Begin to probe. After the server has started."""
        self._task = asyncio.create_task(self._probe())

    async def stop(self) -> None:
        """End the probe. Before the server stops."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._folder.cleanup()

    async def _probe(self) -> None:
        pressure = self._admission.pressure
        request = health_pb2.HealthCheckRequest(service=LIVE)
        async with grpc.aio.insecure_channel(self._address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            seen = 0
            while True:
                await asyncio.sleep(PROBE_S)
                busy, seen = self._seen - seen >= BUSY_CALLS, self._seen
                if not busy and not pressure.share:
                    continue
                pressure.probe_sent(time.monotonic())
                try:
                    await stub.Check(request, timeout=PROBE_TIMEOUT_S)
                except grpc.aio.AioRpcError:
                    continue  # its age has made everything be refused meanwhile
                pressure.probe_answered(time.monotonic())
