"""Finds members that report partitions of which another member has the grant (docs/alerts.md).

The coordinator grants a partition to one member at a time, and takes no commit under another token.
A member that reports one that is another's, in a heartbeat or a commit, is refused or told so, and
changes nothing; but its process may be at work on it. So it is told to operators.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from musterd.coordinator.machine.commands import ConsumerGroupHeartbeat, OffsetCommit
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.modern.group import ModernGroup
from musterd.coordinator.machine.replies import Committed
from musterd.coordinator.machine.state import Group, modern_of

LOOKED_AT_MAX: Final = 1_000
"""Partitions of one request that are looked at."""

KEPT_MAX: Final = 8
"""Claims of one group that are kept, the last ones."""

GROUPS_MAX: Final = 1_000
"""Groups of a shard of which claims are kept, those in which one was made last."""

_STALE: Final = frozenset({Error.STALE_MEMBER_EPOCH, Error.ILLEGAL_GENERATION})


class Claim(NamedTuple):
    """A partition that `claimant` reports, while `owner` has the grant; both are member ids."""

    group_id: str
    topic: str
    partition: int
    claimant: str
    owner: str


@dataclass(slots=True)
class KeptClaim:
    """What one member claimed of one other: the first partition of its last request.

    That named so many `partitions` of others. So far `requests` named this one; `wall_ms` is when
    the last came, by the coordinator's clock.
    """

    claim: Claim
    partitions: int
    requests: int
    wall_ms: int


class ClaimBook:
    """The last claims of each group of a shard, while this node leads it; they are not stored."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, OrderedDict[Claim, KeptClaim]] = OrderedDict()

    def add(self, claims: Sequence[Claim], wall_ms: int) -> None:
        """Keep the claims of one request, of which there is one at least, by the first of them."""
        first = claims[0]
        kept = self._groups.setdefault(first.group_id, OrderedDict())
        self._groups.move_to_end(first.group_id)
        if len(self._groups) > GROUPS_MAX:
            self._groups.popitem(last=False)
        known = kept.get(first)
        requests = 1 + (known.requests if known else 0)
        kept[first] = KeptClaim(first, len(claims), requests, wall_ms)
        kept.move_to_end(first)
        if len(kept) > KEPT_MAX:
            kept.popitem(last=False)

    def of(self, group_id: str) -> Iterator[KeptClaim]:
        """Yield those of a group, the last one first."""
        yield from reversed(self._groups.get(group_id, {}).values())

    def forget(self, group_id: str) -> None:
        """Drop the claims of a group that is gone, or no modern one any more."""
        self._groups.pop(group_id, None)


def claims_of_heartbeat(group: Group | None, command: ConsumerGroupHeartbeat) -> Sequence[Claim]:
    """Return what a heartbeat says the member works on, though another has the grant.

    The heartbeat may be taken or refused, and may come from one that is no member any more.
    """
    modern = modern_of(group)
    if modern is None or not command.owned:
        return ()
    named = ((one.topic, number) for one in command.owned for number in one.partitions)
    return _of_others(modern, command.group_id, command.member_id, named)


def claims_of_commit(
    group: Group | None, command: OffsetCommit, committed: Committed
) -> Sequence[Claim]:
    """Return what a commit names under a stale token, epoch or generation, and another has.

    Commits of the SDK name tokens; those of Kafka's clients and classic members do not (KIP-1251).
    """
    modern = modern_of(group)
    if modern is None:
        return ()
    stale = ((one.topic, one.partition) for one in committed.partitions if one.error in _STALE)
    return _of_others(modern, command.group_id, command.member_id, stale)


def _of_others(
    modern: ModernGroup, group_id: str, member_id: str, named: Iterable[tuple[str, int]]
) -> Sequence[Claim]:
    return tuple(_found(modern, group_id, member_id, islice(named, LOOKED_AT_MAX)))


def _found(
    modern: ModernGroup, group_id: str, member_id: str, named: Iterable[tuple[str, int]]
) -> Iterator[Claim]:
    for topic, partition in named:
        owner = modern.by_seq.get(modern.held.get(topic, {}).get(partition, -1), member_id)
        if owner != member_id:
            yield Claim(group_id, topic, partition, member_id, owner)
