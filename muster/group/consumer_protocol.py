"""The messages between members that the coordinator relays as opaque bytes.

Protocol type `consumer`: a subscription in Join, an assignment in Sync (gp-6.1), as the protobuf
messages ConsumerSubscription and ConsumerAssignment.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat

from google.protobuf.message import DecodeError

from muster.assignors import Subscriber
from muster.types import TopicPartition
from muster.v1 import group_pb2

PROTOCOL_TYPE = "consumer"


class NotOurMetadataError(Exception):
    """Bytes that no muster SDK wrote: another kind of client is in this group."""


def encode_subscription(
    topics: Sequence[str],
    *,
    owned: Iterable[TopicPartition] = (),
    generation: int = -1,
    keeps_owned: bool = False,
    rack: str = "",
    user_data: bytes = b"",
) -> bytes:
    """The metadata of one assignor in a Join. The same arguments give the same bytes."""
    message = group_pb2.ConsumerSubscription(
        topics=topics,
        user_data=user_data,
        owned=by_topic(owned),
        generation=generation,
        keeps_owned=keeps_owned,
        rack=rack,
    )
    return message.SerializeToString(deterministic=True)


def decode_subscription(member_id: str, metadata: bytes, instance_id: str = "") -> Subscriber:
    """A member as an assignor sees it."""
    message = group_pb2.ConsumerSubscription()
    try:
        message.ParseFromString(metadata)
    except DecodeError as error:
        raise NotOurMetadataError(
            f"the subscription of member {member_id!r} cannot be read"
        ) from error
    return Subscriber(
        member_id,
        tuple(message.topics),
        owned=_keys(message.owned),
        generation=message.generation,
        keeps_owned=message.keeps_owned,
        rack=message.rack,
        user_data=message.user_data,
        instance_id=instance_id,
    )


def encode_assignment(
    partitions: Iterable[TopicPartition], awaited: Iterable[TopicPartition] = ()
) -> bytes:
    """Encode what one member owns, and what others wait for; topics and partitions sorted."""
    message = group_pb2.ConsumerAssignment(assigned=by_topic(partitions), awaited=by_topic(awaited))
    return message.SerializeToString(deterministic=True)


def decode_assignment(assignment: bytes) -> tuple[TopicPartition, ...]:
    """Decode what this member owns; empty bytes mean nothing (the group leader left it out)."""
    return _keys(_assignment(assignment).assigned)


def is_awaited(assignment: bytes) -> bool:
    """Whether others wait for partitions that the one who has this assignment worked on."""
    return bool(_assignment(assignment).awaited)


def _assignment(encoded: bytes) -> group_pb2.ConsumerAssignment:
    message = group_pb2.ConsumerAssignment()
    try:
        message.ParseFromString(encoded)
    except DecodeError as error:
        raise NotOurMetadataError("the assignment of this member cannot be read") from error
    return message


def by_topic(partitions: Iterable[TopicPartition]) -> list[group_pb2.TopicPartitions]:
    """The message of these partitions, in order."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return [
        group_pb2.TopicPartitions(topic=topic, partitions=numbers)
        for topic, numbers in topics.items()
    ]


def _keys(listed: Iterable[group_pb2.TopicPartitions]) -> tuple[TopicPartition, ...]:
    found: list[TopicPartition] = []
    for one in listed:
        found += map(TopicPartition, repeat(one.topic), one.partitions)
    return tuple(sorted(found))
