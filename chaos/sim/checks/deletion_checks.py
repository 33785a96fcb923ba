"""Groups and offsets that are deleted (deleter.py) or expire, and what must hold then.

What a member's values promise is kept by group and partition, as callers see it: a value that was
acknowledged is read until somebody asks to delete it or it expires, and what was deleted is never
read again. Values rise for ever, so that an old one is told from a new one.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.coordinator.machine.events import (
    BlobCommitted,
    Ending,
    GroupDeleted,
    GroupEmptied,
    OffsetCommitted,
    OffsetRemoved,
    PendingAdded,
    RebalanceStarted,
)
from musterd.coordinator.machine.shard_state import CommandResult, Entry
from musterd.coordinator.runtime.retention import Retention
from musterd.coordinator.runtime.shard import Shard

RETENTION = Retention(offsets_ms=600, interval_ms=250)
"""So short that a group without members loses what it stored within the run."""

Key = tuple[str, int]
"""Group and partition."""


@dataclass(slots=True)
class Promises:
    """What was acknowledged, and what may never be seen again, of one shard."""

    shard: ShardChecker
    acked: dict[Key, int] = field(default_factory=dict)
    """Greatest value that must be there."""
    attempted: dict[Key, int] = field(default_factory=dict)
    gone: dict[Key, int] = field(default_factory=dict)
    """Values up to this were deleted for good."""
    _asked: Counter[Key] = field(default_factory=Counter)
    """How often a deletion was asked for, or an expiry happened."""
    _open: Counter[Key] = field(default_factory=Counter)
    """Deletions without an answer."""
    _stored_ms: dict[Key, int] = field(default_factory=dict)
    _emptied_ms: dict[str, int] = field(default_factory=dict)
    """Since when the groups without members have none."""
    _seen: int = 0

    # -- members

    def attempt(self, key: Key, value: int) -> int:
        """A commit is sent; the token goes with its acknowledgement."""
        self.attempted[key] = max(value, self.attempted.get(key, 0))
        return self._asked[key]

    def acknowledged(self, key: Key, value: int, token: int) -> None:
        """A commit was acknowledged: it stands unless a deletion may have come after it."""
        if token == self._asked[key] and not self._open[key]:
            self.acked[key] = max(value, self.acked.get(key, 0))

    def reading(self, key: Key) -> tuple[int, int, int]:
        """A strict read begins: what `read` is held against."""
        return self.acked.get(key, 0), self.gone.get(key, 0), self._asked[key]

    def read(self, key: Key, before: tuple[int, int, int], value: int) -> None:
        """inv-I1, inv-I13: it sees what was acknowledged before it, and nothing that was deleted.

        `value`: 0 where nothing is stored.
        """
        acked, gone, token = before
        attempted = self.attempted.get(key, 0)
        least = acked if token == self._asked[key] else 0
        if not least <= value <= attempted:
            self.shard.violated(
                "H-offset-lost",
                group=key[0],
                partition=key[1],
                acknowledged=least,
                read=value,
                attempted=attempted,
            )
        if 0 < value <= gone:
            self.shard.violated("H-deleted-came-back", group=key[0], partition=key[1], read=value)

    # -- the operator

    def delete_asked(self, keys: list[Key]) -> dict[Key, int]:
        """From now on these may be gone; returns what has been attempted so far."""
        for key in keys:
            self._asked[key] += 1
            self._open[key] += 1
            self.acked.pop(key, None)
        return {key: self.attempted.get(key, 0) for key in keys}

    def delete_answered(self, attempted: dict[Key, int], gone: Callable[[Key], bool]) -> None:
        """What was stored then is gone for good where `gone` says so."""
        for key, value in attempted.items():
            self._open[key] -= 1
            if gone(key):
                self.gone[key] = max(value, self.gone.get(key, 0))

    # -- retention

    def watch(
        self,
        _node: int,
        _shard: Shard,
        index: int,
        entry: Entry,
        results: tuple[CommandResult, ...],
    ) -> None:
        """The first replica to apply an entry shows what expired, and whether it was due."""
        if index <= self._seen:
            return
        self._seen = index
        for event in (event for result in results for event in result.events):
            match event:
                case OffsetCommitted():
                    self._stored_ms[event.group_id, event.partition] = event.wall_ms
                case GroupEmptied():
                    self._emptied_ms[event.group_id] = entry.wall_ms
                case RebalanceStarted():
                    self._emptied_ms.pop(event.group_id, None)
                case OffsetRemoved(ending=Ending.EXPIRED):
                    self._expired((event.group_id, event.partition), event.offset, entry.wall_ms)
                case GroupDeleted(ending=Ending.DELETED):
                    self.shard.counts.deleted += 1
                case PendingAdded():
                    self.shard.counts.handed_out += 1
                case BlobCommitted():
                    self.shard.counts.atomic += 1
                case _:
                    pass

    def _expired(self, key: Key, value: int, wall_ms: int) -> None:
        self.shard.counts.expired += 1
        age_ms = wall_ms - max(self._stored_ms[key], self._emptied_ms.get(key[0], 0))
        if age_ms < RETENTION.offsets_ms:
            self.shard.violated("H-expired-early", group=key[0], partition=key[1], age_ms=age_ms)
        self._asked[key] += 1
        self.acked.pop(key, None)
        self.gone[key] = max(value, self.gone.get(key, 0))
