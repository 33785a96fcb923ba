"""Faults of what one node hears from another: garbage, or nothing on one of two connections."""

import time
from random import Random

from musterd.chaos.child import Child
from musterd.chaos.faults.contract import FaultError, Group, Injected, Sight, Watched, fault, one_of
from musterd.chaos.faults.network import Shaped, both_ways, name_of
from musterd.chaos.faults.own_group import METADATA_BYTES_MAX, PARTITIONS, OwnGroup
from musterd.chaos.world.networks.impostor import GARBAGE
from musterd.chaos.world.networks.network import BULK_CUT
from musterd.chaos.world.world import World
from musterd.coordinator.node.loopback import node_place

ANSWER_S_MAX = 20.0
AGREED_S_MAX = 20.0
CAUGHT_UP_S_MAX = 40.0
"""TCP gives a dead connection up after 10 s; then the node dials a new one."""
IMPOSTOR = "musterd.chaos.world.networks.impostor"
LANES = ("LANE_CONTROL", "LANE_BULK")
POLL_S = 0.05


@fault
class Garbage(Watched):
    kind = "garbage"
    title = "a peer of the leader says hello well and then sends garbage: it is hung up on"
    group = Group.NETWORK
    certain = True
    hold_s = (0.5, 2.0)

    def inject(self, world: World, rng: Random) -> Injected:
        """Learn the hello of another node, kill that, pass for it: on each lane, of each kind.

        Raises FaultError where the leader keeps such a connection, ends, or answers no more.
        """
        target = world.leader()
        process = world.nodes[target].process
        passed_for = rng.choice([one for one in world.running() if one != target])
        place = node_place(passed_for)
        impostor = Child(IMPOSTOR, {}, lambda argv: world.network.command(place, argv))
        try:
            impostor.ready(ANSWER_S_MAX)
            learnt = impostor.ask("learn", ANSWER_S_MAX, **_peer_port(world, passed_for))["node"]
            if learnt != passed_for:
                raise FaultError(f"node {passed_for} says that it is node {learnt}")
            self.hit = [passed_for]
            world.kill(passed_for)
            tries = [(lane, kind) for lane in LANES for kind in GARBAGE]
            for lane, kind in tries:
                said = self._say(world, target, impostor, {"lane": lane, "kind": kind})
                if said["refused"]:
                    self.saw(False, f"{place} was not taken for itself: {said['refused']}")
                    break
                if not said["ended"]:
                    raise FaultError(f"node {target} keeps a {lane} on which it read {kind}")
            else:
                self.saw(True, f"{len(tries)} connections taken, and ended over garbage")
        finally:
            impostor.close()
        if world.nodes[target].process is not process or not world.nodes[target].running:
            raise FaultError(f"node {target} ended over garbage\n{world.log_tail(target)}")
        if world.describe(target) is None:
            raise FaultError(f"node {target} answers no more after garbage")
        return Injected((place,), f"said hello to {node_place(target)} in its place, then garbage")

    @staticmethod
    def _say(world: World, target: int, impostor: Child, what: dict[str, str]) -> dict[str, object]:
        """Again while the target has not noticed that the node is down: its twin is refused."""
        deadline = time.monotonic() + AGREED_S_MAX
        while True:
            said = impostor.ask("garble", ANSWER_S_MAX, **_peer_port(world, target), **what)
            if not said["refused"] or time.monotonic() > deadline:
                return said
            time.sleep(POLL_S)


def _peer_port(world: World, node_id: int) -> dict[str, str | int]:
    host, _, port = world.nodes[node_id].addresses.peer_listen.rpartition(":")
    return {"host": host, "port": int(port)}


@fault
class DeadBulk(Shaped):
    kind = "dead_bulk"
    title = "the bulk connection of the leader and another node carries nothing, control does"
    certain = True

    _leader: int | None = None
    _other: int | None = None
    _own: OwnGroup | None = None
    _wanted = 0

    def inject(self, world: World, rng: Random) -> Injected:
        """Have the two connect anew, so that the network sees which is which; fill the bulk one.

        Then commit what is too long for the other connection: whoever reads from the bulk one alone
        lacks it. Raises FaultError where a majority does not take it.
        """
        leader = world.leader()
        other = one_of(world, [one for one in world.running() if one != leader], rng)
        places = node_place(leader), node_place(other)
        self.shape(world, both_ways([places[0]], [places[1]]), BULK_CUT)
        if not world.network.reset(*places):
            raise FaultError(f"{' and '.join(places)} had no connections")
        world.wait(
            lambda: _hear_each_other(world, leader, other), AGREED_S_MAX, f"{places} connected anew"
        )
        # To connect anew may cost the leader a shard, on a slow machine all of them.
        pair = {leader: other, other: leader}
        world.wait(
            lambda: not pair.keys().isdisjoint(world.leaders().values()),
            AGREED_S_MAX,
            f"{places[0]} or {places[1]} leads a shard",
        )
        led = {shard: node for shard, node in world.leaders().items() if node in pair}
        own = OwnGroup(world, "bulk", rng.choice(sorted(led)))
        own.commit(rng.randrange(1 << 30), range(PARTITIONS), "x" * METADATA_BYTES_MAX)
        self._leader, self._other = led[own.shard], pair[led[own.shard]]
        self._own, self._wanted = own, max(own.applied().values())
        targets = tuple(
            map(name_of, both_ways([node_place(self._leader)], [node_place(self._other)]))
        )
        return Injected(targets, "bulk alone, both ways")

    def heal(self, world: World) -> None:
        """Let all pass; then the other node has to get what it lacks, and no process may end.

        Raises FaultError where it does not.
        """
        super().heal(world)
        own, self._own = self._own, None
        if own is not None and (other := self._other) is not None:
            world.wait(
                lambda: own.applied().get(other, 0) >= self._wanted,
                CAUGHT_UP_S_MAX,
                f"node {other} has what did not pass",
            )

    def look(self, world: World) -> Sight:
        """Something was lost, the other node lacks it, and yet the two hear each other."""
        lost, what = super().look(world)
        if self._own is None or self._other is None or self._leader is None:
            return False, "nothing long was committed"
        lacks = self._wanted - self._own.applied().get(self._other, self._wanted)
        heard = _hear_each_other(world, self._leader, self._other)
        what = f"{what}; node {self._other} lacks {lacks} entries of shard {self._own.shard}"
        return lost and lacks > 0 and heard, f"{what}; control {'lives' if heard else 'is gone'}"


def _hear_each_other(world: World, one: int, other: int) -> bool:
    """Whether both say that their control connection stands."""
    views = world.views()
    return (
        all(
            any(node.node_id == whom and node.connected for node in views[who].nodes)
            for who, whom in ((one, other), (other, one))
            if who in views
        )
        and {one, other} <= views.keys()
    )
