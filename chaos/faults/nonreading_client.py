"""A client over bare HTTP/2 that asks and never takes an answer: its windows are 0.

It answers pings and settings, so that nobody takes it for dead. As a program it asks `calls` times
for what is long, at `endpoint`, and holds its connection until stdin ends; with `waits` it begins
when it is told to.
"""

import asyncio
import struct
import sys
from typing import Self

from google.protobuf.message import Message

from muster.v1.admin_pb2 import DescribeGroupsRequest
from musterd.chaos import child
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.node.config import split_address

DESCRIBE = "/muster.v1.Admin/DescribeGroups"
GROUPS = 1_000
"""That nobody has, with ids as long as they may be: the answer repeats them."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD = struct.Struct(">HBBBL")  # length (high 16 bits, low 8), type, flags, stream
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _WINDOW = 0, 1, 3, 4, 6, 8
_ACK, _END_STREAM, _END_HEADERS = 0x1, 0x1, 0x4
_INITIAL_WINDOW, _FRAME_BYTES = 4, 16_384
_WINDOW_FIRST = 65_535


class NonReadingClient:
    """One connection, for `async with`. Requests are sent as the node's windows let them."""

    def __init__(self) -> None:
        self.ended: set[int] = set()
        """Streams that the node has ended, with a status or without."""
        self.resets: set[int] = set()
        self.data_bytes = 0
        """Of answers, which would be none of this client's doing."""
        self._next = 1
        self._window = self._first = _WINDOW_FIRST
        self._windows: dict[int, int] = {}
        self._opened = asyncio.Event()

    async def connect(self, host: str, port: int) -> Self:
        """Say that no stream may send anything."""
        self._reader, self._writer = await asyncio.open_connection(host, port)
        settings = struct.pack(">HL", _INITIAL_WINDOW, 0)
        self._writer.write(_PREFACE + _frame(_SETTINGS, 0, 0, settings))
        self._task = asyncio.create_task(self._read())
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._writer.close()

    async def ask(self, path: str, request: Message) -> int:
        stream, self._next = self._next, self._next + 2
        self._windows[stream] = self._first
        block = b"".join(
            b"\x00" + _text(name) + _text(value)
            for name, value in (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", "deaf"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
            )
        )
        self._writer.write(_frame(_HEADERS, _END_HEADERS, stream, block))
        body = request.SerializeToString()
        left = b"\0" + struct.pack(">L", len(body)) + body
        while left and stream not in self.ended:
            size = min(_FRAME_BYTES, self._window, self._windows[stream], len(left))
            if size <= 0:
                self._opened.clear()
                await self._opened.wait()
                continue
            part, left = left[:size], left[size:]
            self._window -= size
            self._windows[stream] -= size
            self._writer.write(_frame(_DATA, 0 if left else _END_STREAM, stream, part))
        await self._writer.drain()
        return stream

    def heard(self, stream: int, block: bytes) -> None:
        """Headers or trailers of a call came, each once and in order: who reads them overrides."""

    async def _read(self) -> None:
        while True:
            high, low, kind, flags, stream = _HEAD.unpack(await self._reader.readexactly(9))
            self._take(kind, flags, stream, await self._reader.readexactly(high << 8 | low))
            self._opened.set()

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == _DATA:
            self.data_bytes += len(body)
        elif kind == _RESET:
            self.resets.add(stream)
            self.ended.add(stream)
        elif kind == _HEADERS:
            self.heard(stream, body)
            if flags & _END_STREAM:
                self.ended.add(stream)
        elif kind == _WINDOW:
            self._more(stream, int.from_bytes(body))
        elif kind == _SETTINGS and not flags & _ACK:
            wanted = dict(struct.iter_unpack(">HL", body))
            self._first = wanted.get(_INITIAL_WINDOW, self._first)
            self._writer.write(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._writer.write(_frame(_PING, _ACK, 0, body))

    def _more(self, stream: int, size: int) -> None:
        if stream == 0:
            self._window += size
        elif stream in self._windows:
            self._windows[stream] += size


def _frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return _HEAD.pack(len(body) >> 8, len(body) & 0xFF, kind, flags, stream) + body


def _text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


async def _hold(endpoint: str, calls: int, *, waits: bool) -> None:
    request = DescribeGroupsRequest()
    for number in range(GROUPS):
        request.group_ids.append(str(number).rjust(LIMITS.id_max_bytes, "g"))
    host, port = split_address(endpoint)
    async with NonReadingClient() as client:
        await client.connect(host, port)
        if waits:
            child.answer(connected=True)
            await asyncio.to_thread(sys.stdin.readline)
        asking = [asyncio.create_task(client.ask(DESCRIBE, request)) for _ in range(calls)]
        child.answer(calls=calls)
        await asyncio.to_thread(sys.stdin.read)
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


def main() -> None:
    """Make calls that nobody reads the answers of, until stdin ends."""
    config = child.config()
    asyncio.run(_hold(config["endpoint"], config["calls"], waits=config.get("waits", False)))


if __name__ == "__main__":
    main()
