"""What the planner is given and what it returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

UNIT: Final = 1_000
"""The weight of a partition and the capacity of a member that say none, in thousandths."""

Owners = Mapping[str, Sequence[str]]
"""Topic -> the member id of each partition's owner, by partition; "" where nobody owns it."""


class Assignor(StrEnum):
    """How the ideal is found."""

    UNIFORM = "uniform"
    """Counts of partitions as even as subscriptions allow; of all plans so even those with the most
    partitions whose owner is in one of their zones; and of these one that moves the fewest."""
    RANGE = "range"
    """Each topic by itself in consecutive runs; what members had before plays no part."""
    WEIGHTED = "weighted"
    """Weights of partitions after capacities of members, within a bound (weighted.py)."""


class Why(StrEnum):
    """Why a partition changes its owner, or has none."""

    NEW = "new"
    """Nobody had it."""
    LEFT = "owner left"
    UNSUBSCRIBED = "owner unsubscribed"
    GONE = "gone"
    """There is no such partition, or no member reads its topic."""
    COLOCATED = "co-located"
    """Partitions of this number go to one member."""
    BALANCE = "balance"
    AWAY = "away"
    """Without an owner: whoever reads its topic is away."""
    ZONE = "zone"
    """It goes to a member in one of its zones, from one that is in none of them."""


@dataclass(frozen=True, slots=True)
class PlanMember:
    """A member as the planner sees it.

    Args:
        topics: resolved names in any order, with those of patterns; a topic that does not exist is
            passed over.
        instance_id: of a static member; "" = dynamic.
        zone: "" = unknown.
        capacity: in thousandths of a member, 1 at least; `weighted` reads it.
        away: within the time after which it said it would be back. It keeps what it has, and gets
            nothing.
    """

    member_id: str
    topics: tuple[str, ...]
    instance_id: str = ""
    zone: str = ""
    capacity: int = UNIT
    away: bool = False


@dataclass(frozen=True, slots=True)
class Spec:
    """All that a plan depends on. Nothing of it changes while it is planned.

    Args:
        members: no id twice.
        topics: how many partitions each existing topic has.
        last: the target so far; topics, partitions and members in it may be gone.
        weights: topic -> each partition's weight in thousandths, 1 at least; `UNIT` for partitions
            and topics that are missing.
        zones: topic -> lists of the zones that a partition is in, which repeat: partition n has the
            list at n modulo their number. An empty list, and a missing topic: no zone.
        colocate: sets of topics; partition n of all topics of a set that somebody reads goes to
            one member, which reads all of them. Where nobody reads all of them each topic is by
            itself. No topic stands in two sets.
    """

    members: Sequence[PlanMember]
    topics: Mapping[str, int]
    last: Owners = field(default_factory=dict)
    assignor: Assignor = Assignor.UNIFORM
    weights: Mapping[str, Sequence[int]] = field(default_factory=dict)
    zones: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    colocate: Sequence[Sequence[str]] = ()


class Change(NamedTuple):
    """A partition whose owner in the target is another than before; "" = nobody."""

    topic: str
    partition: int
    former: str
    owner: str
    why: Why


class Unowned(NamedTuple):
    """A partition of a subscribed topic that nobody gets."""

    topic: str
    partition: int
    why: Why


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """A target, and how it differs from the last one. In order of topic and partition.

    `target` has the topics that some member reads, each partition of them; `unowned` those of its
    partitions that have no owner. `why` counts the changes by reason.
    """

    target: Mapping[str, Sequence[str]]
    unowned: Sequence[Unowned]
    changes: Sequence[Change]
    why: Mapping[Why, int]


@dataclass(frozen=True, slots=True)
class Part:
    """A bounded part of a plan's changes. The target is in force with the part that is `last`."""

    changes: Sequence[Change]
    last: bool
