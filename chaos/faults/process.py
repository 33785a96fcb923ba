"""Faults of processes: killed, paused, all of them or some."""

from random import Random

from musterd.chaos.faults.contract import FaultGroup, Injected, NodeFault, Whom, fault
from musterd.chaos.world.world import World


class _Kill(NodeFault):
    group = FaultGroup.PROCESS

    def harm(self, world: World, node_id: int, rng: Random) -> str:
        world.kill(node_id)
        return "kill -9"


@fault
class KillLeader(_Kill):
    kind = "kill_leader"
    title = "kill -9 of the node that leads most shards"
    whom = Whom.LEADER
    weight = 3.0


@fault
class KillFollower(_Kill):
    kind = "kill_follower"
    title = "kill -9 of another node than that which leads most shards"
    whom = Whom.FOLLOWER
    weight = 2.0


@fault
class KillMajority(_Kill):
    kind = "kill_two_then_restart"
    title = "kill -9 of a majority, the rest stays up"
    whom = Whom.MAJORITY
    keeps_quorum = False

    def inject(self, world: World, rng: Random) -> Injected:
        return self.injected(super().inject(world, rng).detail, world.running())


@fault
class RestartAll(_Kill):
    kind = "restart_all"
    title = "kill -9 of all nodes at one time, then all are started"
    whom = Whom.ALL
    keeps_quorum = False
    hold_s = (0.0, 2.0)


class _Pause(NodeFault):
    group = FaultGroup.PROCESS

    def harm(self, world: World, node_id: int, rng: Random) -> str:
        world.pause(node_id)
        return "SIGSTOP"

    def mend(self, world: World, node_id: int) -> None:
        world.resume(node_id)


@fault
class PauseLeader(_Pause):
    kind = "pause_leader"
    title = "SIGSTOP of the node that leads most shards, SIGCONT later"
    whom = Whom.LEADER
    weight = 2.0


@fault
class PauseAll(_Pause):
    kind = "pause_all"
    title = "SIGSTOP of all nodes at one time: no session may end by it"
    whom = Whom.ALL
    keeps_quorum = False
    spares_members = True
    hold_s = (5.0, 30.0)
