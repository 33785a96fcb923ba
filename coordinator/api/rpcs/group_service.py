"""The RPCs of group members: each decodes its request, asks the shard and encodes the answer.

Every outcome of the protocol is a Status in the message; gRPC status is for transport, deadline
and overload (RESOURCE_EXHAUSTED) alone. Cancellation is never swallowed: a cancelled call is
abandoned in the core, which un-parks it and keeps the member.
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final
from uuid import uuid4

import grpc

from muster.v1 import group_pb2 as pb
from muster.v1 import group_pb2_grpc
from muster.v1.errors_pb2 import Coordinator
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.bounds import HEARTBEAT_MEMBERS_MAX, refuse_group
from musterd.coordinator.api.frame.coordination import Coordination
from musterd.coordinator.api.frame.forwarding import PASSED_CALL
from musterd.coordinator.api.frame.handler import (
    ActiveCall,
    handler,
    stream,
    with_first_group,
    with_status,
)
from musterd.coordinator.api.frame.rpc_rules import SESSION
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.api.limits.cooperative_yield import Slices
from musterd.coordinator.api.limits.quota_buckets import Amount
from musterd.coordinator.api.rpcs import translate
from musterd.coordinator.api.rpcs.leave_batches import depart
from musterd.coordinator.api.rpcs.offset_fetch import OffsetReads
from musterd.coordinator.api.rpcs.streamed_commits import StreamedCommits
from musterd.coordinator.api.stream.client_stream import ClientStreams
from musterd.coordinator.machine import commands
from musterd.coordinator.machine.access import ANONYMOUS, Operation, Resource
from musterd.coordinator.machine.decide.level import LEVEL_OF, refuse_below
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.quotas import QuotaKey
from musterd.coordinator.machine.replies import (
    Committed,
    Heard,
    Joined,
    LeaveResult,
    Refused,
    Synced,
)
from musterd.coordinator.machine.state import Phase
from musterd.coordinator.runtime.answers import Loading
from musterd.coordinator.runtime.heartbeats import Beat, BeatAnswer
from musterd.coordinator.runtime.proposer import FIRING_BYTES
from musterd.coordinator.runtime.routing import shard_of
from musterd.coordinator.runtime.sessions import MemberKey
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.timeouts import FIND_COORDINATOR_HOLD_MS
from musterd.raft.contract import NodeId

LEVEL_OF_JOINS: Final = 6
"""From which on a Join in the log says who made it, and what its member was told of last: builds of
before refuse an entry that does."""


class GroupService(OffsetReads, group_pb2_grpc.GroupCoordinatorServicer):
    """Serves `muster.v1.GroupCoordinator`."""

    audited = False

    def __init__(self, core: Coordination, streams: ClientStreams | None = None) -> None:
        """`streams` serve Session; None: there is none."""
        super().__init__(core)
        self._streams = streams
        if streams is not None:
            streams.commits = partial(StreamedCommits, core)

    @stream
    async def Session(self, _requests: object, context: Any) -> None:  # type: ignore[override]  # frames are bytes here (call_acceptor.py)
        """Serve the other calls, as frames of them come in a stream."""
        call = ActiveCall(self.core, context, SESSION, "Session")
        await call.identify()
        if self._streams is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there are no streams here")
        else:
            await self._streams.serve(context, call.identity, call.version)

    # ---- discovery

    @handler(
        Kind.DISCOVERY,
        bounds.FIND,
        with_first_group(
            pb.FindCoordinatorResponse,
            "results",
            lambda request: [key.group_id for key in request.keys[:1]],
        ),
    )
    async def FindCoordinator(
        self, request: pb.FindCoordinatorRequest, call: ActiveCall
    ) -> pb.FindCoordinatorResponse:
        """Name coordinators of later terms than the caller knows; wait up to 1 s for the first."""
        async with call.slices() as slices:
            await slices.turn(len(request.keys))
            pairs = [
                (
                    key.group_id,
                    key.known_term,
                    call.denied_item(key.group_id) or refuse_group(key.group_id),
                )
                for key in request.keys
            ]
        call.leave()
        core = self.core
        names_nodes = any(refused is None for _, _, refused in pairs) or (
            not pairs and call.may(Operation.DESCRIBE, Resource.CLUSTER, "")
        )
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
        async with call.slices() as slices:
            await slices.turn(len(pairs))
            return self._found(pairs, known, names_nodes=names_nodes)

    def _found(
        self,
        pairs: Sequence[tuple[str, int, Refused | None]],
        known: Iterable[int],
        *,
        names_nodes: bool,
    ) -> pb.FindCoordinatorResponse:
        """One result for each of these groups; `known` are their shards.

        `names_nodes`: whether the caller may know of a group, or of the cluster.
        """
        core = self.core
        response = pb.FindCoordinatorResponse()
        leaders = {number: self._later(core.shards[number], 0) for number in known}
        named = {
            number: self._named(*leader) for number, leader in leaders.items() if leader is not None
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
        # Whoever speaks to a node that forwards keeps the addresses that it was given.
        names_nodes = names_nodes and core.forwarding.edge is None
        for node, endpoint in core.directory.all().items() if names_nodes else ():
            response.nodes.add(node_id=node, endpoint=endpoint)
        return response

    def _later(self, shard: Shard, known_term: int) -> tuple[NodeId, int] | None:
        log = shard.log
        leader, term = log.leader, log.term
        if leader is None or term <= known_term or not self.core.directory.endpoint(leader):
            return None
        edge, own = self.core.forwarding.edge, self.core.directory.own
        if edge is not None and leader != own and edge.names_itself(leader):
            return (leader, term) if edge.reaches(leader) else None
        return leader, term

    def _named(self, leader: NodeId, term: int) -> Coordinator:
        """The coordinator that clients are told: this node, where it passes calls to the leader."""
        edge, own = self.core.forwarding.edge, self.core.directory.own
        if edge is None or not (leader == own or edge.names_itself(leader)):
            return self.core.statuses.coordinator(leader, term)
        named = self.core.statuses.coordinator(own, term)
        named.forwards = True
        return named

    # ---- membership

    @handler(Kind.JOIN, bounds.JOIN, translate.join_failed)
    async def JoinGroup(
        self, request: pb.JoinGroupRequest, call: ActiveCall
    ) -> pb.JoinGroupResponse:
        """Park until the round's barrier completes, 25 s at most; as long for the assignment."""
        host = translate.client_host(call.peer)
        shard = self.core.shard_for(request.group_id)
        if shard.loading:  # its level says what a Join may have
            await self.core.loaded((shard,))
            if shard.loading:
                await call.fail(Loading(), request)
        with self.core.heartbeats.untaken_calls.waiting():
            entries = len(request.subscribed_topics)
            is_whole = not refuse_below(shard.state.level, LEVEL_OF_JOINS)
            command = await call.decoded(
                entries,
                translate.join,
                request,
                host,
                uuid4().hex,
                principal=self._named_in_log(request.group_id, call),
                known_generation=request.known_generation if is_whole else 0,
            )
            call.refuse(bounds.refuse_join_form(command), command)
            call.check_topics(command)
        with_assignment = request.with_assignment
        del request  # it is not kept while the call is parked
        if not self._is_asked_for(command):
            call.charge(command, Amount(QuotaKey.JOINS, 1))
            await call.take_place(command)
        self.core.admission.note_group(command.group_id)
        joined = await call.ask(command, call.size, Joined)
        topics = self.core.topics
        counts = topics.counts_for(joined)
        if counts is None:
            await call.fail(Loading(), joined)
        response = translate.joined(joined, counts)
        response.creation_versions.update(topics.creation_versions(command.subscribed_topics))
        if with_assignment and joined.leader_id != joined.member_id:
            await self._add_assignment(response, command, call)
        return response

    def _named_in_log(self, group_id: str, call: ActiveCall) -> str:
        """The caller's name, where it has one and its group's shard takes it; else ""."""
        if call.principal == ANONYMOUS:
            return ""
        level = self.core.shard_for(group_id).state.level
        return "" if refuse_below(level, LEVEL_OF_JOINS) else call.principal

    def _is_asked_for(self, command: commands.JoinGroup) -> bool:
        """Whether an open round waits for this member's Join: that is charged to no quota."""
        group = self.core.shard_for(command.group_id).state.groups.get(command.group_id)
        return (
            group is not None
            and group.phase is Phase.PREPARING_REBALANCE
            and command.member_id in group.members
        )

    async def _add_assignment(
        self, response: pb.JoinGroupResponse, command: commands.JoinGroup, call: ActiveCall
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
        synced = await call.put(sync, FIRING_BYTES)
        if isinstance(synced, Synced):
            response.assignment = synced.assignment

    @handler(Kind.PATIENT, bounds.SYNC, translate.sync_failed)
    async def SyncGroup(
        self, request: pb.SyncGroupRequest, call: ActiveCall
    ) -> pb.SyncGroupResponse:
        """Park until the group leader's assignment is durable, 25 s at most."""
        entries = len(request.assignments)
        with await call.arriving(entries):
            command = await call.decoded(entries, translate.sync, request)
        del request  # it is not kept while the call is parked
        return translate.synced(await call.ask(command, call.size, Synced))

    @handler(Kind.PATIENT, bounds.LEAVE, with_status(pb.LeaveGroupResponse))
    async def LeaveGroup(
        self, request: pb.LeaveGroupRequest, call: ActiveCall
    ) -> pb.LeaveGroupResponse:
        """Answered after the removal is durable on a majority."""
        entries = len(request.members)
        with await call.arriving(entries):
            command = await call.decoded(entries, translate.leave, request)
        results = await depart(command, call)
        async with call.slices() as slices:
            await slices.turn(len(results))
            return self._left(results)

    def _left(self, results: Sequence[LeaveResult]) -> pb.LeaveGroupResponse:
        response = pb.LeaveGroupResponse()
        for member_id, error, instance_id in results:
            result = response.results.add(member_id=member_id, group_instance_id=instance_id)
            if error is not Error.NONE:
                result.status.CopyFrom(self.core.statuses.heartbeat(error))
        return response

    @handler(
        Kind.PATIENT,
        bounds.CONSUMER_HEARTBEAT,
        with_status(pb.ConsumerGroupHeartbeatResponse),
    )
    async def ConsumerGroupHeartbeat(
        self, request: pb.ConsumerGroupHeartbeatRequest, call: ActiveCall
    ) -> pb.ConsumerGroupHeartbeatResponse:
        """Answered after what it changes is durable on a majority; nothing is held."""
        entries = len(request.topics.names) + sum(
            len(one.partitions) for one in request.owned.topics
        )
        with await call.arriving(1):
            host, who = translate.client_host(call.peer), call.principal
            who = "" if who == ANONYMOUS else who
            command = await call.decoded(
                entries, translate.heard_from, request, host, principal=who
            )
            call.refuse(bounds.refuse_heartbeat_form(command), command)
            call.check_topics(command)
        del request
        if self.core.shard_for(command.group_id).awaits_level(
            LEVEL_OF[commands.ConsumerGroupHeartbeat]
        ):
            call.refuse(Loading(), command)
        if command.member_epoch == commands.JOIN_EPOCH:
            call.charge(command, Amount(QuotaKey.JOINS, 1))
            await call.take_place(command)
        heard = await call.ask(command, call.size, Heard)
        key = MemberKey(command.group_id, command.member_id)
        timeout_ms = self.core.shard_for(command.group_id).session_timeout_ms(key)
        interval_ms = min(
            LIMITS.heartbeat_interval_ms, (timeout_ms or LIMITS.session_timeout_ms) // 3
        )
        async with call.slices() as slices:
            await slices.turn(len(heard.grants))
            incomplete = self.core.shard_for(command.group_id).is_incomplete(key, heard.version)
            return translate.heard(heard, interval_ms, incomplete=incomplete)

    # ---- heartbeats

    @handler(Kind.EXEMPT, bounds.NONE)
    async def Heartbeat(
        self, request: pb.HeartbeatRequest, call: ActiveCall
    ) -> pb.HeartbeatResponse:
        """Hold the call until a member must act or the interval is over.

        Never refused for active calls. To refuse one takes its turn, too: each member is told.
        """
        core = self.core
        entries = min(len(request.members), HEARTBEAT_MEMBERS_MAX)
        with await call.arriving(entries):
            async with Slices(core.one_long_heartbeat) as slices:
                await slices.turn(entries)
                if wrong := bounds.HEARTBEAT.refusal(request, call.size):
                    return self._beat_invalid(request, wrong)
                refused, beats = self._beats(request, call)
                if refused and not beats:
                    answer = BeatAnswer((), LIMITS.heartbeat_interval_ms)
                    return self._beat_response(request, refused, answer)
            await core.loaded({beat.shard: core.shards[beat.shard] for beat in beats}.values())
            future: asyncio.Future[BeatAnswer] = asyncio.get_running_loop().create_future()
            async with Slices(core.one_long_heartbeat) as slices:
                await slices.turn(entries)
                held = core.heartbeats.beat(
                    request.client_nonce,
                    request.call_seq,
                    beats,
                    core.reply_queue.settle(future),
                    at_once=request.at_once,
                    connection=call.peer,
                )
        if held is None:
            await call.shed("held heartbeats on this node")
        refusals = call.watch_rights(future, beats)
        try:
            answer = await future
        finally:
            core.access.release(future)
            if not held.ended:
                passed = PASSED_CALL.get()
                core.heartbeats.abandon(held, with_edge=passed is not None and passed.with_edge)
        async with Slices(core.one_long_heartbeat) as slices:
            await slices.turn(0 if answer.superseded else entries)
            if refusals:
                refused, answer = await self._without_rights(request, call)
            return self._beat_response(request, refused, answer)

    def _beats(
        self, request: pb.HeartbeatRequest, call: ActiveCall
    ) -> tuple[list[Refused | None], list[Beat]]:
        """Return each member's refusal, or None, and the heartbeats that are not refused."""
        refused = [
            call.denied_item(member.group_id) or refuse_group(member.group_id)
            for member in request.members
        ]
        beats = [
            Beat(
                shard_of(member.group_id, len(self.core.shards)),
                MemberKey(member.group_id, member.member_id),
                member.generation,
                member.group_instance_id,
            )
            for member, no in zip(request.members, refused, strict=True)
            if no is None
        ]
        return refused, beats

    async def _without_rights(
        self, request: pb.HeartbeatRequest, call: ActiveCall
    ) -> tuple[list[Refused | None], BeatAnswer]:
        """What members are told once the caller lost the right to a group of theirs."""
        await call.identify()
        refused, beats = self._beats(request, call)
        statuses = self.core.heartbeats.statuses(beats)
        return refused, BeatAnswer(statuses, LIMITS.heartbeat_interval_ms)

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
                result.status.CopyFrom(self.core.statuses.of(no))
            elif (status := next(statuses)) is not Error.NONE:
                result.status.CopyFrom(self.core.statuses.heartbeat(status))
        return response

    def _beat_invalid(self, request: pb.HeartbeatRequest, refused: Refused) -> pb.HeartbeatResponse:
        response = pb.HeartbeatResponse(interval_ms=LIMITS.heartbeat_interval_ms)
        status = self.core.statuses.of(refused)
        for member in request.members[:HEARTBEAT_MEMBERS_MAX]:
            response.results.add(
                group_id=member.group_id, member_id=member.member_id, status=status
            )
        return response

    # ---- offsets

    @handler(Kind.ORDINARY, bounds.COMMIT, with_status(pb.OffsetCommitResponse))
    async def OffsetCommit(
        self, request: pb.OffsetCommitRequest, call: ActiveCall
    ) -> pb.OffsetCommitResponse:
        """Answered after the offsets are durable on a majority."""
        command = await call.decoded(len(request.partitions), translate.commit, request)
        call.charge(
            command,
            Amount(QuotaKey.COMMITS, max(1, len(command.partitions))),
            Amount(QuotaKey.COMMIT_BYTES, call.size),
        )
        unknown = self.core.topics.split(command, call.topic_refusals(command))
        if unknown.names_unknown:
            await call.topic_unknown(command, self.core.shard_for(command.group_id))
        if unknown.remainder is None:
            return translate.committed(unknown.results)
        committed = await call.ask(unknown.remainder, call.size, Committed)
        async with call.slices() as slices:
            await slices.turn(len(committed.partitions))
            return translate.committed(unknown.merge(committed.partitions))
