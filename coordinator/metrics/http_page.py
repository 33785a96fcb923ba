"""`/metrics`, and what probes ask, over HTTP on the node's own loop; the page is written in slices.

A scrape of a node with many groups is thousands of lines; made in one go it would hold the loop,
and with it consensus, for longer than a heartbeat may be late. So the page is made a few hundred
lines at a time, and the loop turns between them.
"""

import asyncio
import hmac
import ipaddress
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric

SLICE_S: Final = 0.001
"""After so much work the loop gets a turn."""
SLICE_SAMPLES: Final = 100
"""Samples encoded between two looks at the clock: well under 1 ms."""
HEAD_BYTES_MAX: Final = 8 * 1024
CONNECTIONS_MAX: Final = 16
"""Connections at a time. For one more the oldest goes that has sent no request yet, else the oldest
of all: idle connections must not keep a probe from its answer."""
REQUEST_S: Final = 5.0
"""A client that has not sent its request, or not taken the answer, by then is dropped."""

Families = Callable[[], Iterable[Metric | None]]
"""Makes the page's families; None stands where it would like the loop to turn."""

Check = Callable[[], Awaitable[str]]
"""Says why something does not hold, in a line; "" where it holds."""


class _SingleMetric:
    """A registry of one family: what prometheus_client encodes."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


def encode(metric: Metric) -> Iterator[bytes]:
    """One family in the text format 0.0.4, in pieces of at most SLICE_SAMPLES samples."""
    for start in range(0, max(1, len(metric.samples)), SLICE_SAMPLES):
        piece = Metric(metric.name, metric.documentation, metric.type)
        piece.samples = metric.samples[start : start + SLICE_SAMPLES]
        text = generate_latest(_SingleMetric(piece))
        # HELP and TYPE come once per family.
        yield text if start == 0 else text.split(b"\n", 2)[2]


async def sliced(families: Families) -> AsyncIterator[bytes]:
    """The page in pieces; lets the loop turn after each SLICE_S of work."""
    began = time.perf_counter()
    for metric in families():
        for piece in encode(metric) if metric is not None else (b"",):
            if piece:
                yield piece
            if time.perf_counter() - began >= SLICE_S:
                await asyncio.sleep(0)
                began = time.perf_counter()


class MetricsPage:
    """An HTTP/1.1 server of the metrics page, and of checks that answer 200 or 503."""

    def __init__(
        self,
        families: Families,
        checks: Mapping[str, Check] | None = None,
        token: bytes | None = None,
    ) -> None:
        """`checks`: by path, such as "/live".

        `token`: what callers beyond loopback have to show for the page, as a bearer token; None:
        nothing.
        """
        self._token = token
        self._families = families
        self._checks = {path.encode(): check for path, check in (checks or {}).items()}
        self._server: asyncio.Server | None = None
        self.connections: dict[asyncio.StreamWriter, bool] = {}
        """Those that are open, the oldest first: whether the request has come."""
        self.scrapes_total = 0
        self.dropped_total = 0

    async def start(self, *, host: str, port: int) -> int:
        """Listen; returns the port (of interest where 0 was asked for)."""
        self._server = await asyncio.start_server(self._connected, host, port, limit=HEAD_BYTES_MAX)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def start_on(self, sock: socket.socket) -> None:
        """Listen on a socket that a launcher has bound."""
        self._server = await asyncio.start_server(
            self._connected,
            sock=sock,
            limit=HEAD_BYTES_MAX,
        )

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self.connections) >= CONNECTIONS_MAX:
            self._make_room()
        self.connections[writer] = False
        try:
            async with asyncio.timeout(REQUEST_S):
                await self._serve(reader, writer)
        except (TimeoutError, ConnectionError):
            self.dropped_total += 1  # the scraper is gone or too slow: nothing is owed to it
        finally:
            self.connections.pop(writer, None)
            writer.close()

    def _make_room(self) -> None:
        silent = (writer for writer, asked in self.connections.items() if not asked)
        oldest = next(silent, None) or next(iter(self.connections))
        del self.connections[oldest]
        oldest.transport.abort()

    def _may_read(self, head: bytes, writer: asyncio.StreamWriter) -> bool:
        """Whether the caller is on this machine or shows the token."""
        if self._token is None or self._is_local(writer):
            return True
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            kind, _, given = value.strip().partition(b" ")
            if name.lower() == b"authorization" and kind.lower() == b"bearer":
                return hmac.compare_digest(given.strip(), self._token)
        return False

    def _is_local(self, writer: asyncio.StreamWriter) -> bool:
        peer = writer.get_extra_info("peername")
        return bool(peer) and ipaddress.ip_address(peer[0].partition("%")[0]).is_loopback

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, target, _version = head.split(b"\r\n", 1)[0].split(b" ")
        except (asyncio.LimitOverrunError, asyncio.IncompleteReadError, ValueError):
            await _answer(writer, "400 Bad Request", b"this port speaks HTTP: GET /metrics\n")
            return
        if writer in self.connections:
            self.connections[writer] = True
        path = target.split(b"?", 1)[0]
        head_only = method == b"HEAD"
        if path != b"/metrics" and path not in self._checks:
            paths = b", ".join((b"/metrics", *self._checks))
            await _answer(writer, "404 Not Found", b"try " + paths + b"\n")
        elif method not in {b"GET", b"HEAD"}:
            await _answer(writer, "405 Method Not Allowed", b"use GET\n", "Allow: GET, HEAD\r\n")
        elif check := self._checks.get(path):
            reason = await check()
            status = "503 Service Unavailable" if reason else "200 OK"
            may_know = self._may_read(head, writer)  # why not may name shards
            said = (f"no: {reason}\n" if may_know else "no\n") if reason else "yes\n"
            await _answer(writer, status, said.encode(), head_only=head_only)
        elif not self._may_read(head, writer):
            wants = "WWW-Authenticate: Bearer\r\n"
            await _answer(writer, "401 Unauthorized", b"show the metrics token\n", wants)
        else:
            self.scrapes_total += 1
            body = b"".join([piece async for piece in sliced(self._families)])
            await _answer(writer, "200 OK", body, head_only=head_only)


async def _answer(
    writer: asyncio.StreamWriter,
    status: str,
    body: bytes,
    headers: str = "",
    *,
    head_only: bool = False,
) -> None:
    kind = CONTENT_TYPE_PLAIN_0_0_4 if status.startswith("200") else "text/plain"
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"{headers}Connection: close\r\n\r\n"
    )
    writer.write(head.encode())
    if not head_only:
        writer.write(body)
    await writer.drain()
