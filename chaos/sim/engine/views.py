"""How the checker sees a simulated node: its replicas, and what a power cut would leave."""

from bisect import bisect_left

from musterd.chaos.sim.engine.world import Node
from musterd.raft.contract import Role, ShardId
from musterd.raft.log_format import decode_entry
from musterd.raft.replica.replica import Replica
from musterd.storage import keys
from musterd.storage.memory import MemoryStore
from musterd.storage.store import Family


class View:
    """One replica as the checker sees it."""

    def __init__(self, owner: Node, shard: int) -> None:
        self._owner, self._shard = owner, shard
        self.node, self.incarnation = owner.number, owner.incarnation

    @property
    def _replica(self) -> Replica:
        return self._owner.running.replicas[ShardId(self._shard)]

    @property
    def role(self) -> Role:
        return self._replica.role

    @property
    def term(self) -> int:
        return self._replica.term

    @property
    def commit_index(self) -> int:
        return self._replica.commit_index

    @property
    def first_index(self) -> int:
        return self._replica.journal.first_index

    @property
    def last_index(self) -> int:
        return self._replica.journal.last_index

    def entry_at(self, index: int) -> tuple[int, bytes]:
        command, _, term = self._replica.journal.read(index, 1, 1)[0]
        return term, command

    def is_durable(self, index: int, term: int) -> bool:
        return self._owner.is_durable(self._shard, index, term)


class DurableView:
    """A node's disk as the checker sees it."""

    def __init__(self, node: Node, shard: int) -> None:
        self._node, self._shard = node, shard

    def is_durable(self, index: int, term: int) -> bool:
        return self._node.is_durable(self._shard, index, term)


def has_entry(store: MemoryStore, shard: int, index: int, term: int) -> bool:
    """Whether the synced half of `store` holds the entry, or state beyond it."""
    log = store._durable[Family.LOG]
    key = keys.log_key(shard, index)
    value = log.values.get(key)
    if value is not None:
        return decode_entry(key, value)[2] == term
    at = bisect_left(log.keys, keys.log_key(shard, 0))
    return at < len(log.keys) and log.keys[at] > key
