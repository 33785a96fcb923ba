"""One call that an edge passed on, as its handler sees it: gRPC's context of a call."""

from collections.abc import Callable, Mapping
from typing import Any

from muster.v1.forward_pb2 import EdgeFrame
from musterd.coordinator.api.frame.audit_trail import REQUEST_ID
from musterd.coordinator.api.frame.call_context import CallContext
from musterd.coordinator.api.frame.identity import AUTHORIZATION, CERTIFICATE_KEY
from musterd.coordinator.api.frame.operator_access import METADATA_KEY
from musterd.raft.contract import ForwardLink

PEER_CHARS_MAX = 200
"""A client's address is no longer, as gRPC writes it."""


class HandedOnCall(CallContext):
    """A call as its handler sees it. See `PassedCall`.

    What the client showed the edge is believed of a node alone: the connection is one. A client's
    certificate is believed only of a node that has shown its own.
    """

    __slots__ = ("_caller", "_link", "edge", "in_log", "was_private", "with_edge")

    def __init__(
        self, caller: EdgeFrame.Caller, link: ForwardLink, entered: Callable[[], None] | None
    ) -> None:
        """Raises ValueError where no edge names its client so."""
        if len(caller.peer) > PEER_CHARS_MAX:
            raise ValueError("an edge names its client by a long address")
        super().__init__(entered)
        self._caller = caller
        self._link = link
        self.edge = int(link.node)
        self.in_log = False
        self.with_edge = False
        self.was_private: bool = caller.private
        """Whether nobody could listen to the client's connection to the edge."""

    def peer(self) -> str:
        """The client's address, as gRPC wrote it at the edge."""
        return self._caller.peer

    def invocation_metadata(self) -> Any:
        """What came with the call, as far as handlers look at it."""
        caller = self._caller
        told: list[tuple[str, str | bytes]] = []
        if caller.bearer:
            told.append((AUTHORIZATION, caller.bearer))
        if caller.secret:
            told.append((METADATA_KEY, caller.secret))
        if caller.request_id:
            told.append((REQUEST_ID, caller.request_id))
        return tuple(told)

    def auth_context(self) -> Mapping[str, tuple[bytes, ...]]:
        """The client's certificate, which the edge has checked."""
        shown = self._link.is_certified and self._caller.certificate
        return {CERTIFICATE_KEY: (self._caller.certificate,)} if shown else {}

    def end(self) -> None:
        """Hang up on the edge: it takes no answers."""
        self._link.hang_up()
