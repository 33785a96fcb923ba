"""What arrives at rest costs no tick, and whatever leaves something to do has one."""

from musterd.raft.contract import ShardId
from tests.raft.memory_cluster import MemoryCluster, Recorder

HEARTBEAT_S = 0.1


def _at_rest() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.commit([b"one", b"two"])
    cluster.run(cluster.converged)
    cluster.run_for(3 * HEARTBEAT_S)
    return cluster


def test_a_heartbeat_costs_a_tick_of_the_leader_and_none_of_a_follower():
    """Ticks were four fifths of what consensus took of an idle node's CPU."""
    cluster = _at_rest()
    leader = cluster.wait_leader()
    before = {node.number: node.driver.stats.ticks for node in cluster.nodes}
    heard = {node.number: node.driver.stats.messages_in for node in cluster.nodes}
    cluster.run_for(10 * HEARTBEAT_S)
    for node in cluster.nodes:
        assert node.driver.stats.messages_in - heard[node.number] >= 9
        ticks = node.driver.stats.ticks - before[node.number]
        if node is leader:
            assert 9 <= ticks <= 11
        else:
            assert ticks == 0


def test_followers_apply_with_the_message_that_tells_them():
    """A commit index that moved wants a tick, though the append is empty."""
    cluster = _at_rest()
    cluster.commit([b"three"])
    cluster.run(cluster.converged, limit_s=2 * HEARTBEAT_S)
    assert all(cluster.applied(number)[-1] == b"three" for number in cluster.ids)


def test_a_read_is_answered_by_the_echo_and_not_by_the_next_heartbeat():
    """ReadIndex costs one round trip, also where nothing else happens."""
    cluster = _at_rest()
    answers: list[bool] = []
    began = cluster.now
    cluster.wait_leader().driver.replicas[ShardId(0)].read_index(answers.append)
    cluster.run(lambda: answers)
    assert answers == [True]
    assert cluster.now - began < HEARTBEAT_S / 4


def test_a_follower_that_lost_an_append_gets_it_again():
    """The leader's answer to a reset is a tick that sends from where the follower stands."""
    cluster = _at_rest()
    behind = next(node for node in cluster.nodes if node is not cluster.wait_leader())
    leader = cluster.wait_leader().number
    link = frozenset((leader, behind.number))
    cluster.cut.add(link)
    cluster.commit([b"three", b"four"])
    cluster.cut.discard(link)
    cluster.run(cluster.converged, limit_s=1.0)
    assert cluster.applied(behind.number)[-2:] == [b"three", b"four"]


def test_a_node_whose_shards_all_catch_up_takes_short_turns():
    """30 entries of 2 ms in each of eight shards: 10 ms for all, then one entry for each left."""
    clusters = []

    class Slow(Recorder):
        def apply(self, index, term, entry, batch):
            clusters[0].now += 0.002
            return super().apply(index, term, entry, batch)

    cluster = MemoryCluster(shards=8, machine=Slow)
    clusters.append(cluster)
    away = next(n for n in cluster.ids if n != cluster.wait_leader().number)
    cluster.crash(away)
    for shard in range(8):
        cluster.commit([b"%d" % i for i in range(30)], shard)
    cluster.restart(away)
    turns = []
    driver = cluster.nodes[away].driver
    turn = driver.turn

    def timed():
        began = cluster.now
        turn()
        turns.append(cluster.now - began)

    driver.turn = timed
    cluster.run(lambda: all(len(cluster.applied(away, shard)) == 30 for shard in range(8)))
    assert 0.008 < max(turns) <= 0.012 + 7 * 0.002 + 1e-6
