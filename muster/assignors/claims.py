"""Decides which member owned a partition, where several claim it (gp-6.5)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.assignors.base import Subscriber
from muster.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Claims:
    """The partitions that members owned, without contradictory claims."""

    owner: Mapping[TopicPartition, str]
    """Each partition that exists and that exactly one member claims under the latest generation
    anybody claims it under."""
    former: Mapping[TopicPartition, str]
    """Who claims a claimed partition under the generation before that, if anybody does."""


def settle(subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]) -> Claims:
    """Sort out the claims. Later generations win; two claims under one generation both fail.

    The order of `subscribers` and of what they own makes no difference; the result is in order.
    Topics and partitions that do not exist are left out, and so is what a member does not subscribe
    to.
    """
    claims: dict[TopicPartition, dict[int, list[str]]] = {}
    for subscriber in subscribers:
        topics = frozenset(subscriber.topics)
        for key in frozenset(subscriber.owned):
            if key.topic in topics and 0 <= key.partition < partition_counts.get(key.topic, 0):
                by_generation = claims.setdefault(key, {})
                by_generation.setdefault(subscriber.generation, []).append(subscriber.member_id)
    owner: dict[TopicPartition, str] = {}
    former: dict[TopicPartition, str] = {}
    for key, by_generation in sorted(claims.items()):
        latest, *earlier = sorted(by_generation, reverse=True)[:2]
        if len(by_generation[latest]) == 1:
            owner[key] = by_generation[latest][0]
        for generation in earlier:
            if len(by_generation[generation]) == 1:
                former[key] = by_generation[generation][0]
    return Claims(owner, former)
