"""The interface through which the services read the node and the cluster as that node knows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as this one knows it."""

    node_id: int
    endpoint: str
    peer_endpoint: str
    store_uuid: str
    connected: bool
    version: str
    learner_shards: int = 0
    """In how many shards it does not count yet."""
    lost: bool = False
    """Whether it is so because its store forgot what it had synced (raft/lives.py)."""
    awaits: Sequence[int] = ()
    """Nodes that have to be up before it counts, and are not."""
    reaches_itself: bool | None = None
    """Whether clients reach it at `endpoint`, as it found itself; None: not known."""
    level: int = 0
    """The highest level that its build knows; 0: it was not heard."""


@dataclass(frozen=True, slots=True)
class LogView:
    """First and last index of one shard's log on this node."""

    first_index: int
    last_index: int


class ClusterView(Protocol):
    """The node and its cluster, as the admin service reads them."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def node_id(self) -> int: ...

    @property
    def store_uuid(self) -> bytes:
        """The store that this node lives in."""
        ...

    def nodes(self) -> Sequence[NodeView]:
        """Every node of the cluster, by id."""
        ...

    async def accept_loss(self) -> bool:
        """Let this node's store count though it forgot something; False where it did not.

        Returns when that is durable.
        """
        ...

    def refused(self) -> Sequence[NodeView]:
        """Stores of known node ids that were refused at the peer port, the latest last."""
        ...

    def awaited(self) -> Sequence[int]:
        """Nodes that this one waits for before it counts anywhere."""
        ...

    def refusals(self) -> Mapping[str, str]:
        """Who was turned away at the peer port, or turned this node away, and why."""
        ...

    def forward_refusals(self) -> Mapping[int, str] | None:
        """Nodes to which this one has no connection for calls, and why; None: it forwards none."""
        ...

    def log(self, shard: int) -> LogView:
        """Where a shard's log begins and ends here."""
        ...
