"""The RPCs of the topic registry, which shard 0 keeps. Any node reads it."""

from muster.v1 import admin_pb2 as pb
from muster.v1 import admin_pb2_grpc
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.handler import (
    ActiveCall,
    CoordinatorService,
    Failure,
    handler,
    with_status,
)
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.api.limits.cooperative_yield import TOPIC_ENTRIES
from musterd.coordinator.machine.commands import AddPartitions, CreateTopic
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Done
from musterd.coordinator.runtime.topic_registry import BEHIND

SHARD_COMMAND_BYTES = 1_024
"""A shard-wide command's encoding is shorter: a name of at most 249 bytes and a number."""


class TopicService(CoordinatorService, admin_pb2_grpc.TopicsServicer):
    """muster.v1.Topics."""

    @handler(Kind.ORDINARY, bounds.CHANGE_TOPIC, with_status(pb.CreateTopicResponse))
    async def CreateTopic(
        self, request: pb.CreateTopicRequest, call: ActiveCall
    ) -> pb.CreateTopicResponse:
        """Register a topic; the same name with the same count is success."""
        command = CreateTopic(request.name, request.partitions)
        done = await call.ask(command, SHARD_COMMAND_BYTES, Done)
        topic = pb.Topic(name=request.name, partitions=request.partitions)
        return pb.CreateTopicResponse(topic=topic, created=done.changed)

    @handler(Kind.ORDINARY, bounds.CHANGE_TOPIC, with_status(pb.AddPartitionsResponse))
    async def AddPartitions(
        self, request: pb.AddPartitionsRequest, call: ActiveCall
    ) -> pb.AddPartitionsResponse:
        """Let a topic grow to a new total."""
        command = AddPartitions(request.name, request.partitions)
        await call.ask(command, SHARD_COMMAND_BYTES, Done)
        topic = pb.Topic(name=request.name, partitions=request.partitions)
        return pb.AddPartitionsResponse(topic=topic)

    @handler(Kind.ORDINARY, bounds.NONE, with_status(pb.ListTopicsResponse), reads=True)
    async def ListTopics(
        self, request: pb.ListTopicsRequest, call: ActiveCall
    ) -> pb.ListTopicsResponse:
        """Every topic this node's copy of the registry knows, by name."""
        del request
        response = pb.ListTopicsResponse()
        async with call.slices() as slices:
            await slices.turn(self.core.topics.number)
            for name, count in self.core.topics.all().items():
                response.topics.add(name=name, partitions=count)
                await slices.did(1)
        return response

    @handler(
        Kind.ORDINARY, bounds.DESCRIBE_TOPICS, with_status(pb.DescribeTopicsResponse), reads=True
    )
    async def DescribeTopics(
        self, request: pb.DescribeTopicsRequest, call: ActiveCall
    ) -> pb.DescribeTopicsResponse:
        """One result per name, from this node's copy of the registry."""
        topics, statuses = self.core.topics, self.core.statuses
        response = pb.DescribeTopicsResponse()
        async with call.slices() as slices:
            await slices.turn(TOPIC_ENTRIES * len(request.names))
            counts = {name: topics.count(name) for name in request.names}
            if None in counts.values() and not topics.is_current:
                raise Failure(request, BEHIND)
            for name in request.names:
                count = counts[name]
                result = response.results.add(name=name)
                if count is None:
                    message = f"There is no topic {name!r}: create it first."
                    result.status.CopyFrom(
                        statuses.error(Error.UNKNOWN_TOPIC_OR_PARTITION, message)
                    )
                else:
                    result.topic.CopyFrom(pb.Topic(name=name, partitions=count))
                await slices.did(TOPIC_ENTRIES)
        return response
