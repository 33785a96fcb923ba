"""Peer messages: what is written is read, and what is not ours is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.v1 import peer_pb2 as pb
from raft import codec
from raft.codec import CodecError

NUMBER = st.integers(0, 2**63)
SEQ = st.integers(0, 2**40)
FLAG = st.booleans()
ENTRY = st.tuples(st.binary(min_size=1, max_size=40), st.just(0), NUMBER)


@st.composite
def appends(draw):
    """Appends whose entries follow each other."""
    prev = draw(SEQ)
    entries = draw(st.lists(ENTRY, max_size=4))
    return {
        "type": "append_entries",
        "term": draw(NUMBER),
        "seq": draw(SEQ),
        "commit_index": draw(SEQ),
        "prevLogIdx": prev,
        "prevLogTerm": draw(NUMBER),
        "entries": [
            (command, prev + 1 + at, term) for at, (command, _, term) in enumerate(entries)
        ],
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
        chunk["entry"] = (draw(st.binary(min_size=1)), draw(SEQ), draw(NUMBER))
        chunk["admissions"] = [pb.Admission(node_id=3, term=4, effective=True).SerializeToString()]
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


@given(st.binary(min_size=1, max_size=200))
def test_random_bytes_are_refused_or_are_a_frame(data):
    """Nothing but CodecError ever comes out, and what passes means the same re-encoded."""
    try:
        sender, messages = codec.decode_frame(data)
    except CodecError:
        assert reason_of(data) in {"garbage", "unknown_type", "unknown_field", "too_long"}
    else:
        assert codec.decode_frame(codec.encode_frame(sender, messages)) == (sender, messages)


def reason_of(data):
    """Why the bytes are refused."""
    with pytest.raises(CodecError) as caught:
        codec.decode_frame(data)
    return caught.value.reason


def test_a_message_of_an_unknown_kind_is_refused():
    """A newer peer's message is not skipped in silence."""
    frame = pb.Frame()
    frame.messages.add(shard=1, term=2)
    assert reason_of(frame.SerializeToString()) == "unknown_type"


@pytest.mark.parametrize("where", ["frame", "message", "body"])
def test_an_unknown_field_is_refused_wherever_it_is(where):
    """Protobuf would skip it, and the replicas would diverge without a word."""
    vote = pb.RequestVote(last_index=1).SerializeToString()
    unknown = b"\xf8\x07\x01"  # field 127, varint 1
    body = vote + (unknown if where == "body" else b"")
    message = b"\x08\x01\x62" + bytes([len(body)]) + body
    message += unknown if where == "message" else b""
    frame = b"\x12" + bytes([len(message)]) + message
    assert reason_of(frame + (unknown if where == "frame" else b"")) == "unknown_field"


def test_a_frame_over_16_mib_is_refused_unread():
    """The limit holds before anything is parsed."""
    assert reason_of(b"\x00" * (codec.FRAME_BYTES_MAX + 1)) == "too_long"


@pytest.mark.parametrize("entries", [[(b"x", 9, 1)], [(b"x", 6, 1), (b"y", 6, 1)], [(b"", 6, 1)]])
def test_an_append_whose_entries_do_not_follow_is_refused(entries):
    """A gap or an entry without a kind byte can only be damage."""
    message = {
        "type": "append_entries",
        "term": 1,
        "seq": 1,
        "commit_index": 1,
        "prevLogIdx": 5,
        "prevLogTerm": 1,
        "entries": entries,
    }
    assert reason_of(codec.encode_frame(codec.Sender(1, 1, 1), [(0, message)])) == "garbage"


def test_a_hello_over_4_kib_is_refused():
    """A stranger cannot make this node read much."""
    with pytest.raises(CodecError):
        codec.decode_hello(pb.Hello(cluster_id="x" * 5000).SerializeToString())


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=10))
def test_snapshot_pairs_survive_the_wire(pairs):
    """Keys and values keep their order."""
    assert codec.decode_pairs(codec.encode_pairs(pairs)) == pairs
