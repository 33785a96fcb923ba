"""Connections that carry calls of clients from one node to another (ADR 35).

A node that forwards dials every other one once more, whoever has the lower id. There is one such
connection of each direction between two nodes.
"""

from muster.v1 import peer_pb2 as pb
from musterd.raft import codec
from musterd.raft import hello as hellos
from musterd.raft.codec import CodecError
from musterd.raft.contract import ForwardEnd, NodeId
from musterd.raft.peer_connection import PeerConnection


class PeerForwardLink:
    """A connection that carries calls, as its two sides see it (raft/contract.py)."""

    __slots__ = ("_connection", "_limit", "node")

    def __init__(self, connection: PeerConnection, node: int, limit: int) -> None:
        self._connection = connection
        self._limit = limit
        self.node = NodeId(node)

    @property
    def is_certified(self) -> bool:
        return self._connection.certified is not None

    @property
    def is_full(self) -> bool:
        return self._connection.backlog_bytes > self._limit

    def send(self, frame: bytes) -> None:
        self._connection.write_frame(codec.sealed(frame))

    def hang_up(self) -> None:
        self._connection.abort()


class ForwardConnections:
    """All of them of one node, and who is at this end of them."""

    def __init__(self, buffer_bytes: int) -> None:
        """`buffer_bytes`: of a connection, beyond which frames wait at who makes them."""
        self._buffer_bytes = buffer_bytes
        self.edge: ForwardEnd | None = None
        """Passes calls to other nodes, which are dialled for it; None: this node does not."""
        self.coordinator: ForwardEnd | None = None
        """Takes the calls that other nodes pass; None: they are refused."""
        self._kept: dict[tuple[int, bool], tuple[PeerConnection, PeerForwardLink]] = {}
        """By node, and whether this one dialled it."""

    def connections(self) -> list[PeerConnection]:
        """Those that stand."""
        return [connection for connection, _ in self._kept.values()]

    def hang_up(self, node: int) -> None:
        """Close what is open to `node`."""
        for dialled in (False, True):
            if kept := self._kept.get((node, dialled)):
                kept[0].abort()

    def refusal(self, connection: PeerConnection) -> str | None:
        """Why calls of clients are not passed on this connection, or None."""
        if connection.dialled is None and self.coordinator is None:
            return hellos.TAKES_NO_CALLS
        if not connection.is_private:
            return hellos.BY_TLS_ALONE
        return None

    def establish(self, connection: PeerConnection, node: int) -> None:
        """Both sides take it. The former one of an edge that came back is gone."""
        key = (node, connection.dialled is not None)
        previous = self._kept.get(key)
        if previous is not None:
            self.lost(previous[0])
            previous[0].abort()
        connection.establish(node, pb.LANE_FORWARD)
        link = PeerForwardLink(connection, node, self._buffer_bytes)
        self._kept[key] = connection, link
        if (end := self._end_of(connection)) is not None:
            end.opened(link)

    def writable(self, connection: PeerConnection) -> None:
        """What waited on it has left."""
        link, end = self._link_of(connection), self._end_of(connection)
        if link is not None and end is not None:
            end.writable(link)

    def frame_arrived(self, connection: PeerConnection, frame: bytes) -> None:
        """Hand it over. Raises CodecError."""
        link, end = self._link_of(connection), self._end_of(connection)
        if link is None or end is None:
            return
        try:
            end.arrived(link, codec.unsealed(frame))
        except ValueError as error:
            raise CodecError("garbage", f"calls that cannot be read: {error}") from error

    def refused(self, connection: PeerConnection, node: int, detail: str) -> None:
        """One that this node dialled is about to be closed, and why."""
        if self.edge is not None:
            told = self.edge.refused if connection.is_refused else self.edge.failed
            told(NodeId(node), detail)

    def lost(self, connection: PeerConnection) -> None:
        """It is gone."""
        link = self._link_of(connection)
        if link is not None:
            del self._kept[link.node, connection.dialled is not None]
            if (end := self._end_of(connection)) is not None:
                end.closed(link)

    def _end_of(self, connection: PeerConnection) -> ForwardEnd | None:
        return self.coordinator if connection.dialled is None else self.edge

    def _link_of(self, connection: PeerConnection) -> PeerForwardLink | None:
        """The link of a connection, as long as it is the latest one."""
        key = (connection.node or 0, connection.dialled is not None)
        kept = self._kept.get(key)
        return kept[1] if kept is not None and kept[0] is connection else None
