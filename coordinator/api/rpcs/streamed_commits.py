"""Commits that come in frames: from a frame to their shards, and back into one, without a task.

A task for each commit, its context and its way through the handler's coroutines cost three times
what the commit itself does. So what is ordinary is carried out here, in one call of one function:
a small commit of partitions that exist, by a caller whose rights are known, to a shard that this
node serves. Whatever else it may be is found by the same questions before anything is counted, and
left to the handler (group_service.py), which waits, takes turns, or refuses with a reason.
"""

from typing import Final

import grpc
import structlog
from google.protobuf.message import DecodeError

from muster.v1 import group_pb2 as pb
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.audit_trail import NO_RIGHT
from musterd.coordinator.api.frame.authorizer import questions_of
from musterd.coordinator.api.frame.coordination import Coordination
from musterd.coordinator.api.frame.handler import ACTIVE_CALLS, shed_details
from musterd.coordinator.api.frame.identity import Identity
from musterd.coordinator.api.frame.rpc_rules import RULES
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.api.limits.call_acceptor import DROPPED
from musterd.coordinator.api.limits.cooperative_yield import ENTRIES_AT_ONCE
from musterd.coordinator.api.limits.quota_buckets import Amount
from musterd.coordinator.api.rpcs import translate
from musterd.coordinator.api.stream.client_stream import ClientStream, CommitCalls
from musterd.coordinator.api.stream.stream_call import StreamCall
from musterd.coordinator.codec import plain_request
from musterd.coordinator.machine.access import ANONYMOUS, Operation, Resource
from musterd.coordinator.machine.commands import OffsetCommit
from musterd.coordinator.machine.commit_events import StoredResults
from musterd.coordinator.machine.decide.requests import refuse_fields
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.plain_partitions import topics_of
from musterd.coordinator.machine.quotas import QuotaKey
from musterd.coordinator.machine.replies import Committed, Refused
from musterd.coordinator.runtime.answers import Answer, Shed
from musterd.coordinator.runtime.calls import Call
from musterd.coordinator.runtime.leadership import Leadership
from musterd.coordinator.runtime.routing import shard_of
from musterd.coordinator.runtime.shard import Shard

log = structlog.get_logger()

METHOD: Final = "OffsetCommit"
RIGHTS_MAX: Final = 1_000
"""Groups and topics to which a stream's caller is known to have its right; one more, and all are
asked anew."""

RIGHTS_CHARS_MAX: Final = 32 * 1_024
"""Characters of their names; beyond that all are asked anew, too."""

CANCELED: Final = "Canceled"
EXHAUSTED: Final = "ResourceExhausted"
OK: Final = "OK"
UNKNOWN: Final = "Unknown"

_parse = pb.OffsetCommitRequest.FromString

_ALL_STORED: Final = pb.OffsetCommitResponse()
"""For who counts answers, a response in which nothing is said against any partition."""


class Sender:
    """Who sends a stream's commits, by one version of the rules, and which rights it has."""

    __slots__ = ("_access", "_chars", "_rights", "identity", "principal", "version")

    def __init__(
        self,
        core: Coordination,
        identity: Identity | None,
        principal: str,
        version: tuple[int, int],
    ) -> None:
        self._access = core.access
        self._rights: set[tuple[Resource, str]] = set()
        self._chars = 0
        self.identity = identity
        """None: nobody asks, since there are no rules."""
        self.principal = principal
        self.version = version

    def is_good(self, version: tuple[int, int]) -> bool:
        """Whether it is the caller still, by this version of the rules."""
        identity = self.identity
        if identity is None or self.version != version:
            return False
        return not 0 < identity.expires_wall_ms <= self._access.identities.wall_ms()

    def may(self, command: OffsetCommit) -> bool:
        """Whether it may commit in this group, and know of its topics."""
        if self.identity is None:
            return True
        if not self._allowed(Operation.COMMIT, Resource.GROUP, command.group_id):
            return False
        describe, topic = Operation.DESCRIBE, Resource.TOPIC
        return all(self._allowed(describe, topic, name) for name in topics_of(command))

    def _allowed(self, operation: Operation, resource: Resource, name: str) -> bool:
        key = resource, name
        if key in self._rights:
            return True
        identity = self.identity
        if identity is None or not self._access.allows(identity, operation, resource, name):
            return False
        self._chars += len(name)
        if len(self._rights) >= RIGHTS_MAX or self._chars > RIGHTS_CHARS_MAX:
            self._rights.clear()
            self._chars = len(name)
        self._rights.add(key)
        return True


class StreamedCommits:
    """The commits of one stream that go this way. A frame at a time: `begin`, then `take` each."""

    def __init__(
        self, core: Coordination, stream: ClientStream, caller: StreamCall, calls: CommitCalls
    ) -> None:
        """`caller` is who opened the stream; `calls` counts the method's calls."""
        self.core = core
        self.stream = stream
        self.caller = caller
        self.calls = calls
        self.began_s = 0.0
        """When the frame came that is being taken in."""
        self.has_quotas = False
        """Whether a commit of this frame is charged to anything."""
        self._sender: Sender | None = None
        self._serving: dict[int, Leadership | None] = {}
        """By shard of this frame's commits, the coordinator where it serves here."""

    def begin(self, size: int) -> bool:
        """A frame of so many bytes is taken in; False where its commits go another way."""
        stream, peer = self.stream, self.caller.peer()
        if not stream.requests.has_room(peer, size) or stream.untaken.is_full(peer):
            return False
        self._sender = self._who()
        self._serving.clear()
        self.has_quotas = self.core.quotas.has_quotas
        self.began_s = self.calls.clock()
        return self._sender is not None

    def _who(self) -> Sender | None:
        """The caller as it is known now; None where the handler has to say who it is not."""
        core, known = self.core, self._sender
        access, identities = core.access, core.access.identities
        version, found = identities.version, None
        if access.is_guarded:
            if access.is_closed:
                return None
            is_known = known is not None and known.is_good(version)
            if is_known and not identities.has_client_ca:
                return known
            found = identities.of(self.caller)  # a connection outlives its client's certificate
            if is_known and known is not None and known.identity == found:
                return known
        elif identities.has_client_ca:
            found = identities.by_certificate(self.caller)
        elif known is not None and known.identity is None and known.version == version:
            return known
        if isinstance(found, str):
            return None
        principal = ANONYMOUS if found is None else found.principal
        return Sender(core, found if access.is_guarded else None, principal, version)

    def take(self, call_id: int, raw: bytes) -> bool:
        """Carry out one commit; False where nothing was done: it is the handler's."""
        core, stream, sender = self.core, self.stream, self._sender
        command, size = self._decoded(raw)
        if command is None or sender is None:
            return False
        if bounds.COMMIT.refusal(command, size) or refuse_fields(command, LIMITS):
            return False
        if not sender.may(command):  # its names are bounded now: they are kept
            return False
        checked, shards = core.topics.checked(command), core.shards
        number = shard_of(command.group_id, len(shards))
        serving = self._serving
        if number not in serving:
            serving[number] = shards[number].serving
        leadership = serving[number]
        if checked is None or leadership is None:
            return False
        self.calls.began()
        if core.admission.enter(Kind.ORDINARY) is None:
            stream.put_ending(
                call_id, grpc.StatusCode.RESOURCE_EXHAUSTED, shed_details(ACTIVE_CALLS)
            )
            self.calls.ended(EXHAUSTED, 0.0)
            return True
        core.admission.framed += 1
        core.admission.framed_total += 1
        stream.requests.take(self.caller.peer(), len(raw))
        commit = StreamedCommit(self, sender, call_id, command, len(raw))
        stream.opened(call_id, commit)
        commit.put(shards[number], leadership, checked, size)
        return True

    def _decoded(self, raw: bytes) -> tuple[OffsetCommit | None, int]:
        """The command, and how many bytes it takes in the log at most.

        None where it is no request, takes turns, or waits for one before it.
        """
        command, size = plain_request(raw, ENTRIES_AT_ONCE), bounds.command_size(len(raw))
        if command is None:
            try:
                request = _parse(raw)
            except DecodeError:
                return None, 0
            if len(request.partitions) > ENTRIES_AT_ONCE:
                return None, 0
            command, size = translate.commit(request), bounds.COMMIT.size(request)
        member = command.group_id, command.member_id
        waits = self.stream.is_awaited(member)
        if (edge := self.core.forwarding.edge) is not None:
            waits = waits or edge.is_awaited((member,))
        return (None if waits else command), size


class StreamedCommit:
    """One of them, from its submission until it is answered or cancelled."""

    __slots__ = ("_began_s", "_call", "_command", "_commits", "_sender", "_size", "call_id")

    def __init__(
        self,
        commits: StreamedCommits,
        sender: Sender,
        call_id: int,
        command: OffsetCommit,
        size: int,
    ) -> None:
        self._commits = commits
        self._sender = sender
        self._command = command
        self._size = size
        self._began_s = commits.began_s
        self._call: Call | None = None
        self.call_id = call_id

    def put(self, shard: Shard, leadership: Leadership, command: OffsetCommit, size: int) -> None:
        """Put it to its shard, which answers now or later."""
        throttled = None
        if self._commits.has_quotas:
            throttled = self._commits.core.throttled(
                self._sender.principal,
                command,
                Amount(QuotaKey.COMMITS, len(command.partitions)),
                Amount(QuotaKey.COMMIT_BYTES, size),
            )
        if throttled is not None:
            self.answered(throttled)
            return
        limits = shard.node.call_limits
        self._call = Call(command, self.answered, limits, None, self.recheck)
        leadership.take(self._call, size)

    def recheck(self) -> Refused | None:
        """Why its caller has no right to it by now, or None."""
        sender, access = self._sender, self._commits.core.access
        version = access.identities.version
        if sender.is_good(version) or (sender.identity is None and sender.version == version):
            return None
        questions = questions_of(RULES[METHOD], self._command)
        caller = self._commits.caller
        return access.recheck(caller, questions, sender.identity, sender.version)()

    def look(self) -> None:
        """Refuse it where its caller has no right to it by now, unless an entry holds it."""
        call = self._call
        if call is None or call.in_entry or call.ended:
            return
        refused = self.recheck()
        if refused is not None:
            call.answer(refused)

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        self._ended(CANCELED)
        commits, call = self._commits, self._call
        commits.stream.requests.let_go(commits.caller.peer(), self._size)
        if call is not None:
            commits.core.shard_for(self._command.group_id).abandon(call)

    def answered(self, answer: Answer) -> None:
        """Write its answer into the stream's next frame."""
        commits = self._commits
        try:
            if isinstance(answer, Shed):
                self._refused(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, shed_details(answer.what), EXHAUSTED
                )
                return
            results = answer.partitions if isinstance(answer, Committed) else ()
            if isinstance(results, StoredResults):
                response, encoded = _ALL_STORED, translate.stored(results)
            else:
                response = self._response(answer)
                encoded = response.SerializeToString()
        except Exception as error:
            log.exception("a handler failed", method=METHOD)
            self._refused(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}", UNKNOWN)
            return
        if not commits.stream.put_commit(self.call_id, encoded, self._size):
            self._refused(grpc.StatusCode.UNAVAILABLE, DROPPED, "Unavailable")
            return
        seconds = self._ended(OK)
        commits.calls.replied(self._command, response, seconds)

    def _response(self, answer: Answer) -> pb.OffsetCommitResponse:
        if isinstance(answer, Committed):
            return translate.committed(answer.partitions)
        self._count_refusal(answer)
        return pb.OffsetCommitResponse(status=self._commits.core.statuses.of(answer))

    def _refused(self, code: grpc.StatusCode, details: str, told: str) -> None:
        commits = self._commits
        commits.stream.requests.let_go(commits.caller.peer(), self._size)
        commits.stream.put_ending(self.call_id, code, details)
        self._ended(told)

    def _count_refusal(self, answer: Answer) -> None:
        if isinstance(answer, Refused) and answer.error.name.endswith(NO_RIGHT):
            commits = self._commits
            audit, peer = commits.core.audit, commits.caller.peer()
            audit.refused(self._sender.principal, peer, METHOD, answer.error.name)

    def _ended(self, code: str) -> float:
        """It is under way no more. Returns how many seconds it was."""
        commits = self._commits
        commits.stream.closed(self.call_id)
        commits.core.admission.framed -= 1
        commits.core.admission.left(Kind.ORDINARY)
        seconds: float = commits.calls.clock() - self._began_s
        commits.calls.ended(code, seconds)
        return seconds
