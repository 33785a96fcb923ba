"""Faults of resources: too little CPU, memory, or too few files to open."""

import os
import resource
from random import Random

from chaos.child import Child
from chaos.faults.choosing import one_of
from chaos.faults.contract import Fault, Group, Injected, fault
from chaos.faults.disk import SETTLE_S, last_words, wait_end
from chaos.world import limits
from chaos.world.limits import CpuLimit, MemoryLimit
from chaos.world.network import node_place
from chaos.world.world import World

CPU_SHARES = (0.03, 0.2)
"""Of one CPU's time."""
SPARE_BYTES = 256 * 1024
"""Memory that a node has left at first."""
SPARE_FILES = 2
CALLERS = 64
"""Connections that are opened to a node that cannot have them."""


class _ResourceFault(Fault):
    """One node, which gets what it needs again at heal."""

    group = Group.RESOURCE

    def __init__(self) -> None:
        """Nobody lacks anything."""
        self._hit: list[int] = []
        self._facts: dict[str, object] = {}

    def _injected(self, detail: str) -> Injected:
        targets = tuple(node_place(one) for one in self._hit)
        return Injected(targets, detail, facts=self._facts)

    def _revive(self, world: World, node_id: int) -> None:
        """Start it if it has ended, or is about to. Facts: `exit_code`, `message`."""
        code = wait_end(world, node_id, SETTLE_S)
        self._facts |= {
            "node": node_id,
            "exit_code": code,
            "message": "" if code is None else last_words(world, node_id),
        }
        world.start_if_down(node_id)


@fault
class CpuStarvation(_ResourceFault):
    """A few milliseconds of CPU in every 100."""

    kind = "cpu_starvation"
    title = "one node gets 3 to 20 % of one CPU"
    needs = frozenset({"cpu_limit"})

    def inject(self, world: World, rng: Random) -> Injected:
        """Set its share."""
        node_id, share = one_of(world, world.running(), rng), round(rng.uniform(*CPU_SHARES), 3)
        self._hit = [node_id]
        cpu = world.equipped(CpuLimit)
        self._facts["throttled"] = -cpu.throttled(node_id)
        cpu.limit(node_id, share)
        return self._injected(f"{share:.1%} of a CPU")

    def heal(self, world: World) -> None:
        """Lift the limit. Facts: `throttled`: in how many periods of 0.1 s it ran out."""
        while self._hit:
            node_id = self._hit[-1]
            cpu = world.equipped(CpuLimit)
            cpu.lift(node_id)
            before = self._facts.get("throttled", 0)
            if isinstance(before, int):
                self._facts["throttled"] = before + cpu.throttled(node_id)
            self._hit.pop()


@fault
class BusyHost(_ResourceFault):
    """Everybody on the machine competes with loops that do nothing."""

    kind = "busy_host"
    title = "two busy processes per CPU compete with nodes and clients"

    def __init__(self) -> None:
        """Nobody is busy."""
        super().__init__()
        self._loops: list[Child] = []

    def inject(self, world: World, rng: Random) -> Injected:
        """Start them."""
        del rng
        self._hit = world.running()
        count = 2 * (os.cpu_count() or 1)
        for number in range(count):
            self._loops.append(Child("chaos.faults.busy", {"name": str(number)}))
        return self._injected(f"{count} busy processes")

    def heal(self, world: World) -> None:
        """End them."""
        del world
        self._hit.clear()
        while self._loops:
            self._loops[-1].process.kill()
            self._loops[-1].close()
            self._loops.pop()


@fault
class MemoryShort(_ResourceFault):
    """Hardly more memory than it has now; the kernel kills it when it needs more."""

    kind = "memory_short"
    title = "one node may take no more memory: it makes do, or the kernel kills it"
    needs = frozenset({"memory_limit"})

    def inject(self, world: World, rng: Random) -> Injected:
        """Set the limit. Facts after heal: `oom_kills`, `exit_code`."""
        node_id = one_of(world, world.running(), rng)
        self._hit = [node_id]
        memory = world.equipped(MemoryLimit)
        self._facts["oom_kills"] = -memory.killed(node_id)
        limit_bytes = memory.limit(node_id, memory.resident(node_id) + SPARE_BYTES)
        return self._injected(f"{limit_bytes} bytes at most")

    def heal(self, world: World) -> None:
        """Lift the limit, and start the node if it was killed."""
        while self._hit:
            node_id = self._hit[-1]
            memory = world.equipped(MemoryLimit)
            memory.lift(node_id)
            before = self._facts.get("oom_kills", 0)
            if isinstance(before, int):
                self._facts["oom_kills"] = before + memory.killed(node_id)
            self._revive(world, node_id)
            self._hit.pop()


@fault
class OutOfFiles(_ResourceFault):
    """No file can be opened, no connection taken, while many want to connect."""

    kind = "out_of_files"
    title = "one node can open no more files while 64 clients connect to it"

    def __init__(self) -> None:
        """Everybody can open files."""
        super().__init__()
        self._before: dict[int, tuple[int, tuple[int, int]]] = {}
        self._callers: Child | None = None

    def inject(self, world: World, rng: Random) -> Injected:
        """Limit, then connect. Facts after heal: `exit_code`."""
        node_id = one_of(world, world.running(), rng)
        self._hit = [node_id]
        pid = world.nodes[node_id].pid
        count = limits.open_files(pid) + SPARE_FILES
        self._before[node_id] = (pid, limits.limit_open_files(pid, count))
        self._callers = Child(
            "chaos.faults.callers",
            {"endpoint": world.nodes[node_id].endpoint, "count": CALLERS},
            wrap=world.client_command,
        )
        told = self._callers.ready()
        return self._injected(f"{count} files at most, {told['connected']} connections tried")

    def heal(self, world: World) -> None:
        """End the connections, give the limit back, start the node if it has ended."""
        if self._callers is not None:
            self._callers.close()
            self._callers = None
        while self._hit:
            node_id = self._hit[-1]
            process = world.nodes[node_id].process
            pid, before = self._before.get(node_id, (0, (0, 0)))
            if process is not None and process.poll() is None and process.pid == pid:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            self._revive(world, node_id)
            self._hit.pop()
