"""Co-located topics of a modern group: partition n of each goes to one member.

A group has one setting for it, sets of topics as text: `orders,payments;clicks,views`. It is kept
in one form whatever the order in which somebody wrote it, so that the same sets are the same text.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

from musterd.coordinator.machine.decide.shard import is_topic_name
from musterd.coordinator.machine.limits import Limits
from musterd.coordinator.machine.modern.group import Consumer, ModernGroup, is_in
from musterd.coordinator.machine.plan.pace import Pace
from musterd.coordinator.machine.quotation import quoted

COLOCATE: Final = "consumer.colocate"
"""The setting."""
Together = tuple[tuple[str, ...], ...]
"""Sets of topics, in order of names. No topic stands in two, and none alone."""


def sets_of(text: str) -> Together:
    """Return the sets of a text of the setting; of "" none."""
    return tuple(tuple(one.split(",")) for one in text.split(";")) if text else ()


def read(text: str, limits: Limits) -> tuple[str, str]:
    """Return the one form of a text of the setting, and what is wrong with it.

    The form is "" where something is wrong; the latter is "" where nothing is.
    """
    size = len(text.encode())
    if size > limits.colocate_max_bytes:
        return "", f"It has at most {limits.colocate_max_bytes} bytes; this one has {size}."
    sets = sets_of(text)
    if wrong := _wrong(sets, limits):
        return "", wrong
    return ";".join(sorted(",".join(sorted(topics)) for topics in sets)), ""


def _wrong(sets: Together, limits: Limits) -> str:
    seen: dict[str, None] = {}
    for topics in sets or ((),):
        for topic in topics:
            if not 0 < len(topic) <= limits.id_max_bytes or not is_topic_name(topic):
                return f"{quoted(topic[:80])} is no name of a topic."
            if topic in seen:
                return f"Topic {quoted(topic)} is named twice."
            seen[topic] = None
        if len(topics) < 2:  # noqa: PLR2004 - a topic, and what it goes together with
            return "A set has two topics at least."
    if len(seen) > limits.colocate_max_topics:
        return f"It names at most {limits.colocate_max_topics} topics; here are {len(seen)}."
    return ""


# ---- what of it a group cannot do


@dataclass(slots=True)
class Colocated:
    """A set of a group, and how its members' subscriptions and its topics keep to it.

    `counts` are the partitions of those of its topics that the group is assigned; what is not among
    them nobody reads, or it does not exist. `all` says how many members read all of these, `there`
    how many of them are not away, `some` how many read some of them and not all, and `first` which
    is the first of the latter. `apart` counts numbers whose partitions have several owners, since
    one of these is away; `absent` is the first of such.
    """

    topics: tuple[str, ...]
    counts: dict[str, int]
    all: int = 0
    there: int = 0
    some: int = 0
    first: str = ""
    apart: int = 0
    absent: str = ""

    @property
    def problems(self) -> tuple[str, ...]:
        """What a person should know: why partitions are not together, or have no counterpart."""
        found = [
            f"nobody reads {topic}, or there is no such topic"
            for topic in self.topics
            if topic not in self.counts
        ]
        if len(self.counts) < 2:  # noqa: PLR2004 - nothing is apart
            return tuple(found)
        if not self.all:
            found.append("each topic by itself: nobody is subscribed to all of them")
        elif not self.there:
            found.append("each topic by itself: all who are subscribed to all of them are away")
        elif self.some:
            others = f" and {self.some - 1} more" if self.some > 1 else ""
            found.append(f"nothing for {self.first}{others}, subscribed to a part of it")
        if self.apart:
            found.append(
                f"{self.apart} numbers apart: {self.absent} is away, and keeps what it has"
            )
        if len(dict.fromkeys(self.counts.values())) > 1:
            counts = ", ".join(f"{topic} {count}" for topic, count in self.counts.items())
            found.append(f"different numbers of partitions: {counts}")
        return tuple(found)


def colocated(modern: ModernGroup, together: Together) -> Generator[None, None, list[Colocated]]:
    """Look at every member's subscription, in slices.

    Nothing keeps the group as it is between two slices: what changes then may be seen or not.
    """
    pace = Pace()
    found = [
        Colocated(topics, {one: modern.topics[one] for one in topics if one in modern.topics})
        for topics in together
    ]
    for consumer in list(modern.members.values()):
        matched = modern.patterns.get(consumer.said.pattern, ())
        for one in found:
            _count(one, consumer, matched)
            if pace.due(len(one.counts)):
                yield
    if any(consumer.is_away for consumer in modern.members.values()):
        for one in found:
            yield from _count_apart(one, modern, pace)
    return found


def _count_apart(one: Colocated, modern: ModernGroup, pace: Pace) -> Generator[None, None, None]:
    """Count numbers whose partitions have several owners, one of whom is away."""
    for number in range(max(one.counts.values(), default=0)):
        rows = (modern.target.get(topic, ()) for topic in one.counts)
        owners = dict.fromkeys(row[number] for row in rows if number < len(row))
        if len(owners) > 1:
            members = (modern.members[modern.by_seq[seq]] for seq in owners if seq in modern.by_seq)
            names = [member.instance_id or member.member_id for member in members if member.is_away]
            one.apart += bool(names)
            one.absent = one.absent or (names[0] if names else "")
        if pace.due(len(one.counts)):
            yield


def _count(one: Colocated, consumer: Consumer, matched: Sequence[str]) -> None:
    names = consumer.said.topics
    read = sum(is_in(topic, names) or is_in(topic, matched) for topic in one.counts)
    if read == len(one.counts):
        one.all += 1
        one.there += not consumer.is_away
    elif read:
        one.some += 1
        one.first = one.first or consumer.instance_id or consumer.member_id
