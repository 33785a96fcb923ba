"""Metrics of the gRPC server under the names of go-grpc's, so that its dashboards work.

An interceptor times each unary call from its decoded request to its reply. Parked and held calls
count with all their waiting: muster's own histograms tell work from waiting.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from musterd.coordinator.metrics.histogram import Histogram

HANDLING_BOUNDS_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1, 4, 32)

DEADLINE_EARLY_S = 0.02
"""A caller gives up so long before the deadline that the server knows, or ..."""
DEADLINE_EARLY_SHARE = 0.01
"""... such a part of the whole time."""

Replied = Callable[[str, Any, Any, float], None]
"""Told of each call that ended with a reply: method name, request, response, seconds."""

Behaviour = Callable[[Any, Any], Awaitable[Any]]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
MaybeHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
Continuation: TypeAlias = Callable[[grpc.HandlerCallDetails], Awaitable[MaybeHandler]]

_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


def go_name(code: str) -> str:
    """A status code as go-grpc spells it: "OK", "Canceled", "ResourceExhausted"."""
    if code in {"OK", "CANCELLED"}:
        return {"OK": "OK", "CANCELLED": "Canceled"}[code]
    return "".join(word.capitalize() for word in code.split("_"))


@dataclass(slots=True)
class Method:
    """One RPC's counters. `handled` is by go-grpc's code name."""

    service: str
    name: str
    started: int = 0
    handled: dict[str, int] = field(default_factory=lambda: {"OK": 0})
    seconds: Histogram = field(default_factory=lambda: Histogram(HANDLING_BOUNDS_S))


class Calls:
    """The calls of one method, as they are counted: by the interceptor, or frame by frame."""

    __slots__ = ("_method", "_metrics", "clock")

    def __init__(self, metrics: "GrpcMetrics", method: Method) -> None:
        self._metrics = metrics
        self._method = method
        self.clock = metrics.clock
        """Seconds, for the times of calls."""

    def began(self) -> None:
        """A call began."""
        self._method.started += 1

    def ended(self, code: str, seconds: float) -> None:
        """It ended with this code of go-grpc's names."""
        method = self._method
        method.handled[code] = method.handled.get(code, 0) + 1
        method.seconds.observe(seconds)

    def replied(self, request: Any, response: Any, seconds: float) -> None:
        """It ended with a reply."""
        for told in self._metrics.replied:
            told(self._method.name, request, response, seconds)


class GrpcMetrics(grpc.aio.ServerInterceptor):
    """Counts and times every unary call of a server. One per server, given at its construction."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.replied: list[Replied] = []
        self.methods: dict[str, Method] = {}
        self.clock = clock
        self._wrapped: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Continuation,
        handler_call_details: grpc.HandlerCallDetails,
    ) -> MaybeHandler:
        """Give back the method's own handler, wrapped; made once per method that exists."""
        path = handler_call_details.method
        wrapped = self._wrapped.get(path)
        if wrapped is not None:
            return wrapped
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler  # no such method, or a stream (health's Watch, reflection)
        _, service, name = path.split("/")
        method = self.methods[path] = Method(service, name)
        wrapped = grpc.unary_unary_rpc_method_handler(
            self._timed(method, handler.unary_unary),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
        self._wrapped[path] = wrapped
        return wrapped

    def _timed(self, method: Method, behaviour: Behaviour) -> Behaviour:
        calls = Calls(self, method)

        async def handle(request: Message, context: Any) -> Any:
            began = self.clock()
            calls.began()
            code = "Unknown"
            try:
                response = await behaviour(request, context)
                code = _code_of(context) or "OK"
            except asyncio.CancelledError:
                code = _why_cancelled(context, self.clock() - began)
                raise
            except BaseException:
                code = _code_of(context) or "Unknown"
                raise
            finally:
                seconds = self.clock() - began
                calls.ended(code, seconds)
            calls.replied(request, response, seconds)
            return response

        handle.calls = calls  # type: ignore[attr-defined]  # for calls that come in frames
        return handle

    def families(self) -> Iterator[Metric]:
        """The three families of go-grpc."""
        labels = ["grpc_type", "grpc_service", "grpc_method"]
        started = CounterMetricFamily(
            "grpc_server_started", "Calls begun on the server.", labels=labels
        )
        handled = CounterMetricFamily(
            "grpc_server_handled",
            "Calls completed on the server, by gRPC status code.",
            labels=[*labels, "grpc_code"],
        )
        seconds = HistogramMetricFamily(
            "grpc_server_handling_seconds",
            "Time from decoded request to reply, waiting included.",
            labels=labels,
        )
        for method in self.methods.values():
            values = ["unary", method.service, method.name]
            started.add_metric(values, method.started)
            for code, count in method.handled.items():
                handled.add_metric([*values, code], count)
            seconds.add_metric(values, method.seconds.cumulative(), method.seconds.total)
        yield from (started, handled, seconds)


def _why_cancelled(context: Any, took_s: float) -> str:
    """The caller's deadline passed, or it gave up (or its connection broke) before that.

    The caller's own clock runs out first: gRPC rounds what it sends up by 1 % at most, and the
    server counts from when the call came.
    """
    left_s: float | None = context.time_remaining()
    if left_s is None:
        return "Canceled"
    early_s = max(DEADLINE_EARLY_S, DEADLINE_EARLY_SHARE * (took_s + left_s))
    return "DeadlineExceeded" if left_s <= early_s else "Canceled"


def _code_of(context: Any) -> str | None:
    """The status that the handler set, as go-grpc spells it; None where it set none, or OK."""
    code = context.code()
    if not code:
        return None
    number = code.value[0] if isinstance(code, grpc.StatusCode) else int(code)
    return None if number == 0 else go_name(_CODES.get(number, "UNKNOWN"))
