"""The open spans of `ownership`: who owns which partition of a group, since when, by which token.

Both trackers of `ownership` write to one `Spans` of a group, that of classic and that of modern
groups: where a group is converted, each member goes on with what it has under the token that it
knows, and so do its spans.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from musterd.replay.assignments import Partition
from musterd.replay.moment import Moment, index_of, span_ms, ts_of
from musterd.replay.tables import Ownership


class _Span(NamedTuple):
    token: int
    opaque_bytes: int | None
    start: Moment | None


class Spans:
    """The open spans of one group, by member and partition."""

    def __init__(self, shard: int, group_id: str) -> None:
        self._shard = shard
        self._group_id = group_id
        self._open: dict[str, dict[Partition | None, _Span]] = {}

    def open(
        self,
        member_id: str,
        partitions: Iterable[Partition | None],
        token: int,
        start: Moment | None,
        opaque_bytes: int | None = None,
    ) -> None:
        """The member owns these partitions from now on; None stands for an opaque assignment."""
        opened = dict.fromkeys(partitions, _Span(token, opaque_bytes, start))
        if opened:
            self._open.setdefault(member_id, {}).update(opened)

    def of(self, member_id: str) -> list[Partition]:
        """The partitions that a member owns, without an opaque assignment."""
        return [key for key in self._open.get(member_id, {}) if key is not None]

    def members(self) -> list[str]:
        """Whoever owns anything."""
        return list(self._open)

    def owners(self) -> dict[Partition, str]:
        """Who owns each partition."""
        return {key: member_id for member_id in self._open for key in self.of(member_id)}

    def close(
        self,
        member_id: str,
        at: Moment | None,
        released: str,
        partitions: Iterable[Partition] | None = None,
    ) -> Iterator[Ownership]:
        """The member owns these partitions no more, or nothing at all.

        Raises `KeyError` where it does not own one that is named.
        """
        mine = self._open.get(member_id, {})
        for key in list(mine) if partitions is None else partitions:
            span = mine.pop(key)
            topic, partition = key or (None, None)
            yield Ownership(
                shard=self._shard,
                group=self._group_id,
                topic=topic,
                partition=partition,
                opaque_bytes=span.opaque_bytes,
                member_id=member_id,
                token=span.token,
                from_ts=ts_of(span.start),
                to_ts=ts_of(at),
                owned_ms=span_ms(span.start, at),
                released=released,
                from_index=index_of(span.start),
                to_index=index_of(at),
            )
        if not mine:
            self._open.pop(member_id, None)

    def close_all(self, at: Moment | None, released: str) -> Iterator[Ownership]:
        """Nobody owns anything any more."""
        for member_id in self.members():
            yield from self.close(member_id, at, released)
