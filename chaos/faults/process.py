"""Faults of processes: killed, paused, all of them or some."""

from abc import abstractmethod
from random import Random

from musterd.chaos.faults.contract import Fault, Group, Injected, fault, one_of, some_of
from musterd.chaos.world.world import World


class _ProcessFault(Fault):
    group = Group.PROCESS

    @abstractmethod
    def choose(self, world: World, rng: Random) -> list[int]:
        """The nodes to hit."""


class _Kill(_ProcessFault):
    detail = "kill -9"

    def inject(self, world: World, rng: Random) -> Injected:
        for node_id in self.choose(world, rng):
            self.hit.append(node_id)
            world.kill(node_id)
        return self.injected(self.detail)


@fault
class KillLeader(_Kill):
    kind = "kill_leader"
    title = "kill -9 of the node that leads most shards"
    weight = 3.0

    def choose(self, world: World, rng: Random) -> list[int]:
        leader = world.leader()
        led = sum(node_id == leader for node_id in world.leaders().values())
        self.detail = f"it led {led} of {world.shards} shards"
        return [leader]


@fault
class KillFollower(_Kill):
    kind = "kill_follower"
    title = "kill -9 of another node than that which leads most shards"
    weight = 2.0

    def choose(self, world: World, rng: Random) -> list[int]:
        return [one_of(world, world.followers(), rng)]


@fault
class KillMajority(_Kill):
    kind = "kill_two_then_restart"
    title = "kill -9 of a majority, the rest stays up"
    keeps_quorum = False

    def inject(self, world: World, rng: Random) -> Injected:
        running = world.running()
        super().inject(world, rng)
        return self.injected(self.detail, [one for one in running if one not in self.hit])

    def choose(self, world: World, rng: Random) -> list[int]:
        return some_of(world, world.running(), len(world.nodes) // 2 + 1, rng)


@fault
class RestartAll(_Kill):
    kind = "restart_all"
    title = "kill -9 of all nodes at one time, then all are started"
    keeps_quorum = False
    hold_s = (0.0, 2.0)

    def choose(self, world: World, rng: Random) -> list[int]:
        return world.running()


class _Pause(_ProcessFault):
    def inject(self, world: World, rng: Random) -> Injected:
        for node_id in self.choose(world, rng):
            self.hit.append(node_id)
            world.pause(node_id)
        return self.injected("SIGSTOP")

    def mend(self, world: World, node_id: int) -> None:
        world.resume(node_id)


@fault
class PauseLeader(_Pause):
    kind = "pause_leader"
    title = "SIGSTOP of the node that leads most shards, SIGCONT later"
    weight = 2.0

    def choose(self, world: World, rng: Random) -> list[int]:
        return [world.leader()]


@fault
class PauseAll(_Pause):
    kind = "pause_all"
    title = "SIGSTOP of all nodes at one time: no session may end by it"
    keeps_quorum = False
    spares_members = True
    hold_s = (5.0, 30.0)

    def choose(self, world: World, rng: Random) -> list[int]:
        return world.running()
