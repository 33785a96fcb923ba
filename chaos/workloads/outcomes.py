"""Decides whether an operation that ended with an error is known not to be done.

The rule is strict one way only: an operation counts as refused where nothing of it can take effect
any more. Whatever is in doubt is unknown.
"""

import time
from collections.abc import Callable

import grpc

from muster.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    MusterError,
    RequestTimedOut,
    UnknownServerError,
)
from muster.types import Counters
from musterd.chaos.history import Outcome

CALM_S = 0.25
"""A refusal that took longer may be that of a second attempt, and the first be under way."""

_IN_DOUBT = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        # A coordinator deposed with the request in its log says so, too; its successor may have it.
        ErrorCode.NOT_COORDINATOR,
    }
)
_REFUSED_BY_GRPC = frozenset(
    {
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)


def of_code(code: int) -> Outcome:
    """Of one attempt that was answered with this code."""
    if code == ErrorCode.NONE:
        return Outcome.OK
    return Outcome.UNKNOWN if code in _IN_DOUBT else Outcome.FAIL


def of_rpc(error: grpc.RpcError) -> Outcome:
    """Of one attempt that gRPC ended."""
    code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
    return Outcome.FAIL if code in _REFUSED_BY_GRPC else Outcome.UNKNOWN


def refused(_error: object) -> Outcome:
    """Of a read, or another call without an effect: what it would have said is not known."""
    return Outcome.FAIL


def name_of(error: BaseException) -> str:
    """An error's name as histories have it."""
    if isinstance(error, MusterError) and error.code in list(ErrorCode):
        return ErrorCode(error.code).name
    if isinstance(error, grpc.aio.AioRpcError):
        return f"GRPC_{error.code().name}"
    return type(error).__name__


class Before:
    """The SDK's counters and the time before a call: did it take a single, clear attempt?"""

    def __init__(self, counters: Counters, clock: Callable[[], float] = time.monotonic) -> None:
        """`counters`: of the client that is about to make the call. `clock`: in seconds."""
        self._counters, self._clock = counters, clock
        self._trouble = _trouble(counters)
        self._at_s = clock()

    def outcome(self, error: MusterError) -> Outcome:
        """Return the outcome of the call that raised this.

        The SDK sends a call again where no answer came. A refusal of the second attempt says
        nothing of the first, so it counts only where nothing in this process was sent twice.
        """
        if isinstance(error, (RequestTimedOut, UnknownServerError)):
            return Outcome.UNKNOWN
        quick = self._clock() - self._at_s < CALM_S or isinstance(error, CoordinatorNotAvailable)
        once = _trouble(self._counters) == self._trouble
        return Outcome.FAIL if once and quick else Outcome.UNKNOWN


def _trouble(counters: Counters) -> tuple[int, ...]:
    """Everything that counts attempts which were not the only one of their call."""
    return (
        counters.connections_lost,
        counters.unanswered,
        counters.deadlines,
        counters.not_coordinator,
        counters.loading,
        counters.overloaded,
        counters.find_coordinator,
        counters.coordinator_changes,
    )
