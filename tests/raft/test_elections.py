"""How soon a silent or lost leader is succeeded, and to whom leadership is not handed over."""

from musterd.raft import codec
from musterd.raft.settings import RaftSettings
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


def _leader_of_some(settings=None):
    """A cluster at rest, a node that leads, and its shards."""
    cluster = MemoryCluster(shards=SHARD_COUNT, settings=settings)
    for shard in range(SHARD_COUNT):
        cluster.wait_leader(shard)
    cluster.run_for(1.0)
    gone = cluster.leader(0).number
    return cluster, gone, [s for s in range(SHARD_COUNT) if cluster.leader(s).number == gone]


def test_survivors_that_ask_at_the_same_moment_do_not_split_their_votes():
    """Both would vote for the other: the first in the shard's order stands, in one term."""
    cluster, gone, led = _leader_of_some()
    terms = {s: cluster.replica(gone, s).term for s in led}
    _suspend(cluster, gone)
    cluster.run_for(cluster.settings.election_min_ms / 1000 - 0.01)
    survivors = [n for n in cluster.ids if n != gone]
    for shard in led:
        for number in survivors:
            cluster.replica(number, shard).set_first_deadline(30)
    assert _wait_led(cluster, led, gone) < 0.1
    after = {s: cluster.leader(s).driver.replicas[s] for s in led}
    assert {s: one.term - terms[s] for s, one in after.items()} == dict.fromkeys(led, 1)


def test_a_refused_pre_vote_is_soon_repeated():
    """A voter that notices the leader's end a little later does not cost the successor its turn."""
    cluster, gone, led = _leader_of_some()
    survivors = [n for n in cluster.ids if n != gone]
    first = survivors[led[0] % 2]
    (second,) = set(survivors) - {first}
    its_own = [s for s in led if survivors[s % 2] == first]
    _suspend(cluster, gone)
    cluster.nodes[first].driver.disconnected(gone, control=True)
    cluster.run_for(0.02)  # the other hears the leader, as far as it knows, and refuses
    cluster.nodes[second].driver.disconnected(gone, control=True)
    assert _wait_led(cluster, its_own, gone) < 0.1
    assert {cluster.leader(shard).number for shard in its_own} == {first}


def test_the_successor_asks_in_the_turn_in_which_the_connection_broke():
    """It waits for no timer: the pre-vote is on the wire when that turn ends."""
    cluster, gone, led = _leader_of_some()
    survivors = [n for n in cluster.ids if n != gone]
    first = survivors[led[0] % 2]
    _suspend(cluster, gone)
    cluster.wire.clear()
    driver = cluster.nodes[first].driver
    driver.disconnected(gone, control=True)
    assert driver.urgent, "no rest before this turn"
    cluster.now += 1e-6
    driver.turn()
    asked = {
        (target, shard)
        for source, target, frame, _ in cluster.wire
        if source == first
        for shard, message in codec.decode_frame(frame)[1]
        if message["type"] == "pre_vote"
    }
    (second,) = set(survivors) - {first}
    assert {shard for target, shard in asked if target == second} == {
        shard for shard in led if survivors[shard % 2] == first
    }


def test_a_voter_that_refused_answers_again_when_it_notices():
    """Late news of the leader's end is an answer to who asked a moment ago; nobody asks twice."""
    patient = RaftSettings(pre_vote_retry_ms=10_000)
    cluster, gone, led = _leader_of_some(patient)
    survivors = [n for n in cluster.ids if n != gone]
    first = survivors[led[0] % 2]
    (second,) = set(survivors) - {first}
    its_own = [s for s in led if survivors[s % 2] == first]
    _suspend(cluster, gone)
    cluster.nodes[first].driver.disconnected(gone, control=True)
    cluster.run_for(0.02)
    cluster.nodes[second].driver.disconnected(gone, control=True)
    assert _wait_led(cluster, its_own, gone) < 0.05
    assert {cluster.leader(shard).number for shard in its_own} == {first}


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
