"""The simulator's own state machine: commands and their running digest, kept as state keys."""

from collections.abc import Callable

from musterd.chaos.sim.checks.shard_checks import GENESIS, chain
from musterd.raft.contract import Examination, Role, StateBatch, StateView

DIGEST_KEY = b"d"
COMMAND_KEY = b"c"
"""Prefix; the index follows, so that a scan gives the history in order."""

Applied = Callable[[int, bytes, bytes], None]
"""index, entry, digest through it"""
Reloaded = Callable[[int, bytes], None]
"""applied index, digest"""


class History:
    """Applies entries that begin with a command number of 8 bytes; the rest is padding."""

    def __init__(self, applied: Applied, reloaded: Reloaded) -> None:
        self._on_applied, self._on_reloaded = applied, reloaded
        self.commands: list[int] = []
        self.digest = GENESIS

    def apply(self, index: int, term: int, entry: bytes, batch: StateBatch) -> object:
        command = int.from_bytes(entry[:8], "big")
        self.commands.append(command)
        self.digest = chain(self.digest, index, entry)
        batch.put(COMMAND_KEY + index.to_bytes(8, "big"), entry[:8])
        batch.put(DIGEST_KEY, self.digest)
        self._on_applied(index, entry, self.digest)
        return command

    def reload(self, view: StateView) -> None:
        self.commands = [int.from_bytes(v, "big") for _, v in view.scan(COMMAND_KEY)]
        self.digest = view.get(DIGEST_KEY) or GENESIS
        self._on_reloaded(view.applied_index, self.digest)

    def examine(self) -> Examination:
        return lambda _key, _value: True

    def role_changed(self, role: Role, term: int) -> None:
        return
