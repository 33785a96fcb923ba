"""What the other nodes recorded at their checkpoints, asked over their client ports."""

import asyncio
from collections.abc import Mapping, Sequence

import grpc
import structlog

from coordinator.routing import Directory
from coordinator.timeouts import PEER_CHECKPOINT_CALL_MS
from muster.v1 import admin_pb2 as pb
from muster.v1 import admin_pb2_grpc
from raft.contract import NodeId

log = structlog.get_logger()


class PeerCheckpoints:
    """Asks every other node; keeps the last answer of each."""

    def __init__(
        self,
        nodes: Sequence[int],
        directory: Directory,
        credentials: grpc.ChannelCredentials | None,
    ) -> None:
        self.nodes = tuple(nodes)
        self._directory = directory
        self._credentials = credentials
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._known: dict[tuple[int, int], dict[int, bytes]] = {}

    def checkpoints(self, node: int, shard: int) -> Mapping[int, bytes]:
        """Index -> digest, as the node said last."""
        return self._known.get((node, shard), {})

    async def refresh(self) -> None:
        """Ask every other node now; one that does not answer keeps what it said before."""
        await asyncio.gather(*(self._ask(node) for node in self.nodes))

    async def close(self) -> None:
        """Close the channels."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    async def _ask(self, node: int) -> None:
        endpoint = self._directory.endpoint(NodeId(node))
        if not endpoint:
            return
        stub: admin_pb2_grpc.AdminAsyncStub = admin_pb2_grpc.AdminStub(self._channel(endpoint))  # type: ignore[assignment]
        try:
            answer = await stub.Checkpoints(
                pb.CheckpointsRequest(), timeout=PEER_CHECKPOINT_CALL_MS / 1_000
            )
        except grpc.aio.AioRpcError as error:
            log.debug("a peer's checkpoints cannot be had", node=node, code=error.code().name)
            return
        found: dict[tuple[int, int], dict[int, bytes]] = {}
        for point in answer.checkpoints:
            found.setdefault((node, point.shard), {})[point.index] = point.digest
        self._known.update(found)

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        channel = self._channels.get(endpoint)
        if channel is None:
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(endpoint)
            else:
                channel = grpc.aio.secure_channel(endpoint, self._credentials)
            self._channels[endpoint] = channel
        return channel
