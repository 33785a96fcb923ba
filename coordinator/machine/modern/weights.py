"""Weights of the partitions of a modern group's topics, which `weighted` shares out.

A group has one setting for them, entries as text: `orders=2;orders[7]=5.5;payments[0-3]=0.5`. An
entry is of a topic, of one of its partitions, or of a range of them, which goes before the topic's.
What has no weight weighs 1. A topic or a partition need not exist. The text is kept in one form, in
which the same weights are the same text.
"""

from collections.abc import Iterable, Iterator, Sequence
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
    """An entry as it was written: the topic, its partitions, without which it has all, a weight."""

    topic: str
    where: str | None
    weight: str


def weights_of(text: str) -> dict[str, TopicWeights]:
    """Return the weights of a text in which nothing is wrong, by topic, in order of names.

    Topics whose partitions all weigh 1 are left out; of "" there are none.
    """
    found: dict[str, tuple[int, list[Stretch]]] = {}
    for entry in _entries(text) if text else ():
        others, stretches = found.get(entry.topic, (UNIT, []))
        weight = _thousandths(entry.weight)
        if entry.where is None:
            others = weight
        else:
            stretches.append(Stretch(*_bounds(entry.where), weight))
        found[entry.topic] = others, stretches
    weights = {
        topic: _joined(others, stretches) for topic, (others, stretches) in sorted(found.items())
    }
    return {topic: one for topic, one in weights.items() if one != TopicWeights()}


def normal(text: str) -> str:
    """Return the one form of a text in which nothing is wrong; "" where everything weighs 1."""
    return ";".join(one.text(topic) for topic, one in weights_of(text).items())


def wrong(text: str, limits: Limits) -> str:
    """Return what is wrong with a text of the setting; "" where nothing is."""
    size = len(text.encode())
    if size > limits.weights_max_bytes:
        return f"It has at most {limits.weights_max_bytes} bytes; this one has {size}."
    entries = list(_entries(text))
    if len(entries) > limits.weights_max_entries:
        return f"It has at most {limits.weights_max_entries} entries; here are {len(entries)}."
    for entry in entries:
        reason = _wrong_entry(entry, limits)
        if reason:
            return reason
    return _wrong_together(entries)


def _entries(text: str) -> Iterator[_Entry]:
    for one in text.split(";"):
        name, _, weight = one.partition("=")
        topic, bracket, where = name.partition("[")
        yield _Entry(topic, where if bracket else None, weight)


def _wrong_entry(entry: _Entry, limits: Limits) -> str:
    topic = entry.topic
    if not 0 < len(topic) <= limits.id_max_bytes or not is_topic_name(topic):
        return f"{quoted(topic[:80])} is no name of a topic."
    if entry.where is not None and not _is_where(entry.where, limits.topic_max_partitions):
        named = quoted(f"[{entry.where[:80]}")
        return (
            f"{named} names no partitions of {quoted(topic)}: it is a number from 0 to "
            f"{limits.topic_max_partitions - 1} or two, the lesser first, as `[7]` and `[3-9]`."
        )
    if not _is_weight(entry.weight):
        return (
            f"{quoted(entry.weight[:80])} is no weight of {quoted(topic)}: it is a number from "
            "0.001 to 1000 with at most three decimals."
        )
    return ""


def _is_where(where: str, partitions: int) -> bool:
    """True for `7]` and `3-9]`."""
    first, dash, last = where[:-1].partition("-")
    longest = len(str(partitions))
    numbers = (first, last) if dash else (first,)
    if where[-1:] != "]" or not all(_is_number(one, longest) for one in numbers):
        return False
    least, most = _bounds(where)
    return least <= most < partitions


def _is_weight(weight: str) -> bool:
    """True for `2` and `5.5`."""
    whole, point, decimals = weight.partition(".")
    if not _is_number(whole, len(str(WEIGHT_MAX // UNIT))):
        return False
    if point and not _is_number(decimals, _DECIMALS):
        return False
    return 0 < _thousandths(weight) <= WEIGHT_MAX


def _is_number(text: str, longest: int) -> bool:
    return 0 < len(text) <= longest and _DIGITS.issuperset(text)


def _wrong_together(entries: Iterable[_Entry]) -> str:
    """Return which partitions have two weights; "" where none has."""
    stretches: dict[str, list[tuple[int, int]]] = {}
    whole: dict[str, None] = {}
    for entry in entries:
        if entry.where is not None:
            stretches.setdefault(entry.topic, []).append(_bounds(entry.where))
        elif entry.topic in whole:
            return f"Topic {quoted(entry.topic)} has two weights."
        else:
            whole[entry.topic] = None
    for topic, bounds in stretches.items():
        for before, after in pairwise(sorted(bounds)):
            if after[0] <= before[1]:
                return f"Partition {after[0]} of topic {quoted(topic)} has two weights."
    return ""


def _bounds(where: str) -> tuple[int, int]:
    """Return the first and the last partition of `7]` or `3-9]`."""
    first, dash, last = where[:-1].partition("-")
    return int(first), int(last if dash else first)


def _thousandths(weight: str) -> int:
    whole, _, decimals = weight.partition(".")
    return int(whole) * UNIT + int((decimals + "0" * _DECIMALS)[:_DECIMALS])


def _decimal(weight: int) -> str:
    """Return the shortest text of so many thousandths."""
    whole, rest = divmod(weight, UNIT)
    decimals = str(UNIT + rest)[1:]
    while decimals[-1:] == "0":
        decimals = decimals[:-1]
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
