"""Faults of the network: cuts of all shapes, slow and lossy links, broken connections."""

from collections.abc import Iterable, Mapping
from itertools import permutations
from random import Random
from typing import ClassVar

from musterd.chaos.faults.choosing import one_of
from musterd.chaos.faults.contract import Fault, FaultError, Group, Injected, fault
from musterd.chaos.faults.watched import Sight, Watched
from musterd.chaos.world.networks.network import CUT, Shape
from musterd.chaos.world.world import World
from musterd.coordinator.node.loopback import node_place

Link = tuple[str, str]


def _name(link: Link) -> str:
    return f"{link[0]}>{link[1]}"


def _between(some: Iterable[str], others: Iterable[str]) -> list[Link]:
    """Every link from one of `some` to one of `others`."""
    targets = list(others)
    return [(source, target) for source in some for target in targets if source != target]


def _both_ways(some: Iterable[str], others: Iterable[str]) -> list[Link]:
    there = _between(some, others)
    return there + [(target, source) for source, target in there]


def _node_places(world: World) -> list[str]:
    return [node_place(one) for one in world.nodes]


def _others(world: World, *without: str) -> list[str]:
    """The places of all nodes but some."""
    return [one for one in _node_places(world) if one not in without]


class _Shaping(Watched):
    """Links are shaped, and straightened at heal."""

    group = Group.NETWORK
    needs = frozenset({"partition"})
    done_to: ClassVar[frozenset[str]] = frozenset({"dropped", "held"})
    """What has to have been done to a packet of the shaped links, as the network counts it."""

    def __init__(self) -> None:
        """Nothing is shaped yet."""
        self._shaped: list[Link] = []
        self._before: Mapping[tuple[str, str, str], int] | None = None

    def _shape(self, world: World, links: Iterable[Link], shape: Shape = CUT) -> tuple[str, ...]:
        wanted = list(links)
        if self._before is None:
            self._before = world.network.counts()
        for link in wanted:
            self._shaped.append(link)
            world.network.shape(*link, shape)
        return tuple(_name(link) for link in wanted)

    def heal(self, world: World) -> None:
        """Let them pass everything."""
        if self._before is not None:
            self._watch(self._look, world, self._before)
            self._before = None
        while self._shaped:
            world.network.heal(*self._shaped[-1])
            self._shaped.pop()

    def _look(self, world: World, before: Mapping[tuple[str, str, str], int]) -> Sight:
        links = set(self._shaped)
        count = sum(
            now - before.get((source, target, what), 0)
            for (source, target, what), now in world.network.counts().items()
            if what in self.done_to and (source, target) in links
        )
        return count > 0, f"{' or '.join(sorted(self.done_to))}: {count}"


@fault
class IsolateLeader(_Shaping):
    """The leader and everybody else."""

    kind = "isolate_leader"
    title = "the node that leads most shards is cut off from nodes and clients"
    weight = 2.0

    def inject(self, world: World, rng: Random) -> Injected:
        """Cut it off."""
        del rng
        return _isolate(self, world, world.leader())


@fault
class IsolateFollower(_Shaping):
    """A follower and everybody else."""

    kind = "isolate_follower"
    title = "another node is cut off from nodes and clients"

    def inject(self, world: World, rng: Random) -> Injected:
        """Cut one off."""
        return _isolate(self, world, one_of(world, world.followers(), rng))


def _isolate(self: _Shaping, world: World, node_id: int) -> Injected:
    place = node_place(node_id)
    everybody = [one for one in world.network.places if one != place]
    self._shape(world, _both_ways([place], everybody))  # its own base class
    return Injected((place,), "cut both ways from all", minority=(node_id,))


@fault
class SplitWithClients(_Shaping):
    """A minority around the leader that clients still reach: it must not acknowledge anything."""

    kind = "split_with_clients"
    title = "the leader and a minority are cut from the other nodes, clients reach the minority"
    weight = 2.0

    def inject(self, world: World, rng: Random) -> Injected:
        """Split nodes; where there are several hosts of clients, each side has its own."""
        leader = world.leader()
        others = [one for one in world.running() if one != leader]
        chosen = (leader, *rng.sample(others, (len(world.nodes) - 1) // 2 - 1))
        small = [node_place(one) for one in chosen]
        large = _others(world, *small)
        links = _both_ways(small, large)
        clients = world.network.clients
        detail = "clients reach both sides"
        if len(clients) > 1:
            links += _both_ways([clients[0]], large) + _both_ways(clients[1:], small)
            detail = f"{clients[0]} reaches the minority alone"
        self._shape(world, links)
        return Injected(tuple(small), detail, minority=tuple(sorted(chosen)))


@fault
class CutAllPeers(_Shaping):
    """No node reaches another; clients reach all: nothing may be acknowledged."""

    kind = "cut_all_peers"
    title = "every link between nodes is cut, clients reach every node"
    keeps_quorum = False
    hold_s = (2.0, 5.0)

    def inject(self, world: World, rng: Random) -> Injected:
        """Cut every pair."""
        del rng
        places = _node_places(world)
        self._shape(world, permutations(places, 2))
        return Injected(tuple(places), "no two nodes linked", minority=tuple(world.running()))


@fault
class AsymmetricCut(_Shaping):
    """One direction of the leader's links."""

    kind = "asymmetric_cut"
    title = "the leader cannot send to other nodes, or cannot hear them; clients reach it"
    weight = 2.0

    def inject(self, world: World, rng: Random) -> Injected:
        """Cut one direction, drawn."""
        leader = world.leader()
        place = node_place(leader)
        links = _between([place], _others(world, place))
        mute = rng.random() < 1 / 2
        if not mute:
            links = [(target, source) for source, target in links]
        targets = self._shape(world, links)
        detail = f"node {leader} " + ("cannot send" if mute else "cannot receive")
        return Injected(targets, detail, minority=(leader,))


@fault
class PartialCut(_Shaping):
    """Two nodes do not reach each other, all others reach both."""

    kind = "partial_cut"
    title = "the leader and another node do not reach each other, every third node reaches both"

    def inject(self, world: World, rng: Random) -> Injected:
        """Cut the pair."""
        one = node_place(world.leader())
        other = node_place(rng.choice(world.followers()))
        return Injected(self._shape(world, _both_ways([one], [other])), "both ways")


@fault
class DelayJitter(_Shaping):
    """All links between nodes and to clients."""

    kind = "delay_jitter"
    title = "every packet between nodes and clients is delayed, each by another time"
    needs = frozenset({"delay"})
    done_to = frozenset({"delayed"})

    def inject(self, world: World, rng: Random) -> Injected:
        """Delay by 10 to 60 ms and as much jitter."""
        shape = Shape(delay_ms=rng.uniform(10.0, 60.0), jitter_ms=rng.uniform(10.0, 60.0))
        nodes, clients = _node_places(world), world.network.clients
        self._shape(world, [*permutations(nodes, 2), *_both_ways(nodes, clients)], shape)
        detail = f"{shape.delay_ms:.0f} ms + 0..{shape.jitter_ms:.0f} ms each way"
        return Injected((*nodes, *clients), detail)


@fault
class SlowLink(_Shaping):
    """Little bandwidth from the leader to one follower."""

    kind = "slow_link"
    title = "the link from the leader to another node has 8 to 32 KiB/s"
    needs = frozenset({"bandwidth"})
    done_to = frozenset({"delayed", "dropped"})

    def inject(self, world: World, rng: Random) -> Injected:
        """Slow one direction."""
        link = (node_place(world.leader()), node_place(rng.choice(world.followers())))
        rate = rng.randint(8, 32) * 1024
        return Injected(self._shape(world, [link], Shape(bytes_per_s=rate)), f"{rate} bytes/s")


@fault
class PacketLoss(_Shaping):
    """Loss on all links between nodes and to clients."""

    kind = "packet_loss"
    title = "5 to 20 % of all packets between nodes and clients are lost"
    needs = frozenset({"loss"})
    done_to = frozenset({"dropped"})

    def inject(self, world: World, rng: Random) -> Injected:
        """Lose some of all."""
        percent = rng.uniform(5.0, 20.0)
        nodes, clients = _node_places(world), world.network.clients
        links = [*permutations(nodes, 2), *_both_ways(nodes, clients)]
        self._shape(world, links, Shape(loss_percent=percent))
        return Injected((*nodes, *clients), f"{percent:.0f} %")


@fault
class PacketDisorder(_Shaping):
    """Packets overtake each other and come twice."""

    kind = "packet_disorder"
    title = "packets between nodes overtake each other and come twice"
    needs = frozenset({"loss"})
    done_to = frozenset({"doubled"})

    def inject(self, world: World, rng: Random) -> Injected:
        """Disorder all links between nodes."""
        shape = Shape(
            jitter_ms=rng.uniform(5.0, 30.0), duplicate_percent=rng.uniform(5.0, 30.0), reorder=True
        )
        nodes = _node_places(world)
        self._shape(world, permutations(nodes, 2), shape)
        detail = f"0..{shape.jitter_ms:.0f} ms, {shape.duplicate_percent:.0f} % twice"
        return Injected(tuple(nodes), detail)


class _Breaking(Fault):
    """Connections break at one moment; there is nothing to heal: both ends may connect again."""

    group = Group.NETWORK
    needs = frozenset({"reset"})
    spares_members = True
    hold_s = (0.5, 2.0)

    def heal(self, world: World) -> None:
        """Nothing lasts."""

    @staticmethod
    def _reset(world: World, links: Iterable[Link]) -> Injected:
        wanted = list(links)
        broken = sum(world.network.reset(*link) for link in wanted)
        if not broken:
            raise FaultError(f"there were no connections: {', '.join(map(_name, wanted))}")
        targets = tuple(_name(link) for link in wanted)
        return Injected(targets, f"{broken} connections reset", facts={"connections": broken})


@fault
class ResetPeerConnections(_Breaking):
    """All of the leader's connections with other nodes; every process is healthy."""

    kind = "reset_peer_connections"
    title = "the leader's connections with all other nodes are reset, all processes healthy"

    def inject(self, world: World, rng: Random) -> Injected:
        """Reset them."""
        del rng
        place = node_place(world.leader())
        return self._reset(world, _between([place], _others(world, place)))


@fault
class ResetOnePeer(_Breaking):
    """The leader's connections with one other node: no reason to change the leader."""

    kind = "reset_one_peer"
    title = "the leader's connections with one other node are reset, all processes healthy"

    def inject(self, world: World, rng: Random) -> Injected:
        """Reset them."""
        other = node_place(rng.choice(world.followers()))
        return self._reset(world, [(node_place(world.leader()), other)])


@fault
class HalfOpenPeers(_Breaking):
    """One end of the leader's connections is gone, the other nodes are not told."""

    kind = "half_open_peers"
    title = "the leader's ends of its connections with other nodes vanish; those are not told"
    needs = frozenset({"half_open"})

    def inject(self, world: World, rng: Random) -> Injected:
        """End them at the leader."""
        del rng
        place = node_place(world.leader())
        links = _between([place], _others(world, place))
        broken = sum(world.network.half_open(*link) for link in links)
        if not broken:
            raise FaultError(f"{place} had no connections")
        return Injected((place,), f"{broken} connections", facts={"connections": broken})


@fault
class ResetClientConnections(_Breaking):
    """Those of all nodes."""

    kind = "reset_client_connections"
    title = "every connection of every client is reset"

    def inject(self, world: World, rng: Random) -> Injected:
        """Reset them."""
        del rng
        return self._reset(world, _between(world.network.clients, _node_places(world)))


@fault
class BreakHeartbeats(_Breaking):
    """Those of one node: every held heartbeat there breaks at once, and no member may expire."""

    kind = "break_heartbeats"
    title = "every client's connection with the leader is reset at once: no member may expire"

    def inject(self, world: World, rng: Random) -> Injected:
        """Reset them."""
        del rng
        place = node_place(world.leader())
        return self._reset(world, _between(world.network.clients, [place]))
