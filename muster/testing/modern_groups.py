"""Modern groups in simple form: the test cluster's coordinator assigns (docs/modern.md).

It does what a node does where clients can tell the difference; who gets what is in plans.py.
Patterns are those of Python's `re`: what it has beyond RE2 is taken, too.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from muster.errors import ErrorCode
from muster.testing.commits import CommittedOffsets
from muster.testing.plans import ASSIGNORS, Subscriber, Target, assignor_of, share_out
from muster.testing.statuses import status
from muster.types import TopicPartition
from muster.v1 import errors_pb2, group_pb2
from muster.v1.admin_pb2 import DescribeGroupsResponse, DescribeRebalancesResponse
from muster.v1.group_pb2 import ConsumerAssignment

Code = ErrorCode
Request = group_pb2.ConsumerGroupHeartbeatRequest
Response = group_pb2.ConsumerGroupHeartbeatResponse

JOIN_EPOCH, LEAVE_EPOCH, AWAY_EPOCH = 0, -1, -2
AWAY_MAX_MS = 600_000
"""For how long a member is away at most: the default of `consumer.max.away.ms`."""


@dataclass(eq=False, slots=True)
class Consumer:
    """A member as the coordinator has it."""

    member_id: str
    heard_at: float
    instance_id: str = ""
    client_id: str = ""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    rack: str = ""
    assignor: str = ""
    capacity: int = 1_000
    """In thousandths, for `weighted`."""
    subscription_seq: int = 0
    """Which of the things that it says of itself this is, by its own count; 0 = it has none."""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = 0
    epoch: int = 0
    said_epoch: int = 0
    """The epoch that it said last: it may know none of those that came since."""
    version: int = 0
    assigned: dict[TopicPartition, int] = field(default_factory=dict)
    """Partition -> token."""
    revoking: dict[TopicPartition, int] = field(default_factory=dict)
    revoked_by: float = 0.0
    away_until: float | None = None
    open_calls: int = 0
    protocols: list[tuple[str, bytes]] = field(default_factory=list)
    """A classic member's, which joins and syncs; else none."""
    generation: int = 0
    """A classic member's, which is the token of all that it has."""
    former_generation: int = 0
    """That of its Join before; 0 = none."""
    given: int = 0
    """The version that a classic member was told of with its Join."""

    @property
    def is_classic(self) -> bool:
        """Whether it joins and syncs, as in a classic group."""
        return bool(self.protocols)

    @property
    def who(self) -> DescribeRebalancesResponse.Who:
        """As the history of rounds names it."""
        return DescribeRebalancesResponse.Who(
            member_id=self.member_id, client_id=self.client_id, group_instance_id=self.instance_id
        )

    def subscribes(self, topic: str) -> bool:
        """Whether it reads this topic."""
        return topic in self.topics or (
            bool(self.pattern) and re.fullmatch(self.pattern, topic) is not None
        )

    def subscriber(self, topics: Iterable[str]) -> Subscriber:
        """As plans of these topics see it."""
        read = frozenset(filter(self.subscribes, topics))
        is_away = self.away_until is not None
        return Subscriber(self.member_id, self.instance_id, read, self.capacity, is_away)


class ModernGroup:
    """A group whose members the test cluster assigns partitions to."""

    def __init__(
        self,
        *,
        topics: Mapping[str, int],
        committed: CommittedOffsets,
        changed: Callable[[], None],
        only_classic: Callable[[Consumer, str, str], None],
        interval_ms: int,
    ) -> None:
        """`only_classic` is told of the last modern member's end, with its trigger and reason."""
        self.members: dict[str, Consumer] = {}
        self.epoch = 0
        self.fence = 0
        """The last fencing token that was taken."""
        self.target: Target = {}
        self._loop = asyncio.get_running_loop()
        self._topics = topics
        self._committed = committed
        self._changed = changed
        self._only_classic = only_classic
        self._interval_ms = interval_ms

    @property
    def state(self) -> str:
        """Kafka's name of its state."""
        if not self.members:
            return "Empty"
        settled = all(
            one.epoch == self.epoch and not one.revoking and set(one.assigned) == self._target(one)
            for one in self.members.values()
        )
        return "Stable" if settled else "Reconciling"

    @property
    def assignor(self) -> str:
        """What it is shared out by: most votes win."""
        return assignor_of(one.assignor for one in self.members.values())

    def describe(self, told: DescribeGroupsResponse.Group) -> None:
        """Fill in what DescribeGroups tells of it, all members in one page."""
        told.state, told.generation, told.target_epoch = self.state, self.epoch, self.epoch
        told.type = told.protocol_type = "consumer"
        told.protocol_name = self.assignor
        for member in self.members.values():
            one = told.members.add(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                host="127.0.0.1",
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                subscribed_topics=member.topics,
                joined=member.away_until is None,
                synced=not member.revoking and set(member.assigned) == self._target(member),
                member_epoch=member.epoch,
                subscribed_pattern=member.pattern,
                rack=member.rack,
                type="classic" if member.is_classic else "consumer",
            )
            if member.away_until is not None:
                one.away_until_wall_ms = self._wall_ms(member.away_until)
            elif member.revoking:
                one.awaited = True
                one.awaited_for = "join" if member.is_classic else "release"
                one.awaited_until_wall_ms = self._wall_ms(member.revoked_by)
            assignment = ConsumerAssignment()
            for held, revoking in ((member.assigned, False), (member.revoking, True)):
                for (topic, partition), token in sorted(held.items()):
                    assignment.assigned.add(topic=topic, partitions=[partition])
                    one.grants.add(
                        topic=topic,
                        revoking=revoking,
                        partitions=[partition],
                        fencing_tokens=[token],
                    )
            one.assignment = assignment.SerializeToString()
            for topic, partition in sorted(self._target(member)):
                one.target.add(topic=topic, partitions=[partition])

    def _wall_ms(self, at: float) -> int:
        """A time of the loop by the node's clock."""
        return round((time.time() + at - self._loop.time()) * 1000)

    def go_on_from(self, generation: int, fence: int) -> None:
        """It was a classic group before: epochs and tokens only rise."""
        self.epoch = max(self.epoch, generation)
        self.fence = max(self.fence, fence, generation)

    # ---- heartbeats

    def heartbeat(self, request: Request) -> Response:
        """What a member says, and where it stands then."""
        refused = self.refuse(request) or self._identity(request) or self._refuse_late(request)
        if refused is not None:
            return Response(status=refused)
        match request.member_epoch:
            case 0:
                member = self._join(request)
            case -1:
                self.remove(request.member_id, "member_left", request.reason)
                return Response(member_epoch=LEAVE_EPOCH)
            case -2:
                self._leave_for(self.members[request.member_id], request.back_in_ms)
                return Response(member_epoch=AWAY_EPOCH)
            case _:
                member = self.members[request.member_id]
                if self._says(member, request):
                    self._replan()
        member.heard_at = self._loop.time()
        member.said_epoch = request.member_epoch
        if request.HasField("owned"):
            self._confirm(member, request)
        self._reconcile()
        return self._answer(member)

    def refuse(self, request: Request) -> errors_pb2.Status | None:
        """What is wrong with a heartbeat in any state."""
        lacks = _lacking(request)
        if lacks:
            return status(Code.INVALID_REQUEST, f"it has no {lacks}")
        if request.assignor not in ("", *ASSIGNORS):
            return status(Code.UNSUPPORTED_ASSIGNOR, f"no assignor {request.assignor!r}")
        try:
            re.compile(request.pattern)
        except re.error as error:
            return status(Code.INVALID_REGULAR_EXPRESSION, f"the pattern is none: {error}")
        return None

    def _identity(self, request: Request) -> errors_pb2.Status | None:
        member = self.members.get(request.member_id)
        holder = self.holder(request.group_instance_id)
        epoch = request.member_epoch
        if member is not None and member.is_classic:
            return status(Code.INVALID_REQUEST, "the member id is that of a classic member")
        if epoch == JOIN_EPOCH:
            held = holder is not None and holder is not member and holder.away_until is None
            return status(Code.UNRELEASED_INSTANCE_ID, "it is held") if held else None
        if holder is not None and holder is not member:
            return status(Code.FENCED_INSTANCE_ID, "another process has the instance id")
        if member is None:
            return status(Code.UNKNOWN_MEMBER_ID, "no such member")
        if epoch > 0 and not member.said_epoch <= epoch <= member.epoch:
            return status(Code.FENCED_MEMBER_EPOCH, f"the member's epoch is {member.epoch}")
        return None

    def _refuse_late(self, request: Request) -> errors_pb2.Status | None:
        """Joins, leaves and aways from before the member's last Join."""
        member = self.members.get(request.member_id)
        if member is None or not _is_late(member, request):
            return None
        return status(Code.FENCED_MEMBER_EPOCH, "it was sent before the member joined last")

    def holder(self, instance_id: str) -> Consumer | None:
        """Who holds an instance id."""
        found = (m for m in self.members.values() if instance_id and m.instance_id == instance_id)
        return next(found, None)

    def _join(self, request: Request) -> Consumer:
        member = self.members.get(request.member_id) or self.holder(request.group_instance_id)
        is_new = member is None
        if member is None:
            member = Consumer(request.member_id, self._loop.time(), request.group_instance_id)
        elif _repeats(member, request):
            return member
        else:  # what it holds is its own still, under a token of the new process
            self._rename(member, request.member_id)
            member.revoking, member.protocols = {}, []
            member.assigned = dict.fromkeys(member.assigned, self._next_token())
        self.members[member.member_id] = member
        says = self._says(member, request)
        if is_new or says:
            self._replan()
        self._change(member)
        return member

    def _rename(self, member: Consumer, member_id: str) -> None:
        """It is there under this id from now on, in whose place it was before."""
        del self.members[member.member_id]
        for key, owner in self.target.items():
            if owner == member.member_id:
                self.target[key] = member_id
        member.member_id, member.away_until = member_id, None

    def take_classic(
        self,
        request: group_pb2.JoinGroupRequest,
        member_id: str,
        former: Consumer | None,
        works_on: Mapping[TopicPartition, None],
    ) -> Consumer:
        """A classic member has joined: what it has and does not work on is free, the rest renewed.

        `former` is itself as it was, or the process whose place it takes.
        """
        member = former
        if member is None:
            member = Consumer(member_id, self._loop.time(), request.group_instance_id)
        else:
            self._rename(member, member_id)
        self.members[member_id] = member
        before = member.topics, member.pattern
        member.topics, member.pattern = tuple(request.subscribed_topics), ""
        member.protocols = [(one.name, one.metadata) for one in request.protocols]
        member.client_id = request.client_id
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.heard_at = self._loop.time()
        if former is None or before != (member.topics, ""):
            self._replan()
        wanted = self._target(member)
        kept = {key for key in member.assigned if key in wanted or key in works_on}
        member.assigned = {key: member.assigned[key] for key in kept}
        member.revoking = {key: t for key, t in member.revoking.items() if key in works_on}
        self._reconcile()
        token = self._next_token()
        member.former_generation = 0 if former is None else member.generation
        member.generation = token
        member.assigned = dict.fromkeys(sorted(member.assigned), token)
        member.revoking = dict.fromkeys(sorted(member.revoking), token)
        self._change(member)
        member.given = member.version
        return member

    def downgrade_if_classic(self, gone: Consumer, trigger: str, reason: str = "") -> bool:
        """Whether a member that went, or changed its kind, was the last modern one."""
        if not self.members or not all(one.is_classic for one in self.members.values()):
            return False
        self._only_classic(gone, trigger, reason)
        return True

    def _says(self, member: Consumer, request: Request) -> bool:
        """Take over what it says of itself; whether it subscribes to something else."""
        before = member.topics, member.pattern
        seq = request.subscription_seq
        if request.member_epoch != JOIN_EPOCH and 0 < seq < member.subscription_seq:
            return False  # it was sent before, and comes late
        if seq or request.member_epoch == JOIN_EPOCH:
            member.subscription_seq = seq
        if request.HasField("topics"):
            member.topics = tuple(request.topics.names)
        if request.HasField("pattern"):
            member.pattern = request.pattern
        if request.HasField("zone"):
            member.rack = request.zone
        if request.HasField("assignor"):
            member.assignor = request.assignor
        if request.HasField("capacity"):
            member.capacity = request.capacity
        member.client_id = request.client_id or member.client_id
        member.session_timeout_ms = request.session_timeout_ms or member.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms or member.rebalance_timeout_ms
        return (member.topics, member.pattern) != before

    def _confirm(self, member: Consumer, request: Request) -> None:
        owned = request.owned.topics
        works_on = {TopicPartition(one.topic, p) for one in owned for p in one.partitions}
        told = request.known_token if request.HasField("known_token") else self.fence
        kept = {
            key: token for key, token in member.revoking.items() if key in works_on or token > told
        }
        if kept != member.revoking:
            member.revoking = kept
            self._change(member)

    def _leave_for(self, member: Consumer, back_in_ms: int) -> None:
        member.revoking = {}
        member.away_until = self._loop.time() + min(back_in_ms, AWAY_MAX_MS) / 1000
        self._change(member)
        self._reconcile()

    def _answer(self, member: Consumer) -> Response:
        response = Response(
            member_epoch=member.epoch,
            assignment_version=member.version,
            heartbeat_interval_ms=self._interval_ms,
            incomplete=bool(member.revoking) or set(member.assigned) != self._target(member),
        )
        for phase, held in (
            (Response.ACTIVE, member.assigned),
            (Response.REVOKING, member.revoking),
        ):
            for topic in sorted({key.topic for key in held}):
                grants = response.grants.add(topic=topic, phase=phase)
                for key in sorted(key for key in held if key.topic == topic):
                    grants.partitions.append(key.partition)
                    grants.fencing_tokens.append(held[key])
        return response

    def check(self, member_id: str, version: int, instance_id: str = "") -> ErrorCode:
        """What a held heartbeat is answered."""
        code = self.identity(member_id, instance_id)
        if code is not Code.NONE:
            return code
        member = self.members[member_id]
        if member.is_classic:
            if version not in (member.generation, member.former_generation):
                return Code.ILLEGAL_GENERATION
            version = member.given if version == member.generation else -1
        return Code.NONE if version == member.version else Code.REBALANCE_IN_PROGRESS

    def identity(self, member_id: str, instance_id: str = "") -> ErrorCode:
        """By instance id first (gp-2.0.4); who is away is no member of the moment."""
        holder, member = self.holder(instance_id), self.members.get(member_id)
        if holder is not None and holder is not member:
            return Code.FENCED_INSTANCE_ID
        if member is None or member.away_until is not None:
            return Code.UNKNOWN_MEMBER_ID
        return Code.NONE

    def leave(
        self, member_id: str, instance_id: str, reason: str = "", trigger: str = "member_left"
    ) -> ErrorCode:
        """One entry of a Leave (gp-L4), or of a kick."""
        holder = self.holder(instance_id)
        if not member_id and holder is not None:
            member_id = holder.member_id
        if holder is not None and holder.member_id != member_id:
            return Code.FENCED_INSTANCE_ID
        if member_id not in self.members or (instance_id and holder is None):
            return Code.UNKNOWN_MEMBER_ID
        self.remove(member_id, trigger, reason)
        return Code.NONE

    # ---- who has what

    def remove(self, member_id: str, trigger: str = "session_expiry", reason: str = "") -> bool:
        """Left, expired, or taken out by a test. False: there was no such member."""
        member = self.members.pop(member_id, None)
        if member is None:
            return False
        if self.downgrade_if_classic(member, trigger, reason):
            return True
        self._replan()
        self._reconcile()
        self._changed()
        return True

    def expire(self) -> None:
        """Remove members that were silent, did not release in time, or are not back."""
        now = self._loop.time()
        for member in list(self.members.values()):
            silent_s = now - member.heard_at
            is_silent = not member.open_calls and silent_s > member.session_timeout_ms / 1000
            is_late = bool(member.revoking) and now > member.revoked_by
            is_gone = is_silent or is_late
            if member.away_until is not None:
                is_gone = now > member.away_until
            if is_gone:
                self.remove(member.member_id)

    def rearm(self) -> None:
        """A new coordinator grants everybody a full session."""
        for member in self.members.values():
            member.heard_at = self._loop.time()

    def topic_changed(self) -> None:
        """One was made, grew, or was deleted: what is gone is nobody's."""
        for member in self.members.values():
            for held in (member.assigned, member.revoking):
                gone = [key for key in held if key.partition >= self._topics.get(key.topic, 0)]
                for key in gone:
                    del held[key]
                    self._change(member)
        if self.members:
            self._replan()
            self._reconcile()

    def _replan(self) -> None:
        """Share everything out anew; most stays where it is."""
        self.epoch += 1
        members = list(self.members.values())
        readers = [one.subscriber(self._topics) for one in members]
        self.target = share_out(self.assignor, readers, self._topics, self.target)

    def _target(self, member: Consumer) -> set[TopicPartition]:
        return {key for key, owner in self.target.items() if owner == member.member_id}

    def _reconcile(self) -> None:
        """Revoke what is another's by now; then grant what nobody has."""
        for member in self.members.values():
            moves = member.assigned.keys() - self._target(member)
            if moves and member.away_until is None:
                for key in moves:
                    member.revoking[key] = member.assigned.pop(key)
                member.revoked_by = self._loop.time() + member.rebalance_timeout_ms / 1000
                self._change(member)
        held = {key for m in self.members.values() for key in (*m.assigned, *m.revoking)}
        for member in self.members.values():
            ready = self._target(member) - held
            if ready:
                member.assigned |= dict.fromkeys(sorted(ready), self._next_token())
                self._change(member)
            if member.epoch != self.epoch and not member.revoking:
                member.epoch = self.epoch
                self._change(member)

    def _change(self, member: Consumer) -> None:
        member.version += 1
        self._changed()

    def _next_token(self) -> int:
        self.fence += 1
        return self.fence

    # ---- offsets

    def commit(self, request: group_pb2.OffsetCommitRequest) -> group_pb2.OffsetCommitResponse:
        """Each partition under the token of its present grant."""
        refused = self._may_commit(request)
        if refused is not None:
            return group_pb2.OffsetCommitResponse(status=refused)
        member = self.members[request.member_id]
        grants = member.assigned | member.revoking
        tokens = request.fencing_tokens or [
            grants.get(TopicPartition(one.topic, one.partition), 0) for one in request.partitions
        ]
        good = group_pb2.OffsetCommitRequest()
        good.CopyFrom(request)
        del good.partitions[:]
        stale: list[group_pb2.OffsetCommitRequest.Partition] = []
        for one, token in zip(request.partitions, tokens, strict=True):
            is_good = token and grants.get(TopicPartition(one.topic, one.partition)) == token
            (good.partitions if is_good else stale).append(one)
        response = group_pb2.OffsetCommitResponse()
        if request.atomic and stale:
            message = "the commit is atomic, and not all of it can be taken"
            refusal = status(Code.OPERATION_NOT_ATTEMPTED, message)
            for one in good.partitions:
                response.partitions.add(topic=one.topic, partition=one.partition, status=refusal)
        elif good.partitions:
            response = self._committed.commit(good)
        code = Code.ILLEGAL_GENERATION if member.is_classic else Code.STALE_MEMBER_EPOCH
        late = status(code, "the grant is over")
        for one in stale:
            response.partitions.add(topic=one.topic, partition=one.partition, status=late)
        return response

    def _may_commit(self, request: group_pb2.OffsetCommitRequest) -> errors_pb2.Status | None:
        member = self.members.get(request.member_id)
        holder = self.holder(request.group_instance_id)
        if holder is not None and holder is not member:
            return status(Code.FENCED_INSTANCE_ID, "another process has the instance id")
        if member is None or member.away_until is not None:
            return status(Code.UNKNOWN_MEMBER_ID, "no such member")
        if request.fencing_tokens and len(request.fencing_tokens) != len(request.partitions):
            return status(Code.INVALID_REQUEST, "one token for each partition")
        if member.is_classic:
            if request.generation not in (member.generation, member.former_generation):
                return status(Code.ILLEGAL_GENERATION, f"the generation is {member.generation}")
        elif not request.fencing_tokens and request.generation != member.epoch:
            return status(Code.STALE_MEMBER_EPOCH, f"the member's epoch is {member.epoch}")
        member.heard_at = self._loop.time()
        return None


def _lacking(request: Request) -> str:
    """What a request has to have and has not; "" = nothing."""
    joins = request.member_epoch == JOIN_EPOCH
    needed = {
        "group": request.group_id,
        "member": request.member_id,
        "epoch": request.member_epoch >= AWAY_EPOCH,
        "session timeout": request.session_timeout_ms or not joins,
        "rebalance timeout": request.rebalance_timeout_ms or not joins,
        "subscription": request.topics.names or request.pattern or not joins,
        "time to be back in": request.back_in_ms > 0 or request.member_epoch != AWAY_EPOCH,
    }
    return next((name for name, value in needed.items() if not value), "")


def _repeats(member: Consumer, request: Request) -> bool:
    """Whether the member joins by a call that was taken before."""
    joins = request.member_epoch == JOIN_EPOCH and request.member_id == member.member_id
    return joins and 0 < request.subscription_seq == member.subscription_seq


def _is_late(member: Consumer, request: Request) -> bool:
    """Whether the member joins, leaves or goes away by a call from before its last Join."""
    is_older = 0 < request.subscription_seq < member.subscription_seq
    was_away_since = _repeats(member, request) and member.away_until is not None
    return (request.member_epoch <= JOIN_EPOCH and is_older) or was_away_since
