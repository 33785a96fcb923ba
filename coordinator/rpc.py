"""The gRPC server's settings, and its health service."""

from collections.abc import Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from coordinator.machine.limits import LIMITS

LIVE: Final = "muster.live"
"""The process runs. It must not depend on quorum, or a partition would restart every node."""

READY: Final = "muster.ready"
"""Every shard has a leader and this node has applied what it knows to be committed."""

STREAMS_PER_CONNECTION_MAX: Final = 2_048
"""One connection's calls at a time; more wait in the client, where they cost this node nothing."""

OPTIONS: Final[Sequence[tuple[str, Any]]] = (
    ("grpc.max_receive_message_length", LIMITS.client_message_max_bytes),
    ("grpc.max_send_message_length", LIMITS.client_message_max_bytes),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    ("grpc.so_reuseport", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
"""`so_reuseport`: a launcher keeps a port reserved by a bound socket that does not listen."""


def make_server(interceptors: Sequence[grpc.aio.ServerInterceptor] = ()) -> grpc.aio.Server:
    """A server with muster's limits: 4 MiB messages, tolerant of the SDK's keepalive pings."""
    return grpc.aio.server(options=OPTIONS, interceptors=tuple(interceptors))


class Health:
    """grpc.health.v1: "" and muster.live while the process runs, muster.ready as it stands."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._servicer = health_aio.HealthServicer()
        self._ready: bool | None = None
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def start(self) -> None:
        """Alive, not ready."""
        for service in ("", LIVE):
            await self._servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(ready=False)

    async def set_ready(self, *, ready: bool) -> None:
        """Tell watchers, if it changed."""
        if ready is not self._ready:
            self._ready = ready
            status = health_pb2.HealthCheckResponse
            await self._servicer.set(READY, status.SERVING if ready else status.NOT_SERVING)

    async def stop(self) -> None:
        """Everything NOT_SERVING, for good: the node drains."""
        await self._servicer.enter_graceful_shutdown()
