"""A client over bare HTTP/2 that asks and never takes an answer: its windows are 0."""

import asyncio
import struct

import hpack

from bench.flood import frame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING = 0, 1, 3, 4, 6
ACK, END_STREAM, END_HEADERS = 0x1, 0x1, 0x4
INITIAL_WINDOW = 4


class Deaf:
    """Reads frames and answers pings and settings, so that nobody takes it for dead."""

    def __init__(self):
        self.resets = set()
        self.statuses = {}
        self.data_bytes = 0
        self._next = 1
        self._decoder = hpack.Decoder()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self._task.cancel()
        self._writer.close()

    async def connect(self, port):
        """Say that no stream may send anything."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        settings = struct.pack(">HL", INITIAL_WINDOW, 0)
        self._writer.write(PREFACE + frame(SETTINGS, 0, 0, settings))
        self._task = asyncio.create_task(self._read())
        return self

    def ask(self, path, request):
        """Send a call; returns its stream."""
        stream, self._next = self._next, self._next + 2
        encoder = hpack.Encoder()
        encoder.header_table_size = 0
        block = encoder.encode(
            hpack.NeverIndexedHeaderTuple(*one)
            for one in (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", "deaf"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
            )
        )
        body = request.SerializeToString()
        body = b"\0" + struct.pack(">L", len(body)) + body
        self._writer.write(
            frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, body)
        )
        return stream

    async def _read(self):
        while True:
            head = await self._reader.readexactly(9)
            high, low, kind, flags, stream = struct.unpack(">HBBBL", head)
            body = await self._reader.readexactly(high << 8 | low)
            if kind == DATA:
                self.data_bytes += len(body)
            elif kind == RESET:
                self.resets.add(stream)
            elif kind == HEADERS:
                told = dict(self._decoder.decode(body))
                if "grpc-status" in told:
                    self.statuses[stream] = int(told["grpc-status"])
            elif kind == SETTINGS and not flags & ACK:
                self._writer.write(frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK:
                self._writer.write(frame(PING, ACK, 0, body))
