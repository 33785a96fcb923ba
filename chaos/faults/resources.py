"""Faults of resources: too little CPU, memory, or too few files to open."""

import contextlib
import os
import re
import resource
import time
from pathlib import Path
from random import Random

from musterd.chaos.child import Child
from musterd.chaos.faults.contract import FaultError, Group, Injected, Sight, Watched, fault
from musterd.chaos.faults.disk import SETTLE_S, last_words, wait_end
from musterd.chaos.faults.load import deleted
from musterd.chaos.world import process_state
from musterd.chaos.world.equipment import limits
from musterd.chaos.world.equipment.limits import Limits
from musterd.chaos.world.world import World
from musterd.coordinator.node.loopback import node_place

CPU_SHARES = (0.03, 0.2)
"""Of one CPU's time."""
SPARE_BYTES = 256 * 1024
"""Memory that a node has left at first."""
SPARE_FILES = 2
CALLERS = 64
"""Connections that are opened to a node that cannot have them."""
DEAF_CALLS = 350
"""Calls of a client that reads no answer; each is of 0.3 MB and more."""
DEAF_RISE_MAX_BYTES = 64 << 20
"""What a node's memory may rise by for such a client, and for all else that goes on meanwhile."""
_UNTAKEN = re.compile(r'^muster_throttled_requests_total{limit="untaken_answers"} (\S+)$')
_GROWTH = re.compile(r'^muster_growth_refused_total{limit="group"} (\S+)$')
FILLED_TOPIC = "filled"
FILLED_PARTITIONS = 10_000
FILLED_S_MAX = 40.0
BUSY_SHARE_MIN = 0.1
"""Of one CPU's time that busy processes have to have had, all of them together: on two CPUs that a
run's own processes fill they had 46 %."""


class _ResourceFault(Watched):
    """One node, which gets what it needs again at heal."""

    group = Group.RESOURCE

    def __init__(self) -> None:
        super().__init__()
        self._since: dict[str, int] = {}
        """What counters said when it was injected."""

    def risen(self, name: str, now: int) -> int:
        """By how much a counter has risen since then. A fact, too."""
        self.facts[name] = risen = now - self._since.get(name, now)
        return risen

    def revive(self, world: World, node_id: int) -> None:
        """Start it if it has ended, or is about to. Facts: `exit_code`, `message`."""
        code = wait_end(world, node_id, SETTLE_S)
        self.facts |= {
            "node": node_id,
            "exit_code": code,
            "message": "" if code is None else last_words(world, node_id),
        }
        world.start_if_down(node_id)


@fault
class CpuStarvation(_ResourceFault):
    kind = "cpu_starvation"
    title = "one node gets 3 to 20 % of one CPU"
    needs = frozenset({"limits"})

    def inject(self, world: World, rng: Random) -> Injected:
        node_id, share = self.hit_one(world, rng), round(rng.uniform(*CPU_SHARES), 3)
        limited = world.equipped(Limits)
        self._since["throttled"] = limited.throttled(node_id)
        limited.limit_cpu(node_id, share)
        return self.injected(f"{share:.1%} of a CPU")

    def mend(self, world: World, node_id: int) -> None:
        world.equipped(Limits).lift(node_id)

    def look(self, world: World) -> Sight:
        """Facts: `throttled`: in how many periods of 0.1 s it ran out."""
        periods = self.risen("throttled", world.equipped(Limits).throttled(self.hit[0]))
        return periods > 0, f"its share ran out in {periods} periods of 0.1 s"


@fault
class BusyHost(_ResourceFault):
    kind = "busy_host"
    title = "two busy processes per CPU compete with nodes and clients"

    def __init__(self) -> None:
        super().__init__()
        self._loops: list[Child] = []

    def inject(self, world: World, rng: Random) -> Injected:
        self._since_s = time.monotonic()
        self.hit = world.running()
        count = 2 * (os.cpu_count() or 1)
        for number in range(count):
            self._loops.append(Child("musterd.chaos.faults.busy", {"name": str(number)}))
        return self.injected(f"{count} busy processes")

    def heal(self, world: World) -> None:
        if self._loops:
            self.watch(world)
        self.hit.clear()
        while self._loops:
            self._loops[-1].process.kill()
            self._loops[-1].close()
            self._loops.pop()

    def look(self, world: World) -> Sight:
        ran_s = sum(process_state.ran_s(one.pid) for one in self._loops)
        held_s = time.monotonic() - self._since_s
        return ran_s >= BUSY_SHARE_MIN * held_s, f"they had {ran_s:.1f} s of CPU in {held_s:.1f} s"


@fault
class MemoryShort(_ResourceFault):
    kind = "memory_short"
    title = "one node may take no more memory: it makes do, or the kernel kills it"
    needs = frozenset({"limits"})

    def inject(self, world: World, rng: Random) -> Injected:
        """Set the limit. Facts after heal: `limit_reached`, `oom_kills`, `exit_code`."""
        node_id = self.hit_one(world, rng)
        limited = world.equipped(Limits)
        self._since["oom_kills"] = limited.memory_kills(node_id)
        self._since["limit_reached"] = limited.memory_reached(node_id)
        wanted = limited.memory_resident(node_id) + SPARE_BYTES
        limit_bytes = limited.limit_memory(node_id, wanted)
        return self.injected(f"{limit_bytes} bytes at most")

    def mend(self, world: World, node_id: int) -> None:
        world.equipped(Limits).lift(node_id)
        self.revive(world, node_id)

    def look(self, world: World) -> Sight:
        limited, (node_id,) = world.equipped(Limits), self.hit
        kills = self.risen("oom_kills", limited.memory_kills(node_id))
        reached = self.risen("limit_reached", limited.memory_reached(node_id))
        return reached + kills > 0, f"the limit was reached {reached} times, {kills} kills"


@fault
class OutOfFiles(_ResourceFault):
    kind = "out_of_files"
    title = "one node can open no more files while 64 clients connect to it"

    _callers: Child | None = None
    _limited: tuple[int, tuple[int, int]] | None = None
    """The process, and its limits before."""

    def inject(self, world: World, rng: Random) -> Injected:
        """Limit, then connect. Facts after heal: `exit_code`."""
        node_id = self.hit_one(world, rng)
        pid = world.nodes[node_id].pid
        self._most = count = limits.open_files(pid) + SPARE_FILES
        self._limited = (pid, limits.limit_open_files(pid, count))
        self._callers = Child(
            "musterd.chaos.faults.crowd",
            {"endpoints": [world.nodes[node_id].endpoint], "connect": CALLERS},
            wrap=world.client_command,
        )
        told = self._callers.ready()
        return self.injected(f"{count} files at most, {told['connected']} connections tried")

    def heal(self, world: World) -> None:
        opened = self._opened()
        if self._callers is not None:
            self._callers.close()
            self._callers = None
        super().heal(world)
        if self._limited is not None:
            code = self.facts.get("exit_code")
            self.saw(opened >= self._most, f"it had {opened} of {self._most} files open")
            if code is not None:
                self.saw(True, f"it ended by itself with code {code}")
            self._limited = None

    def mend(self, world: World, node_id: int) -> None:
        process = world.nodes[node_id].process
        if self._limited is not None and process is not None and process.poll() is None:
            pid, before = self._limited
            if process.pid == pid:
                with contextlib.suppress(ProcessLookupError):  # it ends just now
                    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        self.revive(world, node_id)

    def _opened(self) -> int:
        with contextlib.suppress(OSError):  # it has ended
            return 0 if self._limited is None else limits.open_files(self._limited[0])
        return 0


@fault
class UnreadAnswers(_ResourceFault):
    kind = "unread_answers"
    title = "one node is asked for 350 long answers by a client that never reads"
    spares_members = True

    _client: Child | None = None

    def inject(self, world: World, rng: Random) -> Injected:
        """Ask. Facts after heal: `refused`, `rise_bytes`."""
        node_id = self.hit_one(world, rng)
        self._pid = world.nodes[node_id].pid
        self._since["refused"] = _untaken(world, node_id)
        _forget_peak(self._pid)
        self._since["rise_bytes"] = _peak(self._pid)
        self._client = Child(
            "musterd.chaos.faults.deaf",
            {"endpoint": world.nodes[node_id].endpoint, "calls": DEAF_CALLS},
            wrap=world.client_command,
        )
        told = self._client.ready()
        return self.injected(f"{told['calls']} calls on one connection")

    def heal(self, world: World) -> None:
        """Raises FaultError where the node's memory rose by what nobody took."""
        hit = list(self.hit)
        if hit:
            self.watch(world)
        self.hit.clear()
        if self._client is not None:
            self._client.close()
            self._client = None
        rise_bytes = self.facts.get("rise_bytes", 0)
        if hit and rise_bytes > DEAF_RISE_MAX_BYTES:
            raise FaultError(f"{node_place(hit[0])} took {rise_bytes} bytes for what nobody reads")

    def look(self, world: World) -> Sight:
        refused = self.risen("refused", _untaken(world, self.hit[0]))
        if world.nodes[self.hit[0]].pid == self._pid:
            self.risen("rise_bytes", _peak(self._pid))
        return refused > 0, f"the node refused or ended {refused} of its calls"


@fault
class StateFull(_ResourceFault):
    kind = "state_full"
    title = "a client fills a group to its limit of state: it is refused, what is there goes on"
    needs = frozenset({"state_limit"})
    spares_members = True

    _client: Child | None = None

    def inject(self, world: World, rng: Random) -> Injected:
        """Fill. Facts: `taken` (offsets), `went_on`, and after heal `refused`.

        Raises FaultError where a commit over an offset that was there was refused.
        """
        self._group = f"filled-{rng.getrandbits(32):08x}"
        world.create_topic(FILLED_TOPIC, FILLED_PARTITIONS)
        self.hit = world.running()
        self._since["refused"] = _refused_growth(world, self.hit)
        self._client = Child(
            "musterd.chaos.faults.crowd",
            {
                "endpoints": [world.nodes[one].endpoint for one in self.hit],
                "group": self._group,
                "topic": FILLED_TOPIC,
                "fill": FILLED_PARTITIONS,
            },
            wrap=world.client_command,
        )
        self.facts |= self._client.ready(timeout_s=FILLED_S_MAX)
        if not self.facts["went_on"]:
            raise FaultError("a commit over an offset that is there was refused at the limit")
        return self.injected(f"{self.facts['taken']} offsets were taken")

    def heal(self, world: World) -> None:
        if self.hit:
            self.watch(world)
        self.hit = []
        if self._client is not None:
            self._client.close()
            self._client = None
            left = {self._group}
            world.wait(lambda: deleted(world, left), FILLED_S_MAX, f"{self._group} deleted")

    def look(self, world: World) -> Sight:
        refused = self.risen("refused", _refused_growth(world, self.hit))
        return refused > 0, f"growth was refused {refused} times"


def _refused_growth(world: World, nodes: list[int]) -> int:
    """Commands refused for the limit of a group, by the nodes' own count. Raises OSError."""
    pages = (world.metrics(one) for one in nodes if world.nodes[one].running)
    lines = (_GROWTH.match(line) for page in pages for line in page.splitlines())
    return sum(int(float(found[1])) for found in lines if found)


def _untaken(world: World, node_id: int) -> int:
    """Calls of clients that did not read, by the node's own count. Raises OSError."""
    lines = map(_UNTAKEN.match, world.metrics(node_id).splitlines())
    return sum(int(float(found[1])) for found in lines if found)


def _forget_peak(pid: int) -> None:
    """The kernel counts the peak of this process anew. Raises OSError."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _peak(pid: int) -> int:
    """The most resident bytes that a process had since `_forget_peak`. Raises OSError."""
    told = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if told is None:
        raise OSError(f"the kernel does not say how much memory process {pid} had at most")
    return int(told[1]) << 10
