"""One request of a client's stream, as its handler sees it: gRPC's context of a call."""

from collections.abc import Callable
from typing import Any, NoReturn

import grpc

from musterd.coordinator.api.limits.requests_under_way import Received
from musterd.coordinator.api.stream.member_order import Entering


class StreamCaller:
    """Who makes the calls of a stream: what gRPC says of it, asked once."""

    __slots__ = ("auth", "end", "metadata", "peer")

    def __init__(self, context: Any, end: Callable[[], None]) -> None:
        """`end` ends the stream, whatever is under way."""
        self.peer: str = context.peer()
        self.metadata: Any = context.invocation_metadata()
        self.auth: Any = context.auth_context()
        self.end = end


class StreamCall:
    """A `grpc.aio.ServicerContext`, as far as handlers and metrics use one."""

    __slots__ = ("_caller", "_code", "details", "entered")

    def __init__(self, caller: StreamCaller, entered: Callable[[], None] | None) -> None:
        self._caller = caller
        self._code: grpc.StatusCode | None = None
        self.details = ""
        self.entered = entered
        """Called once its command was put to its shard: the member's next request may be."""

    def peer(self) -> str:
        """The caller's address, as gRPC writes it."""
        return self._caller.peer

    def invocation_metadata(self) -> Any:
        """What came with the stream."""
        return self._caller.metadata

    def auth_context(self) -> Any:
        """What TLS said of the connection."""
        return self._caller.auth

    def time_remaining(self) -> float | None:
        """Nothing: the client says when it waits no more."""
        return None

    def code(self) -> grpc.StatusCode | None:
        """The status that the call was aborted with."""
        return self._code

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """End the call's handler with a status."""
        self._code, self.details = code, details
        raise grpc.aio.AbortError(details)

    def end(self) -> None:
        """End the whole stream: its client takes no answers."""
        self._caller.end()


class StreamedRequest(Received):
    """A request that came in a stream, not parsed yet."""

    __slots__ = ("_at_end", "_entering")

    def __init__(self, raw: bytes, entering: Entering | None) -> None:
        """`entering`: its way to the log, where it goes there."""
        super().__init__(raw)
        self._entering = entering
        self._at_end: list[Callable[[object], None]] = []

    async def parsed(self, request: Any) -> None:
        """Wait until the same member's requests before this one are on their way to the log."""
        if self._entering is not None:
            await self._entering.parsed(request)

    def at_end(self, callback: Callable[[object], None]) -> None:
        """Have `callback` called when its answer is written, or nobody waits for it."""
        self._at_end.append(callback)

    def ended(self) -> None:
        """Call them."""
        for callback in self._at_end:
            callback(None)
        self._at_end.clear()
