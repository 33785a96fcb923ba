"""Faults of the network: cuts of all shapes, slow and lossy links, broken connections."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from itertools import permutations
from random import Random
from typing import ClassVar

from musterd.chaos.faults.contract import (
    Fault,
    FaultError,
    FaultGroup,
    Injected,
    Sight,
    Watched,
    Whom,
    chosen_nodes,
    fault,
    one_of,
)
from musterd.chaos.faults.own_group import METADATA_BYTES_MAX, PARTITIONS, OwnGroup
from musterd.chaos.world.networks.network import BULK_CUT, CUT, Shape
from musterd.chaos.world.world import World
from musterd.coordinator.node.loopback import node_place

Link = tuple[str, str]
AGREED_S_MAX = 20.0
CAUGHT_UP_S_MAX = 40.0
"""TCP gives a dead connection up after 10 s; then the node dials a new one."""


def _name_of(link: Link) -> str:
    """A link as a fault's targets have it."""
    return f"{link[0]}>{link[1]}"


def _between(some: Iterable[str], others: Iterable[str]) -> list[Link]:
    targets = list(others)
    return [(source, target) for source in some for target in targets if source != target]


def _both_ways(some: Iterable[str], others: Iterable[str]) -> list[Link]:
    """Every link between one of `some` and one of `others`."""
    there = _between(some, others)
    return there + [(target, source) for source, target in there]


def _places(world: World, *without: str) -> list[str]:
    return [place for place in map(node_place, world.nodes) if place not in without]


def _to_others(world: World, node_id: int) -> list[Link]:
    place = node_place(node_id)
    return _between([place], _places(world, place))


class Shaped(Watched):
    """Links are shaped, and straightened at heal."""

    group = FaultGroup.NETWORK
    needs = frozenset({"links"})
    done_to: ClassVar[frozenset[str]] = frozenset({"dropped"})
    """What has to have been done to a packet of the shaped links, as the network counts it."""

    def __init__(self) -> None:
        super().__init__()
        self._shaped: list[Link] = []
        self._before: Mapping[tuple[str, str, str], int] | None = None

    def shape(self, world: World, links: Iterable[Link], shape: Shape = CUT) -> tuple[str, ...]:
        """Treat links so until heal; returns their names."""
        wanted = list(links)
        if self._before is None:
            self._before = world.network.counts()
        for link in wanted:
            self._shaped.append(link)
            world.network.shape(*link, shape)
        return tuple(map(_name_of, wanted))

    def heal(self, world: World) -> None:
        if self._before is not None:
            self.watch(world)
            self._before = None
        while self._shaped:
            world.network.heal(*self._shaped[-1])
            self._shaped.pop()

    def look(self, world: World) -> Sight:
        before, links = self._before or {}, set(self._shaped)
        count = sum(
            now - before.get((source, target, what), 0)
            for (source, target, what), now in world.network.counts().items()
            if what in self.done_to and (source, target) in links
        )
        return count > 0, f"{' or '.join(sorted(self.done_to))}: {count}"


class _Isolate(Shaped):
    whom: ClassVar[Whom]

    def inject(self, world: World, rng: Random) -> Injected:
        [node_id] = chosen_nodes(world, self.whom, rng)
        place = node_place(node_id)
        self.shape(world, _both_ways([place], world.network.places))
        return Injected((place,), "cut both ways from all", minority=(node_id,))


@fault
class IsolateLeader(_Isolate):
    kind = "isolate_leader"
    title = "the node that leads most shards is cut off from nodes and clients"
    whom = Whom.LEADER
    weight = 2.0


@fault
class IsolateFollower(_Isolate):
    kind = "isolate_follower"
    title = "another node is cut off from nodes and clients"
    whom = Whom.FOLLOWER


@fault
class SplitWithClients(Shaped):
    kind = "split_with_clients"
    title = "the leader and a minority are cut from the other nodes, clients reach the minority"
    weight = 2.0

    def inject(self, world: World, rng: Random) -> Injected:
        leader = world.leader()
        chosen = (leader, *rng.sample(world.followers(), (len(world.nodes) - 1) // 2 - 1))
        small = [node_place(one) for one in chosen]
        large = _places(world, *small)
        links = _both_ways(small, large)
        first, *more = world.network.clients
        links += _both_ways([first], large) + _both_ways(more, small)
        self.shape(world, links)
        detail = f"{first} reaches the minority alone"
        return Injected(tuple(small), detail, minority=tuple(sorted(chosen)))


@fault
class CutAllPeers(Shaped):
    kind = "cut_all_peers"
    title = "every link between nodes is cut, clients reach every node"
    keeps_quorum = False
    hold_s = (2.0, 5.0)

    def inject(self, world: World, rng: Random) -> Injected:
        places = _places(world)
        self.shape(world, permutations(places, 2))
        return Injected(tuple(places), "no two nodes linked", minority=tuple(world.running()))


@fault
class AsymmetricCut(Shaped):
    kind = "asymmetric_cut"
    title = "the leader cannot send to other nodes, or cannot hear them; clients reach it"
    weight = 2.0

    def inject(self, world: World, rng: Random) -> Injected:
        leader = world.leader()
        links = _to_others(world, leader)
        mute = rng.random() < 1 / 2
        if not mute:
            links = [(target, source) for source, target in links]
        detail = f"node {leader} " + ("cannot send" if mute else "cannot receive")
        return Injected(self.shape(world, links), detail, minority=(leader,))


@fault
class PartialCut(Shaped):
    kind = "partial_cut"
    title = "the leader and another node do not reach each other, every third node reaches both"

    def inject(self, world: World, rng: Random) -> Injected:
        one = node_place(world.leader())
        other = node_place(rng.choice(world.followers()))
        return Injected(self.shape(world, _both_ways([one], [other])), "both ways")


@fault
class SlowLink(Shaped):
    kind = "slow_link"
    title = "the link from the leader to another node has 8 to 32 KiB/s"
    done_to = frozenset({"delayed", "dropped"})

    def inject(self, world: World, rng: Random) -> Injected:
        link = (node_place(world.leader()), node_place(rng.choice(world.followers())))
        rate = rng.randint(8, 32) * 1024
        return Injected(self.shape(world, [link], Shape(bytes_per_s=rate)), f"{rate} bytes/s")


class _ShapeAll(Shaped):
    """All links between nodes, and with clients."""

    with_clients: ClassVar[bool] = True

    def inject(self, world: World, rng: Random) -> Injected:
        nodes = _places(world)
        clients = world.network.clients if self.with_clients else ()
        shape, detail = self.draw(rng)
        self.shape(world, [*permutations(nodes, 2), *_both_ways(nodes, clients)], shape)
        return Injected((*nodes, *clients), detail)

    @abstractmethod
    def draw(self, rng: Random) -> tuple[Shape, str]:
        """Return what is done to packets, and the same for people."""


@fault
class DelayJitter(_ShapeAll):
    kind = "delay_jitter"
    title = "every packet between nodes and clients is delayed, each by another time"
    done_to = frozenset({"delayed"})

    def draw(self, rng: Random) -> tuple[Shape, str]:
        delay_ms, jitter_ms = rng.uniform(10.0, 60.0), rng.uniform(10.0, 60.0)
        shape = Shape(delay_ms=delay_ms, jitter_ms=jitter_ms)
        return shape, f"{delay_ms:.0f} ms + 0..{jitter_ms:.0f} ms each way"


@fault
class PacketLoss(_ShapeAll):
    kind = "packet_loss"
    title = "5 to 20 % of all packets between nodes and clients are lost"
    done_to = frozenset({"dropped"})

    def draw(self, rng: Random) -> tuple[Shape, str]:
        percent = rng.uniform(5.0, 20.0)
        return Shape(loss_percent=percent), f"{percent:.0f} %"


@fault
class PacketDisorder(_ShapeAll):
    kind = "packet_disorder"
    title = "packets between nodes overtake each other and come twice"
    done_to = frozenset({"doubled"})
    with_clients = False

    def draw(self, rng: Random) -> tuple[Shape, str]:
        jitter_ms, percent = rng.uniform(5.0, 30.0), rng.uniform(5.0, 30.0)
        shape = Shape(jitter_ms=jitter_ms, duplicate_percent=percent, reorder=True)
        return shape, f"0..{jitter_ms:.0f} ms, {percent:.0f} % twice"


class _Break(Fault):
    """Connections break at one moment; there is nothing to heal: both ends may connect again."""

    group = FaultGroup.NETWORK
    needs = frozenset({"links"})
    spares_members = True
    hold_s = (0.5, 2.0)

    def inject(self, world: World, rng: Random) -> Injected:
        """Raises FaultError where there were none. Facts: `connections`."""
        links = self.links(world)
        broken = sum(self.end(world, link) for link in links)
        targets = tuple(map(_name_of, links))
        if not broken:
            raise FaultError(f"there were no connections: {', '.join(targets)}")
        return Injected(targets, f"{broken} connections", facts={"connections": broken})

    def links(self, world: World) -> list[Link]:
        """Those whose connections break; the leader's with all other nodes."""
        return _to_others(world, world.leader())

    def end(self, world: World, link: Link) -> int:
        """How many connections of a link were ended."""
        return world.network.reset(*link)


@fault
class ResetPeerConnections(_Break):
    kind = "reset_peer_connections"
    title = "the leader's connections with all other nodes are reset, all processes healthy"


@fault
class ResetClientConnections(_Break):
    kind = "reset_client_connections"
    title = "every connection of every client is reset at once: no member may expire"

    def links(self, world: World) -> list[Link]:
        """Those with one node after each other: all of them with the leader are gone at once."""
        clients = world.network.clients
        return [(client, place) for place in _places(world) for client in clients]


@fault
class HalfOpenPeers(_Break):
    kind = "half_open_peers"
    title = "the leader's ends of its connections with other nodes vanish; those are not told"

    def end(self, world: World, link: Link) -> int:
        return world.network.half_open(*link)


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
        self.shape(world, _both_ways([places[0]], [places[1]]), BULK_CUT)
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
            map(_name_of, _both_ways([node_place(self._leader)], [node_place(self._other)]))
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
