"""What an operator does on purpose, under load."""

from random import Random

from chaos.faults.contract import Fault, FaultError, Group, Injected, fault
from chaos.world.network import node_place
from chaos.world.world import World

_STOP_S_MAX = 15.0


class _Stopping(Fault):
    """Nodes are stopped with SIGTERM and started again."""

    group = Group.OPERATION
    hold_s = (0.0, 1.0)

    def __init__(self) -> None:
        """Nothing is stopped yet."""
        self._stopped: list[int] = []

    def _stop(self, world: World, node_id: int) -> None:
        self._stopped.append(node_id)
        code = world.stop(node_id, _STOP_S_MAX)
        if code != 0:
            raise FaultError(f"node {node_id} ended with code {code} after SIGTERM")

    def heal(self, world: World) -> None:
        """Start what was stopped."""
        while self._stopped:
            world.start_if_down(self._stopped[-1])
            self._stopped.pop()


@fault
class RollingRestart(_Stopping):
    """Every node in turn."""

    kind = "rolling_restart"
    title = "each node in turn drains, stops at SIGTERM and is started again"

    def inject(self, world: World, rng: Random) -> Injected:
        """Restart all in a drawn order; the next one waits until the last one has caught up."""
        order = world.running()
        rng.shuffle(order)
        for node_id in order:
            self._stop(world, node_id)
            self.heal(world)
            world.wait_settled()
        return Injected(tuple(node_place(one) for one in order), "SIGTERM and start, one by one")


@fault
class StopLeader(_Stopping):
    """The leader leaves in good order and stays away."""

    kind = "stop_leader"
    title = "the node that leads most shards drains and stops at SIGTERM"
    hold_s = (2.0, 5.0)

    def inject(self, world: World, rng: Random) -> Injected:
        """Stop it."""
        del rng
        leader = world.leader()
        self._stop(world, leader)
        return Injected((node_place(leader),), "SIGTERM")
