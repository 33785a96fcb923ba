"""Calls to a cluster for commands: synchronous stubs, one deadline, failover between nodes.

A command asks any node, or a group's coordinator. What may succeed elsewhere or later (a node that
is down, no leader yet, overload) is repeated until the command's time is over: every call that the
CLI makes is idempotent.
"""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar, cast

import grpc

from muster.admin.operator_secret import METADATA_KEY, goes_in_the_clear, operator_metadata
from muster.cli.errors import CommandError, ExitCode
from muster.cli.refusals import DENIED, UNKNOWN, refused
from muster.cli.rounds import credentials_of, learn, with_known
from muster.errors import InvalidConfig
from muster.net.bearer_token import FILE_VARIABLE, BearerToken, is_loopback
from muster.net.credentials import REFUSALS, Credentials, Shown
from muster.net.nodes import MESSAGE_BYTES_MAX, parse_endpoints, what_each_said
from muster.net.tls import Tls
from muster.v1.access_pb2_grpc import AccessStub
from muster.v1.admin_pb2 import DescribeClusterRequest, DescribeClusterResponse
from muster.v1.admin_pb2_grpc import AdminStub, TopicsStub
from muster.v1.errors_pb2 import ErrorCode, Status
from muster.v1.group_pb2 import FindCoordinatorRequest
from muster.v1.group_pb2_grpc import GroupCoordinatorStub

ATTEMPT_S = 3.0
"""One attempt at one node; longer than FindCoordinator's hold of 1 s."""
BACKOFF_S = 0.2
START_S = 10.0
"""So long a cluster is given to start: until then a refused connection is tried again."""
PARALLEL_MAX = 16
"""How many nodes are asked at once."""

_NOBODY = "start a node (`muster dev` runs a cluster here) or name one with --bootstrap"
_NOBODY_TO_ASK = CommandError("no node to ask", next_step=_NOBODY, exit_code=ExitCode.USAGE)
_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),
)
_ELSEWHERE = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
}

_OUTCOME_OPEN = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
}
"""Said of a request that may be in the log already, too."""


class Answer(Protocol):
    """A response with one outcome for the whole call."""

    @property
    def status(self) -> Status: ...


A = TypeVar("A", bound=Answer)
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Stubs:
    """The services of the node at one endpoint, ready to be called."""

    endpoint: str
    topics: TopicsStub
    admin: AdminStub
    groups: GroupCoordinatorStub
    access: AccessStub


Call = Callable[[Stubs, float], A]
"""A call at a node with a timeout in seconds."""


class Removal(Generic[A]):
    """A call that removes something, as often as it is tried.

    Repeated, it may find nothing to remove because an earlier attempt was carried out.
    """

    def __init__(self, call: Call[A]) -> None:
        self.in_doubt = False
        """Whether an attempt ended without saying what became of it."""
        self._call = call

    def __call__(self, at: Stubs, timeout_s: float) -> A:
        """Try it at a node."""
        try:
            answer = self._call(at, timeout_s)
        except grpc.RpcError:
            self.in_doubt = True
            raise
        self.in_doubt |= answer.status.code in _OUTCOME_OPEN | REFUSALS
        return answer


@dataclass(frozen=True, slots=True)
class NodeAnswer(Generic[A]):
    """One node's answer, or the reason why there is none."""

    node_id: int
    endpoint: str
    answer: A | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Found:
    """The place of a group's coordinator."""

    status: Status
    endpoint: str


class Connection:
    """Channels to a cluster, opened as they are needed."""

    def __init__(self, bootstrap: str, timeout_s: float) -> None:
        self._endpoints = with_known(_endpoints(bootstrap))
        self._tls = Tls.from_environment()
        self._credentials = credentials()
        self._said: dict[str, str] = {}
        """By node, the latest that it said to the call that is made, or of whom to make it to."""
        self._deadline = time.monotonic() + timeout_s
        self._stubs: dict[str, Stubs] = {}
        self._channels: list[grpc.Channel] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels:
            channel.close()

    def ask(self, call: Call[A]) -> A:
        """Ask any node; follow its hint to the right one.

        Raises:
            CommandError: refused, nobody reachable or time over; see `ExitCode`.
        """
        self._said.clear()
        return self._until_answered(call)

    def ask_coordinator(self, group_id: str, call: Call[A]) -> A:
        """Ask the coordinator of `group_id`. Raises as `ask` does."""
        self._said.clear()
        return self._until_answered(call, lambda: self._find(group_id))

    def ask_at(self, endpoint: str, call: Call[A], patience_s: float) -> A:
        """Ask the node at `endpoint` and no other, for so long. Raises as `ask` does."""
        self._said.clear()
        deadline = self._deadline
        self._deadline = min(deadline, time.monotonic() + patience_s)
        try:
            return self._until_answered(call, lambda: endpoint)
        finally:
            self._deadline = deadline

    def cluster(self) -> DescribeClusterResponse:
        """Some node's view of the cluster."""
        request = DescribeClusterRequest()
        answer = self.ask(lambda at, s: at.admin.DescribeCluster(request, timeout=s))
        learn(node.endpoint for node in answer.nodes)
        return answer

    def ask_each(
        self, call: Call[A], *, attempt_s: float = ATTEMPT_S
    ) -> tuple[DescribeClusterResponse, list[NodeAnswer[A]]]:
        """Ask every node of the cluster once, all at the same time; in the order of node ids."""
        cluster = self.cluster()
        nodes = sorted((node.node_id, node.endpoint) for node in cluster.nodes)
        if not nodes:
            raise CommandError(
                "the node that answered knows no nodes, not even itself",
                next_step="look into that node's log",
                exit_code=ExitCode.ERROR,
            )
        for _, endpoint in nodes:
            self._at(endpoint)

        def one(node: tuple[int, str]) -> NodeAnswer[A]:
            node_id, endpoint = node
            try:
                answer = self._attempt(endpoint, call, attempt_s)
            except grpc.RpcError as error:
                return NodeAnswer(node_id, endpoint, None, describe(error))
            if answer.status.code != ErrorCode.NONE:
                return NodeAnswer(node_id, endpoint, None, _spell(answer.status))
            return NodeAnswer(node_id, endpoint, answer)

        with ThreadPoolExecutor(max_workers=min(len(nodes), PARALLEL_MAX)) as pool:
            return cluster, list(pool.map(one, nodes))

    # ---- one call until it is answered

    def _until_answered(self, call: Call[A], find: Callable[[], str] | None = None) -> A:
        """Ask the node that `find` names, or any; again until the time is over.

        Where no node can be connected to it gives up sooner, unless `find` may name another: a
        cluster that was just started is waited for, one that is not there is not.
        """
        failure: CommandError | None = None
        give_up = min(time.monotonic() + START_S, self._deadline)
        while True:
            nodes = [find()] if find else self._endpoints
            answer, failure, reached = self._round(call, list(nodes), failure)
            if answer is not None:
                return answer
            nobody = find is None and not reached
            if nobody and (trouble := self._tls_trouble(nodes)):
                raise trouble
            if time.monotonic() + BACKOFF_S >= (give_up if nobody else self._deadline):
                raise self._with_all(failure) if failure else _NOBODY_TO_ASK
            time.sleep(BACKOFF_S)

    def _round(
        self, call: Call[A], queue: list[str], failure: CommandError | None
    ) -> tuple[A | None, CommandError | None, bool]:
        """Ask one node after the other, and whom they hint at: answer, failure, anybody reached."""
        reached = False
        hinted: set[str] = set()
        while queue:
            endpoint = queue.pop(0)
            if failure is not None and time.monotonic() >= self._deadline:
                raise self._with_all(failure)  # says more than that the time is over
            try:
                answer = self._attempt(endpoint, call, ATTEMPT_S)
            except grpc.RpcError as error:
                failure = self._failed(endpoint, error)
                self._said[endpoint] = describe(error)
                reached |= _code(error) is not grpc.StatusCode.UNAVAILABLE
                continue
            status = answer.status
            if status.code == ErrorCode.NONE:
                return answer, None, True
            failure, reached = refused(status.code, status.message), True
            self._said[endpoint] = failure.message
            if status.code == ErrorCode.NOT_COORDINATOR:
                hint = status.coordinator.endpoint
                if hint and hint not in hinted:
                    hinted.add(hint)
                    queue.insert(0, hint)
            elif not status.retriable:
                raise failure
        return None, failure, reached

    def _attempt(self, endpoint: str, call: Call[A], attempt_s: float) -> A:
        """Make a call; again where it is refused, and the files have another credential by now."""
        while True:
            shown = self._credentials.shown()
            try:
                answer = call(self._at(endpoint), self.remaining_s(attempt_s))
            except grpc.RpcError as error:
                is_unknown = _code(error) is grpc.StatusCode.UNAUTHENTICATED
                if not (is_unknown and self._has_newer(shown)):
                    raise
            else:
                if not (int(answer.status.code) in REFUSALS and self._has_newer(shown)):
                    return answer

    def _has_newer(self, shown: Shown) -> bool:
        """Whether the next attempt shows another credential, by a new channel where that is due."""
        if self._credentials.renew():
            self._stubs.clear()
        return self._credentials.shown() != shown

    def _with_all(self, failure: CommandError) -> CommandError:
        """The failure, with what each node said where several were asked and none could help."""
        if failure.exit_code is not ExitCode.UNREACHABLE or len(self._said) < 2:  # noqa: PLR2004
            return failure
        what = "no node can be connected to" if self._is_alone() else "no leader answers"
        return CommandError(
            f"{what}: {what_each_said(self._said)}",
            next_step=_NOBODY if self._is_alone() else "see `muster cluster status`",
            exit_code=failure.exit_code,
        )

    def _is_alone(self) -> bool:
        unavailable = grpc.StatusCode.UNAVAILABLE.name
        return all(said.startswith(unavailable) for said in self._said.values())

    def _tls_trouble(self, endpoints: Sequence[str]) -> CommandError | None:
        """Return the TLS fault at the first of these nodes, where that is why nobody answers."""
        from muster.net.tls_probe import TlsFault, find_trouble  # noqa: PLC0415  # seldom needed

        for endpoint in endpoints:
            trouble = find_trouble(endpoint, self._tls)
            if trouble is not None:
                denied = trouble.fault is TlsFault.CLIENT_CERTIFICATE
                return CommandError(
                    trouble.message,
                    next_step=trouble.fault.command_hint,
                    exit_code=ExitCode.NOT_PERMITTED if denied else ExitCode.UNREACHABLE,
                )
        return None

    def _find(self, group_id: str) -> str:
        request = FindCoordinatorRequest(
            keys=[FindCoordinatorRequest.Key(group_id=group_id, known_term=0)]
        )

        def call(at: Stubs, timeout_s: float) -> _Found:
            answer = at.groups.FindCoordinator(request, timeout=timeout_s)
            learn(node.endpoint for node in answer.nodes)
            results = answer.results
            if not results or results[0].pending:
                pending = Status(
                    code=ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    message=f"it knows no leader for group {group_id}",
                    retriable=True,
                )
                return _Found(pending, "")
            found = results[0].coordinator
            named = at.endpoint if found.forwards else found.endpoint
            if named != at.endpoint:
                self._said[at.endpoint] = f"the coordinator is {named or 'not known'}"
            return _Found(results[0].status, named)

        return self._until_answered(call).endpoint

    def _failed(self, endpoint: str, error: grpc.RpcError) -> CommandError:
        code = _code(error)
        if code is grpc.StatusCode.UNAVAILABLE:
            return CommandError(
                f"no connection to {endpoint}: {_details(error)}",
                next_step=_NOBODY,
                exit_code=ExitCode.UNREACHABLE,
            )
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return CommandError(
                f"{endpoint} is overloaded or refuses the size: {_details(error)}",
                next_step="repeat later",
                exit_code=ExitCode.ERROR,
            )
        if code in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}:
            raise CommandError(
                f"{endpoint} refuses: {_details(error)}",
                next_step=UNKNOWN if code is grpc.StatusCode.UNAUTHENTICATED else DENIED,
                exit_code=ExitCode.NOT_PERMITTED,
            ) from error
        if code in _ELSEWHERE:
            return CommandError(
                f"{endpoint} did not answer in time",
                next_step="see `muster cluster status`; --timeout gives it longer",
                exit_code=ExitCode.TIMED_OUT,
            )
        raise CommandError(
            f"{endpoint} failed: {describe(error)}",
            next_step="look into that node's log, and compare `muster version` with its version",
            exit_code=ExitCode.ERROR,
        ) from error

    def operator(self) -> tuple[tuple[str, bytes], ...]:
        """The metadata of an operator's call. Raises CommandError."""
        try:
            shown = operator_metadata()
        except OSError as error:
            raise CommandError(
                f"the admin secret cannot be read: {error}",
                next_step="MUSTER_ADMIN_SECRET_FILE names the file that the nodes have as "
                "admin_secret_file",
                exit_code=ExitCode.USAGE,
            ) from error
        plain = next((one for one in self._endpoints if not is_loopback(one)), None)
        if shown and self._credentials.channel is None and plain and not goes_in_the_clear():
            raise CommandError(
                f"the admin secret would go to {plain} in the clear",
                next_step="set MUSTER_TLS_CA; or, in a network that nobody listens in, "
                "insecure_admin_secret on the nodes and MUSTER_INSECURE_ADMIN_SECRET=true here",
                exit_code=ExitCode.USAGE,
            )
        return shown

    # ---- channels and time

    def pause(self) -> bool:
        """Wait a little before the next attempt; False where the time is over then."""
        if time.monotonic() + BACKOFF_S >= self._deadline:
            return False
        time.sleep(BACKOFF_S)
        return True

    def _at(self, endpoint: str) -> Stubs:
        stubs = self._stubs.get(endpoint)
        if stubs is None:
            channel: grpc.Channel = (
                grpc.secure_channel(endpoint, self._credentials.channel, options=_OPTIONS)
                if self._credentials.channel
                else grpc.insecure_channel(endpoint, options=_OPTIONS)
            )
            self._channels.append(channel)
            channel = grpc.intercept_channel(channel, _Shower(self._credentials, endpoint))
            stubs = Stubs(
                endpoint,
                TopicsStub(channel),
                AdminStub(channel),
                GroupCoordinatorStub(channel),
                AccessStub(channel),
            )
            self._stubs[endpoint] = stubs
        return stubs

    def remaining_s(self, attempt_s: float = ATTEMPT_S) -> float:
        """How long the next attempt may take. Raises CommandError where the time is over."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise CommandError(
                "the time for this command is over",
                next_step="see `muster cluster status`; --timeout gives it longer",
                exit_code=ExitCode.TIMED_OUT,
            )
        return min(attempt_s, left)


def next_page(entries: Sequence[E]) -> E:
    """The entry that the next page comes after. Raises CommandError where a full page is empty."""
    if not entries:
        raise CommandError(
            "the node says that there is more, and gives nothing",
            next_step="compare `muster version` with the node's version",
            exit_code=ExitCode.ERROR,
        )
    return entries[-1]


class _Details(NamedTuple):
    """A call, as gRPC describes it to an interceptor."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any


class _Shower(grpc.UnaryUnaryClientInterceptor):
    """Shows who asks: a token, and the operators' secret.

    Nothing where others can listen, but for a secret of which the user said so.
    """

    def __init__(self, credentials: Credentials, endpoint: str) -> None:
        self._credentials = credentials
        self._endpoint = endpoint

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        metadata = [one for one in details.metadata or () if one[0] != METADATA_KEY]
        metadata += self._credentials.metadata(self._endpoint)
        if self._credentials.is_private(self._endpoint) or goes_in_the_clear():
            with contextlib.suppress(OSError):  # who needs it says that it cannot be read
                metadata += operator_metadata()
        shown = _Details(
            details.method,
            details.timeout,
            metadata,
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )
        return continuation(shown, request)


def credentials() -> Credentials:
    """Return what `MUSTER_TOKEN_FILE`, and `MUSTER_TLS_DIR`, `_CA`, `_CERT` and `_KEY`, ask for.

    With `--watch` those of the round before, while the files do not belong together.

    Raises CommandError (usage) where a file cannot be read.
    """
    try:
        token = BearerToken(file=os.environ.get(FILE_VARIABLE, ""))
    except InvalidConfig as error:
        raise _usage(
            error, f"--token-file, or {FILE_VARIABLE}, names a file with a token"
        ) from error
    try:
        return credentials_of(Tls.from_environment(), token)
    except InvalidConfig as error:
        raise _usage(
            error,
            "MUSTER_TLS_DIR names a folder as `muster cert client` makes it, or MUSTER_TLS_CA, "
            "MUSTER_TLS_CERT and MUSTER_TLS_KEY name PEM files",
        ) from error


def _endpoints(bootstrap: str) -> list[str]:
    try:
        return list(parse_endpoints(bootstrap))
    except InvalidConfig as error:
        next_step = "give --bootstrap (or MUSTER_BOOTSTRAP) as host:port,host:port"
        raise _usage(error, next_step) from error


def _usage(error: InvalidConfig, next_step: str) -> CommandError:
    return CommandError(error.message, next_step=next_step, exit_code=ExitCode.USAGE)


def describe(error: grpc.RpcError) -> str:
    """A failed call in a few words."""
    return f"{_code(error).name}: {_details(error)}"


def _code(error: grpc.RpcError) -> grpc.StatusCode:
    return cast("grpc.Call", error).code()  # what a stub raises is both


def _details(error: grpc.RpcError) -> str:
    details = cast("grpc.Call", error).details()
    reason = (details or "no reason given").rpartition("last error: ")[2]
    return reason.rpartition("remote host: ")[2]  # gRPC's way of saying which address


def _spell(status: Status) -> str:
    return refused(status.code, status.message).message
