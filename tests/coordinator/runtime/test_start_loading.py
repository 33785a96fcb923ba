"""A shard whose state is not loaded answers for no group, and vouches for nothing."""

import pytest

from musterd.coordinator.machine.replies import Committed
from musterd.coordinator.node.assembly import Integrity
from musterd.coordinator.runtime.answers import Loading
from musterd.coordinator.runtime.sessions import MemberKey
from musterd.raft.settings import RaftSettings
from tests.coordinator.fakes import commit
from tests.coordinator.shard_cluster import FIRST, GROUP, grown, offset_of


@pytest.fixture
def loading(monkeypatch):
    """A cluster of one with a group, which has started and is held before its first record."""
    cluster = grown(1, {}, RaftSettings(load_ms=0))
    cluster.lead(0)
    cluster.checkpoint()
    cluster.crash(0, survivors=len(cluster.nodes[0].store._unsynced))
    held = [True]
    cluster.restart(0)
    shard = cluster.shard(0)
    load = shard.persist.load_in_slices

    def slowly(view):
        while held[0]:
            yield
        return (yield from load(view))

    monkeypatch.setattr(shard.persist, "load_in_slices", slowly)
    replica = cluster.replica(0)
    looks = iter(range(1, 1 << 40))
    monkeypatch.setattr(replica, "_clock", lambda: cluster.now + next(looks) * 1e-9)
    cluster.run(lambda: replica.leads)
    cluster.run_for(1.0)
    return cluster, held


def test_a_shard_that_is_not_loaded_answers_that_it_loads(loading):
    """Not that there is no such group, nor that nothing is committed. The SDK asks again."""
    cluster, held = loading
    shard, answers = cluster.shard(0), []
    assert shard.coordinator_state.name == "LOADING"
    assert not shard.has_state
    assert not shard.current
    shard.submit(commit("", -1, 8, group=GROUP), 1_000, answers.append)
    assert answers == [Loading()]
    assert shard.heartbeat(MemberKey(GROUP, "m"), 1) == Loading()
    read = []
    shard.read(read.append)
    assert read == [False]
    held[0] = False
    cluster.run(lambda: shard.coordinator_state.name == "SERVING")
    assert shard.has_state
    assert offset_of(cluster, 0) == FIRST
    assert isinstance(cluster.ask(commit("", -1, 8, group=GROUP)), Committed)


def test_a_shard_that_is_not_loaded_vouches_for_nothing(loading):
    """Neither do its old checkpoints count, nor is its empty state compared with anything."""
    cluster, held = loading
    shard = cluster.shard(0)
    assert cluster.verifiers[0].own_checkpoints([]) == []
    assert shard.checkpoint_soon() is False
    held[0] = False
    cluster.run(lambda: shard.coordinator_state.name == "SERVING")
    cluster.checkpoint()
    assert cluster.verifiers[0].own_checkpoints([])


def test_the_memory_of_a_shard_that_is_not_loaded_is_not_compared_with_its_disk(loading):
    """The node says "ask again" until what is in memory is what is on disk."""
    cluster, held = loading
    shard = cluster.shard(0)
    node = Integrity.__new__(Integrity)
    node._driver, node._shards = cluster.nodes[0].driver, [shard]
    assert node.freeze(0) is None
    held[0] = False
    cluster.run(lambda: shard.coordinator_state.name == "SERVING")
    cluster.run(lambda: node.freeze(0) is not None)
    frozen = node.freeze(0)
    assert frozen.digest == shard.state.digest
