"""The position and time of a row of the export."""

from typing import NamedTuple

US_PER_MS = 1000


class Moment(NamedTuple):
    """`index` and `sub` order inside the shard, `time_ms` is shard time, `wall_ms` a person's.

    `term` is the entry's: one leader wrote all entries of a term.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    sub: int
    time_ms: int
    wall_ms: int
    term: int

    @property
    def ts(self) -> int:
        """Microseconds since 1970, as the tables hold it."""
        return self.wall_ms * US_PER_MS


def ts_of(moment: Moment | None) -> int | None:
    """`moment.ts`, or None where the moment is not known."""
    return None if moment is None else moment.ts


def index_of(moment: Moment | None) -> int | None:
    """`moment.index`, or None where the moment is not known."""
    return None if moment is None else moment.index


def span_ms(start: Moment | None, end: Moment | None) -> int | None:
    """How long it took from one moment to the other, or None where one is not known.

    Shard time under one leader. It stands still from a leader's last entry to the next leader's
    first, so under several it is the wall clocks' time where that is longer.
    """
    if start is None or end is None:
        return None
    passed_ms = end.time_ms - start.time_ms
    if start.term == end.term or not start.wall_ms or not end.wall_ms:
        return passed_ms
    return max(passed_ms, end.wall_ms - start.wall_ms)
