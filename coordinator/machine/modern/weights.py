"""Weights of the partitions of a modern group's topics, which `weighted` shares out.

A group has one setting for them, entries as text: `orders=2;orders[7]=5.5;payments[0-3]=0.5`. An
entry is of a topic, of one of its partitions, or of a range of them, which goes before the topic's.
What has no weight weighs 1. A topic or a partition need not exist. The text is kept in one form, in
which the same weights are the same text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from musterd.coordinator.machine.decide.shard import is_topic_name
from musterd.coordinator.machine.limits import Limits
from musterd.coordinator.machine.modern.group import ModernGroup
from musterd.coordinator.machine.plan import Assignor
from musterd.coordinator.machine.plan.spec import UNIT
from musterd.coordinator.machine.quotation import quoted

WEIGHTS: Final = "consumer.weights"
"""The setting."""
WEIGHT_MAX: Final = 1_000_000
"""In thousandths: as many as a member's capacity may be."""
_DIGITS: Final = frozenset("0123456789")
_DIGITS_MAX: Final = 9
"""A partition's number in a text that was taken has no more: no limit has ever had as many."""
_DECIMALS: Final = 3


class Stretch(NamedTuple):
    """Partitions `first` to `last` of a topic, and the weight of each in thousandths."""

    first: int
    last: int
    weight: int

    @property
    def where(self) -> str:
        """The partitions as in the text."""
        return f"[{self.first}]" if self.first == self.last else f"[{self.first}-{self.last}]"


@dataclass(frozen=True, slots=True)
class TopicWeights:
    """What the partitions of one topic weigh, in thousandths.

    `stretches` ascend, no two of them have a partition in common, and none weighs as much as the
    others do. Where two meet they differ.
    """

    others: int = UNIT
    stretches: tuple[Stretch, ...] = ()

    def row(self, count: int) -> Sequence[int]:
        """Return the weight of each of so many partitions, by partition."""
        row = [self.others] * count
        for stretch in self.stretches:
            here = range(stretch.first, min(stretch.last + 1, count))
            row[stretch.first : stretch.last + 1] = [stretch.weight] * len(here)
        return row

    def text(self, topic: str) -> str:
        """Return the entries of this topic."""
        others = [] if self.others == UNIT else [f"{topic}={_decimal(self.others)}"]
        stretches = [
            f"{topic}{stretch.where}={_decimal(stretch.weight)}" for stretch in self.stretches
        ]
        return ";".join(others + stretches)


class _Entry(NamedTuple):
    """An entry: of the partitions that `where` names, or of all of the topic where that is "".

    `where` and `weight` are as they were written, and `stretch` what they say: -1 where that is no
    number of partitions, or no weight.
    """

    topic: str
    where: str
    weight: str
    stretch: Stretch


def weights_of(text: str) -> dict[str, TopicWeights]:
    """Return the weights of a text in which nothing is wrong, by topic, in order of names.

    Topics whose partitions all weigh 1 are left out; of "" there are none.
    """
    return _by_topic([_entry(one) for one in text.split(";")] if text else [])


def read(text: str, limits: Limits) -> tuple[str, str]:
    """Return the one form of a text of the setting, and what is wrong with it.

    The form is "" where everything weighs 1, or something is wrong; the latter is "" where nothing
    is.
    """
    size = len(text.encode())
    if size > limits.weights_max_bytes:
        return "", f"It has at most {limits.weights_max_bytes} bytes; this one has {size}."
    digits = len(str(limits.topic_max_partitions))
    entries = [_entry(one, digits) for one in text.split(";")]
    if len(entries) > limits.weights_max_entries:
        return "", f"It has at most {limits.weights_max_entries} entries; here are {len(entries)}."
    for entry in entries:
        if wrong := _wrong_entry(entry, limits):
            return "", wrong
    if wrong := _wrong_together(entries):
        return "", wrong
    return ";".join(one.text(topic) for topic, one in _by_topic(entries).items()), ""


def _entry(text: str, digits: int = _DIGITS_MAX) -> _Entry:
    """Return an entry of which a partition's number has at most so many digits."""
    name, _, weight = text.partition("=")
    topic, bracket, where = name.partition("[")
    first, dash, last = where[:-1].partition("-") if where[-1:] == "]" else ("", "", "")
    least = _number(first, digits)
    most = _number(last, digits) if dash else least
    return _Entry(topic, bracket + where, weight, Stretch(least, most, _thousandths(weight)))


def _number(text: str, digits: int) -> int:
    """Return what at most so many digits say; -1 for any other text."""
    return int(text) if 0 < len(text) <= digits and _DIGITS.issuperset(text) else -1


def _thousandths(weight: str) -> int:
    """Return what `2` or `5.5` says; -1 where that is no weight."""
    whole, point, decimals = weight.partition(".")
    if point and _number(decimals, _DECIMALS) < 0:
        return -1
    rest = int((decimals + "0" * _DECIMALS)[:_DECIMALS])
    found = _number(whole, len(str(WEIGHT_MAX // UNIT))) * UNIT + rest
    return found if 0 < found <= WEIGHT_MAX else -1


def _wrong_entry(entry: _Entry, limits: Limits) -> str:
    topic, where, weight, stretch = entry
    if not 0 < len(topic) <= limits.id_max_bytes or not is_topic_name(topic):
        return f"{quoted(topic[:80])} is no name of a topic."
    partitions = limits.topic_max_partitions
    if where and not 0 <= stretch.first <= stretch.last < partitions:
        return (
            f"{quoted(where[:81])} names no partitions of {quoted(topic)}: it is a number from 0 "
            f"to {partitions - 1} or two, the lesser first, as `[7]` and `[3-9]`."
        )
    if stretch.weight < 0:
        return (
            f"{quoted(weight[:80])} is no weight of {quoted(topic)}: it is a number from 0.001 to "
            "1000 with at most three decimals."
        )
    return ""


def _wrong_together(entries: Iterable[_Entry]) -> str:
    """Return which partitions have two weights; "" where none has."""
    stretches: dict[str, list[Stretch]] = {}
    whole: dict[str, None] = {}
    for entry in entries:
        if entry.where:
            stretches.setdefault(entry.topic, []).append(entry.stretch)
        elif entry.topic in whole:
            return f"Topic {quoted(entry.topic)} has two weights."
        else:
            whole[entry.topic] = None
    for topic, own in stretches.items():
        for before, after in pairwise(sorted(own)):
            if after.first <= before.last:
                return f"Partition {after.first} of topic {quoted(topic)} has two weights."
    return ""


def _by_topic(entries: Sequence[_Entry]) -> dict[str, TopicWeights]:
    """Return what entries say in which nothing is wrong, as `weights_of` does."""
    others = {one.topic: one.stretch.weight for one in entries if not one.where}
    own: dict[str, list[Stretch]] = {one.topic: [] for one in entries}
    for one in entries:
        if one.where:
            own[one.topic].append(one.stretch)
    found = {topic: _joined(others.get(topic, UNIT), own[topic]) for topic in sorted(own)}
    return {topic: one for topic, one in found.items() if one != TopicWeights()}


def _decimal(weight: int) -> str:
    """Return the shortest text of so many thousandths."""
    whole, rest = divmod(weight, UNIT)
    decimals = str(UNIT + rest)[1:].rstrip("0")
    return f"{whole}.{decimals}" if decimals else str(whole)


def _joined(others: int, stretches: Iterable[Stretch]) -> TopicWeights:
    """Join stretches that meet and weigh the same, and leave out what weighs as the others do."""
    joined: list[Stretch] = []
    for stretch in sorted(stretches):
        if stretch.weight == others:
            continue
        before = joined[-1] if joined else None
        if before is None or before.last + 1 < stretch.first or before.weight != stretch.weight:
            joined.append(stretch)
        else:
            joined[-1] = before._replace(last=stretch.last)
    return TopicWeights(others, tuple(joined))


# ---- what of it has no effect


@dataclass(frozen=True, slots=True)
class Weighed:
    """The entries of one topic, and why they do not count as they stand.

    `problems` are for people; there are none where everything counts.
    """

    topic: str
    text: str
    problems: tuple[str, ...]


def weighed(modern: ModernGroup, text: str, assignor: Assignor) -> list[Weighed]:
    """Compare the weights of a text with the group's topics, and with who plans for it."""
    return [
        Weighed(topic, one.text(topic), _problems(modern, topic, one, assignor))
        for topic, one in weights_of(text).items()
    ]


def _problems(
    modern: ModernGroup, topic: str, one: TopicWeights, assignor: Assignor
) -> tuple[str, ...]:
    found = []
    if assignor is not Assignor.WEIGHTED:
        found.append(f"not read: the assignor is {assignor}")
    count = modern.topics.get(topic)
    if count is None:
        found.append(f"nobody reads {topic}, or there is no such topic")
    else:
        beyond = [stretch.where for stretch in one.stretches if stretch.last >= count]
        if beyond:
            others = f" and {len(beyond) - 1} more" if len(beyond) > 1 else ""
            found.append(f"{beyond[0]}{others} beyond its {count} partitions")
    return tuple(found)
