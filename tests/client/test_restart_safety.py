"""Whether a node may be stopped: told from what each node says of itself, by its role."""

import pytest

from muster.admin.restart_safety import BEHIND_MAX, unsafe_to_restart
from muster.v1.admin_pb2 import DescribeClusterResponse, Node, Shard


def view(own, leader=0, nodes=3, **changes):
    """A node of a healthy cluster of one shard, but for what is changed of its replica."""
    state = {
        "role": "Leader" if own == leader else "Follower",
        "term": 7,
        "leader_id": leader,
        "commit_index": 5_000,
        "last_index": 5_000,
    }
    return DescribeClusterResponse(
        node_id=own,
        nodes=[Node(node_id=node, connected=True) for node in range(nodes)],
        shard_states=[Shard(**(state | changes))],
    )


def healthy(nodes=3):
    """What all nodes of a healthy cluster say."""
    return {node: view(node, nodes=nodes) for node in range(nodes)}


@pytest.mark.parametrize("nodes", [3, 5])
def test_each_node_of_a_healthy_cluster_may_be_restarted(nodes):
    """The leader, too: it hands over."""
    assert [unsafe_to_restart(node, healthy(nodes)) for node in range(nodes)] == [""] * nodes


@pytest.mark.parametrize(
    "changes",
    [
        {"role": "Learner"},
        {"role": "Candidate", "leader_id": -1},
        {"leader_id": -1},
        {"leader_id": 1},
        {"last_index": 5_000 - BEHIND_MAX - 1, "commit_index": 0},
        {"quarantined": True},
        {"loading": True},
    ],
)
def test_no_other_node_may_be_restarted_while_one_does_not_count(changes):
    """It may itself: nothing changes by that. A log that is a little behind counts."""
    views = healthy() | {2: view(2, **changes)}
    for node in (0, 1):
        reason = unsafe_to_restart(node, views)
        assert "shard 0: 1 of 3 nodes would hold its log" in reason
        assert "2 are needed" in reason
        assert ("node 2 is still loading it" in reason) == ("loading" in changes)
    assert unsafe_to_restart(2, views) == ""
    assert unsafe_to_restart(0, healthy() | {2: view(2, last_index=4_900, commit_index=0)}) == ""


def test_a_silent_node_does_not_count_and_five_nodes_do_without_one():
    """Of three the others must stay; of five one may be restarted beside a node that is down."""
    views = healthy()
    del views[2]
    assert unsafe_to_restart(0, views) != ""
    views = healthy(5)
    del views[4]
    assert unsafe_to_restart(0, views) == ""
    del views[3]
    assert unsafe_to_restart(0, views) != ""


def test_nodes_that_do_not_reach_each_other_are_no_majority():
    """Both follow the leader, which is the node that would go."""
    views = healthy()
    views[1].nodes[2].connected = False
    views[2].nodes[1].connected = False
    assert "reach each other" in unsafe_to_restart(0, views)
    assert unsafe_to_restart(1, views) == ""


def test_a_cluster_of_one_stands_still_and_one_without_a_leader_does_already():
    """A new node that waits for the others does not count either."""
    assert "0 of 1 nodes" in unsafe_to_restart(0, healthy(1))
    views = {node: view(node, leader=9) for node in range(3)}
    assert unsafe_to_restart(0, views) == "shard 0: it has no leader"
    assert unsafe_to_restart(0, {}) == "no node answers"
    views = healthy()
    views[2].awaited.append(1)
    assert unsafe_to_restart(0, views) != ""


def test_shards_with_one_reason_are_named_together():
    """However many there are, the line is short."""
    views = healthy()
    for one in views.values():
        state = one.shard_states.pop()
        for number in (0, 1, 2, 5):
            one.shard_states.add().CopyFrom(state)
            one.shard_states[-1].shard = number
    for state in views[2].shard_states:
        state.role = "Learner"
    assert unsafe_to_restart(0, views).startswith("shard 0-2,5: 1 of 3")
