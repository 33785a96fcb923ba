"""The driver writes what entries changed later than the entries, but soon, and never in parts."""

from dataclasses import replace

import pytest

from musterd.raft.log_format import read_number
from musterd.raft.settings import SECOND_MS, RaftSettings
from musterd.storage import keys
from musterd.storage.store import Family
from tests.raft.memory_cluster import STEP_S, MemoryCluster, Recorder

SETTINGS = RaftSettings()
SOFT_S = SETTINGS.soft_ms / SECOND_MS


class Last(Recorder):
    """Keeps the last entry's index under two keys; some entries delete a range in between."""

    def apply(self, index, term, entry, batch):
        self.applied.append((index, entry))
        batch.put(b"first", b"%d" % index)
        if entry.startswith(b"delete"):
            batch.delete_prefix(b"gone")  # what deletes a range is done in order
        batch.put(b"second", b"%d" % index)

    def reload(self, view):
        self.loads += 1
        self.applied = [(int(value), b"") for key, value in view.scan() if key == b"second"]


def written(node):
    """The applied index that is written, and those that the written state says it is of."""
    state = node.store.scan(Family.STATE, b"", b"\xff")
    return read_number(node.store, keys.applied_key(0)), {int(value) for _, value in state}


def under_load(seconds, settings=SETTINGS, look=lambda cluster: None, deletes=10):
    """A cluster in which an entry comes with each step; `look` is called after it.

    Each `deletes`th deletes a range of keys.
    """
    cluster = MemoryCluster(settings=settings, machine=Last)
    cluster.commit([b"first"])
    cluster.run(cluster.converged)
    leader = cluster.leader().number
    for number in range(int(seconds / STEP_S)):
        entry = (b"put", b"delete")[number % deletes == 0]
        cluster.replica(leader).propose(entry, lambda _outcome: None)
        cluster.step()
        look(cluster)
    return cluster


def test_under_load_state_is_written_a_few_times_in_many_writes():
    """An entry is written at once, and what it changed with the next ones."""
    changes = dict.fromkeys(range(3), 0)
    before = {}

    def look(cluster):
        for node in cluster.nodes:
            now = written(node)[0]
            changes[node.number] += before.get(node.number) != now
            before[node.number] = now

    cluster = under_load(10 * SOFT_S, look=look, deletes=1_000)
    for node in cluster.nodes:
        assert node.store.written_epoch > 100
        assert 10 <= changes[node.number] <= 2 * 10 + 5


def test_under_load_and_at_rest_written_state_is_never_behind_for_long():
    """A part of `soft_ms` and a turn while entries come; `soft_ms` and a timer when none does."""
    applied_at = {}
    late = []

    def look(cluster):
        for node in cluster.nodes:
            reached = cluster.replica(node.number).applied_index
            applied_at.setdefault((node.number, reached), cluster.now)
            index = written(node)[0]
            late.extend(
                cluster.now - at
                for (number, of), at in applied_at.items()
                if number == node.number and index < of and cluster.now - at > SOFT_S
            )

    cluster = under_load(3 * SOFT_S, look=look)
    assert not late
    cluster.run(cluster.converged)
    cluster.run_for(SOFT_S + SETTINGS.timer_ms / SECOND_MS + STEP_S)
    for node in cluster.nodes:
        assert written(node)[0] == cluster.replica(node.number).applied_index


@pytest.mark.parametrize("soft_ms", [0, 100])
def test_whatever_is_written_is_the_state_of_its_applied_index(soft_ms):
    """Also where an entry deletes a range, which moves what was deferred before it."""

    def look(cluster):
        for node in cluster.nodes:
            applied, indexes = written(node)
            assert indexes <= {applied}

    under_load(0.3, replace(SETTINGS, soft_ms=soft_ms), look)


def test_after_a_power_cut_a_node_applies_again_what_was_deferred():
    """It comes back with everything that was acknowledged."""
    cluster = under_load(0.3)
    cluster.run(cluster.converged)
    leader = cluster.leader().number
    reached = cluster.replica(leader).applied_index
    assert written(cluster.nodes[leader])[0] < reached, "something is deferred"
    cluster.crash(leader)
    cluster.restart(leader)
    cluster.run(cluster.converged)
    assert cluster.replica(leader).applied_index >= reached
