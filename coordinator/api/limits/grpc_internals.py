"""The private parts of grpc.aio that call_acceptor.py needs, and the gate before them.

grpc.aio takes one call per method at a time, and has no way to refuse a call before its handler
has run (docs/adr/0004). These few names of its Cython core do both. They belong to one release:
with any other, `are_usable` says no, and calls are taken by grpc.aio's own loop (call_acceptor.py).
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeAlias

import grpc
from grpc._cython import cygrpc as _cygrpc  # type: ignore[attr-defined]

TESTED_VERSION: Final = "1.85.1"

cygrpc: Any = _cygrpc  # without types

State: TypeAlias = Any
"""One call as the core hands it over. It must be handled or refused: dropped, it is cancelled."""

Handlers: TypeAlias = "Mapping[str, grpc.RpcMethodHandler[Any, Any]]"
"""By full name, such as "/muster.v1.GroupCoordinator/OffsetCommit"."""


class Stopped(Exception):  # noqa: N818 - it is an end, not an error
    """The server takes no more calls."""


_PARTS: Final = (
    "_MethodResolver",
    "_RequestCallError",
    "_ServicerContext",
    "_handle_rpc",
    "_schedule_rpc_coro",
    "_send_error_status_from_server",
    "InternalError",
    "SendInitialMetadataOperation",
    "peer_identities",
)


def are_usable(version: str) -> bool:
    """Whether this grpcio is the release that the private parts were tested with, and has them."""
    return version == TESTED_VERSION and all(hasattr(cygrpc, part) for part in _PARTS)


def _is_news(record: logging.LogRecord) -> bool:
    """An answer that could not be written: its caller is gone, or took none and was ended."""
    return not str(record.msg).startswith("ExecuteBatchError raised in core by servicer method")


logging.getLogger("grpc._cython.cygrpc").addFilter(_is_news)


class Calls:
    """The calls of one started server."""

    def __init__(
        self,
        server: grpc.aio.Server,
        handlers: Handlers,
        interceptors: tuple[grpc.aio.ServerInterceptor, ...],
    ) -> None:
        self._core: Any = server._server  # type: ignore[attr-defined]  # noqa: SLF001
        self._resolver = cygrpc._MethodResolver([], dict(handlers))  # noqa: SLF001
        self._interceptors = interceptors
        self._loop = asyncio.get_running_loop()

    async def next(self, method: bytes) -> State:
        """The next call of a registered method. Raises Stopped when the server stops."""
        try:
            return await self._core._request_registered_call(method)  # noqa: SLF001
        except cygrpc._RequestCallError as error:  # noqa: SLF001
            raise Stopped from error

    def handle(self, state: State, method: str) -> Coroutine[Any, Any, None]:
        """Handle a call as the server itself would: interceptors, handler, reply, cancellation."""
        handled = cygrpc._handle_rpc(  # noqa: SLF001
            method, self._resolver, self._interceptors, state, self._loop, False
        )
        scheduled: Coroutine[Any, Any, None] = cygrpc._schedule_rpc_coro(  # noqa: SLF001
            handled, state, self._loop, method
        )
        return scheduled

    def peer(self, state: State) -> str:
        """The other end of the call's connection, before anything of the call is read."""
        context = cygrpc._ServicerContext(state, None, None, self._loop)  # noqa: SLF001
        return str(context.peer())

    @staticmethod
    def end(context: Any) -> None:
        """Cancel the call of a handler's `context`, whatever is under way: its caller sees a reset.

        grpc.aio keeps its calls out of reach; the one place where it shows one is the argument of
        the function that reads the identities of a peer. A release that does not show it there
        leaves the call to its caller's end, and to keepalive: nothing is ended here.
        """
        shown = getattr(cygrpc, "peer_identities", None)
        if shown is None:
            return
        try:
            cygrpc.peer_identities = _cancel
            context.peer_identities()
        finally:
            cygrpc.peer_identities = shown

    async def refuse(self, state: State, message: str) -> None:
        """Answer RESOURCE_EXHAUSTED. The request is not read, and no handler is told."""
        try:
            await cygrpc._send_error_status_from_server(  # noqa: SLF001
                state,
                cygrpc.StatusCode.resource_exhausted,
                message,
                (),
                cygrpc.SendInitialMetadataOperation((), 0),
                self._loop,
            )
        except cygrpc.InternalError:
            return  # the caller has gone, there is nobody to tell


def _cancel(call: Any) -> None:
    call.cancel(cygrpc.StatusCode.cancelled, "the answer was not taken")
