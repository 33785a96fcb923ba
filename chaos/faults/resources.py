"""Faults of resources: too little CPU, memory, or too few files to open."""

import contextlib
import resource
import socket
from random import Random

from musterd.chaos.faults.contract import FaultGroup, NodeFault, Sight, Watched, fault
from musterd.chaos.faults.disk import SETTLE_S
from musterd.chaos.world.equipment import limits
from musterd.chaos.world.equipment.limits import Limits
from musterd.chaos.world.world import World
from musterd.coordinator.node.config import split_address

CPU_SHARES = (0.03, 0.2)
"""Of one CPU's time."""
SPARE_BYTES = 256 * 1024
"""Memory that a node has left at first."""
SPARE_FILES = 2
CALLERS = 64
"""Connections that are opened to a node that cannot have them."""
CONNECT_S_MAX = 0.2
"""Longer waits only the one whom nobody takes."""


@fault
class CpuStarvation(NodeFault, Watched):
    kind = "cpu_starvation"
    title = "one node gets 3 to 20 % of one CPU"
    group = FaultGroup.RESOURCE
    needs = frozenset({"limits"})

    _before = 0

    def harm(self, world: World, node_id: int, rng: Random) -> str:
        limited, share = world.equipped(Limits), round(rng.uniform(*CPU_SHARES), 3)
        self._before = limited.throttled(node_id)
        limited.limit_cpu(node_id, share)
        return f"{share:.1%} of a CPU"

    def mend(self, world: World, node_id: int) -> None:
        world.equipped(Limits).lift(node_id)

    def look(self, world: World) -> Sight:
        periods = world.equipped(Limits).throttled(self.hit[0]) - self._before
        return periods > 0, f"its share ran out in {periods} periods of 0.1 s"


@fault
class MemoryShort(NodeFault, Watched):
    kind = "memory_short"
    title = "one node may take no more memory: it makes do, or the kernel kills it"
    group = FaultGroup.RESOURCE
    needs = frozenset({"limits"})

    _before = 0, 0

    def harm(self, world: World, node_id: int, rng: Random) -> str:
        """Set the limit. Facts after heal: `exit_code`."""
        limited = world.equipped(Limits)
        self._before = limited.memory_kills(node_id), limited.memory_reached(node_id)
        wanted = limited.memory_resident(node_id) + SPARE_BYTES
        limit_bytes = limited.limit_memory(node_id, wanted)
        return f"{limit_bytes} bytes at most"

    def mend(self, world: World, node_id: int) -> None:
        world.equipped(Limits).lift(node_id)
        self.ended(world, node_id, SETTLE_S)
        world.start_if_down(node_id)

    def look(self, world: World) -> Sight:
        limited, (node_id,) = world.equipped(Limits), self.hit
        kills = limited.memory_kills(node_id) - self._before[0]
        reached = limited.memory_reached(node_id) - self._before[1]
        return reached + kills > 0, f"the limit was reached {reached} times, {kills} kills"


@fault
class OutOfFiles(NodeFault, Watched):
    kind = "out_of_files"
    title = "one node can open no more files while 64 clients connect to it"
    group = FaultGroup.RESOURCE

    _before: tuple[int, int] | None = None
    """The limits of the process."""

    def __init__(self) -> None:
        super().__init__()
        self._callers = contextlib.ExitStack()

    def harm(self, world: World, node_id: int, rng: Random) -> str:
        """Limit, then connect. Facts after heal: `exit_code`."""
        node = world.nodes[node_id]
        self._pid = node.pid
        self._most = limits.open_files(node.pid) + SPARE_FILES
        self._before = limits.limit_open_files(node.pid, self._most)
        for _ in range(CALLERS):
            with contextlib.suppress(OSError):
                self._callers.enter_context(_connected(node.addresses.control))
        return f"{self._most} files at most, {CALLERS} connections tried"

    def look(self, world: World) -> Sight:
        """It has as many open as it may, or has ended for it."""
        if not self._runs(world):
            return True, "it ended by itself"
        opened = limits.open_files(self._pid)
        return opened >= self._most, f"it had {opened} of {self._most} files open"

    def mend(self, world: World, node_id: int) -> None:
        self._callers.close()
        if self._before is not None and self._runs(world):
            with contextlib.suppress(ProcessLookupError):  # it ends just now
                resource.prlimit(self._pid, resource.RLIMIT_NOFILE, self._before)
        self.ended(world, node_id, SETTLE_S)
        world.start_if_down(node_id)

    def _runs(self, world: World) -> bool:
        process = world.nodes[self.hit[0]].process
        return process is not None and process.pid == self._pid and process.poll() is None


def _connected(control: str) -> socket.socket:
    """Return a connection to a node, which is on loopback or behind a socket of its network."""
    kind, _, path = control.partition(":")
    if kind != "unix":
        return socket.create_connection(split_address(control), CONNECT_S_MAX)
    caller = socket.socket(socket.AF_UNIX)
    try:
        caller.settimeout(CONNECT_S_MAX)
        caller.connect(path)
    except OSError:
        caller.close()
        raise
    return caller
