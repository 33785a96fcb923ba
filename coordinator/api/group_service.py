"""The gRPC frontend for group members: check, admit, translate, route, ask the shard, answer.

Every outcome of the protocol is a Status in the message; gRPC status is for transport, deadline
and overload (RESOURCE_EXHAUSTED) alone. Cancellation is never swallowed: a cancelled call is
abandoned in the core, which un-parks it and keeps the member.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

from muster.v1 import group_pb2 as pb
from muster.v1 import group_pb2_grpc
from musterd.coordinator.api import translate
from musterd.coordinator.api.admission import Admitted, Kind
from musterd.coordinator.api.cooperative_yield import Slices
from musterd.coordinator.api.handler import (
    Context,
    Coordination,
    admit,
    client_host,
    refuse_bytes,
    refuse_group,
    shed,
)
from musterd.coordinator.api.leave_batches import depart, parts, refuse_parts
from musterd.coordinator.api.offset_fetch import OffsetFetch
from musterd.coordinator.machine import commands
from musterd.coordinator.machine.decide.requests import joining_id, refuse_request
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import Committed, IdGiven, Joined, Left, Refused, Synced
from musterd.coordinator.runtime.answers import Answer, Loading, ParkOver, Shed
from musterd.coordinator.runtime.heartbeats import Beat, BeatAnswer
from musterd.coordinator.runtime.proposer import FIRING_BYTES
from musterd.coordinator.runtime.routing import shard_of
from musterd.coordinator.runtime.sessions import MemberKey
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.timeouts import FIND_COORDINATOR_HOLD_MS
from musterd.coordinator.runtime.topic_registry import BEHIND
from musterd.raft.contract import NodeId

FIND_KEYS_MAX = 1_000
"""Pairs in one FindCoordinator."""

HEARTBEAT_MEMBERS_MAX = 2_000
"""Members in one Heartbeat."""

WAITING = "members in calls of this connection that wait for their turn"


class GroupService(group_pb2_grpc.GroupCoordinatorServicer):
    """muster.v1.GroupCoordinator."""

    def __init__(self, core: Coordination) -> None:
        self._core = core

    # ---- discovery

    async def FindCoordinator(
        self, request: pb.FindCoordinatorRequest, context: Context
    ) -> pb.FindCoordinatorResponse:
        """Name coordinators of later terms than the caller knows; wait up to 1 s for the first."""
        admitted = await admit(self._core, context, Kind.DISCOVERY)
        try:
            refused = _refuse_find(request)
            if refused is not None:
                return self._find_invalid(request, refused)
            async with Slices(self._core.one_long_read) as slices:
                await slices.turn(len(request.keys))
                pairs = [
                    (key.group_id, key.known_term, refuse_group(key.group_id))
                    for key in request.keys
                ]
            admitted.leave()
            return await self._find(pairs)
        finally:
            admitted.leave()

    async def _find(
        self, pairs: Sequence[tuple[str, int, Refused | None]]
    ) -> pb.FindCoordinatorResponse:
        core = self._core
        known: dict[int, int] = {}
        for group_id, known_term, _ in pairs:
            number = core.shard_for(group_id).number
            known[number] = min(known_term, known.get(number, known_term))
        at_once = not pairs or any(refused is not None for _, _, refused in pairs)

        def found() -> bool:
            return at_once or any(
                self._later(core.shards[number], term) for number, term in known.items()
            )

        await core.watch.until(found, FIND_COORDINATOR_HOLD_MS)
        async with Slices(core.one_long_read) as slices:
            await slices.turn(len(pairs))
            return self._found(pairs, known)

    def _found(
        self, pairs: Sequence[tuple[str, int, Refused | None]], known: Iterable[int]
    ) -> pb.FindCoordinatorResponse:
        """One result for each of these groups; `known` are their shards."""
        core = self._core
        response = pb.FindCoordinatorResponse()
        leaders = {number: self._later(core.shards[number], 0) for number in known}
        named = {
            number: core.statuses.coordinator(*leader)
            for number, leader in leaders.items()
            if leader is not None
        }
        pending = core.statuses.error(
            Error.COORDINATOR_NOT_AVAILABLE,
            "No coordinator of a later term is known yet: ask again.",
        )
        for group_id, known_term, refused in pairs:
            result = response.results.add(group_id=group_id)
            if refused is not None:
                result.status.CopyFrom(core.statuses.of(refused))
                continue
            result.shard = core.shard_for(group_id).number
            coordinator = named.get(result.shard)
            if coordinator is not None and coordinator.term > known_term:
                result.coordinator.CopyFrom(coordinator)
            else:
                result.pending = True
                result.status.CopyFrom(pending)
        for node, endpoint in core.directory.all().items():
            response.nodes.add(node_id=node, endpoint=endpoint)
        return response

    def _find_invalid(
        self, request: pb.FindCoordinatorRequest, refused: Refused
    ) -> pb.FindCoordinatorResponse:
        response = pb.FindCoordinatorResponse()
        named = next(iter(request.keys)).group_id[: LIMITS.id_max_bytes] if request.keys else ""
        response.results.add(group_id=named, status=self._core.statuses.of(refused))
        return response

    def _later(self, shard: Shard, known_term: int) -> tuple[NodeId, int] | None:
        log = shard.log
        leader, term = log.leader, log.term
        if leader is None or term <= known_term or not self._core.directory.endpoint(leader):
            return None
        return leader, term

    # ---- membership

    async def JoinGroup(
        self, request: pb.JoinGroupRequest, context: Context
    ) -> pb.JoinGroupResponse:
        """Park until the round's barrier completes, 25 s at most; as long for the assignment."""
        core = self._core
        size = translate.command_bytes(request.ByteSize())
        refused = translate.too_large(size) or translate.too_many_in_join(request)
        if refused is not None:  # before it waits among the Joins, which keep their requests
            return self._join_failed(request.member_id, refused)
        admitted = await admit(core, context, Kind.JOIN)
        try:
            with core.heartbeats.arrivals.waiting():
                async with Slices(core.one_long_read) as slices:
                    await slices.turn(len(request.subscribed_topics))
                    command = translate.join(request, client_host(context.peer()), uuid4().hex)
                    refused = refuse_request(command, LIMITS) or translate.refuse_join_form(command)
            if refused is not None:
                return self._join_failed(request.member_id, refused)
            with_assignment = request.with_assignment
            del request  # it is not kept while the call is parked
            core.admission.note_group(command.group_id)
            shard = core.shard_for(command.group_id)
            answer = await core.ask(shard, command, size, admitted)
            if isinstance(answer, Joined):
                counts = core.topics.counts_for(answer)
                if counts is None:
                    return self._join_failed(answer.member_id, Loading())
                response = translate.joined(answer, counts)
                if with_assignment and answer.leader_id != answer.member_id:
                    await self._add_assignment(response, shard, command, admitted)
                return response
            if isinstance(answer, Shed):
                await shed(context, answer.what)
            if isinstance(answer, IdGiven):
                return self._id_given(answer)
            known = joining_id(command) if isinstance(answer, ParkOver) else command.member_id
            return self._join_failed(known, answer)
        finally:
            admitted.leave()

    async def _add_assignment(
        self,
        response: pb.JoinGroupResponse,
        shard: Shard,
        command: commands.JoinGroup,
        admitted: Admitted,
    ) -> None:
        """Wait for the assignment of a member that has joined, in the same call (docs/adr/0010).

        As a Sync, which mostly adds nothing to the log. Where it fails nothing is added to the
        answer: the member's own Sync will be told why.
        """
        sync = commands.SyncGroup(
            group_id=command.group_id,
            member_id=response.member_id,
            generation=response.generation,
            protocol_type="",
            protocol_name="",
            assignments=(),
            group_instance_id=command.group_instance_id,
        )
        synced = await self._core.ask(shard, sync, FIRING_BYTES, admitted)
        if isinstance(synced, Synced):
            response.assignment = synced.assignment

    def _id_given(self, answer: IdGiven) -> pb.JoinGroupResponse:
        message = "Join again with the member id of this answer."
        status = self._core.statuses.error(Error.MEMBER_ID_REQUIRED, message)
        return pb.JoinGroupResponse(status=status, generation=-1, member_id=answer.member_id)

    def _join_failed(self, member_id: str, answer: Answer) -> pb.JoinGroupResponse:
        """`member_id` is what the caller may go on with: its own, or that under which it waits."""
        if isinstance(answer, Refused) and answer.error is Error.GROUP_MAX_SIZE_REACHED:
            member_id = ""  # gp-J6: it has no seat any more
        return pb.JoinGroupResponse(
            status=self._core.statuses.of(translate.failure(answer)),
            generation=-1,
            member_id=member_id,
            park_again=isinstance(answer, ParkOver),
        )

    async def SyncGroup(
        self, request: pb.SyncGroupRequest, context: Context
    ) -> pb.SyncGroupResponse:
        """Park until the group leader's assignment is durable, 25 s at most."""
        core = self._core
        admitted = await admit(core, context, Kind.PATIENT)
        try:
            size = translate.command_bytes(request.ByteSize())
            most = LIMITS.sync_max_bytes
            large = translate.too_large(size, most)
            answer: Answer | None = large or translate.too_many_in_sync(request)
            if answer is None:
                entries = len(request.assignments)
                async with self._arriving(context, entries) as slices:
                    await slices.turn(entries)
                    command = translate.sync(request)
                    answer = refuse_request(command, LIMITS)
            if answer is None:
                del request  # it is not kept while the call is parked
                answer = await core.ask(core.shard_for(command.group_id), command, size, admitted)
            if isinstance(answer, Synced):
                return translate.synced(answer)
            if isinstance(answer, Shed):
                await shed(context, answer.what)
            return pb.SyncGroupResponse(
                status=core.statuses.of(translate.failure(answer)),
                generation=-1,
                park_again=isinstance(answer, ParkOver),
            )
        finally:
            admitted.leave()

    async def LeaveGroup(
        self, request: pb.LeaveGroupRequest, context: Context
    ) -> pb.LeaveGroupResponse:
        """Answered after the removal is durable on a majority."""
        core = self._core
        admitted = await admit(core, context, Kind.PATIENT)
        try:
            size = translate.command_bytes(request.ByteSize())
            answer: Answer | None = translate.too_large(size) or translate.too_many_leave(request)
            if answer is None:
                entries = len(request.members)
                async with self._arriving(context, entries) as slices:
                    await slices.turn(entries)
                    command = translate.leave(request)
                    wanted = parts(command)
                    answer = refuse_request(command, LIMITS) or refuse_parts(wanted)
            if answer is None:
                answer = await depart(core, wanted, admitted)
            if isinstance(answer, Shed):
                await shed(context, answer.what)
            if not isinstance(answer, Left):
                return pb.LeaveGroupResponse(status=core.statuses.of(translate.failure(answer)))
            async with Slices(core.one_long_read) as slices:
                await slices.turn(len(answer.results))
                return self._left(answer)
        finally:
            admitted.leave()

    def _left(self, answer: Left) -> pb.LeaveGroupResponse:
        response = pb.LeaveGroupResponse()
        for member_id, error, instance_id in answer.results:
            result = response.results.add(member_id=member_id, group_instance_id=instance_id)
            if error is not Error.NONE:
                result.status.CopyFrom(self._core.statuses.heartbeat(error))
        return response

    # ---- heartbeats

    @asynccontextmanager
    async def _arriving(self, context: Context, entries: int) -> AsyncIterator[Slices]:
        """For a call until it is taken in; sheds it where too much of its connection waits."""
        arrivals, peer = self._core.heartbeats.arrivals, context.peer()
        if not arrivals.room(peer, entries):
            await shed(context, WAITING)
        with arrivals.waiting(peer, entries):
            async with Slices(self._core.one_long_read) as slices:
                yield slices

    async def Heartbeat(
        self, request: pb.HeartbeatRequest, context: Context
    ) -> pb.HeartbeatResponse:
        """Hold the call until a member must act or the interval is over.

        Never refused for active calls.
        """
        core, arrivals = self._core, self._core.heartbeats.arrivals
        peer, entries = context.peer(), min(len(request.members), HEARTBEAT_MEMBERS_MAX)
        if not arrivals.room(peer, entries):
            await shed(context, WAITING)
        with arrivals.waiting(peer, entries):
            async with Slices(core.one_long_heartbeat) as slices:
                await slices.turn(entries)
                if wrong := _refuse_beat(request):
                    return self._beat_invalid(request, wrong)
                refused, beats = self._beats(request)
                if refused and not beats:
                    answer = BeatAnswer((), LIMITS.heartbeat_interval_ms)
                    return self._beat_response(request, refused, answer)
            await core.loaded({beat.shard: core.shards[beat.shard] for beat in beats}.values())
            future: asyncio.Future[BeatAnswer] = asyncio.get_running_loop().create_future()
            async with Slices(core.one_long_heartbeat) as slices:
                await slices.turn(entries)
                call = core.heartbeats.beat(
                    request.client_nonce,
                    request.call_seq,
                    beats,
                    core.reply_queue.settle(future),
                    at_once=request.at_once,
                    connection=peer,
                )
        if call is None:
            await shed(context, "held heartbeats on this node")
        try:
            answer = await future
        finally:
            if not call.ended:
                core.heartbeats.abandon(call)
        async with Slices(core.one_long_heartbeat) as slices:
            await slices.turn(0 if answer.superseded else entries)
            return self._beat_response(request, refused, answer)

    def _beats(self, request: pb.HeartbeatRequest) -> tuple[list[Refused | None], list[Beat]]:
        """What is wrong with each member's ids, or None, and those with which nothing is."""
        refused = [refuse_group(member.group_id) for member in request.members]
        beats = [
            Beat(
                shard_of(member.group_id, len(self._core.shards)),
                MemberKey(member.group_id, member.member_id),
                member.generation,
                member.group_instance_id,
            )
            for member, no in zip(request.members, refused, strict=True)
            if no is None
        ]
        return refused, beats

    def _beat_response(
        self, request: pb.HeartbeatRequest, refused: Sequence[Refused | None], answer: BeatAnswer
    ) -> pb.HeartbeatResponse:
        """One result per member: `refused` where its ids are impossible, else the core's answer."""
        response = pb.HeartbeatResponse(
            interval_ms=answer.interval_ms, superseded=answer.superseded
        )
        if answer.superseded:
            return response
        statuses = iter(answer.statuses)
        for member, no in zip(request.members, refused, strict=True):
            result = response.results.add(group_id=member.group_id, member_id=member.member_id)
            if no is not None:
                result.status.CopyFrom(self._core.statuses.of(no))
            elif (status := next(statuses)) is not Error.NONE:
                result.status.CopyFrom(self._core.statuses.heartbeat(status))
        return response

    def _beat_invalid(self, request: pb.HeartbeatRequest, message: str) -> pb.HeartbeatResponse:
        response = pb.HeartbeatResponse(interval_ms=LIMITS.heartbeat_interval_ms)
        status = self._core.statuses.error(Error.INVALID_REQUEST, message)
        for member in request.members[:HEARTBEAT_MEMBERS_MAX]:
            response.results.add(
                group_id=member.group_id, member_id=member.member_id, status=status
            )
        return response

    # ---- offsets

    async def OffsetCommit(
        self, request: pb.OffsetCommitRequest, context: Context
    ) -> pb.OffsetCommitResponse:
        """Answered after the offsets are durable on a majority."""
        core = self._core
        admitted = await admit(core, context)
        try:
            size = translate.command_bytes(request.ByteSize())
            refused = translate.too_large(size) or translate.too_many_committed(request)
            if refused is not None:
                return pb.OffsetCommitResponse(status=core.statuses.of(refused))
            async with Slices(core.one_long_read) as slices:
                await slices.turn(len(request.partitions))
                command = translate.commit(request)
                refused = refuse_request(command, LIMITS)
                if refused is not None:
                    return pb.OffsetCommitResponse(status=core.statuses.of(refused))
                shard = core.shard_for(command.group_id)
                unknown = core.topics.split(command)
            if unknown.results and not core.topics.is_current:
                elsewhere = await core.confirmed(shard)
                return pb.OffsetCommitResponse(status=core.statuses.of(elsewhere or BEHIND))
            if unknown.remainder is None:
                return translate.committed(unknown.results)
            answer = await core.ask(shard, unknown.remainder, size, admitted)
            if isinstance(answer, Committed):
                async with Slices(core.one_long_read) as slices:
                    await slices.turn(len(answer.partitions))
                    return translate.committed(unknown.merge(answer.partitions))
            if isinstance(answer, Shed):
                await shed(context, answer.what)
            return pb.OffsetCommitResponse(status=core.statuses.of(translate.failure(answer)))
        finally:
            admitted.leave()

    async def OffsetFetch(
        self, request: pb.OffsetFetchRequest, context: Context
    ) -> pb.OffsetFetchResponse:
        """Linearizable: read after a quorum confirmed that this node leads. Page by page."""
        core = self._core
        admitted = await admit(core, context)
        try:
            return await OffsetFetch(core).fetch(request)
        finally:
            admitted.leave()


def _refuse_find(request: pb.FindCoordinatorRequest) -> Refused | None:
    if len(request.keys) > FIND_KEYS_MAX:
        message = f"A FindCoordinator has at most {FIND_KEYS_MAX} keys."
        return Refused(Error.INVALID_REQUEST, message)
    return refuse_bytes(request.ByteSize())


def _refuse_beat(request: pb.HeartbeatRequest) -> str:
    """What is wrong with a heartbeat as a whole, or nothing."""
    if not 0 < len(request.client_nonce) <= LIMITS.id_max_bytes:
        return "A heartbeat needs a client_nonce of 1 to 249 bytes."
    if len(request.members) > HEARTBEAT_MEMBERS_MAX:
        return f"A heartbeat has at most {HEARTBEAT_MEMBERS_MAX} members."
    return ""
