"""Why a cluster is not settled is said, with the node and the shard."""

import pytest

from muster.v1 import admin_pb2 as pb
from musterd.chaos.world.views import unsettled


def view(*states: tuple[int, str, int, int]) -> pb.DescribeClusterResponse:
    """Of each shard: term, role, leader, applied index (all committed)."""
    answer = pb.DescribeClusterResponse()
    for shard, (term, role, leader, applied) in enumerate(states):
        answer.shard_states.add(
            shard=shard,
            term=term,
            role=role,
            leader_id=leader,
            applied_index=applied,
            commit_index=applied,
        )
    return answer


SECOND = (2, "Leader", 1, 500)
LEADS = view((3, "Leader", 0, 1_000), (2, "Follower", 1, 500))
FOLLOWS = view((3, "Follower", 0, 990), SECOND)
LEADS_LATER = view((4, "Leader", 1, 9), SECOND)
STANDS = view((3, "Candidate", 0, 990), SECOND)
BEHIND = view((3, "Follower", 0, 700), SECOND)


def test_nodes_that_agree_and_have_caught_up_are_settled():
    """Ten entries behind is load, not trouble."""
    assert unsettled({0: LEADS, 1: FOLLOWS}, 2) == ""


@pytest.mark.parametrize(
    ("views", "missing"),
    [
        ({0: LEADS, 1: None}, "node 1 does not answer"),
        ({0: LEADS, 1: LEADS_LATER}, "shard 0 is led by node 0 in term 3, node 1 in term 4"),
        ({0: LEADS}, "shard 1 is led by node 1 in term 2"),
        ({0: LEADS, 1: STANDS}, "node 1 is a Candidate of shard 0"),
        ({0: LEADS, 1: BEHIND}, "node 1 lacks 300 of 1000 entries of shard 0"),
        ({}, "shard 0 is led by nobody"),
    ],
    ids=["silent", "two-leaders", "leader-away", "candidate", "behind", "no-node"],
)
def test_what_is_missing_is_named(views, missing):
    """The first thing that is missing."""
    assert unsettled(views, 2) == missing


def test_a_node_that_tells_of_fewer_shards_is_not_settled():
    """It has not opened them all."""
    fewer = view((3, "Follower", 0, 990))
    assert unsettled({0: view(*[(3, "Leader", 0, 990)] * 2), 1: fewer}, 1) == (
        "node 1 tells of 1 of 2 shards"
    )
