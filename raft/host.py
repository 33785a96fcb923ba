"""The interface of the node that a replica lives on."""

from collections.abc import Callable
from random import Random
from typing import Protocol

from musterd.raft.codec import Message
from musterd.raft.contract import ShardId
from musterd.raft.disk_room import DiskRoom
from musterd.raft.identity import Identity
from musterd.raft.notices import Notice
from musterd.raft.peers import PeerBook
from musterd.raft.progress import PeerBudget
from musterd.raft.settings import RaftSettings
from musterd.storage.store import Store


class Host(Protocol):
    """The driver is one."""

    identity: Identity
    store: Store
    book: PeerBook
    settings: RaftSettings
    clock: Callable[[], float]
    rng: Random
    apply_until: float
    """When this turn's shards have applied enough, on the node's clock."""
    apply_over: bool
    """That they have, and this shard's turn comes first in the next one."""
    rooms: DiskRoom

    def tell(self, notice: Notice) -> None:
        """Something happened that people want to read of (raft/notices.py)."""
        ...

    @property
    def disk_hangs(self) -> bool:
        """Whether a sync takes so long that this node leads nothing until it returns."""
        ...

    def post(self, shard: ShardId, node: int, message: Message, hold: bool) -> None:
        """Queue a message; `hold`: it leaves only when all that is pending now is synced."""
        ...

    def mark(self, shard: ShardId) -> None:
        """The shard has work: tick it in the next turn."""
        ...

    def budget(self, node: int) -> PeerBudget:
        """Bytes in flight to a peer, over all shards."""
        ...

    def take_snapshot_slot(self) -> bool:
        """Whether one more snapshot may be sent now; give it back with `free_snapshot_slot`."""
        ...

    def free_snapshot_slot(self) -> None:
        """A snapshot is sent, or given up."""
        ...
