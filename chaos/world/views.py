"""The nodes' views of the cluster: who leads, and whether all agree and have caught up."""

from collections.abc import Mapping
from typing import Final

from muster.v1 import admin_pb2

CAUGHT_UP_ENTRIES: Final = 200
"""How far a node may be behind under load and still count as caught up."""


Views = Mapping[int, admin_pb2.DescribeClusterResponse]
"""What each node that answers says of the cluster, by node id."""


def leaders(views: Views) -> dict[int, int]:
    """Shard -> node id of the replica that says it leads in the highest term seen."""
    best: dict[int, tuple[int, int]] = {}
    for node_id, view in views.items():
        for state in view.shard_states:
            if state.role == "Leader":
                best[state.shard] = max(best.get(state.shard, (-1, -1)), (state.term, node_id))
    return {shard: node_id for shard, (_, node_id) in best.items()}


def terms(views: Views) -> dict[int, int]:
    """Shard -> the highest term that any node knows."""
    highest: dict[int, int] = {}
    for view in views.values():
        for state in view.shard_states:
            highest[state.shard] = max(highest.get(state.shard, 0), state.term)
    return highest


def unsettled(views: Mapping[int, admin_pb2.DescribeClusterResponse | None], shards: int) -> str:
    """Return what is missing, for people; "" where nothing is.

    `views`: of all nodes that ought to be up, by node id; None of one that does not answer.
    """
    told = {node_id: view for node_id, view in views.items() if view is not None}
    if len(told) < len(views):
        return f"node {min(views.keys() - told.keys())} does not answer"
    commit: dict[int, int] = {}
    led: dict[int, set[tuple[int, int]]] = {}
    for view in told.values():
        for state in view.shard_states:
            commit[state.shard] = max(commit.get(state.shard, 0), state.commit_index)
            led.setdefault(state.shard, set()).add((state.term, state.leader_id))
    for shard in range(shards):
        named = sorted(led.get(shard, ()))
        if len(named) != 1 or named[0][1] not in told:
            whom = ", ".join(f"node {leader} in term {term}" for term, leader in named)
            return f"shard {shard} is led by {whom or 'nobody'}"
    behind = (_behind(node_id, view, commit) for node_id, view in told.items())
    return next(filter(None, behind), "")


def _behind(
    node_id: int, view: admin_pb2.DescribeClusterResponse, commit: Mapping[int, int]
) -> str:
    """`commit`: the highest index of each shard that any node knows to be committed."""
    if len(view.shard_states) != len(commit):
        return f"node {node_id} tells of {len(view.shard_states)} of {len(commit)} shards"
    for state in view.shard_states:
        if state.role not in ("Leader", "Follower"):
            return f"node {node_id} is a {state.role} of shard {state.shard}"
        lacks = commit[state.shard] - state.applied_index
        if lacks > CAUGHT_UP_ENTRIES:
            return (
                f"node {node_id} lacks {lacks} of {commit[state.shard]} entries of shard "
                f"{state.shard}"
            )
    return ""
