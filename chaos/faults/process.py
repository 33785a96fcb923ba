"""Faults of processes: killed, paused, all of them or some."""

import signal
from random import Random

from musterd.chaos.faults.choosing import one_of, some_of
from musterd.chaos.faults.contract import Fault, Group, Injected, fault
from musterd.chaos.world.world import World
from musterd.coordinator.node.loopback import node_place


class _Killing(Fault):
    """Nodes are killed with kill -9 and started again at heal."""

    group = Group.PROCESS

    def __init__(self) -> None:
        """Nothing is killed yet."""
        self._killed: list[int] = []

    def _kill(self, world: World, nodes: list[int], detail: str = "") -> Injected:
        for node_id in nodes:
            self._killed.append(node_id)
            world.kill(node_id)
        return Injected(tuple(node_place(one) for one in nodes), detail or "kill -9")

    def heal(self, world: World) -> None:
        """Start what was killed."""
        while self._killed:
            world.start_if_down(self._killed[-1])
            self._killed.pop()


@fault
class KillLeader(_Killing):
    """The node that leads most shards."""

    kind = "kill_leader"
    title = "kill -9 of the node that leads most shards"
    weight = 3.0

    def inject(self, world: World, rng: Random) -> Injected:
        """Kill it."""
        del rng
        leader = world.leader()
        led = sum(node_id == leader for node_id in world.leaders().values())
        return self._kill(world, [leader], f"it led {led} of {world.shards} shards")


@fault
class KillFollower(_Killing):
    """A node other than that."""

    kind = "kill_follower"
    title = "kill -9 of another node than that which leads most shards"
    weight = 2.0

    def inject(self, world: World, rng: Random) -> Injected:
        """Kill one."""
        return self._kill(world, [one_of(world, world.followers(), rng)])


@fault
class KillMajority(_Killing):
    """So many nodes that no majority is left."""

    kind = "kill_two_then_restart"
    title = "kill -9 of a majority, the rest stays up"
    keeps_quorum = False

    def inject(self, world: World, rng: Random) -> Injected:
        """Kill them at one time."""
        running = world.running()
        chosen = some_of(world, running, len(world.nodes) // 2 + 1, rng)
        done = self._kill(world, chosen)
        rest = tuple(one for one in running if one not in chosen)
        return Injected(done.targets, done.detail, minority=rest)


@fault
class RestartAll(_Killing):
    """Every node."""

    kind = "restart_all"
    title = "kill -9 of all nodes at one time, then all are started"
    keeps_quorum = False
    hold_s = (0.0, 2.0)

    def inject(self, world: World, rng: Random) -> Injected:
        """Kill them at one time."""
        del rng
        return self._kill(world, world.running())


class _Pausing(Fault):
    """Nodes are stopped with SIGSTOP and continued at heal."""

    group = Group.PROCESS

    def __init__(self) -> None:
        """Nothing is paused yet."""
        self._paused: list[int] = []

    def _pause(self, world: World, nodes: list[int]) -> Injected:
        for node_id in nodes:
            self._paused.append(node_id)
            world.signal(node_id, signal.SIGSTOP)
        return Injected(tuple(node_place(one) for one in nodes), "SIGSTOP")

    def heal(self, world: World) -> None:
        """Let them go on."""
        while self._paused:
            world.resume(self._paused[-1])
            self._paused.pop()


@fault
class PauseLeader(_Pausing):
    """The node that leads most shards."""

    kind = "pause_leader"
    title = "SIGSTOP of the node that leads most shards, SIGCONT later"
    weight = 2.0

    def inject(self, world: World, rng: Random) -> Injected:
        """Stop it."""
        del rng
        return self._pause(world, [world.leader()])


@fault
class PauseAll(_Pausing):
    """Every node."""

    kind = "pause_all"
    title = "SIGSTOP of all nodes at one time: no session may end by it"
    keeps_quorum = False
    spares_members = True
    hold_s = (5.0, 30.0)

    def inject(self, world: World, rng: Random) -> Injected:
        """Stop them at one time."""
        del rng
        return self._pause(world, world.running())
