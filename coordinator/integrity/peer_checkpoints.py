"""The checkpoints that other nodes recorded, fetched from their client ports."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import grpc
import structlog

from muster.admin.operator_secret import METADATA_KEY
from muster.net.bearer_token import is_loopback
from muster.v1 import admin_pb2 as pb
from muster.v1 import admin_pb2_grpc
from musterd.coordinator.runtime.routing import Directory
from musterd.coordinator.runtime.timeouts import FORMER_CHANNEL_MS, PEER_CHECKPOINT_CALL_MS
from musterd.raft.contract import NodeId

log = structlog.get_logger()

MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class _PeerAnswer:
    store_uuid: bytes
    shards: Mapping[int, Mapping[int, bytes]]
    copies: Mapping[int, NodeId]
    set_aside: Collection[int]


class PeerCheckpoints:
    """Asks every other node; keeps the newest answer of each, and nothing of those before.

    `store_uuid` says in which store a node lives now: what another store said is void.
    """

    def __init__(
        self,
        nodes: Sequence[NodeId],
        directory: Directory,
        credentials: grpc.ChannelCredentials | None,
        store_uuid: Callable[[NodeId], bytes | None],
        secret: bytes | None = None,
        *,
        in_the_clear: bool = False,
    ) -> None:
        """`secret`: the operators', by which nodes know each other where there are rules.

        It is shown where nobody can listen: over TLS, and on loopback; `in_the_clear`: everywhere.
        """
        self._in_the_clear = in_the_clear
        self._secret = secret
        self.nodes = tuple(nodes)
        self._directory = directory
        self._credentials = credentials
        self._store_uuid = store_uuid
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._left: list[tuple[float, grpc.aio.Channel]] = []
        """With former certificates, and from when on a round closes them. To close one that has a
        call under way would cancel the task that made it.
        """
        self._answers: dict[NodeId, _PeerAnswer] = {}

    def checkpoints(self, node: NodeId, shard: int) -> Mapping[int, bytes]:
        """Index -> digest, as the node said when it was asked last, in the store that it is in."""
        answer = self._valid(node)
        return answer.shards.get(shard, {}) if answer else {}

    def copy_of(self, node: NodeId, shard: int) -> NodeId | None:
        """Whose state these checkpoints are of, where they are of a copy."""
        answer = self._valid(node)
        return answer.copies.get(shard) if answer else None

    def set_aside(self, node: NodeId, shard: int) -> bool:
        """Whether it keeps another state of the shard, which it replaced without a verdict."""
        answer = self._valid(node)
        return answer is not None and shard in answer.set_aside

    async def refresh(self) -> None:
        """Ask every other node now; one that does not answer has said nothing."""
        await asyncio.gather(*(self._ask(node) for node in self.nodes))
        now_s = asyncio.get_running_loop().time()
        over = [channel for due_s, channel in self._left if due_s <= now_s]
        self._left = [one for one in self._left if one[0] > now_s]
        for channel in over:
            await channel.close()

    def use(self, credentials: grpc.ChannelCredentials | None) -> None:
        """Connect with these from now on; calls that are under way end by themselves."""
        self._credentials = credentials
        due_s = asyncio.get_running_loop().time() + FORMER_CHANNEL_MS / MS
        self._left.extend((due_s, channel) for channel in self._channels.values())
        self._channels = {}

    async def close(self) -> None:
        left, self._left = self._left, []
        channels = [*self._channels.values(), *(channel for _, channel in left)]
        self._channels = {}
        for channel in channels:
            await channel.close()

    def _valid(self, node: NodeId) -> _PeerAnswer | None:
        answer = self._answers.get(node)
        return answer if answer and answer.store_uuid == self._store_uuid(node) else None

    async def _ask(self, node: NodeId) -> None:
        self.answered(node, await self._answer(node))

    def answered(self, node: NodeId, answer: pb.CheckpointsResponse | None) -> None:
        """Keep what a node said now; None: it has said nothing."""
        if answer is None:
            self._answers.pop(node, None)
            return
        shards: dict[int, dict[int, bytes]] = {}
        copies: dict[int, NodeId] = {}
        aside = {point.shard for point in answer.checkpoints if point.set_aside}
        for point in answer.checkpoints:
            shards.setdefault(point.shard, {})[point.index] = point.digest
            if point.HasField("copy_of"):
                copies[point.shard] = NodeId(point.copy_of)
        self._answers[node] = _PeerAnswer(answer.store_uuid, shards, copies, aside)

    async def _answer(self, node: NodeId) -> pb.CheckpointsResponse | None:
        channel = self.channel(node)
        if channel is None:
            return None
        stub: admin_pb2_grpc.AdminAsyncStub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[assignment]
        try:
            return await stub.Checkpoints(
                pb.CheckpointsRequest(),
                timeout=PEER_CHECKPOINT_CALL_MS / MS,
                metadata=self.shown(node),
            )
        except grpc.aio.AioRpcError as error:
            log.debug("a peer's checkpoints cannot be had", node=node, code=error.code().name)
            return None

    def shown(self, node: NodeId) -> tuple[tuple[str, bytes], ...]:
        """The metadata of a call to another node."""
        private = self._credentials is not None or is_loopback(self._directory.endpoint(node))
        may_show = private or self._in_the_clear
        return ((METADATA_KEY, self._secret),) if self._secret and may_show else ()

    def channel(self, node: NodeId) -> grpc.aio.Channel | None:
        """The channel to another node's client port; None where its address is not known yet."""
        endpoint = self._directory.endpoint(node)
        if not endpoint:
            return None
        channel = self._channels.get(endpoint)
        if channel is None:
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(endpoint)
            else:
                channel = grpc.aio.secure_channel(endpoint, self._credentials)
            self._channels[endpoint] = channel
        return channel
