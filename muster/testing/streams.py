"""Streams of the in-memory cluster: frames of requests, each answered as a call of its own is."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

from muster.net.streams import METHODS
from muster.v1.group_pb2 import ClientFrame, ServerFrame

Behaviour = Callable[[bytes, Any], Awaitable[bytes]]
"""Answers an encoded request that came by a stream with this context; may raise Aborted."""

_NAMES = {number: path.rpartition("/")[2] for path, number in METHODS.items()}


class Aborted(Exception):  # noqa: N818 - it ends a call
    """The call ends with this gRPC status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


class ServedStream:
    """One stream of a client process to a node."""

    def __init__(
        self,
        context: Any,
        behaviours: Mapping[str, Behaviour],
        awake: Callable[[], Awaitable[object]],
    ) -> None:
        """`behaviours` by the method's name. A node that is not `awake` says nothing."""
        self._context = context
        self._behaviours = behaviours
        self._awake = awake
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._out: asyncio.Queue[ServerFrame] = asyncio.Queue()

    async def serve(self) -> None:
        """Serve it until its client ends it; what it holds is answered."""
        writer = asyncio.create_task(self._write())
        try:
            while (raw := await self._context.read()) is not grpc.aio.EOF:
                self._take(ClientFrame.FromString(raw))
            while self._calls:
                await asyncio.wait(self._calls.values())
            await self._out.join()
        finally:
            for task in (writer, *self._calls.values()):
                task.cancel()

    def _take(self, frame: ClientFrame) -> None:
        for call_id in frame.cancelled:
            if call_id in self._calls:
                self._calls.pop(call_id).cancel()
        if frame.ping:
            self._out.put_nowait(ServerFrame(pong=True))
        for request in frame.requests:
            self._calls[request.call_id] = asyncio.create_task(self._answer(request))

    async def _answer(self, request: ClientFrame.Request) -> None:
        told = ServerFrame.Answer(call_id=request.call_id)
        try:
            told.message = await self._behaviours[_NAMES[request.method]](
                request.message, self._context
            )
        except Aborted as aborted:
            told.code, told.details = aborted.code.value[0], aborted.details
        except Exception as error:  # noqa: BLE001 - as gRPC answers where a handler fails
            told.code, told.details = grpc.StatusCode.UNKNOWN.value[0], repr(error)
        del self._calls[request.call_id]
        self._out.put_nowait(ServerFrame(answers=[told]))

    async def _write(self) -> None:
        while True:
            frame = await self._out.get()
            await self._awake()
            await self._context.write(frame.SerializeToString())
            self._out.task_done()
