"""The shipped gRPC frontend on a simulated node: its servicers, called with bytes.

What gRPC does is done here: look a method up, parse, run the handler as a task, cancel it at the
deadline or when the caller is gone. A handler that raises is a finding.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, NoReturn

import grpc

from musterd.chaos.sim.engine.loop import make_loop
from musterd.chaos.sim.engine.world import Node, Respond
from musterd.coordinator.api.frame.cluster_view import NodeView
from musterd.coordinator.api.frame.operator_access import LOOPBACK
from musterd.coordinator.api.rpcs.services import Services
from musterd.raft.driver import Driver


class _Aborted(Exception):  # noqa: N818 - it ends a handler, as in gRPC
    """`context.abort` raises it to end a handler."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


class _Context:
    """grpc.aio.ServicerContext, as far as the handlers use it."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._code: grpc.StatusCode | None = None

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> None:
        """A simulated client shows nothing."""

    def code(self) -> grpc.StatusCode | None:
        return self._code

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        self._code = code
        raise _Aborted(code, details)


class _Methods:
    """Takes what the generated code registers."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, _: object) -> None: ...

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        self.handlers.update({f"/{service}/{name}": one for name, one in handlers.items()})


class _Peers:
    """ClusterView, as far as ReplaceNode asks: the nodes as this one's driver knows them."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def nodes(self) -> list[NodeView]:
        own, book = self._driver.identity, self._driver.book
        connected = {own.node_id, *self._driver.connected_nodes}
        return [
            NodeView(
                node,
                "",
                "",
                (book.store_uuid(node) or b"").hex(),
                node in connected,
                "",
                book.learner_shards(node),
            )
            for node in own.nodes
        ]


class SimServer:
    """The client port of one life of a node."""

    def __init__(self, node: Node) -> None:
        life, core = node.incarnation, node.assembly.core
        self.loop = make_loop(
            node.world, node.monotonic_s, lambda run: node.run_pass(life, run), node.world.defect
        )
        methods: Any = _Methods()
        cluster: Any = _Peers(node.running)
        unused: Any = None  # nobody here asks a node about its disk
        Services(core, cluster, verifier=unused, access=LOOPBACK).add_to(methods)
        self._handlers: dict[str, Any] = methods.handlers
        self._defect = node.world.defect

    def dispatch(
        self, path: str, request: bytes, peer: str, timeout_s: float, respond: Respond
    ) -> "asyncio.Task[None]":
        """Serve one call; `respond` is told once, unless it is cancelled or the node dies."""
        work = self._serve(self._handlers[path], request, peer, respond)
        task = self.loop.create_task(work)
        timer = self.loop.call_later(timeout_s, task.cancel)
        task.add_done_callback(lambda _: timer.cancel())
        return task

    async def _serve(self, handler: Any, request: bytes, peer: str, respond: Respond) -> None:
        try:
            message = handler.request_deserializer(request)
            answer = await handler.unary_unary(message, _Context(peer))
        except _Aborted as aborted:
            respond(aborted.code, aborted.details, b"")
        except Exception as error:  # noqa: BLE001 - gRPC would answer UNKNOWN and log it
            self._defect(error)
            respond(grpc.StatusCode.UNKNOWN, str(error), b"")
        else:
            respond(grpc.StatusCode.OK, "", handler.response_serializer(answer))
