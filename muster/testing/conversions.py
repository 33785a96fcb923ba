"""Classic members of the test cluster's modern groups, and groups that change their kind.

They join, sync and leave as in a classic group, and the coordinator assigns (docs/modern.md). Each
Join that is taken gives all that the member has one new token, which is its generation.
"""

import asyncio
from collections.abc import Mapping

from muster.errors import ErrorCode
from muster.group.consumer_protocol import (
    PROTOCOL_TYPE,
    NotOurMetadataError,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    is_awaited,
)
from muster.testing.groups import Group, Member, join_refusal, sync_refusal
from muster.testing.modern_groups import Consumer, ModernGroup
from muster.types import TopicPartition
from muster.v1 import group_pb2

Code = ErrorCode

CONVERTIBLE = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""Assignors in whose place the coordinator may assign."""


def why_not(group: Group) -> str:
    """Why a classic group cannot become a modern one; "" = it can."""
    if group.protocol_type != PROTOCOL_TYPE:
        return "it is no group of consumers"
    if group.protocol_name and group.protocol_name not in CONVERTIBLE:
        return f"its members use the assignor {group.protocol_name!r}, which is their own"
    return ""


def hands_over(group: Group) -> bool:
    """Whether a cooperative member may still work on what it is assigned no more."""
    return any(is_awaited(member.assignment) for member in group.members.values())


def upgrade(group: Group, modern: ModernGroup) -> None:
    """The classic group's members are the modern one's, with what they were assigned."""
    now = asyncio.get_running_loop().time()
    for member in group.members.values():
        consumer = modern.members[member.member_id] = Consumer(
            member.member_id,
            now,
            member.instance_id,
            member.client_id,
            member.topics,
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            epoch=group.generation,
            version=1,
            protocols=list(member.protocols),
            generation=group.generation,
            given=1,
        )
        for key in decode_assignment(member.assignment):
            consumer.assigned[key] = member.fencing_token
            modern.target[key] = member.member_id
    group.hand_over()


def downgrade(modern: ModernGroup, group: Group, gone: Consumer, trigger: str, reason: str) -> None:
    """The classic members that are left share out the partitions among themselves again.

    `gone` is the last modern member.
    """
    members = [
        Member(
            one.member_id,
            list(one.protocols),
            one.topics,
            one.session_timeout_ms,
            one.heard_at,
            synced=True,
            assignment=encode_assignment(one.assigned),
            client_id=one.client_id,
            rebalance_timeout_ms=one.rebalance_timeout_ms,
            instance_id=one.instance_id,
            fencing_token=one.generation,
        )
        for one in modern.members.values()
    ]
    former = {one.member_id: one.generation for one in modern.members.values()}
    modern.members.clear()
    modern.target.clear()
    group.take_back(members, former, max(modern.epoch, modern.fence), gone.who, trigger, reason)


def join(
    modern: ModernGroup,
    request: group_pb2.JoinGroupRequest,
    creation_versions: Mapping[str, int],
) -> group_pb2.JoinGroupResponse:
    """A classic member joins, for the first time or again, and follows (gp-2.2.6)."""
    member_id = request.member_id or f"{request.client_id}-{request.join_nonce}"
    holder = modern.holder(request.group_instance_id)
    member = modern.members.get(member_id)
    if request.member_id:
        code = modern.identity(request.member_id, request.group_instance_id)
        if code is not Code.NONE:
            return join_refusal(code, code.name, member_id)
    former = member or holder
    keeps = _works_on(request)
    if not _fits(modern, request, former) or keeps is None:
        message = "the coordinator assigns to consumers, and no protocol of the member fits"
        return join_refusal(Code.INCONSISTENT_GROUP_PROTOCOL, message, member_id)
    if member is not None and not member.is_classic:
        message = "the coordinator assigns to this member"
        return join_refusal(Code.INCONSISTENT_GROUP_PROTOCOL, message, member_id)
    was_modern = former is not None and not former.is_classic
    joined = modern.take_classic(request, member_id, former, {} if was_modern else keeps)
    if was_modern and modern.downgrade_if_classic(joined, "static_replaced"):
        message = "the group is a classic one again: join its round"
        return join_refusal(Code.REBALANCE_IN_PROGRESS, message, member_id)
    answer = group_pb2.JoinGroupResponse(
        generation=joined.generation,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=joined.protocols[0][0],
        member_id=member_id,
        fencing_token=joined.generation,
    )
    for topic in creation_versions.keys() & set(joined.topics):
        answer.creation_versions[topic] = creation_versions[topic]
    return answer


def _fits(
    modern: ModernGroup, request: group_pb2.JoinGroupRequest, former: Consumer | None
) -> bool:
    """Whether a classic group could follow, in which all classic members have a protocol."""
    names = {one.name for one in request.protocols}
    for other in modern.members.values():
        if other.is_classic and other is not former:
            names &= {name for name, _ in other.protocols}
    is_first_known = bool(request.protocols) and request.protocols[0].name in CONVERTIBLE
    return request.protocol_type == PROTOCOL_TYPE and bool(names) and is_first_known


def _works_on(request: group_pb2.JoinGroupRequest) -> dict[TopicPartition, None] | None:
    """What the member goes on working on while it joins; None = it cannot be read."""
    found: dict[TopicPartition, None] = {}
    for one in request.protocols:
        try:
            said = decode_subscription(request.member_id, one.metadata)
        except NotOurMetadataError:
            return None
        if said.keeps_owned:
            found.update(dict.fromkeys(said.owned))
    return found


def sync(modern: ModernGroup, request: group_pb2.SyncGroupRequest) -> group_pb2.SyncGroupResponse:
    """What the member holds, where that is what it was told of with its Join."""
    code = modern.identity(request.member_id, request.group_instance_id)
    if code is not Code.NONE:
        return sync_refusal(code)
    member = modern.members[request.member_id]
    if not member.is_classic:
        return sync_refusal(Code.UNKNOWN_MEMBER_ID)
    if request.generation != member.generation:
        return sync_refusal(Code.ILLEGAL_GENERATION)
    if member.version != member.given:
        return sync_refusal(Code.REBALANCE_IN_PROGRESS)
    return group_pb2.SyncGroupResponse(
        protocol_type=PROTOCOL_TYPE,
        protocol_name=request.protocol_name or member.protocols[0][0],
        assignment=encode_assignment(member.assigned, member.revoking),
        generation=member.generation,
        fencing_token=member.generation,
    )
