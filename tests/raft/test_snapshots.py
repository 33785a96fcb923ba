"""A follower that is behind the log gets the state itself, in chunks, and never half of it."""

from random import Random

import pytest

from musterd.raft.contract import Applied, NodeId
from musterd.raft.settings import RaftSettings
from musterd.storage import keys
from musterd.storage.store import Family
from tests.raft.memory_cluster import SMALL, MemoryCluster, Recorder


def behind(cluster, entries=200):
    """Crash a follower, then commit so much that the log no longer reaches back to it."""
    cluster.commit([b"first"])
    away = next(n for n in cluster.ids if n != cluster.leader().number)
    cluster.run_for(0.3)
    cluster.crash(away)
    cluster.commit([b"%04d" % i + b"x" * 60 for i in range(entries)])
    leader = cluster.leader()
    assert leader.driver.replicas[0].journal.first_index > 3
    return away


def test_a_follower_behind_the_log_catches_up_by_snapshot_and_goes_on_with_the_log():
    """State, applied index and log are those of the others, and later entries follow as usual."""
    cluster = MemoryCluster(settings=SMALL)
    away = behind(cluster)
    cluster.restart(away)
    cluster.run(cluster.converged)
    replica = cluster.replica(away)
    assert replica._snapshots.installed == 1
    assert cluster.nodes[away].machines[0].loads == 2
    cluster.commit([b"last"])
    cluster.run(cluster.converged)
    assert cluster.applied(away) == cluster.applied(cluster.leader().number)
    assert cluster.applied(away)[-1] == b"last"


def test_what_a_snapshot_brought_survives_a_power_cut_right_after_it_was_acknowledged():
    """The flip is synced before the answer leaves, so a crash cannot take it away."""
    cluster = MemoryCluster(settings=SMALL)
    away = behind(cluster)
    cluster.restart(away)
    cluster.run(lambda: cluster.replica(away)._snapshots.installed)
    leader = cluster.leader().number
    peer = cluster.replica(leader)._by_id[away]
    index = cluster.replica(away).applied_index
    cluster.run(lambda: cluster.replica(leader)._match[peer] >= index)
    cluster.crash(away)
    cluster.restart(away)
    assert cluster.replica(away).applied_index >= index
    cluster.run(cluster.converged)
    assert cluster.applied(away) == cluster.applied(leader)


def test_a_crash_before_the_flip_is_synced_leaves_the_old_state():
    """Chunks on disk are worth nothing until the flip; the next start collects them."""
    cluster = MemoryCluster(settings=SMALL)
    away = behind(cluster)
    cluster.restart(away)
    cluster.frozen_disks.add(away)
    cluster.run(lambda: cluster.replica(away)._snapshots.installed)
    before = cluster.replica(away)._snapshots.local_id
    store = cluster.nodes[away].store
    survivors = len(store._unsynced) - 1
    flip = next(
        n
        for n, (_, ops) in enumerate(store._unsynced)
        if any(op[2] == keys.snapshot_id_key(0) for op in ops)
    )
    cluster.crash(away, survivors=min(flip, survivors))
    cluster.frozen_disks.clear()
    cluster.restart(away)
    replica = cluster.replica(away)
    assert replica._snapshots.local_id == before - 1
    cluster.load(away)
    assert cluster.applied(away) == [b"first"]
    cluster.run(cluster.converged)
    assert cluster.applied(away) == cluster.applied(cluster.leader().number)
    cluster.run_for(0.3)
    start, end = keys.state_range(0, 0)[0], keys.state_range(0, replica._snapshots.local_id)[0]
    assert list(cluster.nodes[away].store.scan(Family.STATE, start, end)) == []


@pytest.mark.parametrize("seed", range(5))
def test_lost_repeated_and_reordered_chunks_change_nothing(seed):
    """Only the whole snapshot in its order is installed, whatever the network does."""
    cluster = MemoryCluster(settings=SMALL)
    away = behind(cluster)
    random = Random(seed)
    cluster.restart(away)

    def shake():
        frames = list(cluster.wire)
        frames = [f for f in frames if random.random() > 0.2]
        frames += [f for f in frames if random.random() < 0.2]
        random.shuffle(frames)
        cluster.wire.clear()
        cluster.wire.extend(frames)
        return cluster.replica(away)._snapshots.installed

    cluster.run(shake, limit_s=60)
    cluster.run(cluster.converged, limit_s=20)
    assert cluster.applied(away) == cluster.applied(cluster.leader().number)


def test_a_damaged_chunk_is_never_installed():
    """The checksum covers all chunks; a flipped bit makes the transfer begin again."""
    cluster = MemoryCluster(settings=SMALL)
    away = behind(cluster)
    cluster.restart(away)
    snapshots = cluster.replica(away)._snapshots
    damaged = []
    take = snapshots.setTransmissionData

    def damage(data):
        leader, chunk = data
        if chunk["number"] == 2 and not damaged:
            damaged.append(chunk["number"])
            chunk = {**chunk, "pairs": chunk["pairs"][:-1] + b"\x00"}
        return take((leader, chunk))

    snapshots.setTransmissionData = damage
    cluster.run(lambda: damaged)
    cluster.run(cluster.converged, limit_s=40)
    assert cluster.applied(away) == cluster.applied(cluster.leader().number)


@pytest.mark.parametrize("killed", ["sender", "receiver"])
def test_a_node_that_is_killed_in_the_middle_of_a_snapshot_leaves_no_half_state(killed):
    """The receiver has the old state until the whole new one came, from whoever leads then."""
    cluster = MemoryCluster(settings=SMALL)
    away = behind(cluster)
    leader = cluster.leader().number
    cluster.restart(away)
    snapshots, taken = cluster.replica(away)._snapshots, []
    take = snapshots.setTransmissionData

    def count(data):
        taken.append(data)
        return take(data)

    snapshots.setTransmissionData = count
    cluster.run(lambda: len(taken) >= 3)
    assert not snapshots.installed
    victim = leader if killed == "sender" else away
    cluster.crash(victim)
    if killed == "sender":
        assert cluster.applied(away) == [b"first"]
        cluster.run(lambda: cluster.leader() is not None, limit_s=40)
    cluster.restart(victim)
    if killed == "receiver":
        cluster.load(away)
        assert cluster.applied(away) == [b"first"]
    cluster.run(cluster.converged, limit_s=40)
    assert cluster.applied(away) == cluster.applied(cluster.leader().number)
    assert len(cluster.applied(away)) == 201


class Forgetful(Recorder):
    """Deletes all that it kept when it is told to."""

    def apply(self, index, term, entry, batch):
        if entry == b"forget":
            for key, _ in self.applied:
                batch.delete(b"%016d" % key)
            self.applied = []
        return super().apply(index, term, entry, batch)


def test_what_a_given_up_transfer_brought_is_no_part_of_the_next_state():
    """A key that was deleted between two transfers does not come back with the second one."""
    cluster = MemoryCluster(settings=SMALL, machine=Forgetful)
    away = behind(cluster)
    cluster.restart(away)
    snapshots = cluster.replica(away)._snapshots
    cluster.run(lambda: snapshots._arriving is not None and snapshots._arriving.next_number > 1)
    for other in set(cluster.ids) - {away}:
        cluster.disconnect(away, other)
        cluster.cut.add(frozenset((away, other)))
    arrived = keys.state_range(0, snapshots.local_id + 1)
    cluster.run(lambda: list(cluster.nodes[away].store.scan(Family.STATE, *arrived)))
    cluster.commit([b"forget", b"kept"])
    assert snapshots.installed == 0
    cluster.cut.clear()
    cluster.connect_all()
    cluster.run(cluster.converged)
    assert snapshots.installed == 1
    assert cluster.applied(away) == cluster.applied(cluster.leader().number) == [b"forget", b"kept"]


def test_an_older_snapshot_is_not_installed_over_a_newer_log():
    """pso-F5c: what is applied here never goes back."""
    cluster = MemoryCluster(settings=SMALL)
    cluster.commit([b"%d" % i for i in range(5)])
    cluster.run(cluster.converged)
    leader = cluster.leader()
    follower = next(n for n in cluster.ids if n != leader.number)
    sender = leader.driver.replicas[0]
    assert sender._snapshots.start(follower)
    cluster.commit([b"more"])
    cluster.run(cluster.converged)
    sender._send_chunks(sender._by_id[follower])
    cluster.run(lambda: not sender._snapshots.sending(follower))
    assert cluster.replica(follower)._snapshots.installed == 0
    assert cluster.applied(follower)[-1] == b"more"


class SlowLoader(Recorder):
    """Loads one key per slice."""

    def reload(self, view):
        self.loads += 1
        self.applied = []
        return self._load(view)

    def _load(self, view):
        for key, value in view.scan():
            self.applied.append((int(key), value))
            yield


def slowly_loading():
    """A cluster of two shards, and a node that loads a snapshot of the first for many turns."""
    settings = RaftSettings(
        log_disk_bytes=4096, log_trim_bytes=512, log_memory_bytes=1024, apply_ms=0
    )
    cluster = MemoryCluster(settings=settings, machine=SlowLoader, shards=2)
    away = behind(cluster)
    cluster.restart(away)
    replica = cluster.replica(away)
    ticking = [0.0]

    def late_clock():
        ticking[0] += 1e-6
        return cluster.now + ticking[0]

    replica._clock = late_clock
    cluster.run(lambda: replica.loading)
    return cluster, away


def test_a_shard_loads_in_slices_while_the_others_go_on():
    """While one shard loads for many turns, another one of the same node commits."""
    cluster, away = slowly_loading()
    replica = cluster.replica(away)
    assert isinstance(cluster.propose(b"other shard", shard=1), Applied)
    cluster.run(lambda: cluster.applied(away, shard=1) == [b"other shard"])
    assert replica.loading
    assert not replica.current  # though its applied index is the newest already
    cluster.run(lambda: not replica.loading, limit_s=20)
    cluster.run(lambda: replica.current)
    cluster.run(cluster.converged)
    assert cluster.applied(away) == cluster.applied(cluster.leader().number)


def test_a_shard_is_not_handed_over_to_a_replica_that_loads_its_state():
    """It has the log, would win, and could serve nobody until the state is there."""
    cluster, away = slowly_loading()
    leader = cluster.replica(cluster.leader().number)
    peer = leader._by_id[away]
    cluster.run(lambda: leader._match[peer] == leader._log.last_index)
    assert cluster.replica(away).loading
    assert not leader.transfer_leadership(NodeId(away))
    cluster.run(lambda: not cluster.replica(away).loading, limit_s=20)
    cluster.run(lambda: leader.transfer_leadership(NodeId(away)))
    cluster.run(lambda: cluster.replica(away).ready)


def test_a_replica_with_much_to_apply_says_so():
    """Up to what one message holds is applied before anybody notices."""
    cluster = MemoryCluster()
    cluster.commit([b"first"])
    follower = cluster.replica(next(n for n in cluster.ids if n != cluster.leader().number))
    assert not follower._is_behind
    follower._told_commit = follower.applied_index + follower._settings.message_entries
    assert not follower._is_behind
    follower._told_commit += 1
    assert follower._is_behind


def test_a_node_that_stood_still_gets_from_the_next_leader_what_it_misses_not_the_whole_state():
    """What the leader sends meanwhile counts as lost, before it knows where their logs match."""
    cluster = MemoryCluster()
    cluster.commit([b"before"] * 10)
    first = cluster.leader().number
    cluster.stopped.add(first)
    cluster.commit([b"meanwhile"] * 10)
    cluster.run_for(3.0)
    cluster.stopped.discard(first)
    cluster.run(cluster.converged)
    assert cluster.applied(first) == [b"before"] * 10 + [b"meanwhile"] * 10
    assert [cluster.replica(number)._snapshots.installed for number in cluster.ids] == [0, 0, 0]
