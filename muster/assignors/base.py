"""The interface of assignors: what they are given, and what they return."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from muster.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Subscriber:
    """One member as an assignor sees it."""

    member_id: str
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    """What it owned last; empty unless the assignor asks for it (`wants_owned`)."""
    generation: int = -1
    """Under which `owned` was assigned; -1 = unknown."""
    keeps_owned: bool = False
    """Cooperative: it works on `owned` during the round. Else it has given all of it up already."""
    rack: str = ""
    user_data: bytes = b""
    """Opaque: whatever the application says of this member (`Client.group(user_data=...)`)."""
    instance_id: str = ""
    """The id of a static member; "" = dynamic."""


Shares = Mapping[str, Sequence[TopicPartition]]
"""Member id -> the partitions it shall own. A member that is missing owns nothing."""

Function = Callable[[Sequence[Subscriber], Mapping[str, int]], Shares]
"""What `Assignor.assign` is, as a plain function."""


@runtime_checkable
class Assignor(Protocol):
    """Give this to `Client.group(assignor=...)` to bring your own; a plain function will do, too.

    Two more attributes may be there, both False where they are not:

    * `cooperative: bool` - members keep working during a rebalance, and only what moves stops. The
      SDK sees to the two rounds; `assign` says where partitions shall be in the end.
    * `wants_owned: bool` - subscribers come with what they owned (`cooperative` implies it).
    """

    @property
    def name(self) -> str:
        """The protocol name that members vote on; the same in every member that has it."""

    def assign(
        self, subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]
    ) -> Shares:
        """Pure: the same input gives the same output in every process.

        Args:
            subscribers: in no particular order.
            partition_counts: each subscribed topic that exists, and how many partitions it has.
        """


def wants_owned(assignor: Assignor) -> bool:
    """Whether members tell each other what they owned when they join for this assignor.

    Where it is False a member that joins again says the same bytes, so a repeated Join of an
    unchanged follower starts no round.
    """
    return bool(getattr(assignor, "wants_owned", False) or getattr(assignor, "cooperative", False))


def in_order(subscribers: Iterable[Subscriber]) -> list[Subscriber]:
    """Static members by instance id, then dynamic ones by member id (gp-6.2)."""
    return sorted(subscribers, key=lambda s: (not s.instance_id, s.instance_id, s.member_id))
