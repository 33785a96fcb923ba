"""The probe: a call of the node's own that measures how long calls wait before they are taken.

In a flood calls wait inside gRPC's core, where neither their number nor their age can be seen. So
while the node is busy it sends itself an empty commit every 20 ms, over a Unix socket of its own.
gRPC queues calls per method in their order, so the probe waits as long as others' commits do. While
that is too long, every call that arrives is refused (docs/adr/0004).

Commits that come in frames wait in no such queue, and take less than the probes would: a node that
is busy with them alone is measured every 200 ms.
"""

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

from muster.v1 import group_pb2, group_pb2_grpc
from musterd.coordinator.api.limits.admission import Admission
from musterd.coordinator.runtime.timeouts import (
    PROBE_ANSWER_MS,
    PROBE_FRAMED_MS,
    PROBE_INTERVAL_MS,
)

log = structlog.get_logger()

MS: Final = 1_000
SOCKET_NAME: Final = "probe.sock"
PATH_BYTES_MAX: Final = 100
"""A longer path is no address of a Unix socket."""
BUSY_CALLS: Final = 4
"""With fewer calls between two probes (200 a second) nobody waits for another."""

METHOD: Final = "/muster.v1.GroupCoordinator/OffsetCommit"
_KEY: Final = "muster-probe"

_STAYS: Final = (("grpc.client_idle_timeout_ms", 2**31 - 1),)
"""The connection is made once, and never given up for being idle."""

Continue = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class QueueProbe(grpc.aio.ServerInterceptor):
    """Sends the probes, answers them before anything else looks at them, tells the admission.

    The first interceptor of its server. `listen` before the server's start, `start` after it.
    """

    def __init__(self, admission: Admission, folder: Path) -> None:
        """`folder`: where its socket lies; nobody else may write there."""
        self._admission = admission
        self._seen = self._seen_framed = 0
        self._sent_s = 0.0
        self._secret = secrets.token_hex(8)
        self._socket = folder / SOCKET_NAME
        self._folder_fd: int | None = None
        self._address = ""
        self._complained = False
        self._task: asyncio.Task[None] | None = None

    async def intercept_service(
        self, continuation: Continue, details: grpc.HandlerCallDetails
    ) -> Any:
        """Answer a probe; pass everything else on."""
        if details.method == METHOD and (_KEY, self._secret) in details.invocation_metadata:
            return _ANSWER
        return await continuation(details)

    def listen(self, server: grpc.aio.Server) -> None:
        """Add the probe's own port: a socket that has a name until the probe is connected.

        Raises OSError.
        """
        path = self._socket
        if len(os.fsencode(path)) > PATH_BYTES_MAX:
            self._folder_fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
            path = Path(f"/proc/self/fd/{self._folder_fd}") / SOCKET_NAME
        self._socket.unlink(missing_ok=True)
        self._address = f"unix:{path}"
        try:
            server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise OSError(f"the socket {self._socket} cannot be had: {error}") from error

    def start(self, ended: Callable[["asyncio.Task[None]"], None]) -> None:
        """Begin to probe. `ended` is told when nothing is measured any more."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(ended)

    async def stop(self) -> None:
        """End. Before the server stops."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._socket.unlink(missing_ok=True)
        if self._folder_fd is not None:
            os.close(self._folder_fd)
            self._folder_fd = None

    async def _run(self) -> None:
        nothing = group_pb2.OffsetCommitRequest()
        async with grpc.aio.insecure_channel(self._address, options=_STAYS) as channel:
            await channel.channel_ready()
            self._socket.unlink(missing_ok=True)  # nobody else shall find it, or copy it
            stub: Any = group_pb2_grpc.GroupCoordinatorStub(channel)
            while True:
                await asyncio.sleep(PROBE_INTERVAL_MS / MS)
                now_s = time.monotonic()
                if not self.is_wanted(now_s):
                    continue
                self.sent(now_s)
                try:
                    await stub.OffsetCommit(
                        nothing,
                        timeout=PROBE_ANSWER_MS / MS,
                        metadata=((_KEY, self._secret),),
                    )
                except grpc.aio.AioRpcError as error:  # refused or late: its time counts
                    self._note(error)
                finally:
                    self._admission.wait.answered(time.monotonic())

    def _note(self, error: grpc.aio.AioRpcError) -> None:
        """Without a connection nothing is measured: say so, once."""
        if error.code() is grpc.StatusCode.UNAVAILABLE and not self._complained:
            self._complained = True
            log.warning("overload is not measured", socket=str(self._socket), why=error.details())

    def sent(self, now_s: float) -> None:
        """Note that a probe is sent."""
        self._sent_s = now_s
        self._admission.wait.sent(now_s)

    def is_wanted(self, now_s: float) -> bool:
        """Whether there were enough calls since the last look, or the wait was too long then.

        Commits in frames are enough where the last probe is PROBE_FRAMED_MS old.
        """
        admission = self._admission
        framed = admission.framed_total
        calls = admission.admitted_total + admission.refused_total - framed
        busy, self._seen = calls - self._seen >= BUSY_CALLS, calls
        if now_s - self._sent_s >= PROBE_FRAMED_MS / MS:
            busy = busy or framed - self._seen_framed >= BUSY_CALLS
            self._seen_framed = framed
        return busy or admission.overdue()


async def _nothing_done(_request: object, _context: object) -> group_pb2.OffsetCommitResponse:
    return group_pb2.OffsetCommitResponse()


_ANSWER: Final = grpc.unary_unary_rpc_method_handler(
    _nothing_done,
    request_deserializer=group_pb2.OffsetCommitRequest.FromString,
    response_serializer=group_pb2.OffsetCommitResponse.SerializeToString,
)
