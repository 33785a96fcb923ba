"""Maps a group to its shard, and a node to its clients' address."""

import zlib
from collections.abc import Callable, Mapping

from musterd.raft.contract import NodeId, ShardId


def shard_of(group_id: str, shards: int) -> ShardId:
    """The shard of a group.

    Crc32 of its id as UTF-8, modulo the number of shards fixed at init (arch-1).
    """
    return ShardId(zlib.crc32(group_id.encode()) % shards)


class Directory:
    """The clients' address ("host:port") of each node; peers state it in their hello."""

    def __init__(
        self, own: NodeId, own_endpoint: str, peers: Callable[[], Mapping[int, str]]
    ) -> None:
        self.own = own
        self._own_endpoint = own_endpoint
        self._peers = peers

    def endpoint(self, node: NodeId) -> str:
        """Where clients reach `node`; "" where that is not known yet."""
        return self._own_endpoint if node == self.own else self._peers().get(node, "")

    def all(self) -> Mapping[int, str]:
        """Every node with a known endpoint, by id."""
        known = {**self._peers(), self.own: self._own_endpoint}
        return dict(sorted(known.items()))
