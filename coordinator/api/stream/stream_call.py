"""One request of a client's stream, as its handler sees it: gRPC's context of a call."""

from collections.abc import Callable
from typing import Any

from musterd.coordinator.api.frame.call_context import CallContext
from musterd.coordinator.api.frame.identity import ToldCaller
from musterd.coordinator.api.limits.requests_under_way import Received
from musterd.coordinator.api.stream.member_order import Entering


class StreamCaller(ToldCaller):
    """Who makes the calls of a stream: what gRPC says of it, asked once."""

    __slots__ = ("end",)

    def __init__(self, context: Any, end: Callable[[], None]) -> None:
        """`end` ends the stream, whatever is under way."""
        super().__init__(context, has_certificates=True)
        self.end = end


class StreamCall(CallContext):
    """One request as its handler sees it."""

    __slots__ = ("_caller",)

    def __init__(self, caller: StreamCaller, entered: Callable[[], None] | None) -> None:
        super().__init__(entered)
        self._caller = caller

    def peer(self) -> str:
        """The caller's address, as gRPC writes it."""
        return self._caller.peer()

    def invocation_metadata(self) -> Any:
        """What came with the stream."""
        return self._caller.invocation_metadata()

    def auth_context(self) -> Any:
        """What TLS said of the connection."""
        return self._caller.auth_context()

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
