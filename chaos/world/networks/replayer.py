"""A gRPC proxy that sends some requests a second time, later: what a client never sees happen.

HTTP/2 frames cannot be played again on another connection: header compression and stream numbers
belong to the connection that they were sent on. So this stands one layer higher: a gRPC server that
looks into no request, passes the bytes of every unary call on, and sends a copy of
chosen requests again, byte for byte, after a delay, in whatever order the delays give. The answers
to copies go nowhere but into the counts.

`python -m musterd.chaos.world.networks.replayer CONFIG`. Config: `nodes` (endpoint -> address to
listen on in its place), `seed`, `percent`, `delay_ms` ([least, most]), `methods` (names; all where
empty), `hold_percent` (originals that wait for such a delay, too). Every endpoint of a node in an
answer is replaced, so that clients come back here. Verbs: `set` (the same names, without `nodes`),
`counts`.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

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


@dataclass(frozen=True, slots=True)
class Plan:
    """Which requests are sent again."""

    percent: float
    delay_ms: tuple[float, float]
    methods: frozenset[str] = frozenset()
    """Names without the service (`OffsetCommit`); empty: every method."""
    hold_percent: float = 0.0
    """Originals that are late themselves: a request may then arrive after its own retry."""

    def __post_init__(self) -> None:
        """Raises ValueError."""
        least, most = self.delay_ms
        shares = (self.percent, self.hold_percent)
        if not 0 <= least <= most or min(shares) < 0 or max(shares) > ALL:
            raise ValueError(f"there is no such plan: {self}")

    @classmethod
    def read(cls, given: dict[str, Any], before: "Plan | None" = None) -> "Plan":
        """The plan in a JSON object; what it does not name is as before."""
        known: dict[str, Any] = {
            one: given[one] for one in ("percent", "hold_percent") if one in given
        }
        if "delay_ms" in given:
            known["delay_ms"] = tuple(given["delay_ms"])
        if "methods" in given:
            known["methods"] = frozenset(given["methods"])
        return cls(**known) if before is None else replace(before, **known)


class Replayer:
    """Passes calls on, for all nodes of one cluster."""

    def __init__(self, nodes: dict[str, str], plan: Plan, seed: int) -> None:
        """`nodes`: endpoint -> where this listens in its place."""
        self.plan = plan
        self.counts: Counter[str] = Counter()
        """`METHOD passed | copied | not_copied | held`, and `METHOD copy CODE`."""
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
        """Drop the copies that wait, stop."""
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
        if self._chosen(name, self.plan.hold_percent):
            self.counts[f"{name} held"] += 1
            await asyncio.sleep(self._delay_s())
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
        if not self._chosen(name, self.plan.percent):
            return
        if len(self._copies) >= COPIES_MAX:
            self.counts[f"{name} not_copied"] += 1
            return
        task = asyncio.get_running_loop().create_task(
            self._again(name, call, request, metadata, self._delay_s())
        )
        self._copies.add(task)
        task.add_done_callback(self._copies.discard)

    async def _again(
        self,
        name: str,
        call: Callable[..., Awaitable[bytes]],
        request: bytes,
        metadata: object,
        delay_s: float,
    ) -> None:
        await asyncio.sleep(delay_s)
        self.counts[f"{name} copied"] += 1
        try:
            await call(request, timeout=COPY_DEADLINE_S, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            self.counts[f"{name} copy {error.code().name}"] += 1
        else:
            self.counts[f"{name} copy OK"] += 1

    def _chosen(self, name: str, percent: float) -> bool:
        plan = self.plan
        return (not plan.methods or name in plan.methods) and self._rng.random() * ALL < percent

    def _delay_s(self) -> float:
        return self._rng.uniform(*self.plan.delay_ms) / 1_000

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
    """Takes every method as unary, bytes in and bytes out, to one node."""

    def __init__(self, replayer: Replayer, channel: grpc.aio.Channel) -> None:
        self._replayer = replayer
        self._channel = channel
        self._calls: dict[str, Callable[..., Awaitable[bytes]]] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler of any method."""
        method = handler_call_details.method
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
    replayer = Replayer(given["nodes"], Plan.read(given), given["seed"])
    await replayer.start()
    answer(ready=True)
    async for message in commands():
        verb = message.pop("verb")
        if verb == "set":
            try:
                replayer.plan = Plan.read(message, replayer.plan)
            except (TypeError, ValueError) as error:
                answer(error=str(error))
            else:
                answer()
        elif verb == "counts":
            answer(counts=dict(sorted(replayer.counts.items())))
        else:
            answer(error=f"there is no verb {verb!r}")
    await replayer.close()


if __name__ == "__main__":
    asyncio.run(_serve())
