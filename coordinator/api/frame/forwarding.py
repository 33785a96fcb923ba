"""Calls that one node passes to another one, as the frame of every RPC sees them (ADR 35).

The *edge* is the node that the client speaks to, the coordinator the one that carries the call out.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import grpc

from musterd.raft.contract import NodeId


class ShownCaller(NamedTuple):
    """What a client shows the edge; the coordinator finds out by it who calls."""

    peer: str
    """The client's address, as gRPC writes it."""
    private: bool
    """Whether nobody can listen to its connection."""
    certificate: bytes
    """The certificate that the edge has checked, PEM; b"" where there is none."""
    bearer: str
    """The value of `authorization`; "" where there is none."""
    secret: bytes
    """The operators' secret; b"" where it is not shown."""
    request_id: str
    """The caller's name for the call; "" where there is none."""


class ForwardedCounts(NamedTuple):
    """Calls that a node passed to others, and took from them."""

    out_total: int = 0
    out_open: int = 0
    in_total: int = 0
    in_open: int = 0
    unconnected: int = 0
    """Other nodes to which this one, which forwards, has no connection for calls."""


class PassedCall(Protocol):
    """A call that an edge passed to this node."""

    edge: int
    """That node's id."""
    in_log: bool
    """Set once something of it was on its way to the log."""
    with_edge: bool
    """Whether the edge is gone, so that nobody knows of the client."""


PASSED_CALL: Final[ContextVar[PassedCall | None]] = ContextVar("passed call", default=None)
"""The call that the running handler serves, where an edge passed it on."""


class PassingFailed(Exception):  # noqa: N818 - mostly a refusal, which is no error
    """What was passed on ends with a gRPC status instead of an answer."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class Edge(Protocol):
    """A node's way to the coordinators of its clients."""

    def concerns(self, name: str, request: Any) -> bool:
        """Whether this request of the RPC `name` is about anything that is led elsewhere."""
        ...

    def is_awaited(self, members: Sequence[tuple[str, str]]) -> bool:
        """Whether an earlier request of one of them is passed on, so that the next has to follow.

        Each is a group's id, and that of its member.
        """
        ...

    async def pass_on(
        self,
        name: str,
        request: Any,
        caller: ShownCaller,
        entered: Callable[[], None] | None,
        here: Callable[[Any], Awaitable[Any]],
    ) -> Any:
        """The response. `here` serves what this node leads, or what nobody else takes.

        `entered` is called once the request is on its way. Raises PassingFailed, and what `here`
        raises.
        """
        ...

    def names_itself(self, leader: NodeId) -> bool:
        """Whether clients of what `leader` leads are told to stay at this node."""
        ...

    def reaches(self, leader: NodeId) -> bool:
        """Whether calls can be passed to `leader` now."""
        ...


@dataclass(slots=True)
class Forwarding:
    """Whether this node passes calls on."""

    edge: Edge | None = None
    """None: it does not."""
