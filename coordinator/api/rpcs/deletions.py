"""The RPCs by which an operator removes groups, offsets, members (gp-2.5, gp-2.10, gp-2.11)."""

from collections.abc import Iterable, Iterator, Mapping

from muster.v1 import admin_pb2 as pb
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.audit_trail import listed
from musterd.coordinator.api.frame.handler import (
    ActiveCall,
    CoordinatorService,
    handler,
    with_status,
)
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.api.limits.cooperative_yield import TOPIC_ENTRIES
from musterd.coordinator.api.rpcs.leave_batches import depart
from musterd.coordinator.machine.commands import (
    DeleteGroup,
    LeaveGroup,
    LeavingMember,
    OffsetDelete,
    TopicPartition,
)
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import Done, OffsetsDeleted
from musterd.coordinator.machine.state import Offset
from musterd.coordinator.runtime.answers import Answer

KICKED = "kicked by operator"
"""What a round's reason begins with; members read it, too."""

NOT_HERE = {
    Error.UNKNOWN_MEMBER_ID: "The group has no such member.",
    Error.FENCED_INSTANCE_ID: "The instance id belongs to another member.",
}


class Deletions(CoordinatorService):
    """The RPCs that remove something. Answered once that is durable on a majority."""

    @handler(Kind.ORDINARY, bounds.DELETE_GROUPS, with_status(pb.DeleteGroupsResponse))
    async def DeleteGroups(
        self, request: pb.DeleteGroupsRequest, call: ActiveCall
    ) -> pb.DeleteGroupsResponse:
        """Remove empty groups, each on its own (gp-2.11).

        Those of one shard share entries of its log (sc-E24).
        """
        group_ids = list(dict.fromkeys(request.group_ids))  # sc-E21
        response = pb.DeleteGroupsResponse()
        there = [one for one in group_ids if one in self.core.shard_for(one).state.groups]
        call.changed(listed(((one, self._group(one)) for one in there), len(there)), None)

        def done(group_id: str, answer: Answer) -> None:
            result = response.results.add(group_id=group_id)
            if not isinstance(answer, Done):
                result.status.CopyFrom(self.core.statuses.of(answer))

        await call.ask_each(group_ids, bounds.DELETE_GROUP, DeleteGroup, done)
        return response

    @handler(Kind.ORDINARY, bounds.OFFSET_DELETE, with_status(pb.OffsetDeleteResponse))
    async def OffsetDelete(
        self, request: pb.OffsetDeleteRequest, call: ActiveCall
    ) -> pb.OffsetDeleteResponse:
        """Remove offsets of topics that the group does not read (gp-2.10).

        Partitions that do not exist are refused before the log, as in a commit (gp-O2).
        """
        core = self.core
        async with call.slices() as slices:
            await slices.turn(TOPIC_ENTRIES * len(request.partitions))
            keys = [TopicPartition(p.topic, p.partition) for p in request.partitions]
            unknown = {key: why for key in keys if (why := core.topics.unknown(*key))}
            call.check_topics(OffsetDelete(request.group_id, tuple(keys)))
        if unknown:
            await call.topic_unknown(request, core.shard_for(request.group_id))
        command = OffsetDelete(request.group_id, tuple(key for key in keys if key not in unknown))
        group = core.shard_for(request.group_id).state.groups.get(request.group_id)
        offsets = {} if group is None else group.offsets
        stored = [key for key in keys if key in offsets]
        call.changed(listed(_offsets(offsets, stored), len(stored)), None)
        told = iter((await call.ask(command, call.size, OffsetsDeleted)).partitions)
        response = pb.OffsetDeleteResponse()
        for key in keys:
            one = response.partitions.add(topic=key.topic, partition=key.partition)
            if key in unknown:
                error, message = Error.UNKNOWN_TOPIC_OR_PARTITION, unknown[key]
            else:
                _, _, error, message = next(told)
            if error is not Error.NONE:
                one.status.CopyFrom(core.statuses.error(error, message))
        return response

    @handler(Kind.ORDINARY, bounds.KICK, with_status(pb.KickMembersResponse))
    async def KickMembers(
        self, request: pb.KickMembersRequest, call: ActiveCall
    ) -> pb.KickMembersResponse:
        """Remove members, whatever they do, each on its own, in one round (gp-2.5, gp-P-22)."""
        command = await call.decoded(len(request.members), _kicking, request)
        response = pb.KickMembersResponse()
        group_id = request.group_id
        call.changed(self._group(group_id), lambda: self._group(group_id))
        results = await depart(command, call)
        for member_id, error, instance_id in results:
            one = response.results.add(member_id=member_id, group_instance_id=instance_id)
            if error is not Error.NONE:
                message = NOT_HERE.get(error, error.name)
                one.status.CopyFrom(self.core.statuses.error(error, message))
        return response

    def _group(self, group_id: str) -> object:
        """What the audit trail says of a group as this node has it; None where there is none."""
        group = self.core.shard_for(group_id).state.groups.get(group_id)
        if group is None:
            return None
        return {
            "state": group.phase.value,
            "generation": group.generation,
            "members": group.member_count,
            "offsets": group.offset_count,
        }


def _offsets(
    offsets: Mapping[tuple[str, int], Offset], keys: Iterable[TopicPartition]
) -> Iterator[tuple[str, object]]:
    for key in keys:
        yield f"{key.topic}:{key.partition}", offsets[key].offset


def _kicking(request: pb.KickMembersRequest) -> LeaveGroup:
    reason = f"{KICKED}: {request.reason}" if request.reason else KICKED
    reason = reason[: LIMITS.reason_max_chars]
    return LeaveGroup(
        request.group_id,
        tuple(LeavingMember(m.member_id, reason, m.group_instance_id) for m in request.members),
        kicked=True,
    )
