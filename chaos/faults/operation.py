"""Operations of an operator under load."""

from random import Random

import grpc

from muster.admin.operator_secret import operator_metadata
from muster.v1 import admin_pb2, errors_pb2
from musterd.chaos.faults.contract import (
    Fault,
    FaultError,
    FaultGroup,
    Injected,
    NodeFault,
    Whom,
    fault,
)
from musterd.chaos.world.world import World
from musterd.coordinator.node.loopback import node_place

STOP_S_MAX = 15.0
TRANSFER_S_MAX = 5.0


def stop(world: World, node_id: int) -> None:
    """SIGTERM; it has to end in good order. Raises FaultError."""
    if code := world.stop(node_id, STOP_S_MAX):
        raise FaultError(f"node {node_id} ended with code {code} after SIGTERM")


@fault
class StopLeader(NodeFault):
    kind = "stop_leader"
    title = "the node that leads most shards drains and stops at SIGTERM"
    group = FaultGroup.OPERATION
    whom = Whom.LEADER
    hold_s = (2.0, 5.0)

    def harm(self, world: World, node_id: int, rng: Random) -> str:
        stop(world, node_id)
        return "SIGTERM"


@fault
class RollingRestart(Fault):
    kind = "rolling_restart"
    title = "each node in turn drains, stops at SIGTERM and is started again"
    group = FaultGroup.OPERATION
    hold_s = (0.0, 1.0)

    def inject(self, world: World, rng: Random) -> Injected:
        order = world.running()
        rng.shuffle(order)
        for node_id in order:
            self.hit.append(node_id)
            stop(world, node_id)
            self.heal(world)
            world.wait_settled()
        return Injected(tuple(map(node_place, order)), "SIGTERM and start, one by one")


@fault
class TransferLeadership(Fault):
    kind = "transfer_leadership"
    title = "every shard of the node that leads most is handed over by the admin API"
    group = FaultGroup.OPERATION
    spares_members = True
    hold_s = (0.5, 3.0)

    def inject(self, world: World, rng: Random) -> Injected:
        leader = world.leader()
        others = world.followers()
        moved: dict[str, int] = {}
        refused: list[str] = []
        for shard in [one for one, node_id in world.leaders().items() if node_id == leader]:
            request = admin_pb2.TransferLeaderRequest(shard=shard)
            if rng.random() < 1 / 2:
                request.to_node = rng.choice(others)
            try:
                got = world.admin(leader).TransferLeader(
                    request, timeout=TRANSFER_S_MAX, metadata=operator_metadata()
                )
            except grpc.RpcError as error:
                refused.append(f"shard {shard}: {error}")
                continue
            if got.status.code == errors_pb2.NONE:
                moved[str(shard)] = got.leader_id
            else:
                refused.append(f"shard {shard}: {got.status.message}")
        if not moved:
            raise FaultError(f"no shard of node {leader} was handed over: {'; '.join(refused)}")
        detail = f"{len(moved)} shards handed over, {len(refused)} not"
        return Injected((node_place(leader),), detail, facts={"moved": moved})
