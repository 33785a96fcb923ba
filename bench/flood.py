"""OffsetCommits in open loop over bare HTTP/2: a load that costs little to offer.

A gRPC call costs a Python client as much as it costs the node to refuse it. Where both share two
cores, a load generator of stubs starves the node it means to flood, and then measures itself. So
requests are framed here (RFC 9113, `application/grpc`), many in one write, and answers are taken
apart as they come. Header blocks use no dynamic table (its size is set to 0), so equal bytes mean
equal headers and each block is decoded once.
"""

import asyncio
import collections
import struct
import time
from dataclasses import dataclass, field

import grpc
import hpack

from muster.v1 import errors_pb2, group_pb2

PATH = "/muster.v1.GroupCoordinator/OffsetCommit"
ACKNOWLEDGED = "acknowledged"
SUPERSEDED = "superseded"

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK, _PADDED = 0x1, 0x4, 0x1, 0x8
_TABLE_SIZE, _PUSH, _MAX_STREAMS = 1, 2, 3
_WINDOW_MAX = 2**31 - 1
_WINDOW_FIRST = 65_535
_CANCEL = 8
_BLOCKS_MAX = 10_000
_HEAD = struct.Struct(">HBBBL")  # length (high 16 bits, low 8), type, flags, stream
_GRPC = struct.Struct(">BL")

_STATUS_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    """One HTTP/2 frame (RFC 9113 section 4.1)."""
    return _HEAD.pack(len(body) >> 8, len(body) & 0xFF, kind, flags, stream) + body


@dataclass(slots=True)
class Open:
    """A call that was sent and is not answered yet."""

    due_s: float
    body: bytes = b""


@dataclass(slots=True)
class Result:
    """The outcomes of the calls."""

    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    acknowledged: list[tuple[float, float]] = field(default_factory=list)
    """(due, latency), CLOCK_MONOTONIC seconds and seconds."""


class Connection(asyncio.Protocol):
    """One HTTP/2 connection, as a client process would have it."""

    def __init__(self, authority: str, timeout_s: float, result: Result) -> None:
        """Not connected yet: `loop.create_connection` does that."""
        encoder = hpack.Encoder()
        encoder.header_table_size = 0
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", PATH),
            (":authority", authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", f"{int(timeout_s * 1000)}m"),
        ]
        self._block = encoder.encode(hpack.NeverIndexedHeaderTuple(*one) for one in headers)
        self._timeout_s = timeout_s
        self._result = result
        self._decoder = hpack.Decoder()
        self._decoder.max_allowed_table_size = 0
        self._blocks: dict[bytes, dict[str, str]] = {}
        self._calls: dict[int, Open] = {}
        self._order: collections.deque[tuple[float, int]] = collections.deque()
        self._next_stream = 1
        self._window = _WINDOW_FIRST
        self._streams_max = _WINDOW_MAX
        self._input = bytearray()
        self._output: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    # ---- calls

    @property
    def open(self) -> int:
        """Calls that are not answered."""
        return len(self._calls)

    def call(self, request: bytes, due_s: float) -> bool:
        """Queue one request for `flush`; False where the peer takes no more now."""
        body = _GRPC.pack(0, len(request)) + request
        if self._transport is None or self._window < len(body) or self.open >= self._streams_max:
            return False
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self._window -= len(body)
        self._calls[stream] = Open(due_s)
        self._order.append((time.monotonic() + self._timeout_s, stream))
        self._output.append(frame(_HEADERS, _END_HEADERS, stream, self._block))
        self._output.append(frame(_DATA, _END_STREAM, stream, body))
        return True

    def flush(self) -> None:
        """Send what is queued, and give up what is too old."""
        now_s = time.monotonic()
        while self._order and self._order[0][0] <= now_s:
            stream = self._order.popleft()[1]
            if stream in self._calls:
                self._end(stream, "DEADLINE_EXCEEDED")
                self._output.append(frame(_RESET, 0, stream, struct.pack(">L", _CANCEL)))
        if self._output and self._transport is not None:
            self._transport.write(b"".join(self._output))
            self._output.clear()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what this side wants: no dynamic table, no push, no limit to what is received."""
        self._transport = transport  # type: ignore[assignment] # a stream's
        wanted = struct.pack(">HLHL", _TABLE_SIZE, 0, _PUSH, 0)
        self._output.append(_PREFACE + frame(_SETTINGS, 0, 0, wanted))
        self._output.append(frame(_WINDOW, 0, 0, struct.pack(">L", _WINDOW_MAX - _WINDOW_FIRST)))
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more will be answered."""
        self._transport = None
        for stream in list(self._calls):
            self._end(stream, f"connection lost ({exc})")

    def data_received(self, data: bytes) -> None:
        self._input += data
        view, at = self._input, 0
        while len(view) - at >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(view, at)
            end = at + _HEAD.size + (high << 8 | low)
            if end > len(view):
                break
            self._take(kind, flags, stream & _WINDOW_MAX, bytes(view[at + _HEAD.size : end]))
            at = end
        del self._input[:at]
        self.flush()

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == _DATA:
            if stream in self._calls:
                self._calls[stream].body += body
        elif kind == _HEADERS:
            self._headers(flags, stream, body)
        elif kind == _RESET:
            if stream in self._calls:
                self._end(stream, f"RST_STREAM {int.from_bytes(body)}")
        elif kind == _SETTINGS:
            self._settings(flags, body)
        elif kind == _PING and not flags & _ACK:
            self._output.append(frame(_PING, _ACK, 0, body))
        elif kind == _WINDOW and stream == 0:
            self._window += int.from_bytes(body)
        elif kind == _GOAWAY:
            raise ConnectionError(f"the node ends the connection: {body[8:]!r}")

    def _settings(self, flags: int, body: bytes) -> None:
        if flags & _ACK:
            return
        for name, value in struct.iter_unpack(">HL", body):
            if name == _MAX_STREAMS:
                self._streams_max = value
        self._output.append(frame(_SETTINGS, _ACK, 0))

    def _headers(self, flags: int, stream: int, block: bytes) -> None:
        if not flags & _END_HEADERS or flags & _PADDED:
            raise ConnectionError("padded or continued headers were not expected")
        found = self._blocks.get(block)
        if found is None:
            found = dict(self._decoder.decode(block))  # type: ignore[arg-type] # text, not raw
            if len(self._blocks) < _BLOCKS_MAX:
                self._blocks[block] = found
        if not flags & _END_STREAM or stream not in self._calls:
            return
        status = int(found["grpc-status"])
        if status:
            self._end(stream, _STATUS_NAMES.get(status, str(status)))
        else:
            body = self._calls[stream].body[_GRPC.size :]
            self._end(stream, outcome_of(group_pb2.OffsetCommitResponse.FromString(body)))

    def _end(self, stream: int, outcome: str) -> None:
        call = self._calls.pop(stream)
        self._result.outcomes[outcome] += 1
        if outcome == ACKNOWLEDGED:
            self._result.acknowledged.append((call.due_s, time.monotonic() - call.due_s))


def outcome_of(answer: group_pb2.OffsetCommitResponse) -> str:
    """Return the outcome of an answer about one partition, in one word."""
    code = answer.status.code
    if code == errors_pb2.NONE and answer.partitions:
        code = answer.partitions[0].status.code
        if code == errors_pb2.NONE:
            return SUPERSEDED if answer.partitions[0].superseded else ACKNOWLEDGED
    return str(errors_pb2.ErrorCode.Name(code))


class Flood:
    """Several connections to one node."""

    def __init__(self, endpoint: str, connections: int, timeout_s: float) -> None:
        self.result = Result()
        self._endpoint = endpoint
        self._connections = [
            Connection(endpoint, timeout_s, self.result) for _ in range(connections)
        ]

    async def connect(self) -> None:
        """Open every connection. Raises OSError."""
        host, _, port = self._endpoint.rpartition(":")
        loop = asyncio.get_running_loop()
        for one in self._connections:
            await loop.create_connection(lambda one=one: one, host, int(port))  # type: ignore[misc]

    def call(self, number: int, request: bytes, due_s: float) -> bool:
        """Queue call `number` on its connection; False where that takes no more now."""
        return self._connections[number % len(self._connections)].call(request, due_s)

    def flush(self) -> None:
        """Send all that is queued."""
        for one in self._connections:
            one.flush()

    @property
    def open(self) -> int:
        """Calls that are not answered."""
        return sum(one.open for one in self._connections)

    async def drain(self) -> None:
        """Until every call is answered or its time is up."""
        while self.open:
            self.flush()
            await asyncio.sleep(0.01)
