"""One call that any node takes: the topic registry.

A node is asked; where it fails, or is quiet for SUSPECT_MS, another one is asked, in the second
case beside the first. A quiet node may be down, cut off, or at the end of a connection that died
and does not say so, and the others know the same. The first answer for good wins. A node is never
asked twice at once, so that a change that only takes its time is not sent to its leader again.
"""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

import grpc
from google.protobuf.message import Message

from muster import timeouts
from muster.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    MusterError,
    RequestTimedOut,
)
from muster.net import backoff
from muster.net.calls import (
    ATTEMPTS_OPEN_MAX,
    Caller,
    Failure,
    Outdated,
    client_closed,
    rpc_failure,
    unless_outdated,
)
from muster.net.nodes import Answers, what_each_said
from muster.v1 import errors_pb2

R = TypeVar("R", bound=Message)

_TRY_AGAIN = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_TRY_AGAIN_RPC = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
    }
)


async def call_any(
    caller: Caller,
    name: str,
    parse: Answers[R],
    status: Callable[[R], errors_pb2.Status],
    request: Message,
    timeout_ms: float,
    *,
    is_sure: Callable[[R], bool] = lambda _: True,
) -> R:
    """Ask one node after the other, and whomever they name, until one answers for good.

    An answer that is not sure says what another attempt of the same call may have brought about: it
    counts when no attempt is left that may say so.

    Raises:
        CoordinatorNotAvailable: the time is up, nobody answered.
        RequestTimedOut: the time is up, and a change may have been made.
        CallFailed: the client was closed, or gRPC refuses in a way that trying again does not mend.
        TlsHandshakeFailed: no node could be connected to yet, because of TLS.
    """
    caller.counters.calls += 1
    payload = request.SerializeToString()
    return await _AnyNodeCall(caller, name, parse, status, payload, timeout_ms, is_sure).run()


async def remove_any(
    caller: Caller,
    name: str,
    parse: Answers[R],
    status: Callable[[R], errors_pb2.Status],
    request: Message,
    timeout_ms: float,
) -> tuple[R, bool]:
    """`call_any`, and whether another attempt may have been carried out without saying so.

    Then "there is no such thing" says that it was removed.
    """
    caller.counters.calls += 1
    payload = request.SerializeToString()
    call = _AnyNodeCall(caller, name, parse, status, payload, timeout_ms, lambda _: True)
    return await call.run(), call.in_doubt


class _AnyNodeCall(Generic[R]):
    """The life of one call."""

    def __init__(
        self,
        caller: Caller,
        name: str,
        parse: Answers[R],
        status: Callable[[R], errors_pb2.Status],
        request: bytes,
        timeout_ms: float,
        is_sure: Callable[[R], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._nodes = caller.nodes
        self._counters = caller.counters
        self._name = name
        self._parse = parse
        self._status = status
        self._request = request
        self._is_sure = is_sure
        self._deadline = self._loop.time() + timeout_ms / 1000
        self._open: dict[asyncio.Task[R | Failure], str] = {}  # and whom it asks
        self._asked: Counter[str] = Counter()  # how often each was
        self._next_at = 0.0  # when the next one is asked
        self._hint = ""  # whom the latest answer names
        self._failures = 0
        self._sent = False  # an attempt ended without saying what became of it
        self._said: dict[str, str] = {}  # by whom, the latest
        self.in_doubt = False
        """Whether an attempt got no answer, so that nobody knows what became of it."""

    async def run(self) -> R:
        unsure: R | None = None
        try:
            while (now := self._loop.time()) < self._deadline:
                if unsure is not None:
                    self._next_at = math.inf
                elif now >= self._next_at:
                    self._ask_another(now)
                await self._wait(min(self._next_at, self._deadline) - now)
                for task in [task for task in self._open if task.done()]:
                    answer = self._judge(task, self._open.pop(task))
                    if answer is not None and self._is_sure(answer):
                        self.in_doubt |= bool(self._open)
                        return answer
                    unsure = answer if unsure is None else unsure
                if failure := self._nodes.tls_failure():
                    raise failure
                if unsure is not None and not self._open:
                    break
            if unsure is not None:
                return unsure
            raise self._over()
        finally:
            for task in self._open:
                task.cancel()

    def _over(self) -> MusterError:
        unknown = self._sent or bool(self._open)
        said = dict(self._said)
        for endpoint in self._open.values():
            before = said.get(endpoint)
            said[endpoint] = f"{before}, and is silent now" if before else "is silent"
        message = f"no answer in time; {what_each_said(said)}"
        return (RequestTimedOut if unknown else CoordinatorNotAvailable)(message)

    async def _wait(self, seconds: float) -> None:
        if self._open:
            await asyncio.wait(self._open, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(seconds)

    def _ask_another(self, now: float) -> None:
        """The one that was named, else who was asked least often; never one that is quiet."""
        self._next_at = now + timeouts.SUSPECT_MS / 1000
        quiet = self._open.values()
        free = [endpoint for endpoint in self._nodes.order() if endpoint not in quiet]
        hint, self._hint = self._hint, ""
        if hint and hint not in quiet:
            endpoint = hint
        elif free and len(quiet) < ATTEMPTS_OPEN_MAX:
            endpoint = min(free, key=self._asked.__getitem__)
        else:
            self._next_at = math.inf  # until an attempt ends
            return
        self._asked[endpoint] += 1
        self._counters.attempts += 1
        self._counters.unanswered += bool(quiet)
        self._open[asyncio.create_task(self._attempt(endpoint, now))] = endpoint

    async def _attempt(self, endpoint: str, now: float) -> R | Failure:
        left_ms = min(timeouts.ADMIN_ATTEMPT_MS, (self._deadline - now) * 1000)
        shown = self._nodes.shown()
        answer: R | grpc.aio.AioRpcError
        call = self._nodes.unary(endpoint, self._name, self._parse, self._request, left_ms)
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            answer = error
        finally:
            if not call.done():
                call.cancel()
        return unless_outdated(self._nodes, shown, answer, self._status)

    def _judge(self, task: "asyncio.Task[R | Failure]", endpoint: str) -> R | None:
        """The answer, if it is one for good; otherwise None, and when to go on is arranged."""
        if task.cancelled():
            if self._nodes.closed:
                raise client_closed()
            self._sent = self.in_doubt = True
            self._said[endpoint] = "was taken from the cluster"
            self._again("")
            return None
        outcome = task.result()
        if isinstance(outcome, Outdated):
            self.in_doubt = True
            self._said[endpoint] = outcome.why
            self._again(endpoint)
            return None
        if isinstance(outcome, grpc.aio.AioRpcError):
            code, details = outcome.code(), outcome.details() or ""
            if code not in _TRY_AGAIN_RPC or "larger than max" in details:
                raise rpc_failure(outcome) from outcome
            self.in_doubt = True
            self._sent = self._sent or code is grpc.StatusCode.DEADLINE_EXCEEDED
            self._said[endpoint] = f"{code.name} {details}"
            self._again("")
            return None
        answer = self._status(outcome)
        if int(answer.code) not in _TRY_AGAIN:
            return outcome
        open_outcome = int(answer.code) == ErrorCode.REQUEST_TIMED_OUT
        self.in_doubt |= open_outcome
        self._sent |= open_outcome
        said = answer.message or errors_pb2.ErrorCode.Name(answer.code)
        self._said[endpoint] = said
        hint = answer.coordinator.endpoint
        self._again("" if hint == endpoint or hint in self._open.values() else hint)
        return None

    def _again(self, hint: str) -> None:
        """Whom an answer names is asked at once, for as long as they do not name each other."""
        self._failures += 1
        self._hint = hint
        now, delay_s = self._loop.time(), 0.0
        if not hint or self._failures > len(self._nodes.order()):
            delay_s = backoff.CALL.delay_ms(self._failures, random.random) / 1000
        self._next_at = now + delay_s
