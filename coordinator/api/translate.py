"""Requests of the wire to the machine's commands, and its replies back.

Pure; no checks of the group's state.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, cast

from muster.v1 import admin_pb2
from muster.v1 import group_pb2 as pb
from musterd.coordinator.api.statuses import ServerAnswer
from musterd.coordinator.codec import NAMES
from musterd.coordinator.machine.commands import (
    Assignment,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    PartitionCommit,
    Protocol,
    SyncGroup,
)
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.invariants import invariant
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import Joined, PartitionResult, Refused, Synced
from musterd.coordinator.runtime.answers import Answer

COMMAND_MARGIN_BYTES: Final = 512
"""A command is its request plus what the server adds: the client's host (at most 249 bytes), tags
and lengths."""

_NONCE: Final = re.compile(r"[0-9a-f]{32}")


def command_bytes(request_bytes: int) -> int:
    """At most so many bytes does the command of a request take in an entry."""
    return request_bytes + COMMAND_MARGIN_BYTES


def failure(answer: Answer) -> ServerAnswer:
    """An answer that is not the success its caller expected; another success is a bug."""
    invariant(isinstance(answer, ServerAnswer), f"{type(answer).__name__} answers another request")
    return cast("ServerAnswer", answer)


def too_large(size: int, most: int = LIMITS.command_max_bytes) -> Refused | None:
    """A command that no entry may hold."""
    if size <= most:
        return None
    return Refused(
        Error.INVALID_REQUEST,
        f"The request takes {size} bytes in the log; at most {most} are taken: send less at once.",
    )


# What is refused by its count alone, before a Python object is made of every entry: a request of
# 1.5 MiB holds 700,000 of them, which would hold up the loop for a second.


def _too_many(count: int, most: int, what: str) -> Refused | None:
    if count <= most:
        return None
    return Refused(Error.INVALID_REQUEST, f"{what} at most {most}; this one has {count}.")


def too_many_in_join(request: pb.JoinGroupRequest) -> Refused | None:
    """The limits of protocols, and of topics: there are no more than it may name."""
    what = "The protocols that a member lists are"
    listed = _too_many(len(request.protocols), LIMITS.member_max_protocols, what)
    what = "The topics that a member names are"
    count = len(request.subscribed_topics)
    return listed or _too_many(count, LIMITS.max_topics, what)


def too_many_in_sync(request: pb.SyncGroupRequest) -> Refused | None:
    """A group has no more members."""
    what = "The assignments of one Sync are"
    return _too_many(len(request.assignments), LIMITS.group_max_members, what)


def too_many_leave(request: pb.LeaveGroupRequest) -> Refused | None:
    """A group has no more members."""
    what = "The members that leave in one call are"
    return _too_many(len(request.members), LIMITS.group_max_members, what)


def too_many_committed(request: pb.OffsetCommitRequest) -> Refused | None:
    """The limit of a commit."""
    what = "The partitions of one commit are"
    return _too_many(len(request.partitions), LIMITS.commit_max_partitions, what)


def too_many_settings(asked: admin_pb2.AlterGroupConfigsRequest.Group) -> Refused | None:
    """The limit of one group's changes."""
    what = "The settings that change at once are"
    count = len(asked.settings) + len(asked.removed)
    return _too_many(count, LIMITS.alter_config_max_settings, what)


def join(request: pb.JoinGroupRequest, client_host: str, drawn_nonce: str) -> JoinGroup:
    """A JoinGroup command. The reason is cut to 255 characters (KIP-800).

    `drawn_nonce` (32 hex digits, new for each call) counts where the caller brought neither an id
    nor a nonce (gp-J7.4).
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
    )


def refuse_join_form(command: JoinGroup) -> Refused | None:
    """What the wire demands of a Join beyond the machine's own bounds."""
    if not command.member_id and not _NONCE.fullmatch(command.join_nonce or command.drawn_nonce):
        return Refused(
            Error.INVALID_REQUEST,
            "A join_nonce is 32 lower-case hex digits, new for each membership.",
        )
    names = [protocol.name for protocol in command.protocols]
    if len(set(names)) != len(names):
        return Refused(Error.INVALID_REQUEST, "A protocol is listed twice: list each name once.")
    most = LIMITS.id_max_bytes
    if not all(0 < len(topic.encode()) <= most for topic in command.subscribed_topics):
        return Refused(Error.INVALID_REQUEST, f"A topic's name has 1 to {most} bytes.")
    return None


def sync(request: pb.SyncGroupRequest) -> SyncGroup:
    """A SyncGroup command."""
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


def commit(request: pb.OffsetCommitRequest) -> OffsetCommit:
    """An OffsetCommit command."""
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


def synced(reply: Synced) -> pb.SyncGroupResponse:
    """A Sync's success."""
    return pb.SyncGroupResponse(
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        assignment=reply.assignment,
        generation=reply.generation,
        fencing_token=reply.token,
    )


def committed(results: Iterable[PartitionResult]) -> pb.OffsetCommitResponse:
    """A commit's answer."""
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
