"""The owners of partitions in a described group, where its protocol type is "consumer"."""

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from muster.v1.admin_pb2 import DescribeGroupsResponse
from muster.v1.group_pb2 import ConsumerAssignment

Group = DescribeGroupsResponse.Group
Partition = tuple[str, int]
"""Topic and partition number."""

CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class Member:
    """A member with its partitions; `partitions` is None where the assignment cannot be read.

    `instance_id` is None for a dynamic member, `fencing_token` for one that has not synced in the
    current generation. Of a member of a modern group `partitions` are all that it holds, `tokens`
    has the fencing token of each, `revoking` are those that it is to release, and `target` those
    that it shall have by the plan of `target_epoch`; until `awaited_until_wall_ms` it is to do what
    `awaited_for` says, and it `is_classic` where it joins and syncs. Of others both epochs are
    None, and there are none of these.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    joined: bool
    synced: bool
    awaited: bool
    fencing_token: int | None
    partitions: tuple[Partition, ...] | None
    epoch: int | None
    target_epoch: int | None
    away_until_wall_ms: int | None
    tokens: dict[Partition, int]
    revoking: tuple[Partition, ...]
    pattern: str
    rack: str
    is_classic: bool
    awaited_for: str
    awaited_until_wall_ms: int | None
    target: tuple[Partition, ...]


def is_modern(group: Group) -> bool:
    """Whether the group's coordinator assigns."""
    return group.type == "consumer"


def members_of(group: Group) -> list[Member]:
    """The group's members in join order."""
    return [
        Member(
            member_id=member.member_id,
            instance_id=member.group_instance_id or None,
            client_id=member.client_id,
            host=member.host,
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            joined=member.joined,
            synced=member.synced,
            awaited=member.awaited,
            fencing_token=member.fencing_token or None,
            partitions=_partitions(group.protocol_type, member.assignment),
            epoch=member.member_epoch or None,
            target_epoch=group.target_epoch if is_modern(group) else None,
            away_until_wall_ms=member.away_until_wall_ms or None,
            tokens={
                (grants.topic, number): token
                for grants in member.grants
                for number, token in zip(grants.partitions, grants.fencing_tokens, strict=True)
            },
            revoking=tuple(
                sorted(
                    (grants.topic, number)
                    for grants in member.grants
                    if grants.revoking
                    for number in grants.partitions
                )
            ),
            pattern=member.subscribed_pattern,
            rack=member.rack,
            is_classic=not is_modern(group) or member.type == "classic",
            awaited_for=member.awaited_for,
            awaited_until_wall_ms=member.awaited_until_wall_ms or None,
            target=tuple((one.topic, number) for one in member.target for number in one.partitions),
        )
        for member in group.members
    ]


def owners(group: Group) -> dict[Partition, Member]:
    """Partition -> the member it is assigned to."""
    return {
        partition: member for member in members_of(group) for partition in member.partitions or ()
    }


def spelled(partitions: tuple[Partition, ...] | None) -> str | None:
    """Partitions as Kafka prints them: "orders(0,1),payments(3)"."""
    if partitions is None:
        return None
    topics: dict[str, list[str]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(str(partition))
    return ",".join(f"{topic}({','.join(numbers)})" for topic, numbers in topics.items())


def _partitions(protocol_type: str, assignment: bytes) -> tuple[Partition, ...] | None:
    if protocol_type != CONSUMER:
        return None
    try:
        decoded = ConsumerAssignment.FromString(assignment)
    except DecodeError:
        return None
    return tuple(
        sorted((entry.topic, number) for entry in decoded.assigned for number in entry.partitions)
    )
