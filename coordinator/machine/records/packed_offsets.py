"""Offsets at rest: a group's, as bytes, of which those that one commit wrote share all they can.

As objects an offset takes 330 bytes of memory; packed 32, and what is told apart by a commit once
for each run of neighbours that it wrote. This is no record: nothing of it is stored or sent.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import repeat, starmap
from struct import Struct
from typing import Final

from musterd.coordinator.machine.records.digest import DIGEST_BYTES
from musterd.coordinator.machine.records.encoding import (
    INT_BYTES,
    Reader,
    put_bytes,
    put_count,
    put_text,
)
from musterd.coordinator.machine.records.values import put_offset, take_offset
from musterd.coordinator.machine.state import Group, Offset

PACKED_OFFSETS_MAX: Final = 250
"""A group with so many or more stays as it is, and takes as much memory as its records weigh: to
make them anew for a commit, and to pack another group, would take a millisecond."""
USED_OFFSETS_MAX: Final = 10_000
"""So many offsets of a shard stay objects, those of larger groups aside; a group counts as one
more. With six shards they take 20 MB of a node. A commit to a group that is packed costs what it
takes to make all of its offsets anew, and to pack another group: 4 µs for each."""
SETTLED_EVERY: Final = 4
"""Each so-manieth group that comes into use takes its place among those used last."""

_ROW = Struct(">qq")
_DIGEST = Struct(">16s")
_VERSION_BYTES: Final = 1
_OFFSET_END: Final = _VERSION_BYTES + INT_BYTES
"""A value of a record begins with its version and the offset."""
_NO_OFFSET: Final = bytes(INT_BYTES)


class PackedOffsets(bytes):
    """A group's offsets; equal to the dict that they are unpacked to."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedOffsets):
            other = other.unpacked()
        return self.unpacked() == other if isinstance(other, dict) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    @property
    def offset_count(self) -> int:
        """How many they are."""
        return Reader(self).count()

    def unpacked(self) -> dict[tuple[str, int], Offset]:
        """Make them anew, in the order in which they were packed."""
        reader = Reader(self)
        left = reader.count()
        names: dict[str, str] = {}
        offsets: dict[tuple[str, int], Offset] = {}
        while left:
            topic = reader.text()
            topic = names.setdefault(topic, topic)
            rest, count = reader.blob(), reader.count()
            rows = _ROW.iter_unpack(reader.take(count * _ROW.size))
            partitions, numbers = zip(*rows, strict=True)
            digests: Iterable[int | None] = repeat(None)
            if reader.flag():
                each = _DIGEST.iter_unpack(reader.take(count * DIGEST_BYTES))
                digests = starmap(int.from_bytes, each)
            one = take_offset(Reader(rest[:_VERSION_BYTES] + _NO_OFFSET + rest[_VERSION_BYTES:]))
            made = map(
                Offset,
                numbers,
                repeat(one.metadata),
                repeat(one.end_offset),
                repeat(one.member_id),
                repeat(one.generation),
                repeat(one.commit_seq),
                repeat(one.wall_ms),
                repeat(one.start_offset),
                repeat(one.leader_epoch),
                digests,
                repeat(len(rest) + INT_BYTES),
            )
            keys = zip(repeat(topic, count), partitions, strict=True)
            offsets.update(zip(keys, made, strict=True))
            left -= count
        return offsets


class OffsetPacking:
    """Packs offsets that are added one after the other."""

    __slots__ = ("_digests", "_parts", "_rest", "_rows", "_topic", "count")

    def __init__(self) -> None:
        self.count = 0
        self._parts: list[bytes] = []
        self._topic: bytes | None = None
        self._rest = b""
        self._rows: list[bytes] = []
        self._digests: list[int | None] = []

    def add_record(self, topic: bytes, partition: bytes, value: bytes, digest: int | None) -> None:
        """Add one by its record: the parts of its key, each as it stands there, and its value.

        `digest` is that of the record, None is not known. Raises RecordError where the record
        cannot be read.
        """
        rest = value[:_VERSION_BYTES] + value[_OFFSET_END:]
        if rest != self._rest or topic != self._topic:
            take_offset(Reader(value))
            reader = Reader(topic)
            reader.text()
            reader.end()
            self._begin_run(topic, rest)
        self._rows.append(partition + value[_VERSION_BYTES:_OFFSET_END])
        self._digests.append(digest)
        self.count += 1

    def add(self, offsets: Mapping[tuple[str, int], Offset]) -> None:
        """Add offsets as they are held in use."""
        rows, digests, last = self._rows, self._digests, None
        for (topic, partition), one in offsets.items():
            shared = (
                topic,
                one.metadata,
                one.end_offset,
                one.member_id,
                one.generation,
                one.commit_seq,
                one.wall_ms,
                one.start_offset,
                one.leader_epoch,
            )
            if shared != last:
                value = put_offset(one)
                rest = value[:_VERSION_BYTES] + value[_OFFSET_END:]
                self._begin_run(put_text(topic), rest)
                rows, digests, last = self._rows, self._digests, shared
            rows.append(_ROW.pack(partition, one.offset))
            digests.append(one.digest)
        self.count += len(offsets)

    def _begin_run(self, topic: bytes, rest: bytes) -> None:
        self._end_run()
        self._topic, self._rest = topic, rest

    def _end_run(self) -> None:
        if self._topic is not None and self._rows:
            self._parts += (self._topic, put_bytes(self._rest), put_count(len(self._rows)))
            self._parts += self._rows
            known = [one.to_bytes(DIGEST_BYTES) for one in self._digests if one is not None]
            self._parts += (b"\x01", *known) if len(known) == len(self._rows) else (b"\x00",)
            self._rows, self._digests = [], []

    def packed(self) -> PackedOffsets:
        """Return all that were added."""
        self._end_run()
        return PackedOffsets(put_count(self.count) + b"".join(self._parts))


class OffsetsInUse:
    """The groups of a shard whose offsets are objects: no state, since what is packed is equal.

    Where room is wanted, groups that were used once are packed first, the oldest of them at the
    front, then that which was not used for the longest. Each SETTLED_EVERYth that comes counts as
    used again. So where more groups take turns than have room, most of them stay; were it always
    the one that waits the longest, none would find its offsets when its turn comes (bimodal
    insertion: Qureshi et al., Adaptive Insertion Policies, ISCA 2007).
    """

    __slots__ = ("_came", "_count", "_settled", "_used_once")

    def __init__(self) -> None:
        self._used_once: dict[str, int] = {}
        self._settled: dict[str, int] = {}
        """Those used last at the end; of both, a group's count."""
        self._count = self._came = 0

    @property
    def group_ids(self) -> tuple[str, ...]:
        """The groups, of which some may be deleted; as many as USED_OFFSETS_MAX at most."""
        return (*self._used_once, *self._settled)

    def use(self, groups: Mapping[str, Group], group: Group, packs: Callable[[str], None]) -> None:
        """Have the offsets of `group`, which is one of `groups`, as objects from now on.

        `packs` is told of each group before its offsets are packed, of which all are hashed then.
        """
        settled, group_id, stored = self._settled, group.group_id, group.stored
        count = 1 + len(stored if isinstance(stored, dict) else group.thawed())
        before = settled.pop(group_id, 0) or self._used_once.pop(group_id, 0)
        if count == before:  # as nearly always
            settled[group_id] = count
            return
        self._count -= before
        if count > PACKED_OFFSETS_MAX:
            return
        self._count += count
        while self._count > USED_OFFSETS_MAX and (self._used_once or settled):
            self._pack_one(groups, packs)
        (settled if before or self._is_nth() else self._used_once)[group_id] = count

    def _is_nth(self) -> bool:
        """Whether the group that comes into use now is to stay as if it was used again."""
        self._came += 1
        if self._came < SETTLED_EVERY:
            return False
        self._came = 0
        return True

    def _pack_one(self, groups: Mapping[str, Group], packs: Callable[[str], None]) -> None:
        some = self._used_once or self._settled
        first = next(iter(some))
        self._count -= some.pop(first)
        packs(first)
        _pack(groups.get(first))


def _pack(group: Group | None) -> None:
    """Pack the offsets of a group, unless there are none, or they have become too many."""
    stored = {} if group is None else group.stored
    if group is not None and isinstance(stored, dict) and 0 < len(stored) < PACKED_OFFSETS_MAX:
        packing = OffsetPacking()
        packing.add(stored)
        group.stored = packing.packed()
