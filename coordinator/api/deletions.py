"""What an operator removes: groups, offsets, members (gp-2.5, gp-2.10, gp-2.11)."""

from muster.v1 import admin_pb2 as pb
from muster.v1.errors_pb2 import Status
from musterd.coordinator.api import translate
from musterd.coordinator.api.cooperative_yield import TOPIC_ENTRIES, Slices
from musterd.coordinator.api.handler import (
    Context,
    Coordination,
    admit,
    refuse_bytes,
    refuse_group,
    shed,
    some_at_a_time,
)
from musterd.coordinator.api.leave_batches import depart, parts, refuse_parts
from musterd.coordinator.machine.commands import (
    DeleteGroup,
    LeaveGroup,
    LeavingMember,
    OffsetDelete,
    TopicPartition,
)
from musterd.coordinator.machine.decide.requests import refuse_request
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import Done, Left, OffsetsDeleted, Refused
from musterd.coordinator.runtime.answers import Answer, Shed
from musterd.coordinator.runtime.topic_registry import BEHIND

DELETE_GROUPS_MAX = 1_000

KICKED = "kicked by operator"
"""What a round's reason begins with; members read it, too."""

NOT_HERE = {
    Error.UNKNOWN_MEMBER_ID: "The group has no such member.",
    Error.FENCED_INSTANCE_ID: "The instance id belongs to another member.",
}


class Deletions:
    """The calls of `Admin` that remove something. Answered once that is durable on a majority."""

    def __init__(self, core: Coordination) -> None:
        self._core = core

    async def delete_groups(
        self, request: pb.DeleteGroupsRequest, context: Context
    ) -> pb.DeleteGroupsResponse:
        """Each group on its own; those of one shard share entries of its log (sc-E24)."""
        core = self._core
        admitted = await admit(core, context)
        try:
            wrong = _refuse_many(request) or refuse_bytes(request.ByteSize())
            if wrong is not None:
                return pb.DeleteGroupsResponse(status=core.statuses.of(wrong))
            group_ids = list(dict.fromkeys(request.group_ids))  # sc-E21

            async def one(group_id: str) -> Answer:
                refused = refuse_group(group_id)
                if refused is not None:
                    return refused
                size = translate.command_bytes(len(group_id.encode()))
                return await core.ask(
                    core.shard_for(group_id), DeleteGroup(group_id), size, admitted
                )

            response = pb.DeleteGroupsResponse()

            def done(group_id: str, answer: Answer) -> None:
                result = response.results.add(group_id=group_id)
                if not isinstance(answer, Done):
                    result.status.CopyFrom(self._status(answer))

            await some_at_a_time(one, group_ids, done)
            return response
        finally:
            admitted.leave()

    def _status(self, answer: Answer) -> Status:
        """One group of several: overload is its own, too."""
        if isinstance(answer, Shed):
            message = f"{answer.what}: the limit is reached, nothing was done; repeat later."
            return self._core.statuses.error(Error.COORDINATOR_NOT_AVAILABLE, message)
        return self._core.statuses.of(translate.failure(answer))

    async def delete_offsets(
        self, request: pb.OffsetDeleteRequest, context: Context
    ) -> pb.OffsetDeleteResponse:
        """Partitions that do not exist are refused before the log, as in a commit (gp-O2)."""
        core = self._core
        admitted = await admit(core, context)
        try:
            size = translate.command_bytes(request.ByteSize())
            refused = _refuse(request) or translate.too_large(size)
            if refused is not None:
                return pb.OffsetDeleteResponse(status=core.statuses.of(refused))
            async with Slices(core.one_long_read) as slices:
                await slices.turn(TOPIC_ENTRIES * len(request.partitions))
                keys = [TopicPartition(p.topic, p.partition) for p in request.partitions]
                unknown = {key: why for key in keys if (why := core.topics.unknown(*key))}
            shard = core.shard_for(request.group_id)
            if unknown and not core.topics.is_current:
                elsewhere = await core.confirmed(shard)
                return pb.OffsetDeleteResponse(status=core.statuses.of(elsewhere or BEHIND))
            known = tuple(key for key in keys if key not in unknown)
            command = OffsetDelete(request.group_id, known)
            answer: Answer | None = refuse_request(command, LIMITS)
            if answer is None:
                answer = await core.ask(shard, command, size, admitted)
            if isinstance(answer, Shed):
                await shed(context, answer.what)
            if not isinstance(answer, OffsetsDeleted):
                return pb.OffsetDeleteResponse(status=core.statuses.of(translate.failure(answer)))
            told = iter(answer.partitions)
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
        finally:
            admitted.leave()

    async def kick(
        self, request: pb.KickMembersRequest, context: Context
    ) -> pb.KickMembersResponse:
        """Each member on its own, one round for all of them."""
        core = self._core
        admitted = await admit(core, context)
        try:
            answer: Answer | None = refuse_group(request.group_id)
            if answer is None:
                async with Slices(core.one_long_read) as slices:
                    await slices.turn(len(request.members))
                    command = _kicking(request)
                    wanted = parts(command)
                    answer = refuse_request(command, LIMITS) or refuse_parts(wanted)
            if answer is None:
                answer = await depart(core, wanted, admitted)
            if isinstance(answer, Shed):
                await shed(context, answer.what)
            if not isinstance(answer, Left):
                return pb.KickMembersResponse(status=core.statuses.of(translate.failure(answer)))
            response = pb.KickMembersResponse()
            for member_id, error, instance_id in answer.results:
                one = response.results.add(member_id=member_id, group_instance_id=instance_id)
                if error is not Error.NONE:
                    message = NOT_HERE.get(error, error.name)
                    one.status.CopyFrom(core.statuses.error(error, message))
            return response
        finally:
            admitted.leave()


def _refuse_many(request: pb.DeleteGroupsRequest) -> Refused | None:
    if len(request.group_ids) <= DELETE_GROUPS_MAX:
        return None
    message = f"At most {DELETE_GROUPS_MAX} groups are deleted in one call."
    return Refused(Error.INVALID_REQUEST, message)


def _refuse(request: pb.OffsetDeleteRequest) -> Refused | None:
    most = LIMITS.offset_delete_max_partitions
    if len(request.partitions) > most:
        return Refused(Error.INVALID_REQUEST, f"At most {most} offsets are deleted in one call.")
    return refuse_group(request.group_id)


def _kicking(request: pb.KickMembersRequest) -> LeaveGroup:
    reason = f"{KICKED}: {request.reason}" if request.reason else KICKED
    reason = reason[: LIMITS.reason_max_chars]
    members = request.members[: LIMITS.group_max_members + 1]  # more is refused, and not built
    return LeaveGroup(
        request.group_id,
        tuple(LeavingMember(m.member_id, reason, m.group_instance_id) for m in members),
        kicked=True,
    )
