"""What members tell each other through the coordinator, which takes it for opaque bytes.

Protocol type `consumer`: a subscription in Join, an assignment in Sync (group-protocol rules,
section 6.1), as the protobuf messages ConsumerSubscription and ConsumerAssignment.
"""

from collections.abc import Iterable, Sequence

from google.protobuf.message import DecodeError

from muster.types import TopicPartition
from muster.v1 import group_pb2

PROTOCOL_TYPE = "consumer"


class NotOurMetadataError(Exception):
    """Bytes that no muster SDK wrote: another kind of client is in this group."""


def encode_subscription(topics: Sequence[str]) -> bytes:
    """The metadata of one assignor in a Join. The same topics give the same bytes."""
    message = group_pb2.ConsumerSubscription(topics=topics, generation=-1)
    return message.SerializeToString(deterministic=True)


def decode_subscription(member_id: str, metadata: bytes) -> tuple[str, ...]:
    """The topics that a member subscribes to."""
    message = group_pb2.ConsumerSubscription()
    try:
        message.ParseFromString(metadata)
    except DecodeError as error:
        raise NotOurMetadataError(
            f"the subscription of member {member_id!r} cannot be read"
        ) from error
    return tuple(message.topics)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """What one member owns, topics and partitions sorted."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    assigned = [
        group_pb2.TopicPartitions(topic=topic, partitions=numbers)
        for topic, numbers in by_topic.items()
    ]
    return group_pb2.ConsumerAssignment(assigned=assigned).SerializeToString(deterministic=True)


def decode_assignment(assignment: bytes) -> tuple[TopicPartition, ...]:
    """What this member owns; empty bytes mean nothing (a member that the group leader left out)."""
    message = group_pb2.ConsumerAssignment()
    try:
        message.ParseFromString(assignment)
    except DecodeError as error:
        raise NotOurMetadataError("the assignment of this member cannot be read") from error
    return tuple(
        sorted(TopicPartition(one.topic, p) for one in message.assigned for p in one.partitions)
    )
