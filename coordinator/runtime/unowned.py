"""Knows since when partitions of a shard's modern groups are nobody's, while this node leads it.

That is no state of the shard: each leader sees it for itself. A group is looked at a moment after
it, or a topic, has changed, so what only moves is mostly owned again by then. Whatever a look finds
for the first time is nobody's since the first of the changes that it comes after, so since one
look's time at most too early. Another leader takes the beginning of the plan that is open, where
one is, and else the moment at which it began to lead.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from musterd.coordinator.machine.modern.history_of_plans import open_plan
from musterd.coordinator.machine.modern.topics import untaken_topics
from musterd.coordinator.machine.modern.unowned import UnownedPartitions, WhyUnowned, unowned
from musterd.coordinator.machine.shard_state import ShardState
from musterd.coordinator.machine.state import Group
from musterd.coordinator.runtime.deadlines import KeyedHeap
from musterd.coordinator.runtime.timeouts import (
    UNOWNED_LINES_MS,
    UNOWNED_LOOK_MS,
    UNOWNED_TOLD_MS,
)

UNITS_PER_TURN: Final = 2_000
"""Members, topics and partitions of groups that are looked at in one turn; the group that reaches
it is the turn's last, and of a large one so much is looked at as fits into a slice."""

LINES_MAX: Final = 20
"""Groups of a shard that are told of in `UNOWNED_LINES_MS`; others are when that is over."""

_NEVER: Final = -1
_BEYOND: Final = frozenset({WhyUnowned.TOPIC_DUE, WhyUnowned.OVER_LIMIT})
"""Reasons why a topic, or what was added to one, is not among those that the group knows."""


class UnownedNotice(NamedTuple):
    """Partitions of a group are nobody's for long, or none is any more.

    Of several the one is named that has been nobody's for longest; `partitions` says how many are,
    0 = none any more. `lasted_ms` is for how long that one has been, or was. Those that wait for
    somebody who is away do not count.
    """

    group_id: str
    topic: str
    partition: int
    why: WhyUnowned
    partitions: int
    lasted_ms: int


class SinceWhen(NamedTuple):
    """Partitions of one topic that are nobody's for one reason, since one moment of shard time."""

    found: UnownedPartitions
    since_ms: int


class _Oldest(NamedTuple):
    since_ms: int
    topic: str
    partition: int
    why: WhyUnowned


@dataclass(slots=True)
class _Book:
    """What is known of one group."""

    changed_ms: int
    """When it changed first after the last look began, in shard time; _NEVER: it has not."""
    later_ms: int = _NEVER
    """When it changed first since the look began that is under way."""
    since: dict[str, dict[int, int]] = field(default_factory=dict)
    """As of the last look: topic -> partition -> since when it is nobody's."""
    beyond: dict[str, int] = field(default_factory=dict)
    """Since when topics, or partitions added to them, wait that the group does not know."""
    counts: dict[WhyUnowned, int] = field(default_factory=dict)
    oldest: _Oldest | None = None
    told: _Oldest | None = None

    def since_ms(self, topic: str, partition: int, now_ms: int, *, beyond: bool) -> int:
        """Since when this one, which is nobody's, is so."""
        known = self.beyond.get(topic) if beyond else self.since.get(topic, {}).get(partition)
        if known is not None:
            return known
        return now_ms if self.changed_ms == _NEVER else self.changed_ms


@dataclass(slots=True)
class Unowned:
    """The partitions of one shard that are nobody's. Times are shard time, in ms."""

    tell: Callable[[UnownedNotice], None]
    _books: dict[str, _Book] = field(default_factory=dict)
    """By modern group."""
    _due: KeyedHeap[str] = field(default_factory=KeyedHeap)
    """When groups are to be looked at."""
    _look: tuple[str, int, Generator[None, None, list[UnownedPartitions]]] | None = None
    """The group that is looked at, when that began, and what is left to be done."""
    _lines: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """How many groups were told of, by the time of it."""
    _topics_version: int = _NEVER

    def begin(self, groups: Iterable[Group], now_ms: int) -> None:
        """This node begins to lead: nobody says since when what it finds is so."""
        for group in groups:
            if group.modern is not None:
                plan = open_plan(group)
                self._books[group.group_id] = _Book(plan.started_ms if plan else now_ms)
                self._due.arm(group.group_id, now_ms + UNOWNED_LOOK_MS)

    @property
    def busy(self) -> bool:
        """True while a group is to be looked at."""
        return bool(self._look or len(self._due))

    def moved(self, group_id: str, group: Group | None, now_ms: int) -> None:
        """An entry changed this group."""
        if group is None or group.modern is None:
            self._forget(group_id)
            return
        book = self._books.setdefault(group_id, _Book(_NEVER))
        if self._look is not None and self._look[0] == group_id:
            if book.later_ms == _NEVER:
                book.later_ms = now_ms
        elif book.changed_ms == _NEVER:
            book.changed_ms = now_ms
        due_ms = self._due.get(group_id)
        if due_ms is None or due_ms > now_ms + UNOWNED_LOOK_MS:
            self._due.arm(group_id, now_ms + UNOWNED_LOOK_MS)

    def counts(self, group_id: str) -> Mapping[WhyUnowned, int] | None:
        """How many partitions are nobody's, by reason, as of the last look; None: not looked at."""
        book = self._books.get(group_id)
        return None if book is None else book.counts

    def dated(
        self, group_id: str, found: Iterable[UnownedPartitions], now_ms: int
    ) -> Iterable[SinceWhen]:
        """Say of what is nobody's now since when it is; yields one for each such time."""
        book = self._books.get(group_id) or _Book(_NEVER)
        for one in found:
            beyond = one.why in _BEYOND
            by_time: dict[int, list[int]] = {}
            if beyond:
                since_ms = book.since_ms(one.topic, 0, now_ms, beyond=True)
                yield SinceWhen(one, since_ms)
                continue
            for partition in one.partitions:
                since_ms = book.since_ms(one.topic, partition, now_ms, beyond=False)
                by_time.setdefault(since_ms, []).append(partition)
            for since_ms, partitions in sorted(by_time.items()):
                yield SinceWhen(one._replace(partitions=partitions), since_ms)

    def turn(self, now_ms: int, registry: ShardState | None, groups: Mapping[str, Group]) -> None:
        """Look at what is due, a slice at most. `registry` None: what it says is not trusted."""
        if registry is None:
            return
        if registry.topics_version != self._topics_version:
            if self._topics_version != _NEVER:
                for group_id in list(self._books):
                    self.moved(group_id, groups.get(group_id), now_ms)
            self._topics_version = registry.topics_version
        left = UNITS_PER_TURN
        while left > 0:
            if self._look is None:
                left -= self._begin_look(now_ms, registry, groups)
            if self._look is None:
                return
            group_id, began_ms, steps = self._look
            try:
                next(steps)
            except StopIteration as end:
                self._look = None
                self._looked(group_id, end.value, began_ms)
            else:
                return

    # ---- inside

    def _begin_look(self, now_ms: int, registry: ShardState, groups: Mapping[str, Group]) -> int:
        """Begin to look at the next group that is due; returns how large it is, 0 = none is due."""
        for group_id, _ in self._due.pop_due(now_ms, 1):
            modern = groups[group_id].modern if group_id in groups else None
            if modern is None:
                self._forget(group_id)
                return 1
            steps = unowned(groups[group_id], untaken_topics(modern, registry))
            self._look = group_id, now_ms, steps
            return 1 + len(modern.members) + len(modern.topics) + sum(modern.topics.values())
        return 0

    def _looked(self, group_id: str, found: Sequence[UnownedPartitions], now_ms: int) -> None:
        """Take in what a look that began then has found."""
        book = self._books.get(group_id)
        if book is None:  # it is gone meanwhile
            return
        since: dict[str, dict[int, int]] = {}
        beyond: dict[str, int] = {}
        counts: dict[WhyUnowned, int] = {}
        book.oldest = None
        for one, since_ms in self.dated(group_id, found, now_ms):
            if one.why in _BEYOND:
                beyond[one.topic] = since_ms
            else:
                since.setdefault(one.topic, {}).update(dict.fromkeys(one.partitions, since_ms))
            counts[one.why] = counts.get(one.why, 0) + len(one.partitions)
            first = _Oldest(since_ms, one.topic, one.partitions[0], one.why)
            if one.why is not WhyUnowned.AWAY and (book.oldest is None or first < book.oldest):
                book.oldest = first
        book.since, book.beyond, book.counts = since, beyond, counts
        book.changed_ms, book.later_ms = book.later_ms, _NEVER
        self._tell(group_id, book, now_ms)

    def _tell(self, group_id: str, book: _Book, now_ms: int) -> None:
        """Tell of what is nobody's for long, or is somebody's again."""
        oldest = book.oldest
        if oldest is None:
            if book.told is not None:
                told, book.told = book.told, None
                lasted_ms = now_ms - told.since_ms
                self.tell(
                    UnownedNotice(group_id, told.topic, told.partition, told.why, 0, lasted_ms)
                )
            return
        if book.told is not None:
            return
        lasted_ms = now_ms - oldest.since_ms
        if lasted_ms < UNOWNED_TOLD_MS:
            due_ms = oldest.since_ms + UNOWNED_TOLD_MS
        elif not self._has_line(now_ms):
            due_ms = now_ms + UNOWNED_LINES_MS
        else:
            book.told = oldest
            count = sum(book.counts.values()) - book.counts.get(WhyUnowned.AWAY, 0)
            self.tell(
                UnownedNotice(
                    group_id, oldest.topic, oldest.partition, oldest.why, count, lasted_ms
                )
            )
            return
        if group_id not in self._due:
            self._due.arm(group_id, due_ms)

    def _has_line(self, now_ms: int) -> bool:
        """Take one of the lines that the shard has in a minute; False where it has none left."""
        while self._lines and next(iter(self._lines)) + UNOWNED_LINES_MS <= now_ms:
            self._lines.popitem(last=False)
        if sum(self._lines.values()) >= LINES_MAX:
            return False
        self._lines[now_ms] = self._lines.get(now_ms, 0) + 1
        return True

    def _forget(self, group_id: str) -> None:
        self._due.drop(group_id)
        self._books.pop(group_id, None)
