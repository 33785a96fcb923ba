"""Two stores outside of muster: one that refuses older fencing tokens, one that takes everything.

Both live in one process with a Unix socket, in memory, and see the same writes in the same order.
What they took is in the history of that process (chaos-W4).
"""

import asyncio
import contextlib
import json
import time
from typing import Any

from musterd.chaos.history import Key, StoreWrite
from musterd.chaos.workloads.base import Settings, Worker

WAIT_S = 10.0
LINE_BYTES_MAX = 4096


class StoreSettings(Settings):
    """Names the socket on which the stores listen."""

    path: str


class Stores(Worker[StoreSettings]):
    """The process of both stores."""

    async def start(self) -> None:
        self._highest: dict[Key, int] = {}
        self._server = await asyncio.start_unix_server(
            self._serve, self.settings.path, limit=LINE_BYTES_MAX
        )

    async def stop(self) -> None:
        self._server.close()
        await self.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):  # a writer that is killed
            while line := await reader.readline():
                writer.write(json.dumps({"taken": self.write(json.loads(line))}).encode() + b"\n")
                await writer.drain()
        writer.close()

    def write(self, given: dict[str, Any]) -> bool:
        """One write to both; whether the fenced one took it."""
        key = Key(given["group"], given["topic"], given["partition"])
        token = int(given["token"])
        taken = token >= self._highest.get(key, token)
        if taken:
            self._highest[key] = token
        for fenced in (True, False):
            accepted, now = taken or not fenced, time.monotonic_ns()
            who, sequence = given["client"], int(given["sequence"])
            self.book.record(StoreWrite(who, key, token, sequence, now, accepted, fenced))
        return taken


class StoreClient:
    """A writer's connection to the stores; opened by the first write."""

    def __init__(self, path: str, client: str) -> None:
        self._path = path
        self._client = client
        self._writer: asyncio.StreamWriter | None = None

    async def write(self, key: Key, token: int, sequence: int) -> bool:
        """Whether the fenced store took it. Raises OSError where the stores do not answer."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_unix_connection(self._path)
        fields = {"client": self._client, "token": token, "sequence": sequence}
        where = {"group": key.group, "topic": key.topic, "partition": key.partition}
        self._writer.write(json.dumps({**fields, **where}).encode() + b"\n")
        answer = json.loads(await asyncio.wait_for(self._reader.readline(), WAIT_S))
        return bool(answer["taken"])

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
