"""What members tell each other (gp-6.1; sc-N10)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.assignors import FunctionAssignor, Subscriber, resolve, wants_owned
from muster.group.consumer_protocol import (
    NotOurMetadataError,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from muster.types import TopicPartition
from muster.v1 import group_pb2

keys = st.frozensets(st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 2**31 - 1)))


@given(
    st.lists(st.text(max_size=5)),
    keys,
    st.integers(-1, 2**63 - 1),
    st.booleans(),
    st.text(max_size=5),
    st.binary(max_size=20),
)
def test_a_subscription_arrives_as_it_was_said(topics, owned, generation, keeps, rack, user_data):
    """Owned partitions sorted; in whatever order they are given, the bytes are the same."""
    options = {"generation": generation, "keeps_owned": keeps, "rack": rack, "user_data": user_data}
    said = encode_subscription(topics, owned=sorted(owned), **options)
    assert said == encode_subscription(topics, owned=sorted(owned, reverse=True), **options)
    assert decode_subscription("m", said) == Subscriber(
        "m", tuple(topics), owned=tuple(sorted(owned)), **options
    )


def test_the_partitions_of_a_topic_share_its_name():
    """A name for each of a large assignment would take more than all else."""
    encoded = encode_assignment([TopicPartition("orders", n) for n in range(100)])
    assert len({id(one.topic) for one in decode_assignment(encoded)}) == 1


@given(keys)
def test_an_assignment_arrives_sorted(owned):
    """Empty bytes are an empty assignment."""
    assert decode_assignment(encode_assignment(owned)) == tuple(sorted(owned))
    assert decode_assignment(b"") == ()


def test_an_older_members_subscription_claims_nothing_that_is_held():
    """Written before there were `keeps_owned` and `rack`; and fields that are not known yet."""
    old = group_pb2.ConsumerSubscription(topics=["t"], generation=-1).SerializeToString()
    assert decode_subscription("m", old) == Subscriber("m", ("t",))
    newer = old + bytes([0xFA, 0x01, 0x01, 0x07])  # field 31
    assert decode_subscription("m", newer) == Subscriber("m", ("t",))


def test_other_peoples_bytes_are_refused_by_name():
    """Another kind of client is in the group."""
    with pytest.raises(NotOurMetadataError, match="'m9'"):
        decode_subscription("m9", b"\xff")
    with pytest.raises(NotOurMetadataError):
        decode_assignment(b"\xff")


def test_only_assignors_that_ask_are_told_what_was_owned():
    """With range and roundrobin a member that joins again says the same bytes."""
    asks = {a.name: wants_owned(a) for a in resolve(["range", "roundrobin", "sticky"])}
    assert asks == {"range": False, "roundrobin": False, "sticky": True}
    assert wants_owned(*resolve("cooperative-sticky"))
    assert wants_owned(FunctionAssignor("f", lambda m, c: {}, cooperative=True, wants_owned=False))
    assert not wants_owned(FunctionAssignor("f", lambda m, c: {}, wants_owned=False))
