"""The gRPC frontend of the topic registry, which shard 0 keeps. Any node reads it."""

from collections.abc import Sequence

from muster.v1 import admin_pb2 as pb
from muster.v1 import admin_pb2_grpc
from muster.v1.errors_pb2 import Status
from musterd.coordinator.api import translate
from musterd.coordinator.api.cooperative_yield import TOPIC_ENTRIES, Slices
from musterd.coordinator.api.handler import Context, Coordination, admit, shed
from musterd.coordinator.api.node_replacement import CLUSTER_SHARD
from musterd.coordinator.machine.commands import AddPartitions, CreateTopic, ShardCommand
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import Done, Refused
from musterd.coordinator.runtime.answers import Answer, Shed
from musterd.coordinator.runtime.topic_registry import BEHIND

SHARD_COMMAND_BYTES = 1_024
"""A shard-wide command's encoding is shorter: a name of at most 249 bytes and a number."""

DESCRIBE_TOPICS_MAX = LIMITS.max_topics


class TopicService(admin_pb2_grpc.TopicsServicer):
    """muster.v1.Topics."""

    def __init__(self, core: Coordination) -> None:
        self._core = core

    async def CreateTopic(
        self, request: pb.CreateTopicRequest, context: Context
    ) -> pb.CreateTopicResponse:
        """Register a topic; the same name with the same count is success."""
        answer = await _ask_shard_0(
            self._core, CreateTopic(request.name, request.partitions), request.name, context
        )
        if not isinstance(answer, Done):
            return pb.CreateTopicResponse(status=answer)
        topic = pb.Topic(name=request.name, partitions=request.partitions)
        return pb.CreateTopicResponse(topic=topic, created=answer.changed)

    async def AddPartitions(
        self, request: pb.AddPartitionsRequest, context: Context
    ) -> pb.AddPartitionsResponse:
        """Let a topic grow to a new total."""
        answer = await _ask_shard_0(
            self._core, AddPartitions(request.name, request.partitions), request.name, context
        )
        if not isinstance(answer, Done):
            return pb.AddPartitionsResponse(status=answer)
        topic = pb.Topic(name=request.name, partitions=request.partitions)
        return pb.AddPartitionsResponse(topic=topic)

    async def ListTopics(
        self, request: pb.ListTopicsRequest, context: Context
    ) -> pb.ListTopicsResponse:
        """Every topic this node's copy of the registry knows, by name."""
        del request
        admitted = await admit(self._core, context)
        try:
            response = pb.ListTopicsResponse()
            async with Slices(self._core.one_long_read) as slices:
                await slices.turn(self._core.topics.number)
                for name, count in self._core.topics.all().items():
                    response.topics.add(name=name, partitions=count)
                    await slices.did(1)
            return response
        finally:
            admitted.leave()

    async def DescribeTopics(
        self, request: pb.DescribeTopicsRequest, context: Context
    ) -> pb.DescribeTopicsResponse:
        """One result per name, from this node's copy of the registry."""
        admitted = await admit(self._core, context)
        try:
            if len(request.names) > DESCRIBE_TOPICS_MAX:
                status = self._core.statuses.error(
                    Error.INVALID_REQUEST,
                    f"At most {DESCRIBE_TOPICS_MAX} topics are described in one call.",
                )
                return pb.DescribeTopicsResponse(status=status)
            async with Slices(self._core.one_long_read) as slices:
                return await self._describe(request.names, slices)
        finally:
            admitted.leave()

    async def _describe(self, names: Sequence[str], slices: Slices) -> pb.DescribeTopicsResponse:
        await slices.turn(TOPIC_ENTRIES * len(names))
        topics = self._core.topics
        counts = {name: topics.count(name) for name in names}
        if None in counts.values() and not topics.is_current:
            return pb.DescribeTopicsResponse(status=self._core.statuses.of(BEHIND))
        response = pb.DescribeTopicsResponse()
        for name in names:
            count = counts[name]
            result = response.results.add(name=name)
            if count is None:
                result.status.CopyFrom(
                    self._core.statuses.error(
                        Error.UNKNOWN_TOPIC_OR_PARTITION,
                        f"There is no topic {name!r}: create it first.",
                    )
                )
            else:
                result.topic.CopyFrom(pb.Topic(name=name, partitions=count))
            await slices.did(TOPIC_ENTRIES)
        return response


async def _ask_shard_0(
    core: Coordination, command: ShardCommand, what: str, context: Context
) -> Done | Status:
    """Propose a cluster-wide command; `Done` as the log decided it, or what to tell the caller."""
    admitted = await admit(core, context)
    try:
        refused = _too_long(what)
        answer: Answer = refused or await core.ask(
            core.shards[CLUSTER_SHARD], command, SHARD_COMMAND_BYTES, admitted
        )
        if isinstance(answer, Shed):
            await shed(context, answer.what)
        if isinstance(answer, Done):
            return answer
        return core.statuses.of(translate.failure(answer))
    finally:
        admitted.leave()


def _too_long(name: str) -> Refused | None:
    size = len(name.encode())
    if size <= LIMITS.id_max_bytes:
        return None
    return Refused(
        Error.INVALID_TOPIC_EXCEPTION,
        f"A topic's name has 1 to {LIMITS.id_max_bytes} bytes; this one has {size}.",
    )
