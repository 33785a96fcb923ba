"""Which shard a group lives in, and where its coordinator is."""

import zlib
from collections.abc import Mapping

from raft.contract import NodeId, ShardId


def shard_of(group_id: str, shards: int) -> ShardId:
    """The shard of a group: crc32 of its id as UTF-8, modulo the number of shards fixed at init (architecture 1.8)."""
    return ShardId(zlib.crc32(group_id.encode()) % shards)


class Directory:
    """Client endpoints ("host:port") of the cluster's nodes, as their hellos and this node's settings say."""

    def __init__(self, own: NodeId, own_endpoint: str) -> None:
        self.own = own
        self._endpoints: dict[NodeId, str] = {own: own_endpoint}

    def learn(self, node: NodeId, endpoint: str) -> None:
        """A peer said where its clients reach it."""
        if endpoint:
            self._endpoints[node] = endpoint

    def endpoint(self, node: NodeId) -> str:
        """Where clients reach `node`; "" where that is not known yet."""
        return self._endpoints.get(node, "")

    def all(self) -> Mapping[NodeId, str]:
        """Every node with a known endpoint, by id."""
        return dict(sorted(self._endpoints.items()))
