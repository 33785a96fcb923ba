"""Where and when a row of the export happened."""

from typing import NamedTuple

US_PER_MS = 1000


class Moment(NamedTuple):
    """`index` and `sub` order inside the shard, `time_ms` is shard time, `wall_ms` a person's."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    sub: int
    time_ms: int
    wall_ms: int

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
    """Shard time between two moments, or None where one is not known."""
    return None if start is None or end is None else end.time_ms - start.time_ms
