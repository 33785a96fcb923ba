"""Proposes to expire offsets: the leader looks through its groups, a few a turn (gp-4.5).

It only guesses: what it proposes carries its own wall time and a bounded list, and every replica
decides by these.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from musterd.coordinator.machine.commands import ExpireOffsets
from musterd.coordinator.machine.decide.delete import due_offsets, is_idle
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.state import Group
from musterd.coordinator.runtime.timeouts import SWEEP_INTERVAL_MS

SWEEP_GROUPS_PER_TURN: Final = 100
SWEEP_OFFSETS_PER_TURN: Final = 5_000
"""Looked at in one turn; the group that reaches it is the turn's last."""

_PARTITION_BYTES: Final = 24
"""Bytes of a partition in a command, besides its topic."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of offsets (0 = for ever) and the time between two sweeps, in ms."""

    offsets_ms: int = LIMITS.offset_retention_ms
    interval_ms: int = SWEEP_INTERVAL_MS


RETENTION: Final = Retention()


class Sweep:
    """One shard's way through its groups, while this node leads it."""

    def __init__(self, retention: Retention, clock_ms: int) -> None:
        """The first sweep is an interval away from `clock_ms`."""
        self._retention = retention
        self._due_ms = clock_ms + retention.interval_ms
        self._left: deque[str] = deque()

    def turn(
        self, clock_ms: int, wall_ms: int, groups: Mapping[str, Group]
    ) -> Iterator[ExpireOffsets]:
        """Return the sweep's commands of this turn."""
        if not self._left and clock_ms >= self._due_ms:
            self._left.extend(groups)
            self._due_ms = clock_ms + self._retention.interval_ms
        looked_at = 0
        for _ in range(min(len(self._left), SWEEP_GROUPS_PER_TURN)):
            if looked_at >= SWEEP_OFFSETS_PER_TURN:
                return
            group = groups.get(self._left.popleft())
            if group is None:
                continue
            looked_at += group.offset_count
            command = self._look_at(group, wall_ms)
            if command is not None:
                yield command

    def _look_at(self, group: Group, wall_ms: int) -> ExpireOffsets | None:
        kept_ms, most = self._retention.offsets_ms, LIMITS.sweep_max_partitions
        due = tuple(islice(due_offsets(group, wall_ms, kept_ms), most))
        if not due and (group.offset_count or not is_idle(group)):
            return None
        return ExpireOffsets(group.group_id, wall_ms, kept_ms, due)


def command_bytes(command: ExpireOffsets, margin_bytes: int) -> int:
    """At most so many bytes does it take in an entry; `margin_bytes` is for all but the list."""
    return margin_bytes + sum(len(t.encode()) + _PARTITION_BYTES for t, _ in command.partitions)
