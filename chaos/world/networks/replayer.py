"""A gRPC proxy that sends some requests a second time, later: what a client never sees happen.

HTTP/2 frames cannot be played again on another connection: header compression and stream numbers
belong to the connection that they were sent on. So this stands one layer higher: a gRPC server that
looks into no request, passes the bytes of every unary call on, and sends a copy of
chosen requests again, byte for byte, after a delay, in whatever order the delays give. The answers
to copies go nowhere but into the counts.

`python -m musterd.chaos.world.networks.replayer CONFIG`. Config: `nodes` (endpoint -> address to
listen on in its place), `seed`, `percent` of the requests that are copied, `delay_ms` ([least,
most]). Every endpoint of a node in an answer is replaced, so that clients come back here. The one
verb, `counts`, tells what came of all requests.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from muster.net.streams import PATH as STREAM_PATH
from muster.v1 import admin_pb2, group_pb2
from musterd.chaos.child import answer, commands, config
from musterd.chaos.world.networks.network import ALL

COPIES_MAX = 10_000
"""Copies that wait; beyond it a request is not copied, and counted as `not_copied`."""
COPY_DEADLINE_S = 40.0
"""Longer than any call is parked."""
_STOP_S = 1.0
_DEADLINE_S_MAX = 120.0
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
)


class Replayer:
    """Passes calls on, for all nodes of one cluster."""

    def __init__(
        self, nodes: dict[str, str], percent: float, delay_ms: tuple[float, float], seed: int
    ) -> None:
        """`nodes`: endpoint -> where this listens in its place."""
        self.percent = percent
        self._delay_ms = delay_ms
        self.counts: Counter[str] = Counter()
        """`METHOD passed | copied | not_copied`, and `METHOD copy CODE`."""
        self._nodes = nodes
        self._rng = Random(seed)
        self._answers = _answers()
        self._servers: list[grpc.aio.Server] = []
        self._channels: list[grpc.aio.Channel] = []
        self._copies: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. Raises RuntimeError where a port is taken."""
        for endpoint, at in self._nodes.items():
            # Plain: the nodes behind it are those of a run's own, which are plain.
            channel = grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
            server = grpc.aio.server(options=_OPTIONS)
            server.add_generic_rpc_handlers((_Everything(self, channel),))
            server.add_insecure_port(at)
            await server.start()
            self._channels.append(channel)
            self._servers.append(server)

    async def close(self) -> None:
        for task in self._copies:
            task.cancel()
        await asyncio.gather(*self._copies, return_exceptions=True)
        await asyncio.gather(*(server.stop(_STOP_S) for server in self._servers))
        for channel in self._channels:
            await channel.close()

    async def pass_on(
        self,
        method: str,
        call: Callable[..., Awaitable[bytes]],
        request: bytes,
        context: "grpc.aio.ServicerContext[bytes, bytes]",
    ) -> bytes:
        """One call of a client, with its own metadata and deadline."""
        name = method.rpartition("/")[2]
        metadata = tuple(context.invocation_metadata() or ())
        metadata = tuple(
            one for one in metadata if not one[0].startswith((":", "grpc-", "user-agent"))
        )
        self._copy(name, call, request, metadata)
        left = context.time_remaining()
        timeout = _DEADLINE_S_MAX if left is None else min(left, _DEADLINE_S_MAX)
        try:
            got = await call(request, timeout=timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
        self.counts[f"{name} passed"] += 1
        return self._in_our_place(method, got)

    def _copy(
        self, name: str, call: Callable[..., Awaitable[bytes]], request: bytes, metadata: object
    ) -> None:
        if not self._chosen():
            return
        if len(self._copies) >= COPIES_MAX:
            self.counts[f"{name} not_copied"] += 1
            return
        task = asyncio.get_running_loop().create_task(self._again(name, call, request, metadata))
        self._copies.add(task)
        task.add_done_callback(self._copies.discard)

    async def _again(
        self,
        name: str,
        call: Callable[..., Awaitable[bytes]],
        request: bytes,
        metadata: object,
    ) -> None:
        await asyncio.sleep(self._rng.uniform(*self._delay_ms) / 1_000)
        self.counts[f"{name} copied"] += 1
        try:
            await call(request, timeout=COPY_DEADLINE_S, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            self.counts[f"{name} copy {error.code().name}"] += 1
        else:
            self.counts[f"{name} copy OK"] += 1

    def _chosen(self) -> bool:
        return self._rng.random() * ALL < self.percent

    def _in_our_place(self, method: str, got: bytes) -> bytes:
        """The answer, with our addresses in place of the nodes'."""
        kind = self._answers.get(method)
        if kind is None or not any(endpoint.encode() in got for endpoint in self._nodes):
            return got
        message = kind()
        try:
            message.ParseFromString(got)
        except DecodeError:
            return got
        _replace_strings(message, self._nodes)
        return message.SerializeToString()


class _Everything(grpc.GenericRpcHandler):
    """Takes every method but streams as unary, bytes in and bytes out, to one node.

    Where there are no streams the SDK makes each call by itself, so that each can come again.
    """

    def __init__(self, replayer: Replayer, channel: grpc.aio.Channel) -> None:
        self._replayer = replayer
        self._channel = channel
        self._calls: dict[str, Callable[..., Awaitable[bytes]]] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        if method == STREAM_PATH:
            return None
        call = self._calls.get(method)
        if call is None:
            call = self._calls[method] = self._channel.unary_unary(
                method, request_serializer=bytes, response_deserializer=bytes
            )

        async def handle(request: bytes, context: Any) -> bytes:
            return await self._replayer.pass_on(method, call, request, context)

        return grpc.unary_unary_rpc_method_handler(
            handle, request_deserializer=bytes, response_serializer=bytes
        )


def _answers() -> dict[str, type[Message]]:
    """Path -> class of the answer, of every method of the wire contract."""
    found: dict[str, type[Message]] = {}
    for module in (admin_pb2, group_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                kind = getattr(module, method.output_type.name)
                found[f"/{service.full_name}/{method.name}"] = kind
    return found


def _replace_strings(message: Message, by: dict[str, str]) -> None:
    """Replace each text field, at any depth, that is a key of `by`."""
    for field, value in message.ListFields():
        repeated = not isinstance(value, (str, Message)) and hasattr(value, "__len__")
        if field.type == FieldDescriptor.TYPE_STRING and not repeated:
            if value in by:
                setattr(message, field.name, by[value])
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for one in value if repeated else (value,):
                if isinstance(one, Message):  # keys of a map are no messages
                    _replace_strings(one, by)


async def _serve() -> None:
    given = config()
    replayer = Replayer(given["nodes"], given["percent"], given["delay_ms"], given["seed"])
    await replayer.start()
    answer(ready=True)
    async for _ in commands():
        answer(counts=dict(sorted(replayer.counts.items())))
    await replayer.close()


if __name__ == "__main__":
    asyncio.run(_serve())
