"""Offsets may expire only once they are old enough, and once their group was empty for so long."""

from dataclasses import dataclass, field

from musterd.chaos.sim.checks.applied import Applied
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.coordinator.machine.events import (
    ConsumerGroupEmptied,
    ConsumerJoined,
    Ending,
    GroupDeleted,
    GroupEmptied,
    OffsetCommitted,
    OffsetRemoved,
    PendingAdded,
    RebalanceStarted,
)
from musterd.coordinator.runtime.retention import Retention

RETENTION = Retention(offsets_ms=600, interval_ms=250)
"""So short that a group without members loses what it stored within the run."""


@dataclass(slots=True)
class Expiries:
    """Checks every offset of one shard that expires."""

    shard: ShardChecker
    _stored_ms: dict[tuple[str, int], int] = field(default_factory=dict)
    _emptied_ms: dict[str, int] = field(default_factory=dict)
    """Since when the groups without members have none."""

    def watch(self, one: Applied) -> None:
        """Check that what expired was due."""
        for event in one.events:
            match event:
                case OffsetCommitted():
                    self._stored_ms[event.group_id, event.partition] = event.wall_ms
                case GroupEmptied() | ConsumerGroupEmptied():
                    self._emptied_ms[event.group_id] = one.entry.wall_ms
                case RebalanceStarted() | ConsumerJoined():
                    self._emptied_ms.pop(event.group_id, None)
                case OffsetRemoved(ending=Ending.EXPIRED):
                    self._expired(event.group_id, event.partition, one.entry.wall_ms)
                case GroupDeleted(ending=Ending.DELETED):
                    self.shard.counts.deleted += 1
                case PendingAdded():
                    self.shard.counts.handed_out += 1
                case _:
                    pass

    def _expired(self, group: str, partition: int, wall_ms: int) -> None:
        self.shard.counts.expired += 1
        since_ms = max(self._stored_ms[group, partition], self._emptied_ms.get(group, 0))
        if wall_ms - since_ms < RETENTION.offsets_ms:
            self.shard.violated(
                "H-expired-early", group=group, partition=partition, age_ms=wall_ms - since_ms
            )
