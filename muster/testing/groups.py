"""The group protocol in simple form, in one memory that the nodes of a test cluster share.

It follows gp-2.2 to gp-2.9 where clients can tell the difference. It has no quotas.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from muster.errors import ErrorCode
from muster.testing.commits import CommittedOffsets, Stored
from muster.testing.rounds import Rounds
from muster.testing.statuses import status
from muster.types import TopicPartition
from muster.v1 import group_pb2
from muster.v1.admin_pb2 import DescribeRebalancesResponse

Code = ErrorCode


class Phase(StrEnum):
    """The state of a group, by Kafka's name."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(eq=False, slots=True)
class Member:
    """A member as the coordinator has it."""

    member_id: str
    protocols: list[tuple[str, bytes]]
    topics: tuple[str, ...]
    session_timeout_ms: int
    heard_at: float
    joined: bool = False
    synced: bool = False
    assignment: bytes = b""
    open_calls: int = 0
    client_id: str = ""
    rebalance_timeout_ms: int = 0
    instance_id: str = ""
    fencing_token: int = 0
    parked_join: "asyncio.Future[group_pb2.JoinGroupResponse] | None" = None
    parked_syncs: "list[asyncio.Future[group_pb2.SyncGroupResponse]]" = field(default_factory=list)

    @property
    def who(self) -> DescribeRebalancesResponse.Who:
        return DescribeRebalancesResponse.Who(
            member_id=self.member_id, client_id=self.client_id, group_instance_id=self.instance_id
        )


class Group:
    """A group as the test cluster's coordinator has it."""

    def __init__(
        self,
        group_id: str,
        *,
        initial_delay_ms: int,
        topics: dict[str, int],
        creation_versions: Mapping[str, int],
        changed: Callable[[], None],
    ) -> None:
        self.group_id = group_id
        self.phase = Phase.EMPTY
        self.generation = 0
        self.fence = 0
        """The last fencing token that was taken."""
        self.protocol_type = ""
        self.protocol_name = ""
        self.leader_id = ""
        self.members: dict[str, Member] = {}
        self.committed = CommittedOffsets(topics)
        self.rounds = Rounds()
        self._loop = asyncio.get_running_loop()
        self._initial_delay_ms = initial_delay_ms
        self._topics = topics
        self._creation_versions = creation_versions
        self._known: dict[str, int] = {}  # those of when the generation formed
        self.former: dict[str, int] = {}
        """The generation that each member knows, from when it was a modern group, until a round."""
        self._previous = 0
        self._changed = changed  # releases held heartbeats
        self._barrier_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # ---- joining

    def join(
        self, request: group_pb2.JoinGroupRequest
    ) -> "group_pb2.JoinGroupResponse | asyncio.Future[group_pb2.JoinGroupResponse]":
        """gp-J1 to gp-J9: an answer, or where it will come."""
        member_id = request.member_id or f"{request.client_id}-{request.join_nonce}"
        holder = self.holder(request.group_instance_id)
        if request.member_id:
            code = self._identity(request.member_id, request.group_instance_id)
            if code is not Code.NONE:
                return join_refusal(code, code.name, member_id)
        elif holder is not None and holder.member_id != member_id:
            return self._replace(holder, member_id, request)
        protocols = [(p.name, p.metadata) for p in request.protocols]
        common = self._common_protocols(member_id)
        if common is not None and not common & {name for name, _ in protocols}:
            return join_refusal(
                Code.INCONSISTENT_GROUP_PROTOCOL, "no protocol in common", member_id
            )
        member = self.members.get(member_id)
        is_same = member is not None and member.protocols == protocols
        if member is not None and is_same and self._may_repeat(member):
            self.hear(member)
            return self._join_answer(member)
        before, is_new = len(self.members), member is None
        if member is None:
            member = self.members[member_id] = Member(
                member_id, protocols, (), request.session_timeout_ms, self._loop.time()
            )
            member.instance_id = request.group_instance_id
        trigger = "member_joined" if is_new else _why_again(member, request)
        self._take(member, request)
        if self.phase is not Phase.PREPARING:
            self._begin(trigger, member.who, request.reason, before)
        self.rounds.came(member.who, is_new=is_new, now=self._loop.time())
        return self._park_join(member)

    def _take(self, member: Member, request: group_pb2.JoinGroupRequest) -> None:
        """Take over what a Join says of its member."""
        self.protocol_type = request.protocol_type
        member.protocols = [(p.name, p.metadata) for p in request.protocols]
        member.topics = tuple(request.subscribed_topics)
        member.client_id = request.client_id
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.hear(member)

    def description(self, member: Member) -> dict[str, Any]:
        """A member as DescribeGroups tells of it."""
        return {
            "member_id": member.member_id,
            "client_id": member.client_id,
            "host": "127.0.0.1",
            "metadata": dict(member.protocols).get(self.protocol_name, b""),
            "assignment": member.assignment,
            "session_timeout_ms": member.session_timeout_ms,
            "rebalance_timeout_ms": member.rebalance_timeout_ms,
            "joined": member.joined,
            "synced": member.synced,
            "group_instance_id": member.instance_id,
            "subscribed_topics": member.topics,
            "fencing_token": member.fencing_token if member.synced else 0,
        }

    def holder(self, instance_id: str) -> Member | None:
        """Who holds an instance id."""
        found = (m for m in self.members.values() if instance_id and m.instance_id == instance_id)
        return next(found, None)

    def _identity(self, member_id: str, instance_id: str) -> ErrorCode:
        """By instance id first (gp-2.0.4)."""
        holder = self.holder(instance_id)
        if holder is not None and holder.member_id != member_id:
            return Code.FENCED_INSTANCE_ID
        known = member_id in self.members and (holder is not None or not instance_id)
        return Code.NONE if known else Code.UNKNOWN_MEMBER_ID

    def _replace(
        self, member: Member, member_id: str, request: group_pb2.JoinGroupRequest
    ) -> "group_pb2.JoinGroupResponse | asyncio.Future[group_pb2.JoinGroupResponse]":
        """A static member is back under another id (gp-2.2.4)."""
        old_id, member.member_id = member.member_id, member_id
        member.fencing_token = self._next_token()
        self.members = {one.member_id: one for one in self.members.values()}
        if self.leader_id == old_id:
            self.leader_id = member_id
        if member.parked_join is not None and not member.parked_join.done():
            member.parked_join.set_result(join_refusal(Code.FENCED_INSTANCE_ID, "fenced", old_id))
        self._answer_syncs(member, Code.FENCED_INSTANCE_ID)
        self._take(member, request)
        self._changed()
        if self.phase is Phase.STABLE:
            answer = self._join_answer(member)
            answer.skip_assignment = member_id == self.leader_id
            return answer
        if self.phase is not Phase.PREPARING:
            self._begin("static_replaced", member.who, request.reason, len(self.members))
        self.rounds.came(member.who, is_new=False, now=self._loop.time())
        return self._park_join(member)

    def _next_token(self) -> int:
        """One for all of a generation, one for who replaces a static member; none twice."""
        self.fence = max(self.fence, self.generation) + 1
        return self.fence

    def _may_repeat(self, member: Member) -> bool:
        """A known member that lost its answer gets the same one (gp-2.17)."""
        if self.phase is Phase.COMPLETING:
            return True
        return self.phase is Phase.STABLE and member.member_id != self.leader_id

    def _park_join(self, member: Member) -> "asyncio.Future[group_pb2.JoinGroupResponse]":
        if member.parked_join is not None and not member.parked_join.done():
            member.parked_join.set_result(
                join_refusal(Code.REBALANCE_IN_PROGRESS, "a newer call", member.member_id)
            )
        member.joined = True
        member.parked_join = parked = self._loop.create_future()
        # The answer of a barrier that completes now comes in the next turn, so it is always parked.
        self._loop.call_soon(self._complete_if_joined)
        return parked

    def _common_protocols(self, but: str) -> set[str] | None:
        names = [{n for n, _ in m.protocols} for m in self.members.values() if m.member_id != but]
        return set.intersection(*names) if names else None

    def topic_changed(self, topic: str, partitions: int) -> None:
        """It was made, grew, or was deleted (0): whoever shares partitions of it does so anew."""
        is_formed = self.phase in (Phase.COMPLETING, Phase.STABLE)
        if self.protocol_type != "consumer" or not is_formed:
            return
        if any(topic in member.topics for member in self.members.values()):
            reason = f"topic {topic!r} has {partitions} partitions"
            if not partitions:
                reason = f"topic {topic!r} was deleted"
            self._begin("topics_changed", None, reason, len(self.members))

    def _begin(
        self, trigger: str, who: DescribeRebalancesResponse.Who | None, reason: str, before: int
    ) -> None:
        now = self._loop.time()
        self.rounds.begin(trigger, who, reason, self.generation, before, now)
        self._prepare()

    def _prepare(self) -> None:
        from_empty = self.phase is Phase.EMPTY
        self.phase = Phase.PREPARING
        self._barrier_at = self._loop.time() + (self._initial_delay_ms / 1000 if from_empty else 0)
        self._at(self._barrier_at, self._complete_if_joined)
        for member in self.members.values():
            member.joined = member.synced = False
            self._answer_syncs(member, Code.REBALANCE_IN_PROGRESS)
        self._changed()

    def _complete_if_joined(self) -> None:
        if self.phase is not Phase.PREPARING or self._loop.time() < self._barrier_at:
            return
        if not all(member.joined for member in self.members.values()):
            return
        token = self._next_token()
        self._previous = min(self.former.values(), default=self.generation)
        self.former.clear()
        self.generation += 1
        self._known = dict(self._creation_versions)
        if not self.members:
            self.phase = Phase.EMPTY
            self.protocol_name = self.leader_id = ""
            self.rounds.emptied(self.generation, self._loop.time())
            self._changed()
            return
        self.phase = Phase.COMPLETING
        self.leader_id = next(iter(self.members))
        leader = self.members[self.leader_id].who
        self.rounds.formed(self.generation, leader, len(self.members), self._loop.time())
        common = self._common_protocols("") or set()
        votes = [next(n for n, _ in m.protocols if n in common) for m in self.members.values()]
        self.protocol_name = max(sorted(set(votes)), key=votes.count)
        for member in self.members.values():
            member.assignment = b""
            member.fencing_token = token
            self.hear(member)
            if member.parked_join is not None and not member.parked_join.done():
                member.parked_join.set_result(self._join_answer(member))
            member.parked_join = None
        self._changed()

    def _join_answer(self, member: Member) -> group_pb2.JoinGroupResponse:
        response = group_pb2.JoinGroupResponse(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader_id=self.leader_id,
            member_id=member.member_id,
            previous_generation=self._previous,
            fencing_token=member.fencing_token,
        )
        for topic in self._creation_versions.keys() & set(member.topics):
            response.creation_versions[topic] = self._creation_versions[topic]
        if member.member_id == self.leader_id:
            for one in self.members.values():
                metadata = dict(one.protocols)[self.protocol_name]
                response.members.add(
                    member_id=one.member_id,
                    metadata=metadata,
                    group_instance_id=one.instance_id,
                )
                for topic in one.topics:
                    if topic in self._topics:
                        response.partition_counts[topic] = self._topics[topic]
        return response

    # ---- syncing

    def sync(
        self, request: group_pb2.SyncGroupRequest
    ) -> "group_pb2.SyncGroupResponse | asyncio.Future[group_pb2.SyncGroupResponse]":
        """The rules gp-S1 to gp-S7."""
        code = self.check(request.member_id, request.generation, request.group_instance_id)
        if code is Code.REBALANCE_IN_PROGRESS or code is not Code.NONE:
            return sync_refusal(code)
        if request.protocol_name not in ("", self.protocol_name):
            return sync_refusal(Code.INCONSISTENT_GROUP_PROTOCOL)
        member = self.members[request.member_id]
        self.hear(member)
        member.synced = True
        if self.phase is Phase.STABLE:
            return self._sync_answer(member)
        if request.member_id == self.leader_id:
            return self._publish(request)
        parked: asyncio.Future[group_pb2.SyncGroupResponse] = self._loop.create_future()
        member.parked_syncs.append(parked)
        return parked

    def _publish(self, request: group_pb2.SyncGroupRequest) -> group_pb2.SyncGroupResponse:
        for one in request.assignments:
            if one.member_id in self.members:
                self.members[one.member_id].assignment = one.assignment
        self.phase = Phase.STABLE
        self.rounds.assigned(self._loop.time())
        for member in self.members.values():
            self.hear(member)
            self._answer_syncs(member, Code.NONE)
        return self._sync_answer(self.members[self.leader_id])

    def _sync_answer(self, member: Member) -> group_pb2.SyncGroupResponse:
        return group_pb2.SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
            generation=self.generation,
            fencing_token=member.fencing_token,
        )

    def _answer_syncs(self, member: Member, code: ErrorCode) -> None:
        answer = self._sync_answer(member) if code is Code.NONE else sync_refusal(code)
        for parked in member.parked_syncs:
            if not parked.done():
                parked.set_result(answer)
        member.parked_syncs.clear()

    # ---- heartbeats, leaving, sessions

    def check(self, member_id: str, generation: int, instance_id: str = "") -> ErrorCode:
        """The rules gp-H2 to gp-H6, shared by Sync and Heartbeat."""
        code = self._identity(member_id, instance_id)
        if code is not Code.NONE:
            return code
        if generation not in (self.generation, self.former.get(member_id)):
            return Code.ILLEGAL_GENERATION
        if self.phase is Phase.PREPARING:
            return Code.REBALANCE_IN_PROGRESS
        return Code.NONE

    def hear(self, member: Member) -> None:
        """Start the member's session anew."""
        member.heard_at = self._loop.time()

    def leave(
        self, member_id: str, instance_id: str, reason: str = "", trigger: str = "member_left"
    ) -> ErrorCode:
        """One entry of a Leave (gp-L4), or of a kick."""
        holder = self.holder(instance_id)
        if not member_id and holder is not None:
            member_id = holder.member_id
        code = self._identity(member_id, instance_id)
        if code is Code.NONE:
            self.remove(member_id, trigger, reason)
        return code

    def remove(self, member_id: str, trigger: str = "session_expiry", reason: str = "") -> bool:
        """Left, expired, or taken out by a test. False: there was no such member."""
        member = self.members.pop(member_id, None)
        if member is None:
            return False
        if member.parked_join is not None and not member.parked_join.done():
            refusal = join_refusal(Code.UNKNOWN_MEMBER_ID, "removed")
            member.parked_join.set_result(refusal)
        self._answer_syncs(member, Code.UNKNOWN_MEMBER_ID)
        self.rounds.went(member.who, trigger, self._loop.time())
        if self.phase in (Phase.STABLE, Phase.COMPLETING):
            self._begin(trigger, member.who, reason, len(self.members) + 1)
        self._loop.call_soon(self._complete_if_joined)
        self._changed()
        return True

    def expire(self) -> None:
        """Remove members that were silent for longer than their session."""
        now = self._loop.time()
        for member in list(self.members.values()):
            if not member.open_calls and now - member.heard_at > member.session_timeout_ms / 1000:
                self.remove(member.member_id)

    def rearm(self) -> None:
        """A new coordinator grants everybody a full session."""
        for member in self.members.values():
            self.hear(member)

    # ---- other kinds of groups

    def hand_over(self) -> None:
        """Its members are those of a modern group now."""
        self.members.clear()
        self.phase = Phase.EMPTY
        self.protocol_name = self.leader_id = ""
        self._changed()

    def take_back(
        self,
        members: Iterable[Member],
        former: Mapping[str, int],
        generation: int,
        gone: DescribeRebalancesResponse.Who,
        trigger: str,
        reason: str,
    ) -> None:
        """The members of a modern group are classic ones, and share out its partitions anew.

        Until they have, each is of the generation in `former`, which it knows.
        """
        self.members = {one.member_id: one for one in members}
        self.go_on_from(generation, generation)
        self.former = dict(former)
        self.protocol_type = "consumer"
        self.protocol_name = min(self._common_protocols("") or {""})
        self.leader_id = next(iter(self.members))
        self.phase = Phase.STABLE
        self._begin(trigger, gone, reason, len(self.members) + 1)

    def go_on_from(self, generation: int, fence: int) -> None:
        """It was a modern group before: generations and tokens only rise."""
        self.generation = max(self.generation, generation)
        self.fence = max(self.fence, fence)

    def rebalances(self, most: int) -> list[DescribeRebalancesResponse.Rebalance]:
        """Its last rounds, the newest first."""
        awaited = []
        if self.phase is Phase.PREPARING:
            awaited = [member.who for member in self.members.values() if not member.joined]
        elif self.phase is Phase.COMPLETING:
            awaited = [self.members[self.leader_id].who]
        return self.rounds.described(most, awaited, len(self.members), self._loop.time())

    def parked(self) -> Iterable["asyncio.Future[group_pb2.JoinGroupResponse]"]:
        """Joins that wait for the barrier."""
        return [m.parked_join for m in self.members.values() if m.parked_join is not None]

    # ---- offsets

    def commit(self, request: group_pb2.OffsetCommitRequest) -> group_pb2.OffsetCommitResponse:
        """The rules gp-O4 to gp-O9."""
        code = self._may_commit(request.member_id, request.generation, request.group_instance_id)
        if code is not Code.NONE:
            return group_pb2.OffsetCommitResponse(status=status(code, code.name))
        expected = request.expected_generation
        if request.HasField("expected_generation") and expected != self.generation:
            message = f"the group's generation is {self.generation}, not {expected}"
            return group_pb2.OffsetCommitResponse(status=status(Code.ILLEGAL_GENERATION, message))
        if request.member_id in self.members:
            self.hear(self.members[request.member_id])
            if any(self._is_newer(one.topic) for one in request.partitions):
                if self.phase is Phase.STABLE:
                    reason = "a commit to a topic that was made since the generation formed"
                    self._begin("topics_changed", None, reason, len(self.members))
                code = Code.REBALANCE_IN_PROGRESS
                return group_pb2.OffsetCommitResponse(status=status(code, code.name))
        return self.committed.commit(request)

    def _is_newer(self, topic: str) -> bool:
        """Whether it was made since the generation formed, and after another one was deleted."""
        return self._creation_versions.get(topic, 0) > self._known.get(topic, 0)

    @property
    def offsets(self) -> dict[TopicPartition, Stored]:
        """The committed offsets, each with the commit that wrote it."""
        return self.committed.offsets

    def _may_commit(self, member_id: str, generation: int, instance_id: str) -> ErrorCode:
        if generation < 0 and not member_id:
            return Code.UNKNOWN_MEMBER_ID if self.members else Code.NONE
        code = self.check(member_id, generation, instance_id)
        if code is Code.REBALANCE_IN_PROGRESS:
            return Code.NONE  # under the old generation, before giving up
        if code is Code.NONE and self.phase is Phase.COMPLETING:
            return Code.REBALANCE_IN_PROGRESS
        return code

    # ---- time

    def _at(self, when: float, call: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, call)

    def close(self) -> None:
        """No timer fires any more."""
        if self._timer is not None:
            self._timer.cancel()


def _why_again(member: Member, request: group_pb2.JoinGroupRequest) -> str:
    """The trigger of a round that a known member opens, by what it said last."""
    if member.protocols == [(p.name, p.metadata) for p in request.protocols]:
        return "leader_rejoined"
    names = [name for name, _ in member.protocols]
    same = names == [p.name for p in request.protocols] and member.topics == tuple(
        request.subscribed_topics
    )
    return "partitions_released" if same and request.released_partitions else "metadata_changed"


def join_refusal(
    code: ErrorCode, message: str = "", member_id: str = "", *, park_again: bool = False
) -> group_pb2.JoinGroupResponse:
    return group_pb2.JoinGroupResponse(
        status=status(code, message), generation=-1, member_id=member_id, park_again=park_again
    )


def sync_refusal(code: ErrorCode, *, park_again: bool = False) -> group_pb2.SyncGroupResponse:
    return group_pb2.SyncGroupResponse(status=status(code, code.name), park_again=park_again)
