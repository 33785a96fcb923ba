"""Cuts: shards' states at one applied index each, read in slices for a backup.

A cut is a scan of the stored state, which later writes do not disturb, and the running digest of
the same moment. It holds the files of that moment until it was read to its end, or nobody has
read it for a while.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from musterd.coordinator.integrity.frozen import Disk
from musterd.coordinator.runtime.timeouts import CUT_IDLE_MS

CUTS_MAX: Final = 4
"""Cuts of a node at a time that are being read: one for each of as many backups.

As many that were read to their end are kept beside them, for a call that was not answered.
"""

SLICE_BYTES: Final = 64 * 1024
"""Keys and values of a slice; its last record may exceed it."""

SLICE_RECORDS: Final = 250
"""Records of a slice: reading them holds the loop for less than a millisecond."""


class Slice(NamedTuple):
    """Some records (key, value) of a cut, in rising order of keys; `last`: there are no more."""

    records: list[tuple[bytes, bytes]]
    last: bool


@dataclass(slots=True)
class Cut:
    """A shard's state at `index`, as it is read."""

    id: bytes
    """16 bytes, drawn: whoever read it so far asks for the rest by it."""
    shard: int
    index: int
    term: int
    """The term that the replica was in."""
    digest: int
    records: Iterator[tuple[bytes, bytes]]
    number: int = -1
    """The number of the slice that was read last, from 0."""
    slice: Slice = field(default_factory=lambda: Slice([], last=False))
    timer: asyncio.TimerHandle | None = None

    def read(self, number: int) -> Slice | None:
        """A slice by its number: the one after the last that was read, or that one again."""
        if number == self.number:
            return self.slice
        if number != self.number + 1 or self.slice.last:
            return None
        self.number, self.slice = number, _slice(self.records)
        return self.slice


class BackupCuts:
    """The cuts of one node that are being read."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._cuts: dict[bytes, Cut] = {}

    @property
    def full(self) -> bool:
        """True where so many are read that no other one is begun."""
        return sum(not cut.slice.last for cut in self._cuts.values()) >= CUTS_MAX

    def begin(self, shard: int, term: int) -> Cut | None:
        """Cut a shard now; None where the disk asks to wait."""
        frozen = self._disk.freeze(shard)
        if frozen is None:
            return None
        index, records = frozen.view.applied_index, frozen.view.scan()
        cut = Cut(secrets.token_bytes(16), shard, index, term, frozen.digest, records)
        cut.read(0)  # begins the scan: nothing else has run since the digest was read
        over = [one.id for one in self._cuts.values() if one.slice.last]
        for ended in over[: max(0, len(over) - CUTS_MAX + 1)]:
            self.end(ended)
        self._cuts[cut.id] = cut
        self._hold(cut)
        return cut

    def find(self, cut_id: bytes) -> Cut | None:
        """A cut that is being read; None where it has ended."""
        cut = self._cuts.get(cut_id)
        if cut is not None:
            self._hold(cut)
        return cut

    def end(self, cut_id: bytes) -> None:
        """Let go of what a cut holds."""
        cut = self._cuts.pop(cut_id, None)
        if cut is None:
            return
        if cut.timer is not None:
            cut.timer.cancel()
        close: Callable[[], None] | None = getattr(cut.records, "close", None)
        if close is not None:
            close()

    def close(self) -> None:
        """End all cuts: the store is closed next."""
        for cut_id in list(self._cuts):
            self.end(cut_id)

    def _hold(self, cut: Cut) -> None:
        if cut.timer is not None:
            cut.timer.cancel()
        loop = asyncio.get_running_loop()
        cut.timer = loop.call_later(CUT_IDLE_MS / 1_000, self.end, cut.id)


def _slice(records: Iterator[tuple[bytes, bytes]]) -> Slice:
    taken: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in records:
        taken.append((key, value))
        size += len(key) + len(value)
        if size >= SLICE_BYTES or len(taken) >= SLICE_RECORDS:
            return Slice(taken, last=False)
    return Slice(taken, last=True)
