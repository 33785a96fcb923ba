"""The gRPC server's settings, and its health service."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from musterd.coordinator.api.limits.requests_under_way import (
    FRAME_REST_BYTES,
    REQUEST_BYTES_MAX,
)
from musterd.coordinator.host import open_files_max
from musterd.coordinator.machine.limits import LIMITS

LIVE: Final = "muster.live"
"""The process runs. It must not depend on quorum, or a partition would restart every node."""

READY: Final = "muster.ready"
"""Every shard has a leader and this node has applied what it knows to be committed."""

STREAMS_PER_CONNECTION_MAX: Final = 1_024
"""One connection's calls at a time; more wait in the client, where they cost this node nothing. A
process with more members than that has more connections (muster/net/nodes.py, docs/adr/0017)."""

WATCHES_MAX: Final = 1_024
"""Calls that watch this node's health."""

WATCHES_PER_CONNECTION_MAX: Final = 8
"""Calls of one connection that watch this node's health: there are four services to watch."""

TOO_MANY_WATCHES: Final = "this node's health is watched by too many: use Check instead."

PENDING_CALLS_MAX: Final = 65_536
"""Calls that no handler has seen: beyond it gRPC's core cancels new ones."""

FILES_KEPT_SHARE: Final = 4
"""A quarter of the files that the process may open, or `FILES_KEPT_MAX`, is not for clients'
connections: without a file the durable mark cannot be renewed, nor a log begun, and the node
ends."""
FILES_KEPT_MAX: Final = 1_024

OPTIONS: Final[Sequence[tuple[str, Any]]] = (
    # A request may come in a frame; one larger than that is refused by the acceptor.
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX + FRAME_REST_BYTES),
    ("grpc.max_send_message_length", LIMITS.client_message_max_bytes),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    # A request that is not read yet takes 64 KiB at most, whatever the connection could carry.
    ("grpc.http2.bdp_probe", 0),
    # Calls that wait inside the library are ours to refuse (call_acceptor.py): its own refusals
    # look like cancelled calls, and nobody could tell them from a broken coordinator.
    ("grpc.server.max_pending_requests", PENDING_CALLS_MAX),
    ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS_MAX),
    ("grpc.http.overload_protection", 0),
    ("grpc.http2.max_deallocating_streams", PENDING_CALLS_MAX),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


def make_server(
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (), *, reuse_port: bool = False
) -> grpc.aio.Server:
    """A server with muster's limits: requests of 1.5 MiB, answers of 4 MiB, and keepalive pings.

    `reuse_port`: a launcher keeps the port reserved by a bound socket that does not listen.
    Otherwise two nodes on one port would share its clients without a word.
    """
    options = (
        *OPTIONS,
        ("grpc.so_reuseport", int(reuse_port)),
        ("grpc.max_allowed_incoming_connections", connections_max(open_files_max())),
    )
    return grpc.aio.server(options=options, interceptors=tuple(interceptors))


def connections_max(files: int) -> int:
    """How many connections of clients a process that may open so many files takes at a time."""
    return files - min(FILES_KEPT_MAX, files // FILES_KEPT_SHARE)


def listen(
    server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None
) -> None:
    """Bind the client port. Raises OSError."""
    try:
        if credentials is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise OSError(f"the client port {address} cannot be had: {error}") from error
    if not bound:
        raise OSError(f"the client port {address} cannot be had")


def server_credentials(
    cert: Path | None, key: Path | None, client_ca: Path | None
) -> grpc.ServerCredentials | None:
    """TLS of the client port; with a CA, clients must present a certificate. Raises OSError."""
    if cert is None or key is None:
        return None
    return grpc.ssl_server_credentials(
        [(key.read_bytes(), cert.read_bytes())],
        root_certificates=client_ca.read_bytes() if client_ca else None,
        require_client_auth=client_ca is not None,
    )


class _Watched(health_aio.HealthServicer):
    """As the package's, but a watcher that does not read keeps nobody waiting.

    The package writes to a watcher with the lock held that a change of the status takes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._watches: Counter[str] = Counter()
        self._changed = asyncio.Event()

    def tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _status(self, request: Any) -> Any:
        statuses: Any = self._server_status  # type: ignore[attr-defined]
        return statuses.get(request.service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> None:
        """Stream the status of a service whenever it changes."""
        peer = context.peer()
        if (
            self._watches[peer] >= WATCHES_PER_CONNECTION_MAX
            or self._watches.total() >= WATCHES_MAX
        ):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MANY_WATCHES)
        self._watches[peer] += 1
        try:
            told = None
            while True:
                changed = self._changed
                status = self._status(request)
                if status != told:
                    await context.write(health_pb2.HealthCheckResponse(status=status))
                    told = status
                    continue  # it may have changed meanwhile
                await changed.wait()
        finally:
            self._watches[peer] -= 1
            self._watches += Counter()  # without those that have none left


class Health:
    """grpc.health.v1: "" and muster.live while the process runs, muster.ready as it stands.

    `own` is one more that goes like muster.live, and that no other node has.
    """

    def __init__(self, server: grpc.aio.Server, own: str) -> None:
        self._own = own
        self._servicer = _Watched()
        self._ready: bool | None = None
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def start(self) -> None:
        """Report the node as live and not yet as ready."""
        for service in ("", LIVE, self._own):
            await self._servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(ready=False)

    async def set_ready(self, *, ready: bool) -> None:
        """Tell watchers, if it changed."""
        if ready is not self._ready:
            self._ready = ready
            status = health_pb2.HealthCheckResponse
            await self._servicer.set(READY, status.SERVING if ready else status.NOT_SERVING)
            self._servicer.tell()

    async def stop(self) -> None:
        """Everything NOT_SERVING, for good: the node drains."""
        await self._servicer.enter_graceful_shutdown()
        self._servicer.tell()
