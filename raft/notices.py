"""Notices of the Raft layer to observers: elections, peers, hand-overs, snapshots.

A notice changes nothing and is told at once, inside the turn: who takes it must not call back.
"""

from dataclasses import dataclass
from enum import StrEnum

from musterd.raft.contract import NodeId, ShardId


class ElectionCause(StrEnum):
    """The reason why a replica stood for election."""

    START = "start"
    """It has heard no leader since its process started."""
    LEADER_SILENT = "leader_silent"
    """The leader said nothing for an election time-out."""
    CONNECTION_LOST = "connection_lost"
    """The control connection to the leader broke."""
    TRANSFER = "transfer"
    """The leader asked it to take over."""
    LEADERSHIP_LOST = "leadership_lost"
    """It led before, was deposed, and has heard no leader since."""
    ONLY_NODE = "only_node"
    """Its cluster has no other node."""


@dataclass(frozen=True, slots=True)
class ElectionWon:
    """This node leads `shard` in `term`."""

    shard: ShardId
    term: int
    cause: ElectionCause


@dataclass(frozen=True, slots=True)
class ElectionLost:
    """This node stood for `term` and does not lead in it."""

    shard: ShardId
    term: int
    cause: ElectionCause


@dataclass(frozen=True, slots=True)
class LeadershipLost:
    """This node leads `shard` no more. `to`: the node that it asked to take over; None = nobody."""

    shard: ShardId
    term: int
    """The term that it knows of now."""
    to: NodeId | None


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """The control connection to `node` stands."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The control connection to `node` broke."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class SnapshotSent:
    """A follower has all of a snapshot. `index`: the last entry that it holds."""

    shard: ShardId
    node: NodeId
    index: int


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """A leader's snapshot has replaced this replica's state."""

    shard: ShardId
    node: NodeId
    """Who sent it."""
    index: int


Notice = (
    ElectionWon
    | ElectionLost
    | LeadershipLost
    | PeerConnected
    | PeerLost
    | SnapshotSent
    | SnapshotInstalled
)
