"""Which levels the builds of a cluster's nodes know, as their hellos say it (musterd/levels.py)."""

from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

from muster.v1 import peer_pb2 as pb
from musterd.levels import LAST_UNNAMED
from musterd.raft.identity import Identity

LEVELS_NODE: Final = 0xFFFFFFFF
"""In a hello's list of stores this id, which no node has, brings the sender's levels.

Builds that know no levels hang up on a field that they lack, but skip a node that they lack."""

LEVELS_END: Final = 1 << 16
"""Levels are smaller."""

_LEVELS = Struct(">II8x")


class LevelError(Exception):
    """This build does not know the level of the cluster: the node ends, and says what to do."""


class Levels(NamedTuple):
    """What a node says of levels."""

    known: int
    """The highest that its build knows."""
    active: int
    """The cluster's: the highest that a shard of the node has applied; 0 below level 6."""

    def encode(self) -> pb.StoreOf:
        """For a hello, among the stores that it names."""
        return pb.StoreOf(node_id=LEVELS_NODE, store_uuid=_LEVELS.pack(*self))

    def refusal(self, hello: pb.Hello) -> str | None:
        """Why the sender of `hello` must not be talked to by a node of these levels, or None."""
        node, said = hello.node_id, levels_of(hello)
        if max(said) >= LEVELS_END:
            return f"node {node} names level {max(said)}, which nobody has"
        if said.known < self.active:
            return (
                f"node {node} knows levels up to {said.known}, and the cluster is at level "
                f"{self.active}: install a release on it that knows this level (docs/levels.md)"
            )
        if said.active > self.known:
            return (
                f"node {node} says that the cluster is at level {said.active}, and this node knows "
                f"levels up to {self.known}: install a release here that knows it (docs/levels.md)"
            )
        return None


def levels_of(hello: pb.Hello) -> Levels:
    """Return the levels that a hello names; those of a build that names none, if it does not."""
    for one in hello.known:
        if one.node_id == LEVELS_NODE and len(one.store_uuid) == _LEVELS.size:
            return Levels(*_LEVELS.unpack(one.store_uuid))
    return Levels(LAST_UNNAMED, 0)


class PeerLevels:
    """The levels of one node and of its peers."""

    def __init__(self, identity: Identity, known: int) -> None:
        """`known`: the highest level that this build knows."""
        self._identity = identity
        self.own = Levels(known, 0)
        self._nodes = dict.fromkeys(identity.nodes, 0) | {identity.node_id: known}
        self._said: dict[int, int] = {}
        """By peer, the highest level that the last hello of it named which was welcome."""
        self._beyond: dict[int, int] = {}
        """Peers whose cluster is at a level that this build does not know, and that level."""

    def nodes(self) -> Mapping[int, int]:
        """Return the highest level of each node's build, by its id; 0: it is not connected."""
        return dict(self._nodes)

    def raise_active(self, level: int) -> list[int]:
        """Note the cluster's level; returns the peers whose builds do not know it, as last heard.

        From now on they are refused.
        """
        if level <= self.own.active:
            return []
        self.own = self.own._replace(active=level)
        return [node for node, known in sorted(self._said.items()) if known < level]

    def meet(self, hello: pb.Hello) -> None:
        """Note the levels of a node that is welcome; they count once it is connected."""
        self._said[hello.node_id] = levels_of(hello).known
        self._beyond.pop(hello.node_id, None)

    def connected(self, node: int) -> None:
        """Have what a peer said count: the connection that its hello was for stands."""
        self._nodes[node] = self._said.get(node, 0)

    def lost(self, node: int) -> None:
        """Have what a peer said count no longer: it may come back with another build."""
        self._nodes[node] = 0

    def refused(self, hello: pb.Hello) -> None:
        """Raise LevelError where a majority of the nodes is at a level that this build lacks.

        One word is not enough to end a node.
        """
        node, identity = hello.node_id, self._identity
        if hello.cluster_id != identity.cluster_id or node not in identity.peers:
            return
        said = levels_of(hello).active
        if not self.own.known < said < LEVELS_END:
            self._beyond.pop(node, None)
            return
        self._beyond[node] = said
        if 2 * len(self._beyond) > len(identity.nodes):
            raise LevelError(
                f"the cluster is at level {min(self._beyond.values())}, and this build knows "
                f"levels up to {self.own.known}: install the release of the other nodes "
                "(docs/levels.md)"
            )
