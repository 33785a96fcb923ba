"""Disks that fill up: who has no room takes no entry, says so, stays, and comes back by itself."""

import pytest

from musterd.raft import codec
from musterd.raft.codec import CodecError, Sender
from musterd.raft.contract import Applied, Room
from tests.raft.memory_cluster import MemoryCluster


def _cluster(**more):
    cluster = MemoryCluster(**more)
    cluster.wait_leader()
    cluster.commit([b"before"])
    cluster.run_for(1.0)
    return cluster, cluster.leader().number


def _others(cluster, number):
    return [node.number for node in cluster.nodes if node.number != number]


def _set(cluster, room, *numbers):
    for number in numbers:
        cluster.nodes[number].driver.set_room(room)


def _propose(cluster, number, entry):
    outcomes = []
    cluster.replica(number).propose(entry, outcomes.append)
    return outcomes


def test_a_leader_knows_what_a_majority_has_room_for():
    """One low follower of two stops nothing; two do. It is known within a heartbeat."""
    cluster, leader = _cluster()
    first, second = _others(cluster, leader)
    _set(cluster, Room.LOW, first)
    cluster.run_for(0.2)
    assert cluster.replica(leader).room is Room.ENOUGH
    _set(cluster, Room.LOW, second)
    cluster.run(lambda: cluster.replica(leader).room is Room.LOW, 0.2)
    _set(cluster, Room.ENOUGH, first)
    cluster.run(lambda: cluster.replica(leader).room is Room.ENOUGH, 0.2)


def test_a_follower_without_room_acknowledges_nothing_and_catches_up():
    """The others commit; it stays a follower, takes the entries when it has room again."""
    cluster, leader = _cluster()
    full, _ = _others(cluster, leader)
    _set(cluster, Room.NONE, full)
    last = cluster.replica(full).last_index
    cluster.commit([b"x%d" % number for number in range(20)])
    cluster.run_for(2.0)
    assert cluster.replica(full).last_index == last
    assert cluster.replica(leader).matches()[full] == last
    assert cluster.leader().number == leader
    _set(cluster, Room.ENOUGH, full)
    cluster.run(cluster.converged, 5.0)


def test_without_room_on_a_majority_nothing_commits_and_nobody_leaves():
    """What was proposed commits once there is room, under the same leader."""
    cluster, leader = _cluster()
    others = _others(cluster, leader)
    _set(cluster, Room.NONE, *others)
    outcomes, term = _propose(cluster, leader, b"waits"), cluster.replica(leader).term
    cluster.run_for(5.0)
    assert outcomes == []
    assert cluster.replica(leader).room is Room.NONE
    assert cluster.replica(leader).quorum_heard
    assert (cluster.leader().number, cluster.replica(leader).term) == (leader, term)
    _set(cluster, Room.ENOUGH, *others)
    cluster.run(lambda: outcomes, 3.0)
    assert isinstance(outcomes[0], Applied)


@pytest.mark.parametrize("room", [Room.LOW, Room.NONE])
def test_a_leader_with_less_room_than_a_majority_hands_over(room):
    """And gets its shard back once it has room, by the balance of leaders."""
    cluster, leader = _cluster()
    _set(cluster, room, leader)
    cluster.run(lambda: cluster.leader() and cluster.leader().number != leader, 3.0)
    assert isinstance(cluster.propose(b"after"), Applied)


def test_all_disks_without_room_keep_their_leader():
    """There is nobody better: fetches and heartbeats go on where they are."""
    cluster, leader = _cluster()
    _set(cluster, Room.NONE, *(node.number for node in cluster.nodes))
    cluster.run_for(5.0)
    assert cluster.leader().number == leader
    confirmed = []
    cluster.replica(leader).read_index(confirmed.append)
    cluster.run(lambda: confirmed, 1.0)
    assert confirmed == [True]


def test_a_snapshot_is_not_taken_without_room():
    """A node that has fallen behind the log waits, and is made whole when it has room."""
    cluster, leader = _cluster()
    full, _ = _others(cluster, leader)
    _set(cluster, Room.NONE, full)
    applied = cluster.replica(full).applied_index
    cluster.nodes[leader].driver.replicas[0]._start_snapshot(cluster.replica(leader)._by_id[full])
    cluster.commit([b"x"])
    cluster.run_for(2.0)
    assert cluster.replica(full).applied_index == applied
    _set(cluster, Room.ENOUGH, full)
    cluster.run(cluster.converged, 20.0)


def test_a_frame_says_what_the_disk_has_room_for():
    """Nothing where it is enough, so earlier builds understand it; nonsense is refused."""
    plain, low = (codec.encode_frame(Sender(1, 2, 3, room), ()) for room in (Room(0), Room.LOW))
    assert len(low) == len(plain) + 2
    assert codec.decode_frame(low)[0].room is Room.LOW
    assert codec.decode_frame(plain)[0].room is Room.ENOUGH
    body = low[codec.CHECKSUM_BYTES : -1] + b"\x07"
    with pytest.raises(CodecError, match="disk"):
        codec.decode_frame(codec.checksum(body) + body)
