"""`muster cluster upgrade`: levels of a scripted cluster, and its finalisation."""

import json

import pytest

from muster.v1 import admin_pb2 as pb


@pytest.fixture
def mixed(cluster):
    """Node 2 has the former release, the others know level 6."""
    for node in cluster.nodes:
        view = node.script["DescribeCluster"]
        for one in view.nodes:
            one.level = 5 if one.node_id == 2 else 6
        if node.node_id == 2:
            for one in view.nodes:
                one.level = 0
            continue
        view.level = 5
        view.later_levels.add(level=6, text="levels")
    return cluster


def upgrade(cluster):
    """Node 2 gets the release."""
    for node in cluster.nodes:
        view = node.script["DescribeCluster"]
        view.level = 5
        for one in view.nodes:
            one.level = 6


def finalized(cluster):
    """What was asked for, by node."""
    return [
        (node.node_id, request.level)
        for node in cluster.nodes
        for name, request in node.calls
        if name == "FinalizeLevel"
    ]


def test_each_nodes_level_and_what_finalising_brings_are_shown(mixed, muster):
    """Nothing is asked for."""
    ran = muster("cluster", "upgrade")
    assert ran.exit_code == 0
    assert ran.out == (
        "NODE  STATUS  VERSION  LEVEL\n"
        "1     up      0.1.0    6\n"
        "2     up      0.1.0    5\n"
        "3     up      0.1.0    6\n"
        "\n"
        "CLUSTER-LEVEL  ALL-NODES-KNOW  RESULT\n"
        "5              5               not finalised\n"
        "\n"
        "FINALISING-BRINGS\n"
        "levels\n"
    )
    assert finalized(mixed) == []


def test_a_node_that_does_not_know_the_level_is_named_before_anything_is_asked(mixed, muster):
    """Exit 4."""
    ran = muster("cluster", "upgrade", "--finalize", "--yes")
    assert (ran.exit_code, finalized(mixed)) == (4, [])
    assert "node 2 has not said that it knows a level above 5" in ran.err


def test_finalising_asks_first_and_then_is_for_good(mixed, muster):
    """Without a terminal it needs --yes; a dry run changes nothing."""
    upgrade(mixed)
    for node in mixed.nodes:
        node.script["FinalizeLevel"] = pb.FinalizeLevelResponse(level=6, level_before=5)
    assert muster("cluster", "upgrade", "--finalize").exit_code == 2
    dry = json.loads(muster("cluster", "upgrade", "--finalize", "--dry-run", "-o", "json").out)
    assert (dry["level_before"], dry["level_after"], dry["dry_run"]) == (5, 6, True)
    assert finalized(mixed) == []
    ran = json.loads(muster("cluster", "upgrade", "--finalize", "--yes", "-o", "json").out)
    assert (ran["level_before"], ran["level_after"], ran["brings"]) == (5, 6, ["levels"])
    assert [level for _, level in finalized(mixed)] == [6]


def test_a_cluster_at_the_newest_level_has_nothing_to_finalise(mixed, muster):
    """Asked for it all the same, nothing happens."""
    for node in mixed.nodes:
        view = node.script["DescribeCluster"]
        view.level = 6
        del view.later_levels[:]
        for one in view.nodes:
            one.level = 6
    ran = muster("cluster", "upgrade", "--finalize", "--yes")
    assert (ran.exit_code, finalized(mixed)) == (0, [])
    assert "nothing to finalise" in ran.out
