"""How soon a silent or lost leader is succeeded, and to whom leadership is not handed over."""

import pytest

from tests.raft.memory_cluster import MemoryCluster

SHARD_COUNT = 8


def _suspend(cluster, number):
    """SIGSTOP: its connections stand, and nothing moves."""
    node = cluster.nodes[number]
    driver, node.driver = node.driver, None
    return driver


def _wait_led(cluster, shards, gone):
    def led():
        leaders = [cluster.leader(shard) for shard in shards]
        return all(leader is not None and leader.number != gone for leader in leaders)

    began = cluster.now
    cluster.run(led)
    return cluster.now - began


def _leads(cluster, shard):
    return cluster.wait_leader(shard).number


@pytest.mark.parametrize("seed_shift", range(4))
def test_survivors_of_a_suspended_leader_do_not_split_their_votes(seed_shift):
    """One term each: whoever would vote for the other leaves the election to it."""
    cluster = MemoryCluster(shards=SHARD_COUNT)
    for shard in range(SHARD_COUNT):
        cluster.wait_leader(shard)
    cluster.run_for(1.0 + 0.037 * seed_shift)
    gone = _leads(cluster, 0)
    led = [s for s in range(SHARD_COUNT) if cluster.leader(s).number == gone]
    terms = {s: cluster.replica(gone, s).term for s in led}
    _suspend(cluster, gone)
    took_s = _wait_led(cluster, led, gone)
    longest_s = cluster.settings.election_max_ms / 1000
    assert took_s < longest_s + 0.3
    assert {s: cluster.leader(s).driver.replicas[s].term - terms[s] for s in led} == dict.fromkeys(
        led, 1
    )


def test_a_refused_pre_vote_is_soon_repeated():
    """A voter that notices the leader's end later than its successor costs tens of ms, no more."""
    cluster = MemoryCluster(shards=SHARD_COUNT)
    for shard in range(SHARD_COUNT):
        cluster.wait_leader(shard)
    cluster.run_for(1.0)
    gone = _leads(cluster, 0)
    led = [s for s in range(SHARD_COUNT) if cluster.leader(s).number == gone]
    first, second = (n for n in cluster.ids if n != gone)
    _suspend(cluster, gone)
    cluster.nodes[first].driver.disconnected(gone, control=True)
    cluster.run_for(0.02)  # the other still hears the leader, as far as it knows, and refuses
    cluster.nodes[second].driver.disconnected(gone, control=True)
    assert _wait_led(cluster, led, gone) < 0.15


def test_leadership_is_not_handed_to_a_node_that_is_suspended():
    """Its connection stands and its log may be complete, but it does not answer."""
    cluster = MemoryCluster()
    leader = cluster.wait_leader()
    cluster.commit([b"a", b"b"])
    replica = cluster.replica(leader.number)
    target = next(n for n in cluster.ids if n != leader.number)
    cluster.run_for(0.3)
    awake = cluster.nodes[target].driver
    _suspend(cluster, target)
    cluster.run_for(cluster.settings.quorum_ms / 1000 + 0.1)
    assert not replica.transfer_leadership(target)
    assert replica.ready
    cluster.nodes[target].driver = awake
    cluster.run_for(0.3)
    assert replica.transfer_leadership(target)
