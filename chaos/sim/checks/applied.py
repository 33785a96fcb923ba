"""The entry that a node applied, as the checks of groups get it."""

from collections.abc import Callable
from dataclasses import dataclass

from musterd.coordinator.machine.events import Event
from musterd.coordinator.machine.shard_state import CommandResult, Entry
from musterd.coordinator.runtime.shard import Shard


@dataclass(frozen=True, slots=True)
class Applied:
    """An entry, the node that has applied it, and that node's shard after it."""

    node: int
    shard: Shard
    index: int
    entry: Entry
    results: tuple[CommandResult, ...]

    @property
    def events(self) -> list[Event]:
        """Those of all its commands, in order."""
        return [event for result in self.results for event in result.events]


Watch = Callable[[Applied], None]
