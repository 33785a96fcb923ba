"""What handlers see of a call that came in something else than a call of gRPC's."""

from collections.abc import Callable
from typing import NoReturn

import grpc


class CallContext:
    """A `grpc.aio.ServicerContext`, as far as handlers and metrics use one, but for the caller."""

    __slots__ = ("_code", "details", "entered")

    def __init__(self, entered: Callable[[], None] | None) -> None:
        self._code: grpc.StatusCode | None = None
        self.details = ""
        self.entered = entered
        """Called once its command was put to its shard: the member's next request may be."""

    def time_remaining(self) -> float | None:
        """Nothing: whoever brought the call says when its client waits no more."""
        return None

    def code(self) -> grpc.StatusCode | None:
        """The status that the call was aborted with."""
        return self._code

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """End the call's handler with a status."""
        self._code, self.details = code, details
        raise grpc.aio.AbortError(details)
