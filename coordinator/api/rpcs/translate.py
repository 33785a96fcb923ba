"""Requests of the wire to the machine's commands, and its replies back.

Pure; no checks of the group's state.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import Status
from musterd.coordinator.codec import NAMES
from musterd.coordinator.machine.commands import (
    UNCHANGED_MS,
    Assignment,
    ConsumerGroupHeartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    PartitionCommit,
    PartitionSet,
    Protocol,
    SyncGroup,
)
from musterd.coordinator.machine.commit_events import StoredResults
from musterd.coordinator.machine.decide.requests import joining_id
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import (
    Heard,
    IdGiven,
    Joined,
    PartitionResult,
    Refused,
    Synced,
)
from musterd.coordinator.runtime.answers import Answer, ParkOver
from musterd.coordinator.runtime.waiters import FENCED, REMOVED


def client_host(peer: str) -> str:
    """The host of a gRPC peer such as "ipv4:10.0.0.7:5123" or "ipv6:%5B::1%5D:5123"."""
    kind, _, rest = peer.partition(":")
    if kind not in {"ipv4", "ipv6"}:
        return peer[: LIMITS.id_max_bytes]
    host, _, _ = rest.rpartition(":")
    return host.replace("%5B", "").replace("%5D", "").strip("[]")


def join(
    request: pb.JoinGroupRequest,
    client_host: str,
    drawn_nonce: str,
    *,
    principal: str = "",
    known_generation: int = 0,
) -> JoinGroup:
    """A JoinGroup command. The reason is cut to 255 characters (KIP-800).

    `drawn_nonce` (32 hex digits, new for each call) counts where the caller brought neither an id
    nor a nonce (gp-J7.4). `principal` and `known_generation`: as the log is to say them.
    """
    needs_id = not request.member_id and not request.join_nonce
    return JoinGroup(
        group_id=request.group_id,
        member_id=request.member_id,
        client_id=request.client_id,
        client_host=client_host,
        join_nonce=request.join_nonce,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(p.name, p.metadata) for p in request.protocols),
        subscribed_topics=tuple(request.subscribed_topics),
        reason=request.reason[: LIMITS.reason_max_chars],
        group_instance_id=request.group_instance_id,
        drawn_nonce=drawn_nonce if needs_id else "",
        with_assignment=request.with_assignment,
        released_partitions=request.released_partitions,
        principal=principal,
        known_generation=known_generation,
    )


def sync(request: pb.SyncGroupRequest) -> SyncGroup:
    return SyncGroup(
        group_id=request.group_id,
        member_id=request.member_id,
        generation=request.generation,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=tuple(Assignment(a.member_id, a.assignment) for a in request.assignments),
        group_instance_id=request.group_instance_id,
    )


def leave(request: pb.LeaveGroupRequest) -> LeaveGroup:
    """A LeaveGroup command. Reasons are cut to 255 characters."""
    return LeaveGroup(
        group_id=request.group_id,
        members=tuple(
            LeavingMember(m.member_id, m.reason[: LIMITS.reason_max_chars], m.group_instance_id)
            for m in request.members
        ),
    )


def heard_from(
    request: pb.ConsumerGroupHeartbeatRequest, client_host: str, *, principal: str = ""
) -> ConsumerGroupHeartbeat:
    """A ConsumerGroupHeartbeat command. What is absent is as the member said before.

    Topics and partitions are put in order, each once. The reason is cut to 255 characters.
    `principal`: as the log is to say it.
    """
    has = request.HasField
    return ConsumerGroupHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        client_id=request.client_id,
        client_host=client_host,
        group_instance_id=request.group_instance_id,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms or UNCHANGED_MS,
        topics=_names(request.topics.names) if has("topics") else None,
        pattern=request.pattern if has("pattern") else None,
        zone=request.zone if has("zone") else None,
        assignor=request.assignor if has("assignor") else None,
        capacity=request.capacity if has("capacity") else UNCHANGED_MS,
        owned=_owned(request.owned.topics) if has("owned") else None,
        back_in_ms=request.back_in_ms,
        reason=request.reason[: LIMITS.reason_max_chars],
        principal=principal,
        known_token=request.known_token if has("known_token") else None,
        subscription_seq=request.subscription_seq,
    )


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(NAMES[name] for name in sorted(dict.fromkeys(names)))


def _owned(topics: Iterable[pb.TopicPartitions]) -> tuple[PartitionSet, ...]:
    owned: dict[str, dict[int, None]] = {}
    for one in topics:
        owned.setdefault(one.topic, {}).update(dict.fromkeys(one.partitions))
    return tuple(PartitionSet(NAMES[topic], tuple(sorted(owned[topic]))) for topic in sorted(owned))


def commit(request: pb.OffsetCommitRequest) -> OffsetCommit:
    tokens = request.fencing_tokens
    return OffsetCommit(
        group_id=request.group_id,
        member_id=request.member_id,
        generation=request.generation,
        commit_seq=request.commit_seq,
        partitions=tuple(map(_partition, request.partitions)),
        group_instance_id=request.group_instance_id,
        atomic=request.atomic,
        forward_only=request.forward_only,
        expected_generation=(
            request.expected_generation if request.HasField("expected_generation") else None
        ),
        blob=request.blob if request.HasField("blob") else None,
        tokens=tuple(tokens) if tokens else (),
    )


def _partition(asked: pb.OffsetCommitRequest.Partition) -> PartitionCommit:
    has = asked.HasField
    return PartitionCommit(
        NAMES[asked.topic],
        asked.partition,
        asked.offset,
        asked.metadata,
        asked.end_offset if has("end_offset") else None,
        asked.expected_offset if has("expected_offset") else None,
        asked.start_offset if has("start_offset") else None,
        asked.leader_epoch if has("leader_epoch") and asked.leader_epoch >= 0 else None,
    )


def joined(reply: Joined, counts: Mapping[str, int]) -> pb.JoinGroupResponse:
    """A Join's success; members and partition counts go to the group leader alone."""
    return pb.JoinGroupResponse(
        generation=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        leader_id=reply.leader_id,
        member_id=reply.member_id,
        members=[
            pb.JoinGroupResponse.Member(
                member_id=member_id, metadata=metadata, group_instance_id=instance_id
            )
            for member_id, metadata, instance_id in reply.members
        ],
        partition_counts=counts,
        skip_assignment=reply.skip_assignment,
        previous_generation=reply.previous_generation,
        fencing_token=reply.token,
    )


def join_failed(
    about: pb.JoinGroupRequest | JoinGroup | Joined, answer: Answer, status: Status
) -> pb.JoinGroupResponse:
    """A Join without success, with the id that the caller may go on with.

    That is its own, the one that it is given, or that under which it waits or waited.
    """
    member_id = about.member_id
    if isinstance(answer, IdGiven):
        member_id = answer.member_id
    elif isinstance(about, JoinGroup) and (isinstance(answer, ParkOver) or answer is FENCED):
        member_id = joining_id(about)
    elif answer is REMOVED or _has_no_seat(answer):
        member_id = ""
    return pb.JoinGroupResponse(
        status=status,
        generation=-1,
        member_id=member_id,
        park_again=isinstance(answer, ParkOver),
    )


def _has_no_seat(answer: Answer) -> bool:
    """True where the group is full of others (gp-J6)."""
    return isinstance(answer, Refused) and answer.error is Error.GROUP_MAX_SIZE_REACHED


def sync_failed(_about: object, answer: Answer, status: Status) -> pb.SyncGroupResponse:
    return pb.SyncGroupResponse(
        status=status, generation=-1, park_again=isinstance(answer, ParkOver)
    )


def synced(reply: Synced) -> pb.SyncGroupResponse:
    return pb.SyncGroupResponse(
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        assignment=reply.assignment,
        generation=reply.generation,
        fencing_token=reply.token,
    )


def heard(reply: Heard, interval_ms: int, *, incomplete: bool) -> pb.ConsumerGroupHeartbeatResponse:
    """Return the answer that says how a member of a modern group stands."""
    response = pb.ConsumerGroupHeartbeatResponse(
        member_epoch=reply.member_epoch,
        assignment_version=reply.version,
        heartbeat_interval_ms=interval_ms,
        incomplete=incomplete,
    )
    for topic, phase, partitions, tokens in reply.grants.runs():
        response.grants.add(
            topic=topic,
            phase=int(phase),
            partitions=partitions,
            fencing_tokens=tokens,
        )
    return response


def committed(results: Iterable[PartitionResult]) -> pb.OffsetCommitResponse:
    response = pb.OffsetCommitResponse()
    add = response.partitions.add  # makes each in its place: a third of the time of a list
    for topic, partition, error, message, superseded in results:
        answer = add(topic=topic, partition=partition)
        if superseded:
            answer.superseded = True
        if error is not Error.NONE:
            answer.status.code = int(error)  # type: ignore[assignment]
            answer.status.message = message
            answer.status.retriable = error.retriable
    return response


STORED_MAX: Final = 16 * 1_024
"""Partitions whose encoded results are kept; one more, and all are made anew."""


class _StoredParts(dict[tuple[str, int], bytes]):
    """By partition, what an encoded OffsetCommitResponse says of it where it is stored."""

    def __missing__(self, ref: tuple[str, int]) -> bytes:
        topic, partition = ref
        response = pb.OffsetCommitResponse()
        response.partitions.add(topic=topic, partition=partition)
        encoded = response.SerializeToString()
        if len(self) >= STORED_MAX:
            self.clear()
        self[ref] = encoded
        return encoded


_STORED: Final = _StoredParts()


def stored(results: StoredResults) -> bytes:
    """`committed` of partitions that are stored, encoded: parts of one repeated field in a row."""
    return b"".join(map(_STORED.__getitem__, results.refs))
