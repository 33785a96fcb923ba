"""A leader whose fsync hangs leaves its shards to others, and leads nothing until it returns."""

import pytest

from musterd.raft import codec
from musterd.raft.contract import Applied, Unknown
from musterd.raft.sync_watch import SyncWatch
from tests.raft.memory_cluster import MemoryCluster

SHARDS = 4
GONE_S = 3.0 + 1.0 + 3 * 0.7
"""The limit, a hand-over that nobody takes, and elections."""


def _cluster(**more):
    cluster = MemoryCluster(**more)
    cluster.wait_leader()
    cluster.commit([b"before"])
    cluster.run_for(1.0)
    return cluster, cluster.leader().number


def _hang(cluster, number):
    """No sync of this node returns from now on."""
    cluster.frozen_disks.add(number)


def _propose(cluster, number, entry, shard=0):
    outcomes = []
    cluster.replica(number, shard).propose(entry, outcomes.append)
    return outcomes


def _led_by_another(cluster, number, shard=0):
    leader = cluster.leader(shard)
    return leader is not None and leader.number != number


def _sent(cluster, number, kinds):
    """What this node sends from now on, of these kinds."""
    node, found = cluster.nodes[number], []
    send = node.send

    def spied(to, frame, bulk):
        found.extend(m for _, m in codec.decode_frame(frame)[1] if m["type"] in kinds)
        return send(to, frame, bulk)

    node.send = spied
    return found


def test_proposals_of_a_leader_whose_sync_hangs_are_committed_by_another_one():
    """It has waiting proposals all the time: their outcome is unknown to it, and one of them."""
    cluster, stalled = _cluster()
    _hang(cluster, stalled)
    outcomes = _propose(cluster, stalled, b"waiting")
    cluster.run(lambda: _led_by_another(cluster, stalled), GONE_S)
    assert [type(one) for one in outcomes] == [Unknown]
    assert isinstance(cluster.propose(b"after"), Applied)
    other = cluster.leader().number
    assert cluster.applied(other) == [b"before", b"waiting", b"after"]


def test_a_follower_that_has_everything_is_asked_to_stand_at_once():
    """Nobody waits for an election timeout: what asks for it does not wait for the hung sync."""
    cluster, stalled = _cluster()
    _hang(cluster, stalled)
    _propose(cluster, stalled, b"waiting")
    cluster.run(lambda: not cluster.replica(stalled).ready)
    began = cluster.now
    cluster.run(lambda: _led_by_another(cluster, stalled))
    assert cluster.now - began < cluster.settings.election_min_ms / 1000


def test_the_sync_may_take_up_to_the_limit():
    """A disk that is slow deposes nobody."""
    cluster, stalled = _cluster()
    term = cluster.replica(stalled).term
    _hang(cluster, stalled)
    outcomes = _propose(cluster, stalled, b"waiting")
    cluster.run_for(cluster.settings.sync_stall_ms / 1000 - 0.2)
    cluster.frozen_disks.clear()
    cluster.run(lambda: outcomes)
    assert [type(one) for one in outcomes] == [Applied]
    assert cluster.replica(stalled).term == term


def test_a_leader_steps_down_where_nobody_can_take_over():
    """Its followers lack what it has: they elect one of them when they miss it."""
    cluster, stalled = _cluster()
    _hang(cluster, stalled)
    cluster.replica(stalled)._may_take_over = lambda _: False
    outcomes = _propose(cluster, stalled, b"waiting")
    cluster.run(lambda: _led_by_another(cluster, stalled), GONE_S)
    assert [type(one) for one in outcomes] == [Unknown]
    assert isinstance(cluster.propose(b"after"), Applied)


def test_a_hand_over_that_nobody_takes_ends_in_stepping_down():
    """The follower that was asked to stand does not: a second later the leader goes."""
    cluster, stalled = _cluster()
    _hang(cluster, stalled)
    for other in set(cluster.ids) - {stalled}:
        cluster.replica(other)._on_timeout_now = lambda *_: None
    _propose(cluster, stalled, b"waiting")
    cluster.run(lambda: _led_by_another(cluster, stalled), GONE_S)
    assert isinstance(cluster.propose(b"after"), Applied)


def test_a_new_leader_whose_no_op_never_syncs_is_succeeded():
    """It is elected, and its disk hangs before it could serve anybody."""
    cluster, first = _cluster()
    rising = (first + 1) % 3
    store = cluster.nodes[rising].store
    sync = store.sync
    store.sync = lambda: None if cluster.replica(rising).leads else sync()
    cluster.replica(first).transfer_leadership(rising)
    cluster.run(lambda: cluster.replica(rising).leads)
    _hang(cluster, rising)
    assert not cluster.replica(rising).ready
    cluster.run(lambda: cluster.leader() is not None, GONE_S)
    assert cluster.leader().number != rising
    assert isinstance(cluster.propose(b"after"), Applied)


def test_while_its_sync_hangs_a_node_neither_asks_for_pre_votes_nor_grants_any():
    """Nor is it elected: its promises could not be kept, and its answers only delay others."""
    cluster, stalled = _cluster()
    _hang(cluster, stalled)
    _propose(cluster, stalled, b"waiting")
    cluster.run(lambda: _led_by_another(cluster, stalled), GONE_S)
    said = _sent(cluster, stalled, {"pre_vote", "pre_vote_reply", "request_vote", "response_vote"})
    second = cluster.leader().number
    cluster.crash(second)
    cluster.run_for(5.0)
    assert said == []
    assert not cluster.replica(stalled).leads
    assert cluster.leader() is None  # two of three, and one of them can promise nothing
    cluster.frozen_disks.clear()
    cluster.run(lambda: cluster.leader() is not None)
    assert isinstance(cluster.propose(b"after"), Applied)


def test_a_node_whose_sync_hangs_is_no_target_of_a_hand_over():
    """A leader that drains or balances would only stop for a second."""
    cluster, leader = _cluster()
    other, stalled = sorted(set(cluster.ids) - {leader})
    _hang(cluster, stalled)
    cluster.commit([b"one that it lacks on its disk"])
    cluster.run_for(cluster.settings.sync_stall_ms / 1000 + 0.5)
    assert not cluster.replica(leader).transfer_leadership(stalled)
    assert cluster.replica(leader).transfer_leadership(other)


def test_a_node_whose_sync_hangs_does_not_stand_where_it_is_asked_to():
    """Somebody that has not heard of it yet hands over to it. Nor does it when the sync returns."""
    cluster, leader = _cluster()
    stalled = min(set(cluster.ids) - {leader})
    _hang(cluster, stalled)
    cluster.commit([b"one that it lacks on its disk"])
    cluster.run_for(cluster.settings.sync_stall_ms / 1000 + 0.5)
    term = cluster.replica(leader).term
    peer = cluster.replica(stalled)._by_id[leader]
    cluster.replica(stalled)._on_timeout_now(peer, {"type": "timeout_now", "term": term})
    cluster.run_for(1.0)
    assert {cluster.replica(n).term for n in cluster.ids} == {term}
    cluster.frozen_disks.clear()
    cluster.run_for(3.0)
    assert {cluster.replica(n).term for n in cluster.ids} == {term}


def test_a_drain_does_not_wait_for_a_sync_that_hangs():
    """SIGTERM a moment after the hang began: what asks the follower to stand leaves at once."""
    cluster, stalled = _cluster()
    _hang(cluster, stalled)
    cluster.replica(stalled)._append_own(b"\x01unanswered")
    cluster.run_for(0.2)
    cluster.nodes[stalled].driver.drain()
    cluster.run(lambda: not cluster.nodes[stalled].driver.led(), 1.0)


def test_a_drain_with_proposals_that_never_commit_ends_after_the_limit():
    """The hand-over that waits for them would wait for the same sync."""
    cluster, stalled = _cluster()
    _hang(cluster, stalled)
    outcomes = _propose(cluster, stalled, b"waiting")
    cluster.run_for(0.2)
    cluster.nodes[stalled].driver.drain()
    cluster.run(lambda: not cluster.nodes[stalled].driver.led(), GONE_S)
    assert [type(one) for one in outcomes] == [Unknown]


def test_the_only_node_of_a_cluster_goes_on_leading():
    """There is nobody to hand over to; it commits when the sync returns."""
    cluster, alone = _cluster(nodes=1)
    _hang(cluster, alone)
    outcomes = _propose(cluster, alone, b"waiting")
    cluster.run_for(5.0)
    assert outcomes == []
    assert cluster.replica(alone).leads
    cluster.frozen_disks.clear()
    cluster.run(lambda: outcomes)
    assert [type(one) for one in outcomes] == [Applied]


def test_all_shards_are_left():
    """Each to a follower of its own choice."""
    cluster, stalled = _cluster(shards=SHARDS)
    for shard in range(SHARDS):
        cluster.wait_leader(shard)
    led = [s for s in range(SHARDS) if cluster.replica(stalled, s).leads]
    _hang(cluster, stalled)
    _propose(cluster, stalled, b"waiting")
    cluster.run(lambda: all(_led_by_another(cluster, stalled, s) for s in led), GONE_S)


def test_a_node_that_stood_still_does_not_take_that_for_a_hung_sync():
    """SIGSTOP for longer than the limit, with a write under way."""
    cluster, alone = _cluster(nodes=1)
    _hang(cluster, alone)
    outcomes = _propose(cluster, alone, b"waiting")
    cluster.run_for(0.1)
    cluster.now += 60.0
    cluster.step()
    assert cluster.nodes[alone].driver.unsynced_s < 1.0
    assert not cluster.nodes[alone].driver.disk_hangs
    cluster.frozen_disks.clear()
    cluster.run(lambda: outcomes)
    assert cluster.nodes[alone].driver.unsynced_s == 0.0


@pytest.mark.parametrize("nodes", [1, 3])
def test_after_the_last_limit_the_disk_counts_as_lost(nodes):
    """Whoever runs the node ends the process then."""
    cluster, stalled = _cluster(nodes=nodes)
    _hang(cluster, stalled)
    _propose(cluster, stalled, b"waiting")
    driver = cluster.nodes[stalled].driver
    cluster.run_for(cluster.settings.sync_end_ms / 1000 - 0.5)
    assert not driver.disk_is_lost
    assert driver.unsynced_s > 22.0
    cluster.run(lambda: driver.disk_is_lost, 1.0)


def test_the_age_is_that_of_the_oldest_write_that_is_not_synced():
    """Later writes do not make it younger; an earlier sync than theirs does."""
    watch = SyncWatch(10.0)
    watch.look(10.0, hard_epoch=5, synced_epoch=5)
    assert watch.age_s == 0.0
    watch.look(10.1, hard_epoch=6, synced_epoch=5)
    watch.look(10.2, hard_epoch=8, synced_epoch=5)
    watch.look(10.25, hard_epoch=8, synced_epoch=5)
    assert watch.age_s == pytest.approx(0.15)
    watch.synced(7)
    assert watch.age_s == pytest.approx(0.05)
    watch.synced(8)
    assert watch.age_s == 0.0
