"""Every decoder of what comes from outside: what it may raise, and how much it may allocate.

A client's requests come through a real node's client port instead: tests/fuzz/client_port.py.
"""

import asyncio
import contextlib
import hashlib
import http.client
import io
import json
import ssl
import struct
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily

from muster.cli.errors import CommandError
from muster.cli.group.offset_file import FILE_MAX_BYTES, read_offsets
from muster.errors import MusterError
from muster.group import consumer_protocol
from muster.tasks import task_store
from muster.v1 import group_pb2, log_pb2, peer_pb2
from musterd.backup import manifest as backup_manifest
from musterd.backup import ticket
from musterd.backup.errors import BackupError
from musterd.backup.records_file import END, decode_records, encode_block
from musterd.backup.records_file import MAGIC as MAGIC_OF_RECORDS
from musterd.coordinator import codec as log_codec
from musterd.coordinator.api.frame.identity import split_token
from musterd.coordinator.api.frame.jwt_verifier import KeySetError, parse_keys
from musterd.coordinator.api.rpcs.translate import commit
from musterd.coordinator.machine.records.encoding import RecordError
from musterd.coordinator.machine.records.shard_records import RecordExamination, load_state
from musterd.coordinator.metrics.http_page import MetricsPage
from musterd.coordinator.node.config import ConfigError, load_settings
from musterd.coordinator.node.jwt_keys import body_of
from musterd.export.layout import LayoutError, Manifest
from musterd.levels import LEVEL
from musterd.raft import codec, hello
from musterd.raft.driver import Driver
from musterd.raft.identity import Identity, IdentityError
from musterd.raft.peer_connection import MAGIC, PeerConnection, TransportSettings, framed
from musterd.raft.peer_levels import Levels
from musterd.raft.peers import PeerBook
from musterd.raft.tls import PeerTls, PeerTlsError, PeerTlsMode
from musterd.replay.checks import SourceFile, inspect
from musterd.storage import export_cursor
from musterd.storage.life import Life
from musterd.storage.manifest import _damage
from musterd.storage.memory import MemoryStore
from musterd.storage.store import CorruptStoreError, Family
from tests.fuzz import credentials
from tests.fuzz.mutation import (
    NUMBERS,
    as_json,
    changed_bytes,
    changed_json,
    changed_wire,
    deep,
    filled,
    grown_wire,
)

CORPUS = Path(__file__).parent / "corpus"
KIB, MIB = 1024, 1024 * 1024
LEVELS = Levels(LEVEL, 0)
IDENTITY = Identity("dev", 0, bytes(range(16)), 4, (0, 1, 2))


@dataclass(frozen=True)
class Decoder:
    """One decoder, how inputs for it are made, and what it has promised."""

    name: str
    decode: Callable[[bytes], object]
    declared: tuple[type[Exception], ...]
    """What it may raise; anything else is a fault."""
    make: Callable[[Random, list[bytes]], bytes]
    """An input, given the corpus of this decoder."""
    share: int
    """Its part of all inputs."""
    per_byte: int = 64
    """It may allocate so many bytes for each of its input ..."""
    at_least: int = MIB
    """... and so many in any case."""
    whole: Callable[[bytes], bytes] = bytes
    """What the corpus lacks: checksums, which `make` puts on."""

    def corpus(self) -> list[bytes]:
        """Sound inputs, and those that once broke something; each is run as it is, too."""
        file = CORPUS / f"{self.name}.txt"
        lines = file.read_text("ascii").splitlines() if file.exists() else []
        return [bytes.fromhex(line.partition(" ")[2]) for line in lines]


@cache
def scratch() -> Path:
    """A folder of this process."""
    return Path(tempfile.mkdtemp(prefix="muster-fuzz-"))


def several(rng: Random, data: bytes, change: Callable[[Random, bytes], bytes]) -> bytes:
    """It, changed once, or a few times."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        data = change(rng, data)
    return data


def wire(message: Callable[[], Any], size_max: int) -> Callable[[Random, list[bytes]], bytes]:
    """Inputs that are messages of one kind, mostly sound to the outside."""

    def make(rng: Random, corpus: list[bytes]) -> bytes:
        data = (
            rng.choice(corpus)
            if corpus and rng.random() < 0.5
            else filled(rng, message()).SerializePartialToString()
        )
        chance = rng.random()
        if chance < 0.002:
            return grown_wire(rng, data, rng.randrange(size_max // 64, size_max))[:size_max]
        return data if chance < 0.05 else several(rng, data, changed_wire)

    return make


def sealed(data: bytes) -> bytes:
    """With its checksum in front, as peers send it."""
    return codec.checksum(data) + data


def sealed_wire(message: Callable[[], Any], size_max: int) -> Callable[..., bytes]:
    """The same with a checksum, now and then a wrong one. The corpus has none."""
    make = wire(message, size_max)

    def made(rng: Random, corpus: list[bytes]) -> bytes:
        data = make(rng, corpus)
        return changed_bytes(rng, sealed(data)) if rng.random() < 0.03 else sealed(data)

    return made


def plain(rng: Random, corpus: list[bytes]) -> bytes:
    """The corpus, changed as bytes, or spliced."""
    data = rng.choice(corpus)
    if rng.random() < 0.1:
        other = rng.choice(corpus)
        data = data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]
    return several(rng, data, changed_bytes)


def documents(rng: Random, corpus: list[bytes]) -> bytes:
    """JSON with one part changed, or nothing of the kind."""
    chance = rng.random()
    if chance < 0.01:
        return deep(rng, rng.choice((2_000, 60_000)))
    if chance < 0.2:
        return plain(rng, corpus)
    value = json.loads(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 2, 4))):
        value = changed_json(rng, value)
    return as_json(value)


# ---- peers


def decode_hello(data: bytes) -> None:
    """As a node reads one, and judges it."""
    found = codec.decode_hello(data)
    hello.refusal(IDENTITY, book(), found, LEVELS)
    hello.replacements(IDENTITY, found)
    hello.is_another_store(IDENTITY, book(), found)


@cache
def plain_commit(data: bytes) -> None:
    """A commit of a stream: what is read in columns is what the whole request says."""
    found = log_codec.plain_request(data, 50)
    if found is not None and found != commit(group_pb2.OffsetCommitRequest.FromString(data)):
        raise AssertionError("a view of the request says something else")


def book() -> PeerBook:
    """What a node knows of others that has met nobody."""
    return PeerBook(MemoryStore(), IDENTITY)


class _Hub:
    """What a connection tells of itself, where it takes everybody for a peer."""

    settings = TransportSettings()
    tls = PeerTls(PeerTlsMode.OFF, "")
    driver = SimpleNamespace(hello=lambda lane: peer_pb2.Hello(lane=lane))

    def met(self, _connection: Any) -> None: ...
    def lost(self, _connection: Any) -> None: ...
    def refused(self, _connection: Any, _reason: str, _detail: str) -> None: ...

    def hello_arrived(self, connection: Any, said: peer_pb2.Hello) -> None:
        if hello.refusal(IDENTITY, book(), said, LEVELS) is None:
            connection.establish(said.node_id, said.lane)

    verdict_arrived = hello_arrived

    def frame_arrived(self, _node: int, frame: bytes) -> None:
        codec.decode_frame(frame)

    def fatal(self, error: BaseException) -> None:
        raise error


class _Pipe(asyncio.Transport):
    """A socket to nowhere."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 1)})
        self.closed = False

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: Any) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


async def _peer_stream(data: bytes) -> None:
    connection = PeerConnection(_Hub(), None)  # type: ignore[arg-type]
    pipe = _Pipe()
    connection.connection_made(pipe)
    step = max(1, len(data) // 5)
    for at in range(0, len(data), step):
        if not pipe.closed:
            connection.arrived(data[at : at + step])
    connection.connection_lost(None)


@cache
def loop() -> asyncio.AbstractEventLoop:
    """The loop of this process."""
    return asyncio.new_event_loop()


def peer_stream(data: bytes) -> None:
    """All that a peer sends on one connection, in five pieces."""
    loop().run_until_complete(_peer_stream(data))


def greeting(said: bytes) -> bytes:
    """The first bytes of a peer with this hello."""
    return MAGIC + framed(sealed(said))


def make_peer_stream(rng: Random, corpus: list[bytes]) -> bytes:
    """The magic bytes, a hello and some frames, each whole or changed."""
    said = several(rng, rng.choice(corpus), changed_wire) if rng.random() < 0.3 else corpus[0]
    parts = [greeting(said)]
    for _ in range(rng.randrange(4)):
        frame = filled(rng, peer_pb2.Frame()).SerializePartialToString()
        if rng.random() < 0.5:
            frame = changed_wire(rng, frame)
        parts.append(framed(sealed(frame)))
    if rng.random() < 0.4:
        at = rng.randrange(len(parts))
        parts[at] = changed_bytes(rng, parts[at])
    return b"".join(parts)


# ---- states and logs


def snapshot_slice(data: bytes) -> None:
    """A slice as it arrives; what is taken must load at the next start."""
    pairs = codec.decode_pairs(data)
    examination = RecordExamination()
    for key, value in pairs:
        examination.take(key, value)
    load_state(pairs)


class _Link:
    """A network to nobody."""

    def send(self, _node: int, _frame: bytes, _bulk: bool) -> bool:
        return False

    def hang_up(self, _node: int) -> None: ...


class _Machine:
    """A state machine that is given nothing."""

    def examine(self) -> Any: ...


def journal(data: bytes) -> None:
    """A node's store as it opens: pairs whose first byte is the column family."""
    store = MemoryStore()
    for key, value in codec.decode_pairs(data):
        if key and key[0] < len(Family):
            store.batch.put(Family(key[0]), key[1:], value)
    store.write()
    with contextlib.suppress(ValueError):  # where the real store reads it: a refusal
        Life.decode(store.get(Family.META, b"l"))
    mark = store.get(Family.META, b"mark")  # a file beside the real one
    store.read_mark = lambda: mark  # type: ignore[method-assign]
    Driver(store, lambda _: _Machine(), _Link(), lambda: 1.0, Random(0))  # type: ignore[arg-type, return-value]


# ---- files


def resealed(canonical: Callable[[Any], str]) -> Callable[[Random, list[bytes]], bytes]:
    """Changed documents, mostly with the checksum of what they say now in `check`."""

    def make(rng: Random, corpus: list[bytes]) -> bytes:
        data = documents(rng, corpus)
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            return data
        if not isinstance(body, dict) or rng.random() < 0.1:
            return data
        body.pop("check", None)
        body["check"] = hashlib.sha256(canonical(body).encode()).hexdigest()
        return as_json(body)

    return make


def compact(body: Any) -> str:
    """As manifests and tickets are hashed."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


def manifest(data: bytes) -> None:
    """As it is read, and as its numbers are used."""
    found = Manifest.decode(data.decode("utf-8", "replace"), "a manifest")
    sum((found.first, found.last, found.rows, found.bytes, found.finished_wall_ms))
    found.encode()
    int(found.digest or "0", 16)


def segment(data: bytes) -> None:
    """A file of an export with a manifest that belongs to it: replay and exporter read it."""
    described, _, content = data.partition(b"\n")
    found = Manifest.decode(described.decode("utf-8", "replace"), "a manifest")
    folder = scratch() / f"shard={found.shard:02d}"
    folder.mkdir(exist_ok=True)
    path = folder / "part-0000000000000001-0000000000000001-1.parquet"
    path.write_bytes(content)
    inspect(SourceFile(str(path), found))


def make_segment(rng: Random, corpus: list[bytes]) -> bytes:
    """A changed file, mostly with a manifest that has its checksum."""
    described, _, content = rng.choice(corpus).partition(b"\n")
    body = json.loads(described)
    content = several(rng, content, changed_bytes)
    if rng.random() < 0.95:
        body.pop("check")
        body["sha256"] = hashlib.sha256(content).hexdigest()
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        body["check"] = hashlib.sha256(text.encode()).hexdigest()
    return as_json(body) + b"\n" + content


def cursor(data: bytes) -> None:
    """The exporter's cursor, as a node reads it."""
    (scratch() / export_cursor.FILE_NAME).write_bytes(data)
    export_cursor.read(scratch(), 0.0)


def configuration(data: bytes) -> None:
    """A node's settings in a file."""
    file = scratch() / "node.toml"
    file.write_bytes(data)
    load_settings(file, {"data_dir": scratch()})


def make_configuration(rng: Random, corpus: list[bytes]) -> bytes:
    """A file of settings, changed by line or by byte."""
    if rng.random() < 0.02:
        return deep(rng, 20_000)
    lines = rng.choice(corpus).split(b"\n")
    at = rng.randrange(len(lines))
    key = lines[at].partition(b"=")[0] or b"listen "
    values = (b"1", b"-1", b"true", b'""', b'"x:1"', b"[1]", b"{a=1}", b"1e400", b"nan", b"9" * 30)
    match rng.randrange(3):
        case 0:
            lines[at] = key + b"=" + rng.choice(values)
        case 1:
            del lines[at]
        case _:
            lines[at] = changed_bytes(rng, lines[at])
    return b"\n".join(lines)


def offset_file(data: bytes) -> None:
    """Offsets that a command is given, as CSV and as JSON."""
    for suffix in ("csv", "json"):
        file = scratch() / f"offsets.{suffix}"
        file.write_bytes(data)
        try:
            read_offsets(file)
        except CommandError:
            if suffix == "json":
                raise


def make_records(rng: Random, corpus: list[bytes]) -> bytes:
    """A backup's file of records whose blocks are changed, mostly with a right head."""
    pairs = codec.decode_pairs(rng.choice(corpus))
    if rng.random() < 0.3:
        pairs[rng.randrange(len(pairs))] = rng.randbytes(3), rng.randbytes(9)
    at = rng.randrange(len(pairs) + 1)
    blocks = [encode_block(some) for some in (pairs[:at], pairs[at:]) if some]
    if rng.random() < 0.3:
        raw = several(rng, b"".join(a + b for a, b in pairs), changed_bytes)
        head = (
            struct.pack(">II", *(n % 2**32 for n in rng.choices((*NUMBERS, 3, 4), k=2)))
            if rng.random() < 0.5
            else b""
        )
        blocks.append(packed_block(head + raw))
    parts = [MAGIC_OF_RECORDS, *blocks, END]
    if rng.random() < 0.5:
        place = rng.randrange(len(parts))
        parts[place] = several(rng, parts[place], changed_bytes)
    if rng.random() < 0.01:
        parts.insert(1, packed_block(bytes(rng.choice((9, 90)) * MIB)))
    return b"".join(parts)


def packed_block(raw: bytes) -> bytes:
    """A block of these bytes, whatever they are."""
    stored = zlib.compress(raw, 1)
    sizes = (len(stored), len(raw), zlib.crc32(raw))
    return struct.pack(">III", *(one & 0xFFFFFFFF for one in sizes)) + stored


def backup_records(data: bytes) -> None:
    """A file of a backup, read to its end and loaded."""
    records = list(decode_records(io.BytesIO(data), "a file"))
    load_state(records)


def records_of(pairs: bytes) -> bytes:
    """The file of these records."""
    return MAGIC_OF_RECORDS + encode_block(codec.decode_pairs(pairs)) + END


# ---- what members tell each other


def task(data: bytes) -> None:
    """A slot of a task group, as any member may have committed it."""
    found = task_store.decode(
        SimpleNamespace(offset=1, metadata=data.decode("utf-8", "replace"))  # type: ignore[arg-type]
    )
    if found is not None:
        hash(found.name)
        dict(found.config)
        found.encode()


# ---- HTTP


class _Writer:
    """What a page's answer is written to: nobody."""

    transport = _Pipe()

    def write(self, _data: bytes) -> None: ...

    async def drain(self) -> None: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...

    def get_extra_info(self, _name: str, default: object = None) -> object:
        return default


async def _metrics_page(data: bytes) -> None:
    page = MetricsPage(lambda: [CounterMetricFamily("one", "one", value=1)])
    reader = asyncio.StreamReader(limit=8 * KIB)
    reader.feed_data(data)
    reader.feed_eof()

    writer: Any = _Writer()
    await page._connected(reader, writer)


def metrics_page(data: bytes) -> None:
    """A request of the metrics port."""
    loop().run_until_complete(_metrics_page(data))


DECODERS = (
    Decoder(
        "peer_frame",
        codec.decode_frame,
        (codec.CodecError,),
        sealed_wire(peer_pb2.Frame, 2 * MIB),
        22,
        whole=sealed,
    ),
    Decoder(
        "peer_hello",
        decode_hello,
        (codec.CodecError,),
        sealed_wire(peer_pb2.Hello, 16 * KIB),
        10,
        whole=sealed,
    ),
    Decoder("peer_stream", peer_stream, (), make_peer_stream, 4, whole=greeting),
    Decoder(
        "snapshot_slice",
        snapshot_slice,
        (codec.CodecError, RecordError),
        wire(peer_pb2.SnapshotPairs, MIB),
        14,
    ),
    Decoder(
        "journal",
        journal,
        (codec.CodecError, CorruptStoreError, IdentityError),
        wire(peer_pb2.SnapshotPairs, 64 * KIB),
        6,
    ),
    Decoder(
        "log_entry",
        log_codec.decode_entry,
        (log_codec.UnknownFormatError,),
        wire(log_pb2.Entry, MIB),
        14,
    ),
    Decoder(
        "log_events",
        log_codec.decode_events,
        (log_codec.UnknownFormatError,),
        wire(log_pb2.EventList, MIB),
        7,
    ),
    Decoder(
        "log_command",
        log_codec.decode_command,
        (log_codec.UnknownFormatError,),
        wire(log_pb2.Command, MIB),
        7,
    ),
    Decoder("plain_commit", plain_commit, (), wire(group_pb2.OffsetCommitRequest, MIB), 7),
    Decoder("export_manifest", manifest, (LayoutError,), resealed(compact), 3),
    Decoder("export_cursor", cursor, (export_cursor.CursorError,), documents, 2),
    Decoder("export_segment", segment, (LayoutError,), make_segment, 1, at_least=64 * MIB),
    Decoder("backup_manifest", backup_manifest.decode, (BackupError,), resealed(compact), 2),
    Decoder(
        "backup_ticket",
        lambda data: ticket.decode(data, "a ticket"),
        (BackupError,),
        resealed(compact),
        2,
    ),
    Decoder(
        "backup_records",
        backup_records,
        (BackupError, RecordError),
        make_records,
        3,
        at_least=64 * MIB,
        whole=records_of,
    ),
    Decoder("database_manifest", lambda data: _damage("MANIFEST", data), (), plain, 1),
    Decoder("configuration", configuration, (ConfigError,), make_configuration, 1),
    Decoder(
        "offset_file",
        offset_file,
        (CommandError,),
        documents,
        2,
        at_least=FILE_MAX_BYTES + MIB,  # read in one
    ),
    Decoder(
        "subscription",
        lambda data: consumer_protocol.decode_subscription("m", data),
        (consumer_protocol.NotOurMetadataError,),
        wire(group_pb2.ConsumerSubscription, 64 * KIB),
        2,
        per_byte=128,  # it names what the member had, as an assignment does
    ),
    Decoder(
        "assignment",
        consumer_protocol.decode_assignment,
        (consumer_protocol.NotOurMetadataError,),
        wire(group_pb2.ConsumerAssignment, 64 * KIB),
        2,
        per_byte=128,  # a partition of one byte becomes a pair of topic and number
    ),
    Decoder("task_definition", task, (MusterError,), documents, 2),
    Decoder("metrics_page", metrics_page, (), plain, 1),
    Decoder(
        "bearer_token",
        lambda data: split_token(data.decode("utf-8", "surrogateescape")),
        (),
        plain,
        1,
    ),
    Decoder(
        "client_certificate",
        credentials.client_certificate,
        (),
        credentials.make_certificate,
        2,
    ),
    Decoder(
        "peer_certificate",
        credentials.peer_certificate,
        (PeerTlsError, ssl.SSLError),  # the latter where a handshake fails
        credentials.make_certificate,
        2,
    ),
    Decoder("jwt", credentials.jwt_text, (), credentials.make_jwt, 2),
    Decoder("jwt_keys", parse_keys, (KeySetError,), documents, 2),
    Decoder(
        "jwt_keys_answer",
        body_of,
        (OSError, ValueError, http.client.HTTPException),  # which a look takes as its failure
        plain,
        1,
    ),
)
"""All of them. `share` sums up to 110 with the client port's, of which nothing depends."""

BY_NAME = {one.name: one for one in DECODERS}
