"""What runs on a simulated node's replicas: the slot for a state machine."""

from collections.abc import Callable
from typing import Protocol

from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.engine.machine import History
from musterd.raft.contract import StateMachine
from musterd.raft.driver import Driver

Reloads = Callable[[], bool]
"""True while the process starts, so that a reload is no snapshot."""


class App(Protocol):
    """One process's state machines."""

    def machine(self, shard: int) -> StateMachine:
        """The state machine of one shard, made once."""

    def attach(self, driver: Driver) -> None:
        """The replicas stand; nothing runs yet."""

    def timer(self, late_s: float) -> None:
        """The node's timer came, so many seconds late."""

    def spoil(self, shard: int) -> None:
        """Make the state in memory wrong, where the machine can do that."""

    def final(self, shard: int) -> tuple[list[int], bytes]:
        """The history of commands, as far as there is one, and the digest of the state."""


class HistoryApp:
    """The simulator's own machine: see machine.py."""

    def __init__(
        self, node: int, life: int, checkers: list[ShardChecker], starting: Reloads
    ) -> None:
        self._node, self._life, self._checkers, self._starting = node, life, checkers, starting
        self._machines: dict[int, History] = {}

    def machine(self, shard: int) -> History:
        checker = self._checkers[shard]

        def applied(index: int, entry: bytes, digest: bytes) -> None:
            checker.applied(self._node, self._life, index, entry, digest)

        def reloaded(applied_index: int, digest: bytes) -> None:
            snapshot = not self._starting()
            checker.reloaded(self._node, applied_index, digest, snapshot=snapshot)

        self._machines[shard] = History(applied, reloaded)
        return self._machines[shard]

    def attach(self, driver: Driver) -> None:
        return

    def timer(self, late_s: float) -> None:
        return

    def spoil(self, shard: int) -> None:
        machine = self._machines[shard]
        machine.commands, machine.digest = [], b"spoilt"

    def final(self, shard: int) -> tuple[list[int], bytes]:
        machine = self._machines[shard]
        return machine.commands, machine.digest
