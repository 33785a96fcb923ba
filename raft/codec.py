"""Peer messages to bytes and back: a crc32 and a protobuf, never pickle (pso-F6).

Inside `raft/` a message is a plain dict, because that is what PySyncObj's core reads and writes.
Its `type` is one of the keys of `_ENCODERS`; each encoder and decoder pair below says which other
keys that type has. `term` is in all of them. Indexes, terms and seqs are ints, flags are bools.

A message that no node of this cluster can have sent is refused here, before any of it is used: it
would become durable, and would stop this node now and at each start. TCP's checksum of 16 bits
misses one damaged segment in 65,536; the crc32 in front of each protobuf finds every flipped bit.
"""

import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from muster.v1 import peer_pb2 as pb
from musterd.raft.contract import ClientReach, Room
from musterd.raft.log_format import KIND_ADMITTED, KINDS, Entry

Message = dict[str, Any]

FRAME_BYTES_MAX = 16 * 1024 * 1024
HELLO_BYTES_MAX = 4096
CHECKSUM_BYTES = 4
FRAME_MESSAGES_MAX = 65_536
"""Twice what a frame holds that is closed at `frame_bytes` (raft/outbox.py).

A frame of the greatest length would hold four million votes, which take 2.5 GiB and 20 s of the
loop. So messages are counted before any is parsed.
"""
APPEND_ENTRIES_MAX = 4096
"""Eight times `message_entries`."""
COUNT_END = 1 << 62
"""Terms, indexes, message numbers, lives and epochs are smaller.

Nobody counts that far, and what is added to a smaller one fits the 64 bits of wire and disk.
"""
COUNT_STEP = 1 << 32
"""So many elections, one each 30 ms, take four years; no store is opened so often."""


_PLAIN = KINDS - {KIND_ADMITTED}
"""Kinds of entries that have nothing to be looked at here."""


class CodecError(Exception):
    """A peer sent what is not ours; `reason` is one word for a counter. Close the connection."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Reach:
    """Bounds how far a peer's term or life may lie above the receiver's own count.

    COUNT_END alone would be no help. Who took the greatest count below it would go on to one that
    every peer refuses, for good; so would any limit that is the same whenever it is asked. Hence
    one step at first, and one more after each refusal: no single frame gets a count near the end,
    and who is far behind all the others, or a step that they took, hears them when they call again.
    """

    def __init__(self) -> None:
        self._steps = 1

    def check(self, what: str, own: int, said: int) -> None:
        """Raise CodecError where `said` is too far above `own`."""
        if said > own + self._steps * COUNT_STEP:
            self._steps += 1
            raise CodecError("garbage", f"{what} {said}, too far ahead of {own}, the one here")


class Sender(NamedTuple):
    """The store that a frame comes from."""

    tag: int
    """The first 8 bytes of its uuid."""
    life: int
    """How often it was opened (raft/lives.py)."""
    epoch: int
    """Everything up to here is on its disk."""
    room: Room = Room.ENOUGH
    """What its disk has room for."""
    reach: ClientReach = ClientReach.UNKNOWN
    """Whether clients reach its node."""


def sender_tag(store_uuid: bytes) -> int:
    """Return the tag that frames give their sender's store: a replaced node has another one."""
    return int.from_bytes(store_uuid[:8], "big")


def encode_frame(sender: Sender, messages: Iterable[tuple[int, Message]]) -> bytes:
    """One frame of (shard, message)."""
    room = pb.DiskRoom.ValueType(sender.room)
    reach = pb.ClientReach.ValueType(sender.reach)
    frame = pb.Frame(
        sender=sender.tag, life=sender.life, epoch=sender.epoch, room=room, reach=reach
    )
    add = frame.messages.add
    for shard, message in messages:
        out = add(shard=shard, term=message["term"])
        _ENCODERS[message["type"]](out, message)
    return _sealed(frame)


def decode_frame(data: bytes) -> tuple[Sender, list[tuple[int, Message]]]:
    """Who sent it and its (shard, message)s. Raises CodecError."""
    frame = pb.Frame()
    # The shortest message has two bytes; what is too long is not looked at.
    if 2 * FRAME_MESSAGES_MAX < len(data) <= FRAME_BYTES_MAX:
        _refuse_many(data)
    _parse(frame, data, FRAME_BYTES_MAX)
    _refuse_absurd(frame.life, frame.epoch)
    messages: list[tuple[int, Message]] = []
    for one in frame.messages:
        if one.term >= COUNT_END:
            _refuse_absurd(one.term)
        kind = one.WhichOneof("kind")
        if kind is None:
            raise CodecError("unknown_type", "a peer message of no known kind")
        messages.append((one.shard, _DECODERS[kind](one)))
    try:
        room, reach = Room(frame.room), ClientReach(frame.reach)
    except ValueError as error:
        raise CodecError("garbage", f"a frame of a disk or node with {error}") from error
    return Sender(frame.sender, frame.life, frame.epoch, room, reach), messages


def _refuse_many(data: bytes) -> None:
    """Raise CodecError for a frame of too many fields; one that is cut short is found later."""
    at, count = CHECKSUM_BYTES, 0
    try:
        while at < len(data):
            count += 1
            if count > FRAME_MESSAGES_MAX:
                detail = f"a frame of more than {FRAME_MESSAGES_MAX} messages"
                raise CodecError("too_many", detail)
            tag, at = _varint(data, at)
            if tag & 7 == _LENGTH:
                size, at = _varint(data, at)
                at += size
            elif tag & 7 == _VARINT:
                _, at = _varint(data, at)
            else:
                at += 8 if tag & 7 == _FIXED64 else 4
    except IndexError:
        return


_VARINT, _FIXED64, _LENGTH = range(3)
_MORE = 0x80
_VARINT_BYTES_MAX = 10


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at `at`, and where it ends. Raises IndexError behind the end of the data."""
    number = 0
    for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
        byte = data[at]
        at += 1
        number |= (byte & (_MORE - 1)) << shift
        if byte < _MORE:
            return number, at
    raise IndexError


def _refuse_absurd(*counts: int) -> None:
    """Raise CodecError for a count that no cluster and no store can have come to."""
    if max(counts) >= COUNT_END:
        raise CodecError(
            "garbage",
            f"a term, index, number, life or epoch of {max(counts)}: nobody counts so far",
        )


def encode_hello(hello: pb.Hello) -> bytes:
    """The first message on a connection."""
    return _sealed(hello)


def decode_hello(data: bytes) -> pb.Hello:
    """The hello in these bytes; CodecError where they are none or its numbers are absurd."""
    hello = pb.Hello()
    _parse(hello, data, HELLO_BYTES_MAX)
    _refuse_absurd(
        hello.life,
        *(n for s in hello.starts for n in (s.life, s.epoch)),
        *(one.as_of for one in hello.replacements),
    )
    if max(hello.lost_life, *(s.life for s in hello.starts), 0) > hello.life:
        raise CodecError("garbage", f"a hello in life {hello.life} that names a later one")
    return hello


def message_bytes(message: Message) -> int:
    """About how long a message is on the wire: what it carries."""
    kind = message["type"]
    if kind == "append_entries":
        return sum(len(entry.command) + 16 for entry in message["entries"]) + 32
    if kind == "snapshot_chunk":
        return len(message["pairs"]) + 64
    return 32


def _parse(into: pb.Frame | pb.Hello, data: bytes, bytes_max: int) -> None:
    if len(data) > bytes_max:
        raise CodecError("too_long", f"a peer message of {len(data)} bytes; {bytes_max} at most")
    body = unsealed(data)
    try:
        into.ParseFromString(body)  # type: ignore[arg-type]  # it takes any buffer
    except DecodeError as error:
        raise CodecError("garbage", f"a peer message that is no protobuf: {error}") from error
    into.DiscardUnknownFields()
    if into.ByteSize() != len(body):
        raise CodecError("unknown_field", "a peer message with fields that this version lacks")


def _sealed(message: pb.Frame | pb.Hello) -> bytes:
    return sealed(message.SerializeToString())


def sealed(data: bytes) -> bytes:
    """Return `data` with its checksum in front."""
    return checksum(data) + data


def unsealed(frame: bytes) -> memoryview:
    """What `sealed` was given. Raises CodecError where the checksum is wrong."""
    data = memoryview(frame)[CHECKSUM_BYTES:]
    if not _is_intact(data, frame[:CHECKSUM_BYTES]):
        raise CodecError("garbage", "a peer message whose checksum is wrong")
    return data


def checksum(data: bytes | memoryview) -> bytes:
    """Return the crc32 that goes before `data`, CHECKSUM_BYTES long."""
    return zlib.crc32(data).to_bytes(CHECKSUM_BYTES, "big")


def _is_intact(data: memoryview, said: bytes) -> bool:
    """Whether `data` is what its sender had, as far as the checksum `said` shows."""
    return checksum(data) == said


# One pair per type. Encoders fill the oneof; decoders return the dict.


def _put_append(out: pb.PeerMessage, m: Message) -> None:
    """seq, commit_index, prevLogIdx, prevLogTerm, entries: [(command, index, term)]."""
    body = out.append_entries
    body.seq = m["seq"]
    body.commit_index = m["commit_index"]
    body.prev_index = m["prevLogIdx"]
    body.prev_term = m["prevLogTerm"]
    add = body.entries.add
    for command, index, term in m["entries"]:
        add(index=index, term=term, command=command)


def _get_append(one: pb.PeerMessage) -> Message:
    body = one.append_entries
    seq, commit_index, prev_index = body.seq, body.commit_index, body.prev_index
    _refuse_absurd(seq, commit_index, prev_index)
    if prev_index < 1:
        raise CodecError("garbage", "an append without the entry before it")
    term, prev_term = one.term, body.prev_term
    if len(body.entries) > APPEND_ENTRIES_MAX:
        raise CodecError("too_many", f"an append of {len(body.entries)} entries")
    entries: list[Entry] = []
    newest, index = prev_term, prev_index
    for sent in body.entries:
        entry = Entry(sent.command, sent.index, sent.term)
        index += 1
        if entry.log_index != index or entry.term < newest:
            raise CodecError("garbage", f"an append whose entry {entry.log_index} is out of order")
        newest = entry.term
        if not entry.command or entry.command[0] not in _PLAIN:
            _check_entry(one.shard, entry)
        entries.append(entry)
    if newest > term:
        raise CodecError("garbage", f"an append of term {term} with an entry of term {newest}")
    return {
        "type": "append_entries",
        "term": term,
        "seq": seq,
        "commit_index": commit_index,
        "prevLogIdx": prev_index,
        "prevLogTerm": prev_term,
        "entries": entries,
    }


def _check_entry(shard: int, entry: Entry) -> None:
    """Refuse an entry that could never be applied, before it is in the log.

    In the log, one of a newer version would end this node when it is committed, and at each start.
    Refused, it is as if it had not come: nothing of it is acknowledged, so without a majority that
    knows its kind it is not committed, and the others elect one of them. Its leader offers it again
    to the version that knows it, and `muster cluster status` says what to do.
    """
    command, index, term = entry
    if not command:
        raise CodecError("garbage", f"an entry {index} without its kind")
    if command[0] not in KINDS:
        raise CodecError(
            "unknown_kind",
            f"shard {shard}: entry {index} is of kind {command[0]}, "
            "which this version does not know: install the version that wrote it",
        )
    if command[0] == KIND_ADMITTED:
        admission = pb.Admission()
        try:
            admission.ParseFromString(command[1:])
        except DecodeError as error:
            raise CodecError("garbage", "an admission that is no protobuf") from error
        _check_admission(admission, term)


def _check_admission(admission: pb.Admission, term: int) -> None:
    _refuse_absurd(admission.life)
    if admission.term > term:
        raise CodecError("garbage", f"an admission of term {admission.term} in term {term}")


def _put_append_reply(out: pb.PeerMessage, m: Message) -> None:
    """seq, next_node_idx, success, reset, behind (absent: False)."""
    body = out.append_reply
    body.seq = m["seq"]
    body.next_index = m["next_node_idx"]
    body.success = m["success"]
    body.reset = m["reset"]
    body.behind = m.get("behind", False)


def _get_append_reply(one: pb.PeerMessage) -> Message:
    body = one.append_reply
    _refuse_absurd(body.seq, body.next_index)
    if body.next_index < 1:
        raise CodecError("garbage", "an append reply without an index")
    return {
        "type": "next_node_idx",
        "term": one.term,
        "seq": body.seq,
        "next_node_idx": body.next_index,
        "success": body.success,
        "reset": body.reset,
        "behind": body.behind,
    }


def _put_request_vote(out: pb.PeerMessage, m: Message) -> None:
    """last_log_index, last_log_term, force (absent: False)."""
    body = out.request_vote
    body.last_index = m["last_log_index"]
    body.last_term = m["last_log_term"]
    body.force = bool(m.get("force"))


def _get_request_vote(one: pb.PeerMessage) -> Message:
    body = one.request_vote
    _refuse_absurd(body.last_index, body.last_term)
    return {
        "type": "request_vote",
        "term": one.term,
        "last_log_index": body.last_index,
        "last_log_term": body.last_term,
        "force": body.force,
    }


def _put_vote(out: pb.PeerMessage, _: Message) -> None:
    out.vote.SetInParent()


def _get_vote(one: pb.PeerMessage) -> Message:
    return {"type": "response_vote", "term": one.term}


def _put_pre_vote(out: pb.PeerMessage, m: Message) -> None:
    body = out.pre_vote
    body.next_term = m["next_term"]
    body.last_index = m["last_log_index"]
    body.last_term = m["last_log_term"]


def _get_pre_vote(one: pb.PeerMessage) -> Message:
    body = one.pre_vote
    _refuse_absurd(body.next_term, body.last_index, body.last_term)
    return {
        "type": "pre_vote",
        "term": one.term,
        "next_term": body.next_term,
        "last_log_index": body.last_index,
        "last_log_term": body.last_term,
    }


def _put_pre_vote_reply(out: pb.PeerMessage, m: Message) -> None:
    out.pre_vote_reply.next_term = m["next_term"]
    out.pre_vote_reply.granted = m["granted"]


def _get_pre_vote_reply(one: pb.PeerMessage) -> Message:
    body = one.pre_vote_reply
    _refuse_absurd(body.next_term)
    return {
        "type": "pre_vote_reply",
        "term": one.term,
        "next_term": body.next_term,
        "granted": body.granted,
    }


def _put_term_reject(out: pb.PeerMessage, _: Message) -> None:
    out.term_reject.SetInParent()


def _get_term_reject(one: pb.PeerMessage) -> Message:
    return {"type": "term_reject", "term": one.term}


def _put_timeout_now(out: pb.PeerMessage, _: Message) -> None:
    out.timeout_now.SetInParent()


def _get_timeout_now(one: pb.PeerMessage) -> Message:
    return {"type": "timeout_now", "term": one.term}


def _put_chunk(out: pb.PeerMessage, m: Message) -> None:
    """snapshot_id, number, commit_index, pairs, last, crc32.

    Chunk 0: entry, admissions, copy_of (None or a node).
    """
    body = out.snapshot_chunk
    body.snapshot_id = m["snapshot_id"]
    body.number = m["number"]
    body.commit_index = m["commit_index"]
    body.pairs = m["pairs"]
    body.last = m["last"]
    body.crc32 = m["crc32"]
    if m["number"] == 0:
        command, index, term = m["entry"]
        entry = body.header.entry
        entry.index, entry.term, entry.command = index, term, command
        for admission in m["admissions"]:
            body.header.admissions.add().ParseFromString(admission)
        if m["copy_of"] is not None:
            body.header.copy_of = m["copy_of"]


def _get_chunk(one: pb.PeerMessage) -> Message:
    body = one.snapshot_chunk
    _refuse_absurd(body.snapshot_id, body.commit_index)
    message: Message = {
        "type": "snapshot_chunk",
        "term": one.term,
        "snapshot_id": body.snapshot_id,
        "number": body.number,
        "commit_index": body.commit_index,
        "pairs": body.pairs,
        "last": body.last,
        "crc32": body.crc32,
    }
    if body.number == 0:
        if not body.HasField("header"):
            raise CodecError("garbage", "a snapshot without its header")
        entry = body.header.entry
        _refuse_absurd(entry.index)
        if entry.index < 1 or entry.term > one.term:
            raise CodecError(
                "garbage", f"a snapshot at entry {entry.index} of term {entry.term}, in {one.term}"
            )
        for admission in body.header.admissions:
            _check_admission(admission, one.term)
        message["entry"] = Entry(entry.command, entry.index, entry.term)
        _check_entry(one.shard, message["entry"])
        message["admissions"] = [each.SerializeToString() for each in body.header.admissions]
        message["copy_of"] = body.header.copy_of if body.header.HasField("copy_of") else None
    return message


def _put_ack(out: pb.PeerMessage, m: Message) -> None:
    out.snapshot_ack.snapshot_id = m["snapshot_id"]
    out.snapshot_ack.next_number = m["next_number"]


def _get_ack(one: pb.PeerMessage) -> Message:
    body = one.snapshot_ack
    _refuse_absurd(body.snapshot_id)
    return {
        "type": "snapshot_ack",
        "term": one.term,
        "snapshot_id": body.snapshot_id,
        "next_number": body.next_number,
    }


def _put_wanted(out: pb.PeerMessage, _: Message) -> None:
    out.snapshot_wanted.SetInParent()


def _get_wanted(one: pb.PeerMessage) -> Message:
    return {"type": "snapshot_wanted", "term": one.term}


def _put_introduce(out: pb.PeerMessage, _: Message) -> None:
    out.introduce.SetInParent()


def _get_introduce(one: pb.PeerMessage) -> Message:
    return {"type": "introduce", "term": one.term}


def _put_known(out: pb.PeerMessage, m: Message) -> None:
    out.known.store_uuid = m["store_uuid"]
    out.known.replaced = m["replaced"]
    out.known.as_of = m["as_of"]


def _get_known(one: pb.PeerMessage) -> Message:
    body = one.known
    _refuse_absurd(body.as_of)
    return {
        "type": "known",
        "term": one.term,
        "store_uuid": body.store_uuid,
        "replaced": body.replaced,
        "as_of": body.as_of,
    }


def _put_store_lost(out: pb.PeerMessage, m: Message) -> None:
    out.store_lost.life = m["life"]
    out.store_lost.known_life = m["known_life"]


def _get_store_lost(one: pb.PeerMessage) -> Message:
    body = one.store_lost
    _refuse_absurd(body.life, body.known_life)
    return {
        "type": "store_lost",
        "term": one.term,
        "life": body.life,
        "known_life": body.known_life,
    }


def encode_pairs(pairs: list[tuple[bytes, bytes]]) -> bytes:
    """Keys and values of one snapshot chunk."""
    return pb.SnapshotPairs(
        keys=[key for key, _ in pairs], values=[value for _, value in pairs]
    ).SerializeToString()


def decode_pairs(data: bytes) -> list[tuple[bytes, bytes]]:
    """The keys and values of a snapshot chunk; CodecError where it has none."""
    pairs = pb.SnapshotPairs()
    try:
        pairs.ParseFromString(data)
    except DecodeError as error:
        raise CodecError("garbage", "a snapshot chunk that is no protobuf") from error
    if len(pairs.keys) != len(pairs.values):
        raise CodecError("garbage", "a snapshot chunk with more keys than values, or fewer")
    return list(zip(pairs.keys, pairs.values, strict=True))


_ENCODERS: dict[str, Callable[[pb.PeerMessage, Message], None]] = {
    "append_entries": _put_append,
    "next_node_idx": _put_append_reply,
    "request_vote": _put_request_vote,
    "response_vote": _put_vote,
    "pre_vote": _put_pre_vote,
    "pre_vote_reply": _put_pre_vote_reply,
    "term_reject": _put_term_reject,
    "timeout_now": _put_timeout_now,
    "snapshot_chunk": _put_chunk,
    "snapshot_ack": _put_ack,
    "snapshot_wanted": _put_wanted,
    "introduce": _put_introduce,
    "known": _put_known,
    "store_lost": _put_store_lost,
}
_DECODERS: dict[str, Callable[[pb.PeerMessage], Message]] = {
    "append_entries": _get_append,
    "append_reply": _get_append_reply,
    "request_vote": _get_request_vote,
    "vote": _get_vote,
    "pre_vote": _get_pre_vote,
    "pre_vote_reply": _get_pre_vote_reply,
    "term_reject": _get_term_reject,
    "timeout_now": _get_timeout_now,
    "snapshot_chunk": _get_chunk,
    "snapshot_ack": _get_ack,
    "snapshot_wanted": _get_wanted,
    "introduce": _get_introduce,
    "known": _get_known,
    "store_lost": _get_store_lost,
}
