"""Whether nodes agree on who leads, and have caught up: from what each says of itself."""

from collections.abc import Mapping
from typing import Final

from muster.v1 import admin_pb2

CAUGHT_UP_ENTRIES: Final = 200
"""How far a node may be behind under load and still count as caught up."""


def unsettled(views: Mapping[int, admin_pb2.DescribeClusterResponse | None], shards: int) -> str:
    """What is missing, for people; "" where nothing is.

    `views`: of all nodes that ought to be up, by node id; None of one that does not answer.
    """
    told = {node_id: view for node_id, view in views.items() if view is not None}
    if len(told) < len(views):
        return f"node {min(views.keys() - told.keys())} does not answer"
    commit: dict[int, int] = {}
    leaders: dict[int, set[tuple[int, int]]] = {}
    for view in told.values():
        for state in view.shard_states:
            commit[state.shard] = max(commit.get(state.shard, 0), state.commit_index)
            leaders.setdefault(state.shard, set()).add((state.term, state.leader_id))
    for shard in range(shards):
        named = sorted(leaders.get(shard, ()))
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
