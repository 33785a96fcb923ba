"""Peer messages: what is written is read, and what is not ours is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.v1 import peer_pb2 as pb
from musterd.raft import codec
from musterd.raft.codec import CodecError
from musterd.raft.log_format import KIND_ADMITTED, KIND_COMMAND, KIND_MEMBERSHIP, NOOP

NUMBER = st.integers(0, codec.COUNT_END - 1)
SEQ = st.integers(0, 2**40)
FLAG = st.booleans()
COMMAND = st.binary(max_size=40).map(bytes((KIND_COMMAND,)).__add__) | st.just(NOOP)


@st.composite
def appends(draw):
    """Appends whose entries follow each other."""
    prev = draw(st.integers(1, 2**40))
    commands = draw(st.lists(COMMAND, max_size=4))
    prev_term, *terms, term = sorted(draw(NUMBER) for _ in range(len(commands) + 2))
    return {
        "type": "append_entries",
        "term": term,
        "seq": draw(SEQ),
        "commit_index": draw(SEQ),
        "prevLogIdx": prev,
        "prevLogTerm": prev_term,
        "entries": [(command, prev + 1 + at, terms[at]) for at, command in enumerate(commands)],
    }


@st.composite
def chunks(draw):
    """Snapshot chunks, with a header in number 0."""
    chunk = {
        "type": "snapshot_chunk",
        "term": draw(NUMBER),
        "snapshot_id": draw(SEQ),
        "number": draw(st.integers(0, 3)),
        "commit_index": draw(SEQ),
        "pairs": draw(st.binary(max_size=40)),
        "last": draw(FLAG),
        "crc32": draw(st.integers(0, 2**32 - 1)),
    }
    if chunk["number"] == 0:
        entry_term, chunk["term"] = sorted((draw(NUMBER), chunk["term"]))
        chunk["entry"] = (draw(COMMAND), draw(st.integers(1, 2**40)), entry_term)
        admission = pb.Admission(node_id=3, term=entry_term, effective=True)
        chunk["admissions"] = [admission.SerializeToString()]
        chunk["copy_of"] = draw(st.none() | st.integers(0, 2**32 - 1))
    return chunk


def fixed(kind, **fields):
    """Messages of one kind."""
    return st.fixed_dictionaries({"type": st.just(kind), "term": NUMBER, **fields})


MESSAGES = st.one_of(
    appends(),
    chunks(),
    fixed(
        "next_node_idx",
        seq=SEQ,
        next_node_idx=st.integers(1, 2**40),
        success=FLAG,
        reset=FLAG,
        behind=FLAG,
    ),
    fixed("request_vote", last_log_index=SEQ, last_log_term=NUMBER, force=FLAG),
    fixed("response_vote"),
    fixed("pre_vote", next_term=NUMBER, last_log_index=SEQ, last_log_term=NUMBER),
    fixed("pre_vote_reply", next_term=NUMBER, granted=FLAG),
    fixed("term_reject"),
    fixed("timeout_now"),
    fixed("introduce"),
    fixed("known", store_uuid=st.binary(max_size=20), replaced=FLAG, as_of=SEQ),
    fixed("store_lost", life=SEQ, known_life=SEQ),
    fixed("snapshot_wanted"),
    fixed("snapshot_ack", snapshot_id=SEQ, next_number=st.integers(0, 2**32 - 1)),
)


SENDERS = st.builds(codec.Sender, SEQ, SEQ, SEQ)


@given(st.lists(st.tuples(st.integers(0, 1023), MESSAGES), max_size=5), SENDERS)
def test_every_message_survives_the_wire(messages, sender):
    """Encode and decode are inverse for every type and value."""
    assert codec.decode_frame(codec.encode_frame(sender, messages)) == (sender, messages)


def test_every_type_has_an_encoder_a_decoder_and_a_kind_on_the_wire():
    """A type that one side lacks would close connections."""
    kinds = {field.name for field in pb.PeerMessage.DESCRIPTOR.oneofs_by_name["kind"].fields}
    assert set(codec._DECODERS) == kinds
    assert len(codec._ENCODERS) == len(kinds)


def sealed(body):
    """With the checksum in front."""
    return codec.checksum(body) + body


@given(st.binary(max_size=200).map(sealed) | st.binary(max_size=200))
def test_random_bytes_are_refused_or_are_a_frame(data):
    """Nothing but CodecError ever comes out, and what passes means the same re-encoded."""
    try:
        sender, messages = codec.decode_frame(data)
    except CodecError:
        reasons = {"garbage", "unknown_type", "unknown_field", "unknown_kind", "too_long"}
        assert reason_of(data) in reasons
    else:
        assert codec.decode_frame(codec.encode_frame(sender, messages)) == (sender, messages)


def reason_of(data):
    """Why the bytes are refused."""
    with pytest.raises(CodecError) as caught:
        codec.decode_frame(data)
    return caught.value.reason


@given(st.lists(st.tuples(st.integers(0, 1023), MESSAGES), max_size=3), SENDERS, st.data())
def test_a_frame_with_any_one_bit_flipped_is_refused(messages, sender, data):
    """Wherever it is: also where the protobuf and all that it says would be well."""
    frame = codec.encode_frame(sender, messages)
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    assert reason_of(flipped(frame, bit)) == "garbage"


def flipped(data, bit):
    """With one bit changed."""
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def test_a_hello_with_any_one_bit_flipped_is_refused():
    """What it says of lives and stores would be kept."""
    start = pb.Start(life=3, epoch=9)
    data = codec.encode_hello(pb.Hello(cluster_id="c", life=3, starts=[start]))
    for bit in range(8 * len(data)):
        with pytest.raises(CodecError):
            codec.decode_hello(flipped(data, bit))


def test_a_message_of_an_unknown_kind_is_refused():
    """A newer peer's message is not skipped in silence."""
    frame = pb.Frame()
    frame.messages.add(shard=1, term=2)
    assert reason_of(sealed(frame.SerializeToString())) == "unknown_type"


@pytest.mark.parametrize("where", ["frame", "message", "body"])
def test_an_unknown_field_is_refused_wherever_it_is(where):
    """Protobuf would skip it, and the replicas would diverge without a word."""
    vote = pb.RequestVote(last_index=1).SerializeToString()
    unknown = b"\xf8\x07\x01"  # field 127, varint 1
    body = vote + (unknown if where == "body" else b"")
    message = b"\x08\x01\x62" + bytes([len(body)]) + body
    message += unknown if where == "message" else b""
    frame = b"\x12" + bytes([len(message)]) + message
    assert reason_of(sealed(frame + (unknown if where == "frame" else b""))) == "unknown_field"


TERM = 7


def well_formed():
    """One of each kind, as a peer in term TERM sends it."""
    entry = pb.LogEntry(index=6, term=TERM, command=NOOP)
    bodies = {
        "append_entries": pb.AppendEntries(prev_index=5, prev_term=TERM, entries=[entry]),
        "append_reply": pb.AppendReply(next_index=1),
        "snapshot_chunk": pb.SnapshotChunk(
            header=pb.SnapshotHeader(entry=entry, admissions=[pb.Admission(term=TERM)])
        ),
    }
    for field in pb.PeerMessage.DESCRIPTOR.oneofs_by_name["kind"].fields:
        frame = pb.Frame(sender=1, life=1, epoch=1)
        message = frame.messages.add(shard=0, term=TERM)
        body = getattr(message, field.name)
        body.SetInParent()
        if field.name in bodies:
            body.CopyFrom(bodies[field.name])
        yield field.name, frame


def counts(message, path=""):
    """Where the message, and what is in it, has an unsigned 64-bit number: a path and a setter."""
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.type == field.TYPE_UINT64:
            yield f"{path}{field.name}", message, field.name
        elif field.type == field.TYPE_MESSAGE:
            inner = value if field.is_repeated else [value] * message.HasField(field.name)
            for one in inner:
                yield from counts(one, f"{path}{field.name}.")


@pytest.mark.parametrize("absurd", [codec.COUNT_END, 2**64 - 1])
def test_a_count_that_nobody_comes_to_is_refused_in_every_field(absurd):
    """Each term, index, number, life and epoch that any message has."""
    kinds = [kind for kind, _ in well_formed()]
    tried = 0
    for at, kind in enumerate(kinds):
        frame = list(well_formed())[at][1]
        codec.decode_frame(sealed(frame.SerializeToString()))
        for place in range(len(list(counts(frame)))):
            frame = list(well_formed())[at][1]
            path, owner, name = list(counts(frame))[place]
            setattr(owner, name, absurd)
            assert reason_of(sealed(frame.SerializeToString())) == "garbage", (kind, path)
            tried += 1
    assert tried > 3 * len(kinds)


@pytest.mark.parametrize(
    "hello",
    [
        pb.Hello(life=codec.COUNT_END),
        pb.Hello(life=5, starts=[pb.Start(life=5, epoch=codec.COUNT_END)]),
        pb.Hello(life=5, starts=[pb.Start(life=6)]),
        pb.Hello(life=5, lost_life=6),
        pb.Hello(replacements=[pb.Replacement(as_of=codec.COUNT_END)]),
    ],
)
def test_a_hello_with_a_count_that_nobody_comes_to_is_refused(hello):
    """Nor does a store know of a life of its own that it has yet to begin."""
    with pytest.raises(CodecError):
        codec.decode_hello(codec.encode_hello(hello))


def test_a_frame_over_16_mib_is_refused_unread():
    """The limit holds before anything is parsed."""
    assert reason_of(b"\x00" * (codec.FRAME_BYTES_MAX + 1)) == "too_long"


def append(entries, term=4, prev_index=5):
    """A frame with an append whose entries stand behind entry 5 of term 2."""
    message = {
        "type": "append_entries",
        "term": term,
        "seq": 1,
        "commit_index": 1,
        "prevLogIdx": prev_index,
        "prevLogTerm": 2,
        "entries": entries,
    }
    return codec.encode_frame(codec.Sender(1, 1, 1), [(0, message)])


ADMITTED = bytes((KIND_ADMITTED,))


@pytest.mark.parametrize(
    "frame",
    [
        append([(NOOP, 9, 3)]),
        append([(NOOP, 6, 3), (NOOP, 6, 3)]),
        append([(b"", 6, 3)]),
        append([(NOOP, 6, 1)]),
        append([(NOOP, 6, 3), (NOOP, 7, 2)]),
        append([(NOOP, 6, 5)]),
        append([], term=1),
        append([], prev_index=0),
        append([(ADMITTED + b"\xff", 6, 3)]),
        append([(ADMITTED + pb.Admission(term=4).SerializeToString(), 6, 3)]),
        append([(ADMITTED + pb.Admission(life=codec.COUNT_END).SerializeToString(), 6, 3)]),
    ],
    ids=[
        "a gap",
        "an index twice",
        "no kind",
        "a term below the one before",
        "a term that goes back",
        "a term above the leader's",
        "a leader in a term before its log's",
        "nothing before it",
        "an admission that is none",
        "an admission of a later term",
        "an admission of a life that nobody comes to",
    ],
)
def test_an_append_that_no_leader_sends_is_refused(frame):
    """Taken, each would be in the log for good, or end the node that has to append it."""
    assert reason_of(frame) == "garbage"


@pytest.mark.parametrize("kind", [KIND_MEMBERSHIP, 4, 255])
def test_an_entry_of_an_unknown_kind_is_refused_before_it_is_in_the_log(kind):
    """And it is said what to do."""
    frame = append([(bytes((kind,)) + b"x", 6, 3)])
    assert reason_of(frame) == "unknown_kind"
    with pytest.raises(CodecError, match=f"entry 6 is of kind {kind}.*install the version that"):
        codec.decode_frame(frame)


@pytest.mark.parametrize(
    ("entry", "admission"),
    [
        (pb.LogEntry(index=6, term=5, command=NOOP), pb.Admission()),
        (pb.LogEntry(index=0, term=3, command=NOOP), pb.Admission()),
        (pb.LogEntry(index=6, term=3, command=b"\x04"), pb.Admission()),
        (pb.LogEntry(index=6, term=3), pb.Admission()),
        (pb.LogEntry(index=6, term=3, command=NOOP), pb.Admission(term=5)),
    ],
)
def test_a_snapshot_that_no_leader_sends_is_refused(entry, admission):
    """Its entry becomes the first one of the log, and its admissions say whose votes count."""
    frame = pb.Frame()
    message = frame.messages.add(shard=0, term=4)
    message.snapshot_chunk.header.entry.CopyFrom(entry)
    message.snapshot_chunk.header.admissions.add().CopyFrom(admission)
    assert reason_of(sealed(frame.SerializeToString())) in {"garbage", "unknown_kind"}


def test_a_hello_over_4_kib_is_refused():
    """A stranger cannot make this node read much."""
    with pytest.raises(CodecError):
        codec.decode_hello(codec.encode_hello(pb.Hello(cluster_id="x" * 5000)))


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=10))
def test_snapshot_pairs_survive_the_wire(pairs):
    """Keys and values keep their order."""
    assert codec.decode_pairs(codec.encode_pairs(pairs)) == pairs
