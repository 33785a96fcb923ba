"""A node that starts loads its shards one after the other, while it does all else."""

from itertools import count

from musterd.raft.contract import Applied, NodeId
from musterd.raft.log_format import encode_hard_state
from musterd.raft.settings import RaftSettings
from musterd.storage import keys
from musterd.storage.store import Family
from tests.raft.memory_cluster import MemoryCluster, Recorder

SHARDS = 4


class HeldLoader(Recorder):
    """Loads one key per slice, and goes on when it is let: `held` has the machines that wait."""

    held: set

    def reload(self, view):
        self.loads += 1
        self.applied = []
        return self._load(view)

    def _load(self, view):
        for key, value in view.scan():
            while self in self.held:
                yield
            self.applied.append((int(key), value))


def restarted(down=(0,)):
    """Three nodes with an entry in each shard; those of `down` have started, and load nothing."""
    held = set()

    def machine():
        one = HeldLoader()
        one.held = held
        return one

    cluster = MemoryCluster(3, SHARDS, RaftSettings(apply_ms=0), machine)
    for shard in range(SHARDS):
        assert isinstance(cluster.propose(b"before", shard=shard), Applied)
        cluster.run(lambda shard=shard: cluster.converged(shard))
    cluster.run_for(0.5)
    for number in down:
        cluster.crash(number)
    for number in down:
        start(cluster, held, number)
    cluster.connect_all()
    return cluster, held


def start(cluster, held, number):
    """Start a node whose turns end while a load waits, since its clock moves at each look."""
    node = cluster.nodes[number]
    node.start()
    ticks = count()
    for replica in node.driver.replicas.values():
        replica._clock = lambda: cluster.now + next(ticks) * 1e-9
    held.update(node.machines.values())


def release(cluster, held, shard):
    """Let a shard be loaded, on every node."""
    held -= {node.machines[shard] for node in cluster.nodes}


def left(cluster):
    """How many shards each node has yet to load."""
    return [node.driver.loading.left for node in cluster.nodes]


def test_a_shard_that_is_loaded_serves_while_others_wait():
    """The whole cluster was down: each shard commits as soon as its leader has its state."""
    cluster, held = restarted(down=(0, 1, 2))
    cluster.run_for(3.0)
    assert left(cluster) == [SHARDS] * 3
    assert [cluster.leader(shard) for shard in range(SHARDS)] == [None] * SHARDS
    release(cluster, held, 0)
    assert isinstance(cluster.propose(b"after"), Applied)
    cluster.run_for(0.5)
    assert left(cluster) == [SHARDS - 1] * 3
    assert [cluster.leader(shard) for shard in range(1, SHARDS)] == [None] * (SHARDS - 1)
    held.clear()
    for shard in range(1, SHARDS):
        assert isinstance(cluster.propose(b"after", shard=shard), Applied)
        assert cluster.applied(cluster.leader(shard).number, shard) == [b"before", b"after"]


def test_shard_0_is_loaded_first_then_what_is_led_here():
    """All others need the topics and rules of shard 0; who leads is waited for."""
    cluster, held = restarted(down=(0, 1, 2))
    cluster.run_for(3.0)
    held.clear()
    for node in cluster.nodes:
        led = set(node.driver.led()) - {0}
        begun = []
        while node.driver.loading.left:
            node.driver.turn()
            begun += [s for s, one in node.machines.items() if one.loads and s not in begun]
        assert begun[0] == 0
        assert set(begun[1 : 1 + len(led)]) == led
        assert sorted(begun) == list(range(SHARDS))


def test_a_node_that_loads_acknowledges_entries_and_applies_them_later():
    """It has read its log: with one other node it is a majority. Its state is not touched."""
    cluster, held = restarted()
    cluster.crash(2)
    assert isinstance(cluster.propose(b"meanwhile"), Applied)
    replica = cluster.replica(0)
    cluster.run(lambda: replica.commit_index > replica.applied_index)
    assert replica.loading
    assert not replica.current
    assert not replica.ready
    assert cluster.applied(0) == []
    cluster.crash(1)
    cluster.crash(0)  # while it loads: what it acknowledged is on its disk
    held.clear()
    cluster.restart(0)
    cluster.restart(2)
    cluster.run(lambda: cluster.applied(0) == [b"before", b"meanwhile"])
    cluster.run(lambda: cluster.applied(2) == [b"before", b"meanwhile"])


def test_a_node_that_loads_is_not_handed_a_shard():
    """It has the log, would win, and could serve nobody until its state is there."""
    cluster, held = restarted()
    leader = cluster.wait_leader(other_than=0).driver.replicas[0]
    peer = leader._by_id[0]
    cluster.run(lambda: leader._match[peer] == leader._log.last_index)
    assert not leader.transfer_leadership(NodeId(0))
    held.clear()
    cluster.run(lambda: leader.transfer_leadership(NodeId(0)))
    cluster.run(lambda: cluster.replica(0).ready)


def test_a_node_never_votes_before_it_has_read_whom_it_voted_for():
    """Term, vote and log are read before anybody can reach it, and long before its state."""
    cluster, held = restarted()
    cluster.crash(0)
    store, term = cluster.nodes[0].store, 1_000
    journal = cluster.nodes[1].driver.replicas[0].journal
    cuts = journal._cuts
    store.batch.put(Family.META, keys.hard_state_key(0), encode_hard_state(term, 1, cuts))
    store.mark_hard()
    store.write()
    store.sync()
    start(cluster, held, 0)
    replica = cluster.replica(0)
    last = replica._last_log()
    asked = {"type": "request_vote", "last_log_index": last[1], "last_log_term": last[0]}
    sent = []
    replica._host.post = lambda _shard, node, message, _hold: sent.append((node, message["type"]))
    for node in (2, 1):
        replica.receive(node, {**asked, "term": term, "force": True})
    assert replica.load_waits
    assert sent == [(1, "response_vote")]


def test_a_snapshot_that_comes_takes_the_place_of_what_was_to_be_loaded():
    """What was found at start is not loaded after all, and the other shards go on."""
    cluster, held = restarted()
    replica = cluster.replica(0, shard=3)
    assert replica.load_waits
    cluster.crash(0)
    settings = RaftSettings(apply_ms=0, log_disk_bytes=256, log_trim_bytes=64, log_memory_bytes=64)
    for node in cluster.alive:
        node.driver.replicas[3].journal._settings = settings
    cluster.commit([b"%04d" % number for number in range(100)], shard=3)
    start(cluster, held, 0)
    cluster.connect_all()
    cluster.run(lambda: cluster.replica(0, shard=3)._snapshots.installed)
    assert not cluster.replica(0, shard=3).load_waits
    held.clear()
    cluster.run(lambda: not cluster.nodes[0].driver.loading.left)
    cluster.run(lambda: cluster.replica(0, shard=3).current)
    assert len(cluster.applied(0, shard=3)) == 101
    assert cluster.nodes[0].machines[3].loads == 1
