"""Computes the offset to which a reset moves each partition. Pure: numbers in, numbers out.

The ends of a partition are what members reported with their commits; nobody else knows them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from muster.cli.group.owners import Partition

OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Known:
    """A partition's stored offset (the next one to read), and the reported ends or None."""

    offset: int
    start_offset: int | None = None
    end_offset: int | None = None
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One partition's way from `known` (None: no offset is stored) to offset `new`.

    `cut`: another offset was asked for, which lies outside of the known ends.
    """

    topic: str
    partition: int
    known: Known | None
    new: int
    cut: bool = False

    @property
    def prior(self) -> int | None:
        return None if self.known is None else self.known.offset

    @property
    def end_offset(self) -> int | None:
        """The reported end, to be kept; not where the new offset shows that it is out of date."""
        end = None if self.known is None else self.known.end_offset
        return None if end is None or end < self.new else end

    @property
    def start_offset(self) -> int | None:
        """The reported start, to be kept; not where the new offset shows that it is wrong."""
        start = None if self.known is None else self.known.start_offset
        return None if start is None or start > self.new else start

    @property
    def metadata(self) -> str:
        """The metadata to store: the known one where the offset stays as it was, else none."""
        return self.known.metadata if self.known is not None and self.prior == self.new else ""


class NoPlaceError(Exception):
    """The rule says nothing about this partition; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Place:
    """An offset that a rule gives; `cut` as in `Step`."""

    offset: int
    cut: bool = False


Rule = Callable[[Partition, Known | None], Place]
"""A partition and what is known of it -> its new offset. Raises NoPlaceError."""


def to_offset(offset: int) -> Rule:
    """To an offset that the caller names, even beyond the reported ends, which may be old."""
    return lambda _key, _known: Place(offset)


def to_given(offsets: Mapping[Partition, int]) -> Rule:
    """Each to an offset of its own."""
    return lambda key, _known: Place(offsets[key])


def to_current(_key: Partition, known: Known | None) -> Place:
    return Place(_stored(known).offset)


def to_earliest(_key: Partition, known: Known | None) -> Place:
    start = _stored(known).start_offset
    if start is None:
        raise NoPlaceError("no start offset was reported with the commit")
    return Place(min(max(start, 0), OFFSET_MAX))


def to_latest(_key: Partition, known: Known | None) -> Place:
    end = _stored(known).end_offset
    if end is None:
        raise NoPlaceError("no end offset was reported with the commit")
    return Place(min(max(end, 0), OFFSET_MAX))


def shift_by(count: int) -> Rule:
    """So many further, or back where it is negative; within the reported ends, never below 0."""

    def rule(_key: Partition, known: Known | None) -> Place:
        stored = _stored(known)
        wanted = stored.offset + count
        low = 0 if stored.start_offset is None else stored.start_offset
        high = OFFSET_MAX if stored.end_offset is None else stored.end_offset
        new = min(max(wanted, low, 0), max(high, 0), OFFSET_MAX)
        return Place(new, cut=new != wanted)

    return rule


def plan(
    wanted: Iterable[Partition], known: Mapping[Partition, Known], rule: Rule
) -> tuple[list[Step], dict[Partition, str]]:
    """A step for each partition, in order, and why there is none for the others."""
    steps: list[Step] = []
    without: dict[Partition, str] = {}
    for key in sorted(set(wanted)):
        now = known.get(key)
        try:
            place = rule(key, now)
        except NoPlaceError as error:
            without[key] = str(error)
        else:
            steps.append(Step(*key, now, place.offset, place.cut))
    return steps, without


def _stored(known: Known | None) -> Known:
    if known is None:
        raise NoPlaceError("no offset is stored")
    return known
