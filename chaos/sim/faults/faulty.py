"""A simulation as its faults see it: what they may ask, and what they may do to it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from musterd.chaos.sim.engine.network import Network
from musterd.chaos.sim.faults.schedule import Draws
from musterd.raft.contract import Room


class FaultyClient(Protocol):
    """A client's process as the faults see it."""

    paused_until_s: float

    @property
    def alive(self) -> bool: ...


class FaultyClients(Protocol):
    """The clients' connections as the faults see them."""

    def reset_all(self, node: int | None = None) -> int:
        """Break every connection to a node; says how many there were."""


class FaultyNode(Protocol):
    """A node as the faults see it."""

    crash_after_sends: int | None
    sync_stalled_until_s: float
    """Nothing written is on the disk before this time."""
    sync_hangs_until_s: float
    """The same, of a sync that is under way, too."""
    paused_until_s: float
    incarnation: int

    @property
    def alive(self) -> bool: ...
    @property
    def room(self) -> Room:
        """What its disk has room for."""

    def set_room(self, room: Room) -> None: ...
    @property
    def leads(self) -> bool: ...
    @property
    def is_being_admitted(self) -> bool:
        """Whether a log has begun to admit its store, and has not come further."""

    def set_clock_rate(self, rate: float) -> None: ...

    def transfer_leadership(self, to: int | None = None) -> None: ...
    def drain(self) -> None: ...
    def stall_writes(self, count: int) -> None: ...
    def fail_sync(self) -> None:
        """The next sync fails: EIO."""

    def fill_disk(self) -> None:
        """Writes fail from now on."""


class FaultyWorld(Protocol):
    """A world as the faults see it."""

    now: float
    net: Network
    trace: Callable[[str], None] | None

    @property
    def fault_nodes(self) -> Sequence[FaultyNode]: ...
    @property
    def fault_clients(self) -> FaultyClients | None:
        """Where clients have connections."""

    @property
    def client_processes(self) -> Sequence[FaultyClient]: ...
    def schedule(self, delay_s: float, run: Callable[..., None], *args: object) -> None: ...
    def crash(self, node: int, *, power_cut: bool, down_s: float | None = None) -> None: ...
    def spoil(self, node: int) -> bool:
        """Make a follower's applied state wrong, and notice it; False where that is too much."""

    def wipe(self, node: int) -> bool:
        """Wipe a node and start it as if nothing were; False where that is not allowed now."""

    def start_late(self) -> None:
        """Start the node that was never started, if there is one."""

    def replace(self, node: int) -> bool:
        """Wipe a node and start the operator's procedure; False where that is not allowed now."""

    def forget(self, node: int, age_s: float, kind: str, dies: int | None = None) -> bool:
        """Copy a node's disk, and put the copy back so much later, when node `dies` dies.

        Counts it as `kind` then; False.
        """

    def replace_early(self, node: int) -> bool:
        """The same, for who asks the leaders alone whether there is a node to spare."""


class Injector(Protocol):
    """Who injects a fault: the world it happens in, and the draws of this one fault."""

    world: FaultyWorld
    rng: Draws
    until_s: float
    """No fault begins later."""
