"""A peer that passes for a node of the cluster and sends what is no frame."""

import time
from random import Random

from musterd.chaos.child import Child
from musterd.chaos.faults.contract import FaultError, FaultGroup, Injected, Watched, fault
from musterd.chaos.world.networks.fake_peer import GARBAGE
from musterd.chaos.world.world import World
from musterd.coordinator.node.loopback import node_place

ANSWER_S_MAX = 20.0
AGREED_S_MAX = 20.0
FAKE_PEER = "musterd.chaos.world.networks.fake_peer"
LANES = ("LANE_CONTROL", "LANE_BULK")
POLL_S = 0.05


@fault
class Garbage(Watched):
    kind = "garbage"
    title = "a peer of the leader says hello well and then sends garbage: it is hung up on"
    group = FaultGroup.NETWORK
    certain = True
    hold_s = (0.5, 2.0)

    def inject(self, world: World, rng: Random) -> Injected:
        """Learn who another node is, kill it, pass for it by its store: on each lane, of each kind.

        Raises FaultError where the leader keeps such a connection, ends, or answers no more.
        """
        target = world.leader()
        process = world.nodes[target].process
        passed_for = rng.choice([one for one in world.running() if one != target])
        place = node_place(passed_for)
        fake_peer = Child(FAKE_PEER, {}, lambda argv: world.network.command(place, argv))
        try:
            fake_peer.ready(ANSWER_S_MAX)
            learnt = fake_peer.ask("learn", ANSWER_S_MAX, **_peer_port(world, passed_for))["node"]
            if learnt != passed_for:
                raise FaultError(f"node {passed_for} says that it is node {learnt}")
            self.hit = [passed_for]
            world.kill(passed_for)
            database = str(world.nodes[passed_for].data_dir / "db")
            fake_peer.ask("steal", ANSWER_S_MAX, database=database)
            tries = [(lane, kind) for lane in LANES for kind in GARBAGE]
            for lane, kind in tries:
                said = self._say(world, target, fake_peer, {"lane": lane, "kind": kind})
                if said["refused"]:
                    self.saw(False, f"{place} was not taken for itself: {said['refused']}")
                    break
                if not said["ended"]:
                    raise FaultError(f"node {target} keeps a {lane} on which it read {kind}")
            else:
                self.saw(True, f"{len(tries)} connections taken, and ended over garbage")
        finally:
            fake_peer.close()
        if world.nodes[target].process is not process or not world.nodes[target].running:
            raise FaultError(f"node {target} ended over garbage\n{world.log_tail(target)}")
        if world.describe(target) is None:
            raise FaultError(f"node {target} answers no more after garbage")
        return Injected((place,), f"said hello to {node_place(target)} in its place, then garbage")

    @staticmethod
    def _say(
        world: World, target: int, fake_peer: Child, what: dict[str, str]
    ) -> dict[str, object]:
        """Again while the target has not noticed that the node is down: its twin is refused."""
        deadline = time.monotonic() + AGREED_S_MAX
        while True:
            said = fake_peer.ask("garble", ANSWER_S_MAX, **_peer_port(world, target), **what)
            if not said["refused"] or time.monotonic() > deadline:
                return said
            time.sleep(POLL_S)


def _peer_port(world: World, node_id: int) -> dict[str, str | int]:
    host, _, port = world.nodes[node_id].addresses.peer_listen.rpartition(":")
    return {"host": host, "port": int(port)}
