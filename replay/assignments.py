"""Parses assignments, and counts how few partitions had to move between two of them.

Only protocol type `consumer` can be parsed; other vectors are opaque to the coordinator and to
replay.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from google.protobuf.message import DecodeError

from muster.v1.group_pb2 import ConsumerAssignment

CONSUMER = "consumer"

Partition = tuple[str, int]


def partitions_of(protocol_type: str, assignment: bytes) -> list[Partition] | None:
    """The partitions in one member's assignment, in its order; None where it is opaque."""
    if protocol_type != CONSUMER:
        return None
    try:
        parsed = ConsumerAssignment.FromString(assignment)
    except DecodeError:
        return None
    return [(entry.topic, number) for entry in parsed.assigned for number in entry.partitions]


def moved(before: Mapping[Partition, str], after: Mapping[Partition, str]) -> int:
    """Partitions that had an owner and have another one now."""
    return sum(1 for partition, owner in after.items() if before.get(partition, owner) != owner)


def minimum_moves(
    before: Mapping[Partition, str], after: Mapping[Partition, str], members: Collection[str]
) -> int:
    """The fewest moves to a balanced assignment: shares of `after` that differ by at most one.

    The largest shares go to whoever owned most already; what they owned beyond their share must
    move, and so must what belonged to nobody who is still here. Right where all members subscribe
    to the same topics.
    """
    stay = {partition: before[partition] for partition in after if partition in before}
    present = frozenset(members)
    owned = sorted(Counter(owner for owner in stay.values() if owner in present).values())
    share, larger = divmod(len(after), len(present))
    kept = 0
    for rank, count in enumerate(reversed(owned)):
        kept += min(count, share + 1 if rank < larger else share)
    return len(stay) - kept


def moves_at_once(
    before: Mapping[Partition, str], after: Mapping[Partition, str], members: Collection[str]
) -> int:
    """The fewest moves of a round that withholds partitions: what belonged to who is gone.

    What others give up in such a round moves in the next one, and is counted there.
    """
    present = frozenset(members)
    return sum(1 for each in after if each in before and before[each] not in present)
