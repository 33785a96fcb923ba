"""Tells the bulk connection between two nodes from the other one, by its handshake.

Magic, the dialling side's Hello, its verdict (raft/peer_connection.py). Whoever hands a connection
on reads that along with the nodes; what follows does not say which connection it is on.
"""

import struct
from dataclasses import dataclass

from muster.v1 import peer_pb2 as pb
from musterd.raft.codec import HELLO_BYTES_MAX, CodecError, decode_hello
from musterd.raft.peer_connection import HEAD_BYTES, MAGIC, size_of


def bulk(said: bytes) -> bool | None:
    """Whether a connection whose dialling side has said this is a bulk one on which both agreed.

    None where more has to be heard.
    """
    if said[: len(MAGIC)] != MAGIC[: len(said)]:
        return False
    messages: list[pb.Hello] = []
    at = len(MAGIC)
    try:
        while len(messages) < 2:  # noqa: PLR2004  # its Hello and its verdict
            begin = at + HEAD_BYTES
            if len(said) < begin:
                return None
            end = begin + size_of(said[at:begin])
            if end - begin > HELLO_BYTES_MAX:
                return False
            if len(said) < end:
                return None
            messages.append(decode_hello(said[begin:end]))
            at = end
    except CodecError:
        return False
    hello, verdict = messages
    return hello.lane == pb.LANE_BULK and not verdict.refused


CONNECTIONS_MAX = 1_024
"""Connections that are told apart; beyond it the oldest are not any more."""
_TCP = 6
_SYN, _ACK = 0x02, 0x10
_PORTS_SEQ = struct.Struct(">HHI")
_SEQ_END = 1 << 32


@dataclass(slots=True)
class _Dialled:
    """A connection whose first packet was seen."""

    next_seq: int
    """Of the dialling side's next byte."""
    said: bytes = b""
    is_bulk: bool | None = None
    """None until the handshake is through."""


class Lanes:
    """Connections whose first packet comes this way, each told by its handshake."""

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
            self._dialled[near + far] = _Dialled((seq + 1) % _SEQ_END)
            while len(self._dialled) > CONNECTIONS_MAX:
                del self._dialled[next(iter(self._dialled))]
            return False
        if (known := self._dialled.get(far + near)) is not None:
            return bool(known.is_bulk)
        if (known := self._dialled.get(near + far)) is None:
            return False
        was_bulk = bool(known.is_bulk)
        data = packet[start + (packet[start + 12] >> 4) * 4 : int.from_bytes(packet[2:4], "big")]
        if seq == known.next_seq:
            known.next_seq = (seq + len(data)) % _SEQ_END
            if known.is_bulk is None:
                known.said += data
                known.is_bulk = bulk(known.said)
        return was_bulk
