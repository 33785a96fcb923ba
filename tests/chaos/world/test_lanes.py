"""Which connection of two nodes is the bulk one is read off its handshake, and nothing else."""

import struct

import pytest

from muster.v1 import peer_pb2 as pb
from musterd.chaos.world.networks.lanes import CONNECTIONS_MAX, Lanes, bulk
from musterd.raft import codec, peer_connection
from musterd.raft.peer_connection import MAGIC

NEAR, FAR = (b"\x0a\x00\x00\x01", 4000), (b"\x0a\x00\x00\x02", 7170)
SYN, ACK = 0x02, 0x10


def framed(message):
    """With its length in front."""
    return peer_connection.framed(codec.encode_hello(message))


def dialled(lane, refused=""):
    """What the dialling side says."""
    return MAGIC + framed(pb.Hello(node_id=1, lane=lane)) + framed(pb.Hello(refused=refused))


@pytest.mark.parametrize(
    ("said", "agreed"),
    [
        (dialled(pb.LANE_BULK), True),
        (dialled(pb.LANE_CONTROL), False),
        (dialled(pb.LANE_BULK, "no"), False),
        (b"GET / HTTP/1.1\r\n" + dialled(pb.LANE_BULK), False),
        (MAGIC + peer_connection.head(0x7FFFFFFF) + dialled(pb.LANE_BULK), False),
        (MAGIC + peer_connection.framed(b"\xff\xff") + dialled(pb.LANE_BULK), False),
    ],
)
def test_a_bulk_connection_is_one_on_which_both_have_agreed(said, agreed):
    """Nothing is told too early; what is no handshake of ours is not read on."""
    assert not any(bulk(said[:at]) for at in range(len(said)))
    assert bulk(said) is agreed
    assert bulk(dialled(pb.LANE_BULK)[:-1]) is None


def packet(source, target, seq, data=b"", flags=ACK, protocol=6):
    """IPv4 and TCP, without checksums."""
    tcp = struct.pack(">HHIIBBHHH", source[1], target[1], seq, 0, 5 << 4, flags, 0, 0, 0) + data
    ip = struct.pack(">BBHIBBH", 0x45, 0, 20 + len(tcp), 0, 64, protocol, 0)
    return ip + source[0] + target[0] + tcp


def opened(lanes, near=NEAR, lane=pb.LANE_BULK, first=(1 << 32) - 5):
    """A handshake, packet by packet; its numbers run over."""
    assert not lanes.is_bulk(packet(near, FAR, first, flags=SYN))
    said, seq = dialled(lane), first + 1
    for at in range(0, len(said), 11):
        part = packet(near, FAR, (seq + at) % (1 << 32), said[at : at + 11])
        assert not lanes.is_bulk(part)
        assert not lanes.is_bulk(packet(FAR, near, 1, flags=ACK)) or at + 11 >= len(said)
    return (seq + len(said)) % (1 << 32)


def test_packets_behind_the_handshake_of_a_bulk_connection_are_told_in_both_directions():
    """Of that connection alone, and not of one whose first packet was not seen."""
    lanes = Lanes()
    seq = opened(lanes)
    opened(lanes, (NEAR[0], 4001), pb.LANE_CONTROL)
    assert lanes.is_bulk(packet(NEAR, FAR, seq, b"frame"))
    assert lanes.is_bulk(packet(FAR, NEAR, 9, b"answer"))
    for port in (4001, 4002):
        assert not lanes.is_bulk(packet((NEAR[0], port), FAR, seq, b"frame"))
        assert not lanes.is_bulk(packet(FAR, (NEAR[0], port), 9, b"answer"))
    assert not lanes.is_bulk(packet(NEAR, FAR, seq, b"datagram", protocol=17))
    assert not lanes.is_bulk(packet(NEAR, FAR, 7, flags=SYN))  # the ports are used again
    assert not lanes.is_bulk(packet(NEAR, FAR, seq, b"frame"))


def test_what_comes_twice_is_read_once():
    """A packet that is sent again has an old number."""
    lanes = Lanes()
    said = dialled(pb.LANE_BULK)
    lanes.is_bulk(packet(NEAR, FAR, 99, flags=SYN))
    for _ in range(2):
        lanes.is_bulk(packet(NEAR, FAR, 100, said[:20]))
    lanes.is_bulk(packet(NEAR, FAR, 120, said[20:]))
    assert lanes.is_bulk(packet(FAR, NEAR, 1))


def test_so_many_connections_are_told_apart():
    """The oldest is forgotten, and passes."""
    lanes = Lanes()
    opened(lanes)
    for number in range(CONNECTIONS_MAX):
        assert lanes.is_bulk(packet(FAR, NEAR, 1))
        lanes.is_bulk(packet((NEAR[0], 10_000 + number), FAR, 1, flags=SYN))
    assert not lanes.is_bulk(packet(FAR, NEAR, 1))
