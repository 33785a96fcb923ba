"""sticky and cooperative-sticky: balanced, and as few partitions as possible change hands.

One algorithm (gp-6.5). What makes the second one cooperative is not here: members keep what they
own during a round, and `withheld` keeps what moves out of it.
"""

from collections import deque
from collections.abc import Mapping, Sequence

from muster.assignors.base import Shares, Subscriber, in_order
from muster.assignors.claims import Claims, settle
from muster.assignors.uneven import uneven_shares
from muster.types import TopicPartition


def sticky_shares(subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]) -> Shares:
    """Balance first, then stickiness.

    Where all subscribe to the same existing topics the loads differ by one at most, and no
    assignment so balanced moves fewer partitions. Else see `uneven_shares`.
    """
    members = in_order(subscribers)
    claims = settle(members, partition_counts)
    subscribed = {frozenset(s.topics).intersection(partition_counts) for s in members}
    if len(subscribed) > 1:
        return uneven_shares(members, partition_counts, claims)
    keys = [TopicPartition(t, p) for t in subscribed.pop() for p in range(partition_counts[t])]
    return _even([s.member_id for s in members], keys, claims)


def _even(member_ids: Sequence[str], keys: Sequence[TopicPartition], claims: Claims) -> Shares:
    """The constrained path: N members, P partitions, P mod N of them may have one more.

    Each member keeps as much of its own as its quota allows, lowest partition numbers first; what
    is left goes round among those below it.
    """
    least, extras = divmod(len(keys), len(member_ids))
    owned: dict[str, list[TopicPartition]] = {m: [] for m in member_ids}
    for key in sorted(claims.owner, key=lambda key: (key.partition, key.topic)):
        owned[claims.owner[key]].append(key)
    shares: dict[str, list[TopicPartition]] = {}
    below: deque[str] = deque()
    at_least: deque[str] = deque()
    for member_id in member_ids:
        own = owned[member_id]
        if len(own) > least and extras:
            extras -= 1
            shares[member_id] = own[: least + 1]
        else:
            shares[member_id] = own[:least]
            (at_least if len(own) >= least else below).append(member_id)
    kept = {key for share in shares.values() for key in share}
    for key in sorted(key for key in keys if key not in kept):
        if below:
            member_id = below.popleft()
            (at_least if len(shares[member_id]) + 1 == least else below).append(member_id)
        else:
            member_id = at_least.popleft()
        shares[member_id].append(key)
    return shares


class StickyAssignor:
    """Balanced and sticky; members give everything up before each round."""

    name = "sticky"
    wants_owned = True

    def assign(
        self, subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]
    ) -> Shares:
        return sticky_shares(subscribers, partition_counts)


class CooperativeStickyAssignor(StickyAssignor):
    """Balanced and sticky; members keep working, and what moves takes a second round."""

    name = "cooperative-sticky"
    cooperative = True
