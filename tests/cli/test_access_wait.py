"""`--wait` of `muster acl` and `muster token`: it returns once every node has applied the rules."""

import pytest

from tests.cli.access_store import AccessStore

COMMANDS = [
    ("acl", "grant", "eve", "join", "group", "g"),
    ("acl", "revoke", "bob", "commit", "group", "audit", "--deny"),
    ("token", "create", "eve"),
    ("token", "revoke", "0" * 15 + "1"),
]


@pytest.fixture
def with_rules(cluster, no):
    """Each node tells which version of the rules it has applied: by `cluster.applied`."""
    store = AccessStore(no)
    cluster.applied = {node.node_id: [] for node in cluster.nodes}
    """Versions that are told before it is the latest."""

    def view(node):
        def answer(_request):
            made, former = cluster.view(node.node_id), cluster.applied[node.node_id]
            made.access_version = former.pop(0) if former else store.version
            return made

        return answer

    for node in cluster.nodes:
        node.script |= store.rpcs() | {"DescribeCluster": view(node)}
    return cluster


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nodes_that_are_late_and_silent_are_named_when_the_time_is_over(
    with_rules, muster, command
):
    """It is decided nevertheless, and whoever applied it is not named."""
    with_rules.applied[2] = [1] * 1_000
    with_rules.nodes[2].stop()
    ran = muster(*command, "--wait", "--timeout", "1")
    assert (ran.exit_code, ran.out) == (124, "")
    told = ran.err.splitlines()[0]
    assert told.startswith(
        "error: it is decided, and not heard of on node 2 (it has not applied it), node 3 (UNAVAIL"
    )
    assert "node 1" not in told


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_node_that_comes_late_is_waited_for(with_rules, muster, command):
    """It is asked until it has applied them."""
    with_rules.applied[2] = [1, 1]
    ran = muster(*command, "--wait")
    assert (ran.exit_code, ran.err) == (0, "")
    assert with_rules.applied[2] == []
    assert len(with_rules.nodes[1].named("DescribeCluster")) == 3


def test_without_it_nobody_is_waited_for(with_rules, muster):
    """What was decided is said at once."""
    with_rules.applied[2] = [1] * 1_000
    assert muster(*COMMANDS[0]).exit_code == 0
    assert not with_rules.nodes[1].named("DescribeCluster")
