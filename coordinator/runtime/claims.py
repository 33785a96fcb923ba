"""Finds members that report partitions of which another member has the grant (docs/alerts.md).

The coordinator grants a partition to one member at a time, and takes no commit under another token.
A member that reports one that is another's, in a heartbeat or a commit, is refused or told so, and
changes nothing; but its process may be at work on it. So it is told to operators.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from musterd.coordinator.machine.commands import ConsumerGroupHeartbeat, OffsetCommit
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.modern.group import ModernGroup
from musterd.coordinator.machine.replies import Committed
from musterd.coordinator.machine.state import Group, modern_of

LOOKED_AT_MAX: Final = 1_000
"""Partitions of one request that are looked at."""


class Claim(NamedTuple):
    """A partition that `claimant` reports, while `owner` has the grant; both are member ids."""

    group_id: str
    topic: str
    partition: int
    claimant: str
    owner: str


def claims_of_heartbeat(group: Group | None, command: ConsumerGroupHeartbeat) -> Sequence[Claim]:
    """What a heartbeat says the member works on, though another has the grant.

    It says so whether it is taken or refused, of a member or of one that is none any more.
    """
    modern = modern_of(group)
    if modern is None or not command.owned:
        return ()
    named = ((one.topic, number) for one in command.owned for number in one.partitions)
    return _of_others(modern, command.group_id, command.member_id, named)


def claims_of_commit(
    group: Group | None, command: OffsetCommit, committed: Committed
) -> Sequence[Claim]:
    """Partitions that a commit names under a stale token, though another member has the grant."""
    modern = modern_of(group)
    if modern is None or not command.tokens:
        return ()
    stale = (
        (one.topic, one.partition)
        for one in committed.partitions
        if one.error is Error.STALE_MEMBER_EPOCH
    )
    return _of_others(modern, command.group_id, command.member_id, stale)


def _of_others(
    modern: ModernGroup, group_id: str, member_id: str, named: Iterable[tuple[str, int]]
) -> Sequence[Claim]:
    return tuple(_found(modern, group_id, member_id, islice(named, LOOKED_AT_MAX)))


def _found(
    modern: ModernGroup, group_id: str, member_id: str, named: Iterable[tuple[str, int]]
) -> Iterator[Claim]:
    for topic, partition in named:
        owner = modern.held.get(topic, {}).get(partition, member_id)
        if owner != member_id:
            yield Claim(group_id, topic, partition, member_id, owner)
