"""The first fault of a kind hits a node of which probes can say what it costs, later ones any."""

import tempfile
from random import Random

import pytest

from muster.admin.operator_secret import CLEAR_VARIABLE, FILE_VARIABLE, METADATA_KEY
from muster.v1 import admin_pb2
from musterd.chaos.faults.contract import one_of, some_of
from musterd.chaos.run.installation import Installation
from musterd.chaos.run.runner import Runner
from musterd.chaos.run.schedule import Schedule
from musterd.chaos.run.target_cluster import OwnWorld, TargetClusterError
from musterd.chaos.run.view import View
from musterd.chaos.workloads.catalog import Setting, plan
from tests.chaos.faults.portless import Portless

PROBED = frozenset({0, 1})
LED = {0: 2, 1: 2, 2: 0, 3: 0, 4: 0}
"""Node 2 leads what is probed, node 0 leads most, node 1 nothing."""
SEEDS = range(40)


@pytest.fixture(autouse=True)
def _folders(monkeypatch, tmp_path):
    """A cluster makes its folder when it is made, and removes it when it is closed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


class Three:
    """Three nodes that can be killed."""

    nodes = (0, 1, 2)

    def __init__(self, led=LED, probed=lambda: PROBED):
        self._led, self._probed = led, probed

    @property
    def probed(self):
        return self._probed()

    def leaders(self):
        return self._led

    def running(self):
        return [0, 1, 2]

    def followers(self):
        return [1, 2]

    def kill(self, node_id):
        pass

    def start_if_down(self, node_id):
        pass


def test_a_node_that_leads_what_is_probed_is_drawn_where_there_is_one():
    """Else any of them; without probes what a node leads does not matter."""

    def drawn(world, nodes):
        return {one_of(world, nodes, Random(seed)) for seed in SEEDS}

    assert drawn(Three(), [0, 1, 2]) == {2}
    assert drawn(Three(), [0, 1]) == {0, 1}
    assert drawn(Three(led={}), [0, 1, 2]) == {0, 1, 2}
    assert drawn(Three(probed=frozenset), [0, 1, 2]) == {0, 1, 2}


def test_of_several_nodes_one_leads_what_is_probed():
    """The others are drawn from all; none comes twice."""
    drawn = {tuple(some_of(Three(), [0, 1, 2], 2, Random(seed))) for seed in SEEDS}
    assert drawn == {(2, 0), (2, 1)}
    assert sorted(some_of(Three(), [0, 1, 2], 3, Random(1))) == [0, 1, 2]


@pytest.mark.parametrize(
    ("kind", "all_of_them"),
    [("kill_follower", {"node-1", "node-2"}), ("kill_two_then_restart", {"node-0", "node-1"})],
)
def test_the_first_fault_of_each_kind_hits_who_leads_what_is_probed(kind, all_of_them):
    """The second one also hits nodes that lead nothing."""
    later = set()
    for seed in SEEDS:
        cluster = OwnWorld(3, Portless(), [kind])
        cluster.world = Three(probed=cluster.world._probed)
        assert "node-2" in cluster.inject(kind, seed, PROBED).targets
        later.update(cluster.inject(kind, seed, PROBED).targets)
        cluster.inject("kill_follower", seed, PROBED)
    assert later >= all_of_them


def test_a_run_knows_what_its_probes_are_at(tmp_path):
    """Two shards for each node, as they are spread when all is well."""
    cluster = OwnWorld(3, Portless(), ["kill_leader"])
    made = plan((), Setting("p", "p", 3, cluster.shards, tmp_path))
    runner = Runner(cluster, made, Schedule(1, 3, 1.0, ()), tmp_path, 1, View())
    assert runner.probed == {0, 1, 2, 3, 4, 5}


def test_on_a_cluster_of_the_users_it_is_the_same(monkeypatch):
    """By what its nodes say that they lead."""
    views = {n: admin_pb2.DescribeClusterResponse(node_id=n) for n in range(3)}
    for shard, node in LED.items():
        views[node].shard_states.add(shard=shard, role="Leader")
    monkeypatch.setattr(Installation, "_views", lambda _: views)
    later = set()
    for seed in SEEDS:
        cluster = Installation(["nowhere:1"], "./hook", ["eio", "isolate_follower"])
        for kind in ("eio", "isolate_follower"):
            assert cluster._target(kind, Random(seed), PROBED) == 2
        assert cluster._target("pause_leader", Random(seed), PROBED) == 0
        later.add(
            (
                cluster._target("eio", Random(seed), PROBED),
                cluster._target("isolate_follower", Random(seed), PROBED),
            )
        )
    assert {node for node, _ in later} == {0, 1, 2}
    assert {node for _, node in later} == {1, 2}


def test_the_admin_secret_of_a_cluster_of_the_users_does_not_go_in_the_clear(monkeypatch, tmp_path):
    """But on loopback, and where its user says so."""
    secret = tmp_path / "admin.secret"
    secret.write_text("0123456789abcdef")
    monkeypatch.setenv(FILE_VARIABLE, str(secret))
    cluster = Installation(["nowhere:1"], "", [])
    assert dict(cluster._shown("127.0.0.1:1")) == {METADATA_KEY: b"0123456789abcdef"}
    with pytest.raises(TargetClusterError, match=f"nowhere:1 in the clear.*{CLEAR_VARIABLE}"):
        cluster._shown("nowhere:1")
    monkeypatch.setenv(CLEAR_VARIABLE, "true")
    assert cluster._shown("nowhere:1")
