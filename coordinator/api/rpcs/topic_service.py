"""The RPCs of the topic registry, which shard 0 keeps. Any node reads it."""

from muster.v1 import admin_pb2 as pb
from muster.v1 import admin_pb2_grpc
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.handler import (
    ActiveCall,
    CoordinatorService,
    handler,
    with_status,
)
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.api.limits.cooperative_yield import KEYS_PER_ENTRY, TOPIC_ENTRIES
from musterd.coordinator.machine.access import Operation, Resource
from musterd.coordinator.machine.commands import (
    AddPartitions,
    CreateTopic,
    DeleteTopic,
    SetTopicZones,
)
from musterd.coordinator.machine.decide.level import LEVEL_OF, LEVEL_OF_ZONES
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Done, Refused
from musterd.coordinator.machine.subscriptions import is_subscribed
from musterd.coordinator.runtime.answers import Loading

SHARD_COMMAND_BYTES = 1_024
"""A shard-wide command's encoding is shorter, but for zones: a name of at most 249 bytes and a
number."""

READING_GROUPS = 8
"""Groups that read a topic, as a dry run of its deletion names them."""


def _missing(name: str) -> Refused:
    return Refused(
        Error.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name!r}: create it first."
    )


class TopicService(CoordinatorService, admin_pb2_grpc.TopicsServicer):
    """Serves `muster.v1.Topics`."""

    @handler(Kind.ORDINARY, bounds.CHANGE_ZONES, with_status(pb.CreateTopicResponse))
    async def CreateTopic(
        self, request: pb.CreateTopicRequest, call: ActiveCall
    ) -> pb.CreateTopicResponse:
        """Register a topic; the same name with the same count is success."""
        if request.zones:
            call.needs_level(LEVEL_OF_ZONES)
        call.changed(self.core.topics.count(request.name), request.partitions)
        command = CreateTopic(request.name, request.partitions, request.zones)
        done = await call.ask(command, SHARD_COMMAND_BYTES + len(request.zones), Done)
        topic = self._topic(request.name, request.partitions)
        return pb.CreateTopicResponse(topic=topic, created=done.changed)

    @handler(Kind.ORDINARY, bounds.CHANGE_TOPIC, with_status(pb.AddPartitionsResponse))
    async def AddPartitions(
        self, request: pb.AddPartitionsRequest, call: ActiveCall
    ) -> pb.AddPartitionsResponse:
        """Let a topic grow to a new total."""
        call.changed(self.core.topics.count(request.name), request.partitions)
        command = AddPartitions(request.name, request.partitions)
        await call.ask(command, SHARD_COMMAND_BYTES, Done)
        return pb.AddPartitionsResponse(topic=self._topic(request.name, request.partitions))

    @handler(Kind.ORDINARY, bounds.CHANGE_ZONES, with_status(pb.SetTopicZonesResponse))
    async def SetTopicZones(
        self, request: pb.SetTopicZonesRequest, call: ActiveCall
    ) -> pb.SetTopicZonesResponse:
        """Say in which zones a topic's partitions are; modern groups that read it are planned."""
        call.needs_level(LEVEL_OF[SetTopicZones])
        topics, name = self.core.topics, request.name
        call.changed(topics.zones(name), request.zones)
        command = SetTopicZones(name, request.zones)
        await call.ask(command, SHARD_COMMAND_BYTES + len(request.zones), Done)
        return pb.SetTopicZonesResponse(topic=self._topic(name, topics.count(name) or 0))

    def _topic(self, name: str, partitions: int) -> pb.Topic:
        topics = self.core.topics
        return pb.Topic(
            name=name,
            partitions=partitions,
            created_wall_ms=topics.created_wall_ms(name),
            creation_version=topics.creation_version(name),
            zones=topics.zones(name),
        )

    @handler(Kind.ORDINARY, bounds.CHANGE_TOPIC, with_status(pb.DeleteTopicResponse))
    async def DeleteTopic(
        self, request: pb.DeleteTopicRequest, call: ActiveCall
    ) -> pb.DeleteTopicResponse:
        """Delete a topic; its offsets go afterwards (topic_deletion.py)."""
        topics, name = self.core.topics, request.name
        if request.validate_only:
            return await self._would_delete(name, call)
        count = topics.count(name)
        call.changed(count, None)
        known = None if count is None else self._topic(name, count)
        meant = request.creation_version if request.HasField("creation_version") else None
        await call.ask(DeleteTopic(name, meant), SHARD_COMMAND_BYTES, Done)
        return pb.DeleteTopicResponse(topic=known, topics_version=topics.version)

    async def _would_delete(self, name: str, call: ActiveCall) -> pb.DeleteTopicResponse:
        """Count on this node's own replicas, which all shards have.

        Groups that the caller may not describe are left out, numbers and offsets too.
        """
        topics = self.core.topics
        count = topics.count(name)
        if count is None:
            await call.topic_unknown(name)
            call.refuse(_missing(name), name)
        if not all(shard.has_state for shard in self.core.shards):
            call.refuse(Loading(), name)
        response = pb.DeleteTopicResponse(topic=self._topic(name, count or 0))
        async with call.slices() as slices:
            await slices.turn(sum(len(shard.state.groups) for shard in self.core.shards))
            for shard in self.core.shards:
                for group in list(shard.state.groups.values()):
                    found = sum(topic == name for topic, _ in group.offsets)
                    reads = is_subscribed(group, name)
                    if (found or reads) and call.may(
                        Operation.DESCRIBE, Resource.GROUP, group.group_id
                    ):
                        response.offsets += found
                        response.groups += found > 0
                        response.reading_groups += reads
                        if reads and len(response.reading_group_ids) < READING_GROUPS:
                            response.reading_group_ids.append(group.group_id)
                    await slices.looked_at(KEYS_PER_ENTRY + group.offset_count)
        return response

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
                if call.may_see(name):
                    response.topics.append(self._topic(name, count))
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
            denied = {name: call.denied_item(name) for name in request.names}
            counts = {name: topics.count(name) for name, no in denied.items() if no is None}
            if counts or not call.identity:  # else it would tell that others' topics come and go
                response.topics_version = topics.version
            if None in counts.values():
                await call.topic_unknown(request)
            for name in request.names:
                refused, count = denied[name], counts.get(name)
                result = response.results.add(name=name)
                if refused is not None:
                    result.status.CopyFrom(statuses.of(refused))
                elif count is None:
                    result.status.CopyFrom(statuses.of(_missing(name)))
                    result.deleting = topics.is_deleting(name)
                else:
                    result.topic.CopyFrom(self._topic(name, count))
                await slices.did(TOPIC_ENTRIES)
        return response
