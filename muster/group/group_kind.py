"""Kinds of groups: what members tell each other beyond what consumers do.

The coordinator carries subscriptions and assignments as opaque bytes, so what is assigned need not
be partitions of topics. A kind has a protocol type of its own, and says what the group leader
decides over; who owns what is still found by an assignor and checked by the membership.
"""

import json
from collections.abc import Mapping

from google.protobuf.message import DecodeError

from muster.assignors import Subscriber
from muster.errors import InconsistentGroupProtocol
from muster.group.actions import Assignments, JoinAnswered
from muster.group.consumer_protocol import (
    PROTOCOL_TYPE,
    NotOurMetadataError,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from muster.types import TopicPartition
from muster.v1 import group_pb2


class GroupKind:
    """Consumers: nothing is added. Others override what they need."""

    protocol_type = PROTOCOL_TYPE
    counts_from_call = False
    """What a member is told counts from when its call was sent: a Join that waited for long is
    followed by a Sync, which does not."""

    async def on_joined(self, answer: JoinAnswered) -> JoinAnswered:
        """The group leader's: what the assignor shall see. It may ask the coordinator.

        Raises:
            MusterError: it cannot be known; the member joins again, or fails, as after a Join.
        """
        return answer

    def on_assigning(self, assignments: Assignments) -> Assignments:
        """The group leader's: what goes out with the assignments."""
        return assignments

    def on_assigned(self, assignment: bytes, sent_at: float) -> None:
        """Every member's: its assignment came, with a Sync or a Join sent then (`clock.steady_s`).

        Raises:
            MusterError: it cannot be read; the membership fails.
        """


CONSUMERS = GroupKind()


def members_of(answer: JoinAnswered) -> list[Subscriber]:
    """The members as they said themselves.

    Raises:
        InconsistentGroupProtocol: one of them is no SDK of muster's.
    """
    try:
        return [decode_subscription(*member) for member in answer.members]
    except NotOurMetadataError as error:
        raise InconsistentGroupProtocol(str(error)) from error


def encoded(members: list[Subscriber]) -> tuple[tuple[str, bytes, str], ...]:
    """Members as a Join's answer has them."""
    return tuple(
        (
            one.member_id,
            encode_subscription(
                one.topics,
                owned=one.owned,
                generation=one.generation,
                keeps_owned=one.keeps_owned,
                user_data=one.user_data,
            ),
            one.instance_id,
        )
        for one in members
    )


def said(member: Subscriber) -> Mapping[str, object]:
    """A member's user data, where it is a JSON object.

    Raises:
        InconsistentGroupProtocol: it is not.
    """
    return _object(member.user_data, f"member {member.member_id!r}")


def tell(
    assignment: bytes, news: Mapping[str, object], *, only: frozenset[TopicPartition] | None = None
) -> bytes:
    """An assignment and something said to all; of `only` these partitions, where given."""
    keys = decode_assignment(assignment)
    message = group_pb2.ConsumerAssignment.FromString(
        encode_assignment(key for key in keys if only is None or key in only)
    )
    message.awaited.extend(group_pb2.ConsumerAssignment.FromString(assignment).awaited)
    message.user_data = to_json(news).encode()
    return message.SerializeToString(deterministic=True)


def told(assignment: bytes) -> Mapping[str, object]:
    """Return what `tell` said; empty where the group leader left this member out.

    Raises:
        InconsistentGroupProtocol: no SDK of muster's wrote it.
    """
    try:
        message = group_pb2.ConsumerAssignment.FromString(assignment)
    except DecodeError as error:
        raise InconsistentGroupProtocol("the assignment of this member cannot be read") from error
    return _object(message.user_data, "the assignment") if message.user_data else {}


def to_json(value: object) -> str:
    """The shortest one, keys sorted: the same value gives the same bytes."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def _object(data: bytes, whose: str) -> Mapping[str, object]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise InconsistentGroupProtocol(f"what {whose} says cannot be read") from error
    if not isinstance(value, dict):
        raise InconsistentGroupProtocol(f"what {whose} says is no JSON object")
    return value
