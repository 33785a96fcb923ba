"""The frame of every RPC: bounds, admission, refusals, and the end of the call.

A service's method decodes a request, asks a shard and encodes its answer. Whatever is not its
success ends it: a status in the answer's message, or RESOURCE_EXHAUSTED where a limit is reached.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

import grpc
from google.protobuf.message import Message

from muster.v1.errors_pb2 import Status
from musterd.coordinator.api.frame.audit_trail import (
    CANCELLED,
    NO_RIGHT,
    READS,
    REQUEST_ID,
    CallRecord,
    result_of,
)
from musterd.coordinator.api.frame.authorizer import (
    EVERY_TOPIC,
    NOT_CURRENT,
    Question,
    questions_of,
    refused_right,
    topics_of,
)
from musterd.coordinator.api.frame.bounds import Bounds, refuse_node, refuse_shards
from musterd.coordinator.api.frame.client_certificate import CERTIFICATE_BYTES_MAX
from musterd.coordinator.api.frame.cluster_view import ClusterView
from musterd.coordinator.api.frame.coordination import Coordination, Unserved
from musterd.coordinator.api.frame.forwarding import (
    PASSED_CALL,
    Edge,
    PassingFailed,
    ShownCaller,
)
from musterd.coordinator.api.frame.identity import (
    AUTHORIZATION,
    BEARER_CHARS_MAX,
    CERTIFICATE_ENDED,
    CERTIFICATE_KEY,
    Identity,
)
from musterd.coordinator.api.frame.jwt_verifier import AWAITED
from musterd.coordinator.api.frame.operator_access import (
    METADATA_KEY,
    SECRET_BYTES_MAX,
    OperatorAccess,
)
from musterd.coordinator.api.frame.rpc_rules import RULES, RpcRule
from musterd.coordinator.api.limits.admission import CALL, Admitted, Kind
from musterd.coordinator.api.limits.cooperative_yield import Slices
from musterd.coordinator.api.limits.member_quota import MemberPlace
from musterd.coordinator.api.limits.quota_buckets import Amount
from musterd.coordinator.machine.access import (
    ANONYMOUS,
    NODE_PREFIX,
    OPERATOR,
    Operation,
    Resource,
)
from musterd.coordinator.machine.commands import (
    Command,
    ConsumerGroupHeartbeat,
    GroupCommand,
    JoinGroup,
    OffsetCommit,
)
from musterd.coordinator.machine.decide.level import refuse_below
from musterd.coordinator.machine.decide.requests import refuse_fields
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import KIB, LIMITS
from musterd.coordinator.machine.replies import Refused, Reply
from musterd.coordinator.runtime.answers import Answer, Loading, Shed
from musterd.coordinator.runtime.heartbeats import Beat, BeatAnswer
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.topic_registry import BEHIND, NOTHING

Context = grpc.aio.ServicerContext[Any, Any]

CLUSTER_SHARD: Final = 0
"""Shard 0 holds the cluster's own state: topics, replaced nodes."""

TOGETHER_MAX: Final = 50
"""Commands of one call that are under way at once: a log entry that holds them is soon applied."""

TOGETHER_BYTES: Final = 8 * KIB
"""No more of them are put once they have so many bytes: to check a group's long text takes 2 ms."""

_RIGHTS: Final = (
    Error.GROUP_AUTHORIZATION_FAILED,
    Error.TOPIC_AUTHORIZATION_FAILED,
    Error.CLUSTER_AUTHORIZATION_FAILED,
)

ACTIVE_CALLS: Final = "active calls on this node"
REQUEST_ID_CHARS_MAX: Final = 1_024
"""A caller's name for its call is passed on up to this length."""

WAITING: Final = "members in calls of this connection that wait for their turn"

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
Service = TypeVar("Service", bound="CoordinatorService")
Request = TypeVar("Request")
Response = TypeVar("Response")
CommandOfGroup = TypeVar("CommandOfGroup", bound=GroupCommand)
Success = TypeVar("Success", bound=Reply)

Failed = Callable[[Any, Answer, Status], Any]
"""Makes a response of an answer that is not the success. First what the answer is about: the
request, the command that was made of it, or the cluster; last the answer's status."""


class CoordinatorService:
    """The base of the gRPC services: methods that are decorated with `handler`."""

    audited = True
    """Whether calls that change something have an entry in the audit trail: those of operators."""

    def __init__(self, core: Coordination) -> None:
        self.core = core


def audits(service: object) -> bool:
    """Whether calls of the service have entries in the audit trail."""
    return isinstance(service, CoordinatorService) and service.audited


class ClusterService(CoordinatorService):
    """The base of those that also look at the cluster."""

    def __init__(self, core: Coordination, cluster: ClusterView, access: OperatorAccess) -> None:
        super().__init__(core)
        self.cluster = cluster
        self.access = access

    def refuse_node(self, node_id: int) -> Refused | None:
        """Return what is wrong with the id of a node of the cluster, or None."""
        return refuse_node(node_id, [node.node_id for node in self.cluster.nodes()])

    def refuse_shards(self, numbers: Sequence[int]) -> Refused | None:
        """Return what is wrong with these numbers of shards, or None."""
        return refuse_shards(numbers, len(self.core.shards))


class Failure(Exception):  # noqa: N818 - mostly a refusal, which is no error
    """An answer that ends a handler because it is not the success. `about`: see `Failed`."""

    def __init__(self, about: object, answer: Answer) -> None:
        super().__init__(answer)
        self.about = about
        self.answer = answer


class ShardReads:
    """The reads of one call in the applied state of several shards, each asked for as it comes."""

    def __init__(self, unserved: Unserved, core: Coordination) -> None:
        self.unserved = unserved
        self._statuses = core.statuses

    def refused(self, status: Status, shard: Shard, refused: Refused | None = None) -> bool:
        """Write into an element's status why it is not read: `refused`, or its shard's reason.

        False where it is to be read, and nothing is written.
        """
        why = refused or self.unserved(shard)
        if why is not None:
            status.CopyFrom(self._statuses.of(why))
        return why is not None

    def served(self, shard: Shard) -> bool:
        """Whether this node coordinates the shard; the call ends where that is not known yet."""
        why = self.unserved(shard)
        if isinstance(why, Loading):
            raise Failure(shard, why)
        return why is None


class ActiveCall:
    """One call while its handler runs.

    Its methods raise Failure, or abort the call with RESOURCE_EXHAUSTED, where there is no success.
    """

    __slots__ = (
        *("_context", "_counted", "_method", "_place", "_rule", "certified"),
        *("admitted", "core", "identity", "peer", "principal", "record", "size", "version"),
    )

    def __init__(
        self, core: Coordination, context: Context, rule: RpcRule, method: str = ""
    ) -> None:
        self.core = core
        self._context = context
        self.peer: str = context.peer()
        """The caller's address, as gRPC writes it."""
        self._rule = rule
        self._method = method
        self._counted: Refused | None = None
        """The last refusal for want of a right that is in the audit trail."""
        self.version = (0, 0)
        """That of the rules by which it was let in (`identify`)."""
        self.certified: Identity | None = None
        """Who the caller is by certificate, where there are no rules."""
        self.identity: Identity | None = None
        """Who calls; None where nobody asks, since there are no rules."""
        self.admitted: Admitted | None = None
        """None while the call is not counted among the active ones."""
        self.size = 0
        """The bytes of its command, at most, where its bounds count them."""
        self.principal = ANONYMOUS
        """Who calls, for quotas and the audit trail."""
        self.record: CallRecord | None = None
        """What its entry in the audit trail will say, where it has one."""
        self._place: MemberPlace | None = None
        """The place of the newcomer that it brings, while that is under way."""

    @property
    def method(self) -> str:
        """The name of its RPC."""
        return self._method

    @property
    def address(self) -> str:
        """The caller's address for people, behind the edge that passed the call on, if one did."""
        passed = PASSED_CALL.get()
        return self.peer if passed is None else f"node {passed.edge}/{self.peer}"

    @property
    def shown(self) -> ShownCaller:
        """What the caller shows, for another node that is to find out who it is."""
        told = dict(self._context.invocation_metadata() or ())
        identities = self.core.access.identities
        certificates = (
            self._context.auth_context().get(CERTIFICATE_KEY, ())
            if identities.has_client_ca
            else ()
        )
        bearer, request_id = told.get(AUTHORIZATION, ""), told.get(REQUEST_ID, "")
        return ShownCaller(
            self.peer,
            identities.is_private(self._context),
            next(iter(certificates), b"")[: CERTIFICATE_BYTES_MAX + 1],
            bearer[: BEARER_CHARS_MAX + 1] if isinstance(bearer, str) else "",
            _bytes_of(told.get(METADATA_KEY, b"")),
            request_id[:REQUEST_ID_CHARS_MAX] if isinstance(request_id, str) else "",
        )

    async def passed_on(
        self, edge: Edge, request: Any, here: Callable[[Any], Awaitable[Any]]
    ) -> Any:
        """The response of whoever coordinates what the request is about. It may wait there."""
        self.leave()
        entered = getattr(self._context, "entered", None)  # of a request that came in a stream
        try:
            return await edge.pass_on(self._method, request, self.shown, entered, here)
        except PassingFailed as failed:
            code, details = failed.code, failed.details
        return await self._context.abort(code, details)

    def charge(self, command: GroupCommand, *amounts: Amount) -> None:
        """End the call with THROTTLING_QUOTA_EXCEEDED where its principal or group is over a quota.

        See `Coordination.throttled`.
        """
        self.refuse(self.core.throttled(self.principal, command, *amounts), command)

    async def take_place(self, command: JoinGroup | ConsumerGroupHeartbeat) -> None:
        """End the call with GROUP_MAX_SIZE_REACHED where one member more is over a quota.

        A shard that this node does not coordinate turns the call away by itself. The place is let
        go when the member is one, or the call ends (`leave`).
        """
        quota = self.core.member_quota
        if not quota.has_quotas:
            return
        shard = self.core.shard_for(command.group_id)
        await self.core.loaded((shard,))
        if shard.coordinator_state.elsewhere:
            return
        group = shard.state.groups.get(command.group_id)
        self.refuse(quota.refusal(command, group), command)
        self._place = quota.take(command, group)

    async def identify(self) -> None:
        """Find out who calls, where there are rules: nobody gets UNAUTHENTICATED."""
        access = self.core.access
        self.version = access.identities.version
        if not access.is_guarded:
            await self._look_at_certificate()
            return
        found = access.identify(self._context)
        if isinstance(found, Identity):
            passes = not access.is_closed or access.passes_closed(found)
        else:
            passes = False
        if access.is_closed and not passes:  # a token may be good, but cannot be looked up
            await self._context.abort(grpc.StatusCode.UNAVAILABLE, NOT_CURRENT)
        if isinstance(found, str):
            is_awaited = found == AWAITED
            code = grpc.StatusCode.UNAVAILABLE if is_awaited else grpc.StatusCode.UNAUTHENTICATED
            await self._context.abort(code, found)
        else:
            self.identity = found
            self.principal = found.principal

    async def _look_at_certificate(self) -> None:
        """Where there are no rules it gives the caller's name, and must not have expired."""
        identities = self.core.access.identities
        if not identities.has_client_ca:
            return
        found = identities.by_certificate(self._context)
        if isinstance(found, Identity):
            self.principal = found.principal
            self.certified = found
        elif found == CERTIFICATE_ENDED:
            await self._context.abort(grpc.StatusCode.UNAUTHENTICATED, found)

    def check_rule(self, service: CoordinatorService, request: object) -> None:
        """End the call where the caller may not do this to the one resource it is about."""
        rule = self._rule
        if self.identity is None or not rule.is_asked_at_once:
            return
        on_cluster = rule.resource is Resource.CLUSTER and isinstance(service, ClusterService)
        about = service.cluster if on_cluster else request  # type: ignore[attr-defined]  # it has one
        self.refuse(self.denied_item(rule.name_in(request)), about)

    def denied(self, operation: Operation, resource: Resource, name: str = "") -> Refused | None:
        """Why the caller may not do this, or None."""
        if self.identity is None:
            return None
        refused = self.core.access.refusal(self.identity, operation, resource, name)
        self.count_refusal(refused)
        return refused

    def denied_item(self, name: str) -> Refused | None:
        """Why the caller may not do what this RPC does to the group or topic `name`, or None."""
        return self.denied(self._rule.operation, self._rule.resource, name)

    def may_see(self, name: str) -> bool:
        """Whether a list that this RPC answers has the group or topic `name`."""
        return self.may(self._rule.operation, self._rule.resource, name)

    def may(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether the caller may do this. Where not that is no refusal: nobody is told."""
        who = self.identity
        return who is None or self.core.access.allows(who, operation, resource, name)

    def denied_topic(self, name: str) -> Refused | None:
        """Why the caller may not know of a topic, or None."""
        return self.denied(Operation.DESCRIBE, Resource.TOPIC, name)

    def check_topics(self, command: Command) -> None:
        """End the call where the command names a topic that the caller may not know of."""
        who = self.identity
        if who is None:
            return
        for topic in topics_of(command):
            self.refuse(self.denied_topic(topic), command)
        if isinstance(command, ConsumerGroupHeartbeat) and command.pattern:
            every = Operation.DESCRIBE, Resource.TOPIC, EVERY_TOPIC
            if not who.covers(*every):
                self.refuse(refused_right(who, *every), command)

    def topic_refusals(self, command: OffsetCommit) -> Mapping[str, Refused]:
        """The topics of a commit that the caller may not know of, each with its refusal."""
        if self.identity is None:
            return NOTHING
        asked = {topic: self.denied_topic(topic) for topic in topics_of(command)}
        return {topic: refused for topic, refused in asked.items() if refused is not None}

    def watch_rights(
        self, future: "asyncio.Future[BeatAnswer]", beats: Sequence[Beat]
    ) -> list[Refused]:
        """End a held heartbeat when the right to one of its groups is gone.

        The list that is returned has something in it then. `Authorizer.release` ends the watch.
        """
        found: list[Refused] = []
        access, rule = self.core.access, self._rule

        def groups() -> Iterable[Question]:
            group_ids = dict.fromkeys(beat.key.group_id for beat in beats)
            return ((rule.operation, rule.resource, group_id) for group_id in group_ids)

        def answer(refused: Refused) -> BeatAnswer:
            found.append(refused)
            return BeatAnswer((), LIMITS.heartbeat_interval_ms)

        recheck = access.recheck(self._context, groups, self.identity, self.version)
        access.hold(future, recheck, answer)
        return found

    def shows_node(self, node_id: int) -> bool:
        """Whether the connection has this node's certificate, whatever else the call shows."""
        identities = self.core.access.identities
        found = identities.by_certificate(self._context) if identities.has_client_ca else None
        return isinstance(found, Identity) and found.principal == f"{NODE_PREFIX}{node_id}"

    def must_be_operator(self) -> None:
        """End the call of somebody who is neither a node nor has the admin secret."""
        who = self.identity or self.certified
        if who is None:
            return
        if who.by_certificate or not self.core.access.passes_closed(who):
            what = (self._rule.operation, self._rule.resource, "")
            self.refuse(refused_right(who, *what), self)

    async def authorize(self, service: CoordinatorService) -> None:
        """End an operator's call with UNAUTHENTICATED where it does not show what it has to.

        The secret is enough, whatever the certificate, and so is a superuser's or node's
        certificate. Where there are rules they have said already whether the caller may.
        """
        if not self._rule.by_operator or self.identity is not None:
            return
        access: OperatorAccess = service.access  # type: ignore[attr-defined]  # a ClusterService
        private = self.core.access.identities.is_private(self._context)
        metadata = tuple(self._context.invocation_metadata() or ())
        refusal = access.refusal(metadata, is_private=private)
        shows_secret = access.has_secret and refusal is None
        if not shows_secret and self.certified is not None and self.certified.is_operator:
            return
        self.certified = None  # from here on it is the operator, or nobody
        if access.is_open:
            return
        if refusal is not None:
            await self._context.abort(grpc.StatusCode.UNAUTHENTICATED, refusal)
        self.principal = OPERATOR

    def begin_record(self, request: object) -> None:
        """The call will have an entry in the audit trail, where its node gathers them.

        One that takes no operator has its own where it changes something, else one with others.
        """
        if not self.core.audit.gathers:
            return
        metadata = dict(self._context.invocation_metadata() or ())
        always = self._rule.by_operator
        self.record = CallRecord(self._method, request, metadata, always=always)

    def changed(self, before: object, after: object) -> None:
        """For the call's entry, what it changes: values that JSON can say.

        To be said before that is done: the caller may be gone afterwards. `after` may be a
        function, which is asked once it is known what became of the call's commands.
        """
        if self.record is not None:
            self.record.before, self.record.after = before, after

    def end_record(self, result: str) -> None:
        """Put the call's entry into the audit trail, or count it with others."""
        if self.record is not None:
            self.record.ended(self.core.audit, self.principal, self.address, result)

    def count_refusal(self, answer: Answer | None) -> None:
        """Count it in the audit trail where the answer says that the caller has no right.

        Each is counted once, though it may be the answer of a part and of the call.
        """
        if not isinstance(answer, Refused) or answer is self._counted:
            return
        if answer.error.name.endswith(NO_RIGHT):
            self._counted = answer
            self.core.audit.refused(self.principal, self.address, self._method, answer.error.name)

    @property
    def code(self) -> str:
        """The status that the call was aborted with."""
        code = self._context.code()
        return code.name if isinstance(code, grpc.StatusCode) else CANCELLED

    def leave(self) -> None:
        """Count the call no more: it is answered, or waits."""
        if self._place is not None:
            self.core.member_quota.let_go(self._place)
            self._place = None
        self.wait()

    def wait(self) -> None:
        """Count the call no more among the active ones: it may wait before it is in the log.

        The newcomer that it brings keeps its place in the quota.
        """
        if self.admitted is not None:
            self.admitted.leave()

    def refuse(self, refused: Answer | None, about: object) -> None:
        """End the call where something is wrong."""
        if refused is not None:
            raise Failure(about, refused)

    def needs_level(self, needed: int) -> None:
        """End the call with UNSUPPORTED_VERSION where the cluster's level is lower.

        The one of its shard may be lower still for a moment: a command of a later level is refused
        there by itself (`LEVEL_OF` in `coordinator/machine/decide/level.py`).
        """
        shard = self.core.shards[CLUSTER_SHARD]
        if not shard.has_state:
            self.refuse(Loading(), self)
        self.refuse(refuse_below(shard.state.level, needed), self)

    def invalid(self, message: str) -> NoReturn:
        """End the call as INVALID_REQUEST."""
        raise Failure(self, Refused(Error.INVALID_REQUEST, message))

    async def forbid(self, answer: Answer) -> None:
        """End the call with PERMISSION_DENIED where its answer has no place for a refusal."""
        if isinstance(answer, Refused) and answer.error in _RIGHTS:
            message = f"{answer.error.name}: {answer.message}"
            await self._context.abort(grpc.StatusCode.PERMISSION_DENIED, message)

    async def shed(self, what: str) -> NoReturn:
        """Refuse for overload: nothing was done, the caller may repeat the call after a pause."""
        await self._context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, shed_details(what))

    async def admit(self, kind: Kind) -> Admitted:
        """A place among the active calls."""
        await self.core.admission.room(kind, read=True)
        admitted = self.core.admission.enter(kind)
        if admitted is None:
            await self.shed(ACTIVE_CALLS)
        return admitted

    async def admitted_again(self, kind: Kind) -> Admitted:
        """As `admit`, for what waited at an edge. Raises PassingFailed."""
        await self.core.admission.room(kind, read=True)
        admitted = self.core.admission.enter(kind)
        if admitted is None:
            raise PassingFailed(grpc.StatusCode.RESOURCE_EXHAUSTED, shed_details(ACTIVE_CALLS))
        return admitted

    async def arriving(self, members: int) -> AbstractContextManager[None]:
        """Enter until a call that names so many members is taken in.

        It is shed where too much of its connection waits.
        """
        untaken_calls, peer = self.core.heartbeats.untaken_calls, self.peer
        if not untaken_calls.room(peer, members):
            await self.shed(WAITING)
        return untaken_calls.waiting(peer, members)

    def slices(self) -> Slices:
        """The call's turn to read or answer many entries."""
        return Slices(self.core.one_long_read)

    async def decoded(
        self, entries: int, make: Callable[P, CommandOfGroup], *of: P.args, **named: P.kwargs
    ) -> CommandOfGroup:
        """The command that is made of a request of so many entries, in the call's turn, checked.

        Its group id and the lengths of its lists were: they are among the bounds of the request.
        """
        async with self.slices() as slices:
            await slices.turn(entries)
            command = make(*of, **named)
            self.refuse(refuse_fields(command, LIMITS), command)
        return command

    async def ask(self, command: Command, size: int, success: type[Success]) -> Success:
        """Put a command to its shard and wait for its reply; another answer ends the call."""
        answer = await self.put(command, size)
        if not isinstance(answer, success):
            await self.fail(answer, command)
        return answer

    async def put(
        self, command: Command, size: int, on_park: Callable[[], None] | None = None
    ) -> Answer:
        """Put a command to its shard and wait for its answer, whatever it is.

        `on_park`: see `Shard.submit`; None: `leave`.
        """
        group_id: str | None = getattr(command, "group_id", None)
        core = self.core
        shard = core.shards[CLUSTER_SHARD] if group_id is None else core.shard_for(group_id)
        questions = questions_of(self._rule, command)
        recheck = core.access.recheck(self._context, questions, self.identity, self.version)
        leave = on_park or self.leave
        entered = getattr(self._context, "entered", None)  # of a request that came in a stream
        answer = await core.ask(
            shard, command, size, leave, recheck, self.record, entered, self.wait
        )
        self.count_refusal(answer)
        return answer

    async def ask_each(
        self,
        items: Sequence[T],
        bounds: Bounds,
        make: Callable[[T], CommandOfGroup],
        done: Callable[[T, Answer], None],
        put: Callable[[Shard, CommandOfGroup], Awaitable[Answer]] | None = None,
    ) -> None:
        """Put a command of each item of a request to its shard, a few at once.

        Args:
            items: each has an answer of its own; what is out of bounds is not asked.
            bounds: those of an item.
            make: the command of an item.
            done: told of each item and its answer, in order.
            put: what is asked instead of the log; None: the log.
        """

        async def one(item: T) -> Answer:
            denied = self.denied_item(item if isinstance(item, str) else item.group_id)  # type: ignore[attr-defined]  # a request's item
            if denied is not None:
                return denied
            size = bounds.size(item)
            refused = bounds.refusal(item, size)
            if refused is not None:
                return refused
            command = make(item)
            refused = refuse_fields(command, LIMITS)
            if refused is not None:
                return refused
            if put is not None:
                return await put(self.core.shard_for(command.group_id), command)
            return await self.put(command, size)

        await some_at_a_time(one, items, done, bounds.size)

    async def fail(self, answer: Answer, about: object) -> NoReturn:
        """End the call with an answer that is not its success."""
        if isinstance(answer, Shed):
            await self.shed(answer.what)
        raise Failure(about, answer)

    async def reads(
        self, shards: Iterable[Shard], *, linearizable: bool = False, settled: bool = False
    ) -> ShardReads:
        """Wait until applied state of these shards may be read; see `Coordination.readable`."""
        unserved = await self.core.readable(shards, linearizable=linearizable, settled=settled)
        return ShardReads(unserved, self.core)

    async def confirmed(self, shard: Shard) -> None:
        """Wait until applied state of the shard holds all that was acknowledged before."""
        self.refuse(await self.core.confirmed(shard), shard)

    async def topic_unknown(self, about: object, shard: Shard | None = None) -> None:
        """End the call where a topic that is not known here may exist: this node's copy is behind.

        `shard`: of the group that it is asked for; whoever leads it is named first.
        """
        if self.core.topics.is_current:
            return
        if shard is not None:
            await self.confirmed(shard)
        raise Failure(about, BEHIND)


def shed_details(what: str) -> str:
    """Return what a caller is told that the limit `what` is reached."""
    return f"{what}: the limit is reached, nothing was done; repeat after a pause."


def with_status(response: Callable[..., Message]) -> Failed:
    """A response that has nothing but the status."""
    return lambda _about, _answer, status: response(status=status)


def with_first_group(
    response: Callable[..., Message], results: str, group_ids: Callable[[Any], Sequence[str]]
) -> Failed:
    """A response with one of its `results`, of the first group that the request names."""

    def failed(about: Any, _answer: Answer, status: Status) -> Message:
        made = response()
        first = next(iter(group_ids(about)), "")[: LIMITS.id_max_bytes]
        getattr(made, results).add(group_id=first, status=status)
        return made

    return failed


def handler(
    kind: Kind, bounds: Bounds, failed: Failed | None = None, *, reads: bool = False
) -> Callable[
    [Callable[[Service, Request, ActiveCall], Awaitable[Response]]],
    Callable[[Service, Request, Context], Coroutine[Any, Any, Response]],
]:
    """Make an RPC of a method.

    Args:
        kind: what the call competes with while it is active.
        bounds: what is refused before anything else.
        failed: makes the response of what is not a success; None: there is nothing else.
        reads: the answer may be long, and nothing is changed.
    """

    def framed(
        handle: Callable[[Service, Request, ActiveCall], Awaitable[Response]],
    ) -> Callable[[Service, Request, Context], Coroutine[Any, Any, Response]]:
        rule = RULES[handle.__name__]

        @wraps(handle)
        async def serve(self: Service, request: Request, context: Context) -> Response:
            call = ActiveCall(self.core, context, rule, handle.__name__)
            try:
                counts = kind is not Kind.EXEMPT
                call.admitted = CALL.get() if counts else None
                has_place = call.admitted is not None and call.admitted.begin()
                await call.identify()
                call.size = bounds.size(request)
                call.refuse(bounds.refusal(request, call.size), request)
                call.check_rule(self, request)
                if counts and not has_place:
                    call.admitted = await call.admit(kind)
                edge = self.core.forwarding.edge
                handling: Awaitable[Any]
                if edge is not None and edge.concerns(handle.__name__, request):
                    handling = _passed_on(edge, self, handle, request, call, kind)
                else:
                    await _let_in(self, request, call)
                    handling = handle(self, request, call)
                del request  # the handler drops it before it waits for long
                response: Any = await handling
            except Failure as failure:
                call.count_refusal(failure.answer)
                if failed is None:  # the answer has no place for it
                    failure.about = None  # it may be the request: gRPC keeps what is raised
                    await call.forbid(failure.answer)
                    raise
                status = self.core.statuses.of(failure.answer)
                response = failed(failure.about, failure.answer, status)
            except BaseException:
                if call.record is not None:
                    call.end_record(call.code)
                raise
            finally:
                call.leave()
            if call.record is not None:
                call.end_record(result_of(response))
            answered: Response = response
            return answered

        serve.kind, serve.reads = kind, reads  # type: ignore[attr-defined]  # for the acceptor
        return serve

    return framed


def _was_passed_on() -> bool:
    return PASSED_CALL.get() is not None


async def _let_in(service: Any, request: Any, call: ActiveCall) -> None:
    if audits(service) and call.method not in READS:
        call.begin_record(request)
    await call.authorize(service)


async def _passed_on(
    edge: Edge,
    service: Any,
    handle: Callable[[Any, Any, ActiveCall], Awaitable[Any]],
    request: Any,
    call: ActiveCall,
    kind: Kind,
) -> Any:
    """Pass a call to who coordinates it. Both nodes ask for the caller's right; that one notes it.

    A call that was passed on is never passed on again: it is served, or refused, here. What is
    served here after it has waited is active again.
    """

    async def here(part: Any) -> Any:
        if kind is not Kind.EXEMPT and (call.admitted is None or not call.admitted.begin()):
            call.admitted = await call.admitted_again(kind)
        await _let_in(service, part, call)
        handling = handle(service, part, call)
        del part
        return await handling

    if _was_passed_on():
        return await here(request)
    await _let_in(service, request, call)
    call.record = None
    passing = call.passed_on(edge, request, here)
    del request
    return await passing


def _bytes_of(told: str | bytes) -> bytes:
    return (told if isinstance(told, bytes) else told.encode())[: SECRET_BYTES_MAX + 1]


def stream(method: Callable[P, T]) -> Callable[P, T]:
    """Let an RPC be a stream: it is not counted, its requests are."""
    method.kind = Kind.EXEMPT  # type: ignore[attr-defined]  # for the acceptor
    return method


async def some_at_a_time(
    one: Callable[[T], Awaitable[R]],
    items: Sequence[T],
    done: Callable[[T, R], None],
    size_of: Callable[[T], int],
) -> None:
    """Await `one` of each item, a few at once, large ones fewer; tell `done` of each in order."""
    start = 0
    while start < len(items):
        end, size = start, 0
        while end < min(start + TOGETHER_MAX, len(items)) and size < TOGETHER_BYTES:
            size += size_of(items[end])
            end += 1
        some = items[start:end]
        answers = await asyncio.gather(*map(one, some))
        for item, answer in zip(some, answers, strict=True):
            done(item, answer)
        start = end
