"""Single attempts at one node, without the SDK's retries: a deposed leader answers for itself.

The SDK finds the coordinator and hides who answered. What a node says that does not know yet that
it is deposed is what inv-I2 and inv-I15 are about, so these calls go to the node that is named.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import grpc

from chaos.history import Key, Outcome
from chaos.workloads.notebook import Notebook
from chaos.workloads.outcomes import name_of, of_code, of_rpc
from muster.errors import ErrorCode
from muster.nodes import CHANNEL_OPTIONS
from muster.v1 import group_pb2, group_pb2_grpc

ATTEMPT_S = 2.0


class RawNodes:
    """A channel to each of some addresses."""

    def __init__(self, nodes: Mapping[str, int], book: Notebook) -> None:
        """`nodes`: node ids by address. Nothing is connected yet."""
        self.nodes = dict(nodes)
        self.endpoints = list(nodes)
        self._book = book
        self._channels = {
            one: grpc.aio.insecure_channel(one, options=CHANNEL_OPTIONS) for one in nodes
        }
        self._stubs = {one: _stub(channel) for one, channel in self._channels.items()}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def leader(self, group: str, ask: str) -> str:
        """Where one node says that the group's coordinator is; "" where it does not know."""
        request = group_pb2.FindCoordinatorRequest()
        request.keys.add(group_id=group)
        try:
            answer = await self._stubs[ask].FindCoordinator(request, timeout=ATTEMPT_S)
        except grpc.RpcError:
            return ""
        for result in answer.results:
            if int(result.status.code) == ErrorCode.NONE:
                endpoint: str = result.coordinator.endpoint
                return endpoint if endpoint in self._stubs else ""
        return ""

    async def commit(self, at: str, key: Key, value: int) -> Outcome:
        """One simple commit (outside of a group's membership), one attempt."""
        request = group_pb2.OffsetCommitRequest(group_id=key.group, member_id="", generation=-1)
        request.partitions.add(topic=key.topic, partition=key.partition, offset=value)
        note = self._book.begin("commit", key, value=value, node=self.nodes[at])
        try:
            answer = await self._stubs[at].OffsetCommit(request, timeout=ATTEMPT_S)
        except grpc.RpcError as error:
            return note.end(of_rpc(error), error=name_of(error))
        codes = [int(answer.status.code), *(int(one.status.code) for one in answer.partitions)]
        code = next((one for one in codes if one != ErrorCode.NONE), ErrorCode.NONE)
        if code == ErrorCode.NONE and any(one.superseded for one in answer.partitions):
            return note.end(Outcome.UNKNOWN, error="SUPERSEDED")
        return note.end(of_code(code), error="" if code == ErrorCode.NONE else _name(code))

    async def read(self, at: str, key: Key) -> Outcome:
        """One linearizable read, one attempt. A node that does not lead refuses it."""
        request = group_pb2.OffsetFetchRequest(group_id=key.group)
        request.partitions.add(topic=key.topic, partition=key.partition)
        note = self._book.begin("read", key, node=self.nodes[at])
        try:
            answer = await self._stubs[at].OffsetFetch(request, timeout=ATTEMPT_S)
        except grpc.RpcError as error:
            return note.end(Outcome.FAIL, error=name_of(error))
        if int(answer.status.code) != ErrorCode.NONE:
            return note.end(Outcome.FAIL, error=_name(answer.status.code))
        if len(answer.partitions) != 1:
            return note.end(Outcome.FAIL, error="NO_ANSWER_FOR_PARTITION")
        return note.end(Outcome.OK, value=answer.partitions[0].offset)


def _name(code: int) -> str:
    return ErrorCode(code).name if code in list(ErrorCode) else str(code)


def _stub(channel: grpc.aio.Channel) -> "group_pb2_grpc.GroupCoordinatorAsyncStub":
    stub: group_pb2_grpc.GroupCoordinatorAsyncStub = group_pb2_grpc.GroupCoordinatorStub(channel)  # type: ignore[assignment]
    return stub
