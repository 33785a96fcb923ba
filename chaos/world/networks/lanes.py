"""Which of the two connections between two nodes is the bulk one: told by the handshake on it.

Magic, the dialling side's Hello, its verdict (raft/transport.py). Whoever hands a connection on
reads that along with the nodes; what follows does not say which connection it is on.
"""

import struct
from dataclasses import dataclass

from muster.v1 import peer_pb2 as pb
from musterd.raft.codec import HELLO_BYTES_MAX, CodecError, decode_hello
from musterd.raft.transport import HEAD_BYTES, MAGIC, size_of


class Handshake:
    """What the dialling side of one connection says, until it is known which connection that is."""

    def __init__(self) -> None:
        self._said = bytearray()
        self._hello: pb.Hello | None = None
        self.over = False
        """Whether nothing more is to be read: it is through, or no handshake of ours."""
        self.bulk = False
        """Whether this is a bulk connection on which the nodes have agreed."""

    def said(self, data: bytes) -> None:
        """The next bytes from the dialling side."""
        if self.over:
            return
        self._said += data
        if bytes(self._said[: len(MAGIC)]) != MAGIC[: len(self._said)]:
            self._end()
            return
        while not self.over and (message := self._next()) is not None:
            if self._hello is None:
                self._hello = message
            else:
                lane, refused = self._hello.lane, message.refused
                self._end()
                self.bulk = lane == pb.LANE_BULK and not refused

    def _next(self) -> pb.Hello | None:
        start = len(MAGIC) + HEAD_BYTES
        if len(self._said) < start:
            return None
        try:
            size = size_of(self._said[len(MAGIC) : start])
            if size > HELLO_BYTES_MAX:
                self._end()
                return None
            if len(self._said) < start + size:
                return None
            frame = bytes(self._said[start : start + size])
            del self._said[len(MAGIC) : start + size]
            return decode_hello(frame)
        except CodecError:
            self._end()
            return None

    def _end(self) -> None:
        self.over = True
        self._said.clear()


CONNECTIONS_MAX = 1_024
"""Connections that are told apart; beyond it the oldest are not any more."""
_TCP = 6
_SYN, _ACK = 0x02, 0x10
_PORTS_SEQ = struct.Struct(">HHI")
_SEQ_END = 1 << 32


@dataclass(slots=True)
class _Dialled:
    """A connection whose first packet was seen."""

    handshake: Handshake
    next_seq: int
    """Of the dialling side's next byte."""


class Lanes:
    """The same, packet by packet, for connections whose first packet comes this way."""

    def __init__(self) -> None:
        self._dialled: dict[bytes, _Dialled] = {}
        """By address and port of the dialling side, then of the other."""

    def is_bulk(self, packet: bytes) -> bool:
        """Whether an IPv4 packet is on a bulk connection, behind its handshake."""
        start = (packet[0] & 0x0F) * 4
        if packet[9] != _TCP or len(packet) < start + 20:
            return False
        source, target, seq = _PORTS_SEQ.unpack_from(packet, start)
        near = packet[12:16] + source.to_bytes(2, "big")
        far = packet[16:20] + target.to_bytes(2, "big")
        if packet[start + 13] & (_SYN | _ACK) == _SYN:
            self._dialled.pop(near + far, None)
            self._dialled[near + far] = _Dialled(Handshake(), (seq + 1) % _SEQ_END)
            while len(self._dialled) > CONNECTIONS_MAX:
                del self._dialled[next(iter(self._dialled))]
            return False
        if (known := self._dialled.get(far + near)) is not None:
            return known.handshake.bulk
        if (known := self._dialled.get(near + far)) is None:
            return False
        bulk = known.handshake.bulk
        data = packet[start + (packet[start + 12] >> 4) * 4 : int.from_bytes(packet[2:4], "big")]
        if seq == known.next_seq:
            known.next_seq = (seq + len(data)) % _SEQ_END
            known.handshake.said(data)
        return bulk
