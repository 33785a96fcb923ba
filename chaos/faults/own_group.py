"""A group that a fault commits to itself, from outside of the network: no workload knows it."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import TypeVar

import grpc

from muster.v1 import admin_pb2, errors_pb2, group_pb2
from musterd.chaos.faults.client_load import CALL_S, ELSEWHERE
from musterd.chaos.faults.contract import FaultError
from musterd.chaos.world.world import World
from musterd.coordinator.runtime.routing import shard_of

DONE_S_MAX = 20.0
POLL_S = 0.05
TOPIC = "muster-chaos-own"
PARTITIONS = 64
METADATA_BYTES_MAX = 4_096
TAKEN = {int(errors_pb2.NONE)}
_T = TypeVar("_T")


def answers(world: World, ask: Callable[[int], _T]) -> Iterator[_T]:
    """Yield the answers of running nodes, one after the other, of those that answer."""
    for node_id in world.running():
        with contextlib.suppress(grpc.RpcError):
            yield ask(node_id)


class OwnGroup:
    """Of one shard; no members, every partition of `TOPIC`."""

    def __init__(self, world: World, name: str, shard: int | None = None) -> None:
        """`shard`: where it has to live; None: wherever it does. Creates the topic."""
        self._world = world
        self.topic = TOPIC
        names = (f"muster-chaos-{name}-{number}" for number in count())
        self.name = next(
            one for one in names if shard is None or shard_of(one, world.shards) == shard
        )
        self.shard = shard_of(self.name, world.shards)
        world.create_topic(TOPIC, PARTITIONS)

    def commit(self, offset: int, partitions: Iterable[int] = (0,), metadata: str = "") -> None:
        """The same offset of some partitions. Raises FaultError where nobody takes it."""
        commit = self._commit(offset, partitions, metadata)
        if self._told(commit, lambda codes: codes == TAKEN) != TAKEN:
            raise FaultError(f"nobody took a commit of {self.name} in {DONE_S_MAX:.0f} s")

    def told(self, offset: int, partition: int) -> set[int]:
        """Return the error codes that answer a commit of one partition; empty: nobody answered."""
        return self._told(self._commit(offset, [partition]))

    def delete(self) -> set[int]:
        """The same of its deletion; NONE where it is gone, as after a call that timed out."""
        request = admin_pb2.DeleteGroupsRequest(group_ids=[self.name])

        def codes(node_id: int) -> set[int]:
            answer = self._world.admin(node_id).DeleteGroups(request, timeout=CALL_S)
            return {int(one.status.code) for one in answer.results}

        told = self._told(codes)
        return TAKEN if told == {int(errors_pb2.GROUP_ID_NOT_FOUND)} else told

    def offset(self) -> int:
        """Return the offset of partition 0. Raises FaultError where nobody says."""
        request = group_pb2.OffsetFetchRequest(group_id=self.name)
        request.partitions.add(topic=TOPIC, partition=0)
        for answer in self._again(
            lambda node_id: self._world.groups(node_id).OffsetFetch(request, timeout=CALL_S)
        ):
            if answer.status.code == errors_pb2.NONE:
                return answer.partitions[0].offset
        raise FaultError(f"nobody told an offset of {self.name} in {DONE_S_MAX:.0f} s")

    def applied(self) -> dict[int, int]:
        """By node that answers, up to which index it has applied of this shard."""
        return {
            node_id: state.applied_index
            for node_id, view in self._world.views().items()
            for state in view.shard_states
            if state.shard == self.shard
        }

    def _commit(
        self, offset: int, partitions: Iterable[int], metadata: str = ""
    ) -> Callable[[int], set[int]]:
        request = group_pb2.OffsetCommitRequest(group_id=self.name, generation=-1)
        for partition in partitions:
            request.partitions.add(
                topic=TOPIC, partition=partition, offset=offset, metadata=metadata
            )

        def codes(node_id: int) -> set[int]:
            answer = self._world.groups(node_id).OffsetCommit(request, timeout=CALL_S)
            return {int(answer.status.code), *(int(one.status.code) for one in answer.partitions)}

        return codes

    def _told(
        self,
        codes: Callable[[int], set[int]],
        final: Callable[[set[int]], bool] = lambda codes: not codes & ELSEWHERE,
    ) -> set[int]:
        """Return what a node says for good; empty: nobody."""
        return next(filter(final, self._again(codes)), set())

    def _again(self, ask: Callable[[int], _T]) -> Iterator[_T]:
        """`answers`, again and again for as long as it may take."""
        deadline = time.monotonic() + DONE_S_MAX
        while time.monotonic() < deadline:
            yield from answers(self._world, ask)
            time.sleep(POLL_S)
