"""How long a call waits before it is taken: a call of our own, sent through the queue it measures.

Under a flood calls wait inside gRPC's core, where neither their number nor their age can be seen.
While the node is busy, a commit that asks for nothing is sent every 20 ms over a Unix socket of its
own. gRPC queues calls per method and hands them over in their order, so it waits as long as the
commits of others do. While that is too long every call that arrives is refused (docs/adr/0004).
"""

import asyncio
import contextlib
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc

from coordinator.admission import Admission
from coordinator.timeouts import PROBE_ANSWER_MS, PROBE_INTERVAL_MS, WAIT_MS_MAX
from muster.v1 import group_pb2, group_pb2_grpc

MS: Final = 1_000
BUSY_CALLS: Final = 4
"""With fewer calls between two probes (200 a second) nobody waits for another."""

METHOD: Final = "/muster.v1.GroupCoordinator/OffsetCommit"
_KEY: Final = "muster-probe"

Continue = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class Wait:
    """The latest measurement; times are seconds of one clock."""

    def __init__(self, max_s: float = WAIT_MS_MAX / MS) -> None:
        self._max_s = max_s
        self._sent_s: float | None = None
        self.last_s = 0.0

    def sent(self, now_s: float) -> None:
        """A probe begins to wait."""
        self._sent_s = now_s

    def answered(self, now_s: float) -> None:
        """It was taken, or given up."""
        if self._sent_s is not None:
            self.last_s, self._sent_s = now_s - self._sent_s, None

    def too_long(self, now_s: float) -> bool:
        """Whether calls wait too long: the last probe did, or the one under way does by now."""
        if self._sent_s is not None and now_s - self._sent_s > self._max_s:
            return True
        return self.last_s > self._max_s


class Probe(grpc.aio.ServerInterceptor):
    """Sends the probes, answers them before anything else looks at them, tells the admission.

    The first interceptor of its server. `listen` before the server's start, `start` after it.
    """

    def __init__(self, admission: Admission) -> None:
        self.wait = Wait()
        self._admission = admission
        admission.overdue = self._calls_wait_too_long
        self._seen = 0
        self._secret = secrets.token_hex(8)
        self._folder = tempfile.TemporaryDirectory(prefix="muster-probe-")
        self._address = f"unix:{Path(self._folder.name) / 'probe'}"
        self._task: asyncio.Task[None] | None = None

    def _calls_wait_too_long(self) -> bool:
        return self.wait.too_long(time.monotonic())

    async def intercept_service(
        self, continuation: Continue, details: grpc.HandlerCallDetails
    ) -> Any:
        """Answer a probe; pass everything else on."""
        if details.method == METHOD and (_KEY, self._secret) in details.invocation_metadata:
            return _ANSWER
        return await continuation(details)

    def listen(self, server: grpc.aio.Server) -> None:
        """Add the probe's own port: a socket that only this user can reach."""
        server.add_insecure_port(self._address)

    def start(self) -> None:
        """Begin to probe."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End. Before the server stops."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._folder.cleanup()

    async def _run(self) -> None:
        nothing = group_pb2.OffsetCommitRequest()
        async with grpc.aio.insecure_channel(self._address) as channel:
            stub: Any = group_pb2_grpc.GroupCoordinatorStub(channel)
            while True:
                await asyncio.sleep(PROBE_INTERVAL_MS / MS)
                if not self._is_wanted():
                    continue
                self.wait.sent(time.monotonic())
                with contextlib.suppress(grpc.aio.AioRpcError):  # refused or late: its time counts
                    await stub.OffsetCommit(
                        nothing,
                        timeout=PROBE_ANSWER_MS / MS,
                        metadata=((_KEY, self._secret),),
                    )
                self.wait.answered(time.monotonic())

    def _is_wanted(self) -> bool:
        """Whether there were enough calls since the last time, or the wait was too long then."""
        calls = self._admission.admitted_total + self._admission.refused_total
        busy, self._seen = calls - self._seen >= BUSY_CALLS, calls
        return busy or self._calls_wait_too_long()


async def _nothing_done(_request: object, _context: object) -> group_pb2.OffsetCommitResponse:
    return group_pb2.OffsetCommitResponse()


_ANSWER: Final = grpc.unary_unary_rpc_method_handler(
    _nothing_done,
    request_deserializer=group_pb2.OffsetCommitRequest.FromString,
    response_serializer=group_pb2.OffsetCommitResponse.SerializeToString,
)
