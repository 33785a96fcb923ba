"""What a client knows of an operation that ended with an error: not done, or not known.

The rule is strict one way only: an operation counts as refused where nothing of it can take effect
any more. Whatever is in doubt is unknown.
"""

import time
from dataclasses import dataclass

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


def name_of(error: BaseException) -> str:
    """An error's name as histories have it."""
    if isinstance(error, MusterError) and error.code in list(ErrorCode):
        return ErrorCode(error.code).name
    if isinstance(error, grpc.aio.AioRpcError):
        return f"GRPC_{error.code().name}"
    return type(error).__name__


@dataclass(frozen=True, slots=True)
class Before:
    """The SDK's counters and the time before a call: did it take a single, clear attempt?"""

    trouble: tuple[int, ...]
    at_s: float

    @classmethod
    def call(cls, counters: Counters) -> "Before":
        """Now."""
        return cls(_trouble(counters), time.monotonic())

    def outcome(self, error: MusterError, counters: Counters) -> Outcome:
        """What became of the call that raised this.

        The SDK sends a call again where no answer came. A refusal of the second attempt says
        nothing of the first, so it counts only where nothing in this process was sent twice.
        """
        if isinstance(error, CoordinatorNotAvailable):
            quiet = _trouble(counters) == self.trouble
            return Outcome.FAIL if quiet else Outcome.UNKNOWN
        if isinstance(error, (RequestTimedOut, UnknownServerError)):
            return Outcome.UNKNOWN
        calm = time.monotonic() - self.at_s < CALM_S and _trouble(counters) == self.trouble
        return Outcome.FAIL if calm else Outcome.UNKNOWN


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
