"""Probes whether clients reach this node, by a connection to the address that they are told.

A wrong address, a certificate of another name or one that has expired, a firewall: the node is well
and leads, and nobody can call it. Each look makes a connection of its own. A node that takes long
to answer on it is reached.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from muster.net.tls import Tls
from muster.net.tls_probe import TlsFault, client_context, find_trouble
from musterd.coordinator.runtime.timeouts import REACH_PROBE_AGAIN_MS, REACH_PROBE_CALL_MS
from musterd.raft.contract import ClientReach

log = structlog.get_logger()

FAILURES: Final = 3
"""So many in a row mean that nobody reaches the node."""
MS: Final = 1_000
_EVERYWHERE: Final = ("0.0.0.0", "[::]", "::")  # noqa: S104 - nobody listens here
_OPTIONS: Final = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


class ReachProbe:
    """Looks again and again; `told` is called with each verdict that differs from the last."""

    def __init__(
        self,
        endpoint: str,
        service: str,
        credentials: grpc.ChannelCredentials | None,
        own: Tls | None,
        told: Callable[[ClientReach], None],
    ) -> None:
        """`service` is a name in grpc.health.v1 that this node alone has.

        `own` trusts this node's certificate alone, and shows it: a node has none of a client's.
        """
        self._endpoint = endpoint
        self._service = service
        self._credentials = credentials
        self._own = own
        self._context = client_context(own)
        self._told = told
        self._verdict = ClientReach.UNKNOWN
        self._failures = 0

    def use(self, credentials: grpc.ChannelCredentials | None, own: Tls | None) -> None:
        """Look with these from now on; with those of before where the files of `own` are gone.

        They change once more then, and whoever follows them comes here again.
        """
        try:
            self._context = client_context(own)
        except OSError as error:
            log.warning("new certificates cannot be used: those of before stay", error=str(error))
            return
        self._credentials, self._own = credentials, own

    async def run(self, interval_s: float) -> None:
        while True:
            why = await self.look()
            self.judge(why)
            again_s = min(REACH_PROBE_AGAIN_MS / MS, interval_s)
            await asyncio.sleep(again_s if why else interval_s)

    def judge(self, why: str) -> None:
        """Take what a look has found: "" or why it failed."""
        self._failures = self._failures + 1 if why else 0
        verdict = self._verdict
        if not why:
            verdict = ClientReach.OK
        elif self._failures >= FAILURES:
            verdict = ClientReach.FAILS
        if verdict is self._verdict:
            return
        before, self._verdict = self._verdict, verdict
        if verdict is ClientReach.FAILS:
            log.warning(
                "clients do not reach this node",
                endpoint=self._endpoint,
                error=f"{why}: see to `advertise`, the certificate and the network",
            )
        elif before is ClientReach.FAILS:
            log.info("clients reach this node again", endpoint=self._endpoint)
        self._told(verdict)

    async def look(self) -> str:
        """Connect once: "" where this node answers, else what went wrong."""
        if self._endpoint.rpartition(":")[0] in _EVERYWHERE:
            return "this is no address that clients can call: `advertise` is missing"
        channel = (
            grpc.aio.insecure_channel(self._endpoint, _OPTIONS)
            if self._credentials is None
            else grpc.aio.secure_channel(self._endpoint, self._credentials, _OPTIONS)
        )
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=self._service)
        try:
            await stub.Check(request, timeout=REACH_PROBE_CALL_MS / MS)
        except grpc.aio.AioRpcError as error:
            why = _failure(error, channel.get_state())
            return "" if why and await self._refuses_client() else why
        else:
            return ""
        finally:
            await channel.close()

    async def _refuses_client(self) -> bool:
        """Whether this node answers there, and refuses only the certificate that it is shown.

        It may demand one of another authority, or one that is for clients: those reach it.
        """
        if self._own is None:
            return False
        trouble = await asyncio.to_thread(find_trouble, self._endpoint, self._own, self._context)
        return trouble is not None and trouble.fault is TlsFault.CLIENT_CERTIFICATE


def _failure(error: grpc.aio.AioRpcError, state: grpc.ChannelConnectivity) -> str:
    """Return what a failed call says of the way to this node: "" where that is open."""
    match error.code():
        case grpc.StatusCode.NOT_FOUND | grpc.StatusCode.UNIMPLEMENTED:
            return "another server answers there"
        case grpc.StatusCode.UNAVAILABLE:
            return str(error.details())
        case grpc.StatusCode.DEADLINE_EXCEEDED if state is not grpc.ChannelConnectivity.READY:
            return f"no connection within {REACH_PROBE_CALL_MS} ms"
        case _:
            return ""  # it is slow, or has too many calls
