"""The context that a node's shards share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from musterd.coordinator.machine.shard_state import ShardState
from musterd.coordinator.runtime.calls import NodeCallLimits
from musterd.coordinator.runtime.growth import StateSize
from musterd.coordinator.runtime.retention import Retention
from musterd.raft.contract import ShardId


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The objects that the shards of a node share, and the functions by which they reach it."""

    wall_ms: Callable[[], int]
    """Milliseconds since 1970."""
    wake: Callable[[ShardId], None]
    """Asks for a turn soon, in which the shard's `hurry` is called at least."""
    call_limits: NodeCallLimits
    state_size: StateSize
    retention: Retention
    registry: Callable[[], ShardState]
    """Shard 0's applied state on this node."""
    registry_distrusted: Callable[[], bool]
    """Whether that replica is in quarantine: what it says may be wrong."""
    group_moved: Callable[[int, str], None]
    """The members of a group have something to do: heartbeats that are held are answered."""
    shard_moved: Callable[[int], None]
    """The members of all groups of a shard have something to do."""
    node_levels: Callable[[], Mapping[int, int]]
    """The highest level that each node of the cluster knows, by its id, as it said last; 0 where it
    was not heard. Empty: this node sees to no levels."""
    auto_finalize: Callable[[], bool]
    """Whether a level that every node knows is finalised without an operator."""
    offsets_dropped: Callable[[str, int], bool]
    """Whether every shard is done with a topic's deletion at a version of the registry, as this
    node's own replicas show."""
