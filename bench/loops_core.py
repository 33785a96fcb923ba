"""The spike's core: a synchronous turn over a real RocksDB with its sync thread.

Nothing here is the product's: the store and the entry are the smallest that cost what the real
ones cost. Run as a module it is the core in a process of its own.
"""

import asyncio
import collections
import gc
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence

from rocksdict import DBRecoveryMode, Options, Rdict, WriteBatch, WriteOptions

from muster.v1 import group_pb2, log_pb2
from musterd.chaos import child

TURN_MS = 5
SHARDS = 16
Token = int
Release = Callable[[Sequence[Token]], None]


def spin(rounds: int) -> int:
    """A fixed piece of pure Python work: dictionary writes and integer arithmetic."""
    table: dict[int, int] = {}
    for number in range(rounds):
        table[number & 63] = (number * 2654435761) & 0xFFFF
    return len(table)


def tune_gc() -> None:
    """The product's settings: a full collection would stop the process for long."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)


class Core:
    """Takes commits, writes one batch per turn, releases their tokens when the batch is synced."""

    def __init__(
        self, folder: str, work: int, stall_ms: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Open the database; `start` begins the turns on `loop`.

        `work`: rounds of `spin` per turn. `stall_ms`: added to one sync a second, 0 = none.
        """
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
        options.set_max_background_jobs(2)
        self._db = Rdict(folder, options=options)
        self._unsynced = WriteOptions()
        self._unsynced.sync = False
        self._work = work
        self._stall_s = stall_ms / 1000
        self._loop = loop
        self._arrived: collections.deque[tuple[Token, group_pb2.OffsetCommitRequest]] = (
            collections.deque()
        )
        self._waiting: collections.deque[tuple[int, list[Token]]] = collections.deque()
        self._offsets: dict[bytes, int] = {}
        self._index = [0] * SHARDS
        self._written = 0
        self._sync_due = threading.Event()
        self._late_s: list[float] = []
        self._due_s = 0.0
        self.release: Release = _nobody

    def start(self) -> None:
        """Begin the turns and the sync thread."""
        threading.Thread(target=self._sync_forever, daemon=True).start()
        self._due_s = self._loop.time() + TURN_MS / 1000
        self._loop.call_at(self._due_s, self._on_time)

    def take(self, token: Token, request: group_pb2.OffsetCommitRequest) -> None:
        """Queue one commit for the next turn. Safe from any thread."""
        self._arrived.append((token, request))

    def mark(self) -> None:
        """Forget the turns so far: the warm-up is over."""
        self._late_s = []

    def late_s(self) -> list[float]:
        """How late each turn since `mark` began, in seconds."""
        return self._late_s

    def _on_time(self) -> None:
        now_s = self._loop.time()
        self._late_s.append(now_s - self._due_s)
        self._turn()
        self._due_s = max(self._due_s + TURN_MS / 1000, self._loop.time())
        self._loop.call_at(self._due_s, self._on_time)

    def _turn(self) -> None:
        spin(self._work)
        if not self._arrived:
            return
        batch = WriteBatch(raw_mode=True)
        entries: dict[int, log_pb2.Entry] = {}
        tokens: list[Token] = []
        for _ in range(len(self._arrived)):
            token, request = self._arrived.popleft()
            tokens.append(token)
            shard = zlib.crc32(request.group_id.encode()) % SHARDS
            if (entry := entries.get(shard)) is None:
                entry = entries[shard] = log_pb2.Entry(format=1, rules_version=1)
            self._append(entry, request, batch, shard)
        for shard, entry in entries.items():
            self._index[shard] += 1
            key = struct.pack(">cIQ", b"l", shard, self._index[shard])
            batch.put(key, entry.SerializeToString())
        self._db.write(batch, self._unsynced)
        self._written += 1
        self._waiting.append((self._written, tokens))
        self._sync_due.set()

    def _append(
        self,
        entry: log_pb2.Entry,
        request: group_pb2.OffsetCommitRequest,
        batch: WriteBatch,
        shard: int,
    ) -> None:
        command = entry.commands.add().offset_commit
        command.group_id = request.group_id
        command.member_id = request.member_id
        command.generation = request.generation
        command.commit_seq = request.commit_seq
        for part in request.partitions:
            command.partitions.add(topic=part.topic, partition=part.partition, offset=part.offset)
            name = f"{request.group_id}\0{part.topic}\0{part.partition}".encode()
            key = struct.pack(">cI", b"s", shard) + name
            self._offsets[key] = part.offset
            batch.put(key, struct.pack(">qqq", part.offset, request.generation, request.commit_seq))

    def _sync_forever(self) -> None:
        stall_due_s = time.monotonic()
        while True:
            self._sync_due.wait()
            self._sync_due.clear()
            if self._stall_s and time.monotonic() >= stall_due_s:
                time.sleep(self._stall_s)
                stall_due_s = time.monotonic() + 1.0
            epoch = self._written
            self._db.flush_wal(True)
            self._loop.call_soon_threadsafe(self._on_synced, epoch)

    def _on_synced(self, epoch: int) -> None:
        while self._waiting and self._waiting[0][0] <= epoch:
            self.release(self._waiting.popleft()[1])


def _nobody(tokens: Sequence[Token]) -> None:
    raise RuntimeError(f"{len(tokens)} commits are durable and nobody waits for them")


# ---- the process arrangement: frames of (token, length, request) in, of tokens out

_REQUEST = struct.Struct(">QI")
_TOKEN = struct.Struct(">Q")


def pack_request(token: Token, request: bytes) -> bytes:
    """One commit on its way to the core's process."""
    return _REQUEST.pack(token, len(request)) + request


def unpack_tokens(data: bytearray) -> list[Token]:
    """Take the whole tokens off the front of `data`."""
    whole = len(data) // _TOKEN.size * _TOKEN.size
    tokens = [token for (token,) in _TOKEN.iter_unpack(data[:whole])]
    del data[:whole]
    return tokens


class _Link(asyncio.Protocol):
    """The front's connection, as the core's process sees it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.WriteTransport):
            raise TypeError(type(transport))
        self._core.release = lambda tokens: transport.write(b"".join(map(_TOKEN.pack, tokens)))

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        position = 0
        while len(buffer) - position >= _REQUEST.size:
            token, length = _REQUEST.unpack_from(buffer, position)
            end = position + _REQUEST.size + length
            if end > len(buffer):
                break
            request = group_pb2.OffsetCommitRequest.FromString(
                bytes(buffer[position + _REQUEST.size : end])
            )
            self._core.take(token, request)
            position = end
        del buffer[:position]


async def _main() -> None:
    config = child.config()
    loop = asyncio.get_running_loop()
    core = Core(config["folder"] + "/db", config["work"], config["stall_ms"], loop)
    await loop.create_unix_server(lambda: _Link(core), config["folder"] + "/core.sock")
    tune_gc()
    core.start()
    child.answer(ready=True)
    async for command in child.commands():
        if command["verb"] == "mark":
            core.mark()
            child.answer(marked=True)
        else:
            child.answer(late_s=core.late_s())


if __name__ == "__main__":
    asyncio.run(_main())
