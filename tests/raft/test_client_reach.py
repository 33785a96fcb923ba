"""Nodes that clients do not reach hand their shards to those that they reach, and to no others."""

import pytest

from muster.v1 import peer_pb2 as pb
from musterd.raft import codec
from musterd.raft.codec import CodecError, Sender
from musterd.raft.contract import ClientReach, Room
from tests.raft.memory_cluster import MemoryCluster

LONG_S = 25.0
"""Several looks of the balance of leaders."""


@pytest.fixture
def cluster():
    """Three nodes that have been connected for long, each the leader of its shard."""
    cluster = MemoryCluster(shards=3)
    cluster.run(lambda: leaders(cluster) == [0, 1, 2], LONG_S)
    cluster.run_for(11.0)
    return cluster


def leaders(cluster):
    """The leader of each shard; None where there is none."""
    led = {shard: node.number for node in cluster.alive for shard in node.driver.led()}
    return [led.get(shard) for shard in range(cluster.shards)]


def say(cluster, *reaches):
    """What each node has found; None: nothing new."""
    for node, reach in zip(cluster.nodes, reaches, strict=True):
        if reach is not None:
            node.driver.set_reach(reach)


def test_a_node_that_clients_do_not_reach_leads_nothing_until_they_do(cluster):
    """Its shard goes to one that they reach and not to one that does not know, and comes back."""
    say(cluster, ClientReach.FAILS, ClientReach.UNKNOWN, ClientReach.OK)
    cluster.run(lambda: leaders(cluster) == [2, 1, 2], LONG_S)
    cluster.run_for(LONG_S)
    assert leaders(cluster) == [2, 1, 2]
    assert cluster.nodes[2].driver.stats.transfers == 0
    assert cluster.nodes[1].driver.reach_of(0) is ClientReach.FAILS
    say(cluster, ClientReach.OK, None, None)
    cluster.run(lambda: leaders(cluster) == [0, 1, 2], LONG_S)


@pytest.mark.parametrize("others", [ClientReach.FAILS, ClientReach.UNKNOWN])
def test_where_nobody_is_reached_nothing_moves(cluster, others):
    """Nobody is better, as far as is known."""
    say(cluster, ClientReach.FAILS, others, others)
    cluster.run_for(LONG_S)
    assert leaders(cluster) == [0, 1, 2]


def test_who_is_reached_and_has_a_full_disk_is_no_better(cluster):
    """Shards would go back and forth."""
    cluster.nodes[2].driver.set_room(Room.LOW)
    say(cluster, ClientReach.FAILS, ClientReach.FAILS, ClientReach.OK)
    cluster.run_for(LONG_S)
    assert 2 not in leaders(cluster)[:2]


@pytest.mark.parametrize(("room", "left"), [(Room.LOW, [2, 2, 2]), (Room.NONE, [0, 0, 0])])
def test_a_low_disk_is_no_reason_to_lead_where_clients_do_not_reach(cluster, room, left):
    """Low refuses growth; a node that nobody reaches serves nothing. A full disk takes nothing."""
    say(cluster, ClientReach.FAILS, ClientReach.FAILS, ClientReach.OK)
    cluster.run(lambda: leaders(cluster) == [2, 2, 2], LONG_S)
    cluster.nodes[2].driver.set_room(room)
    cluster.run_for(LONG_S)
    assert leaders(cluster) == left


def test_a_peer_that_is_gone_is_unknown(cluster):
    """What it said last is not kept."""
    say(cluster, ClientReach.OK, ClientReach.OK, ClientReach.OK)
    cluster.run(lambda: cluster.nodes[0].driver.reach_of(1) is ClientReach.OK, 1.0)
    cluster.disconnect(0, 1)
    assert cluster.nodes[0].driver.reach_of(1) is ClientReach.UNKNOWN


def test_frames_carry_it():
    """Each value; none is what builds say that know nothing of it; others are refused."""
    for reach in ClientReach:
        sender = Sender(1, 2, 3, reach=reach)
        assert codec.decode_frame(codec.encode_frame(sender, ())) == (sender, [])
    data = codec.encode_frame(Sender(1, 2, 3), ())
    assert [field.name for field, _ in _frame(data).ListFields() if field.name == "reach"] == []


def _frame(data):
    frame = pb.Frame()
    codec._parse(frame, data, codec.FRAME_BYTES_MAX)
    return frame


def test_a_reach_that_nobody_knows_is_refused():
    """As an unknown room of a disk is."""
    frame = _frame(codec.encode_frame(Sender(1, 2, 3), ()))
    frame.reach = 7
    with pytest.raises(CodecError):
        codec.decode_frame(codec._sealed(frame))
