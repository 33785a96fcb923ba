"""Says whether a node may be stopped now: each shard must go on without it.

It is decided from what every node says of itself (DescribeCluster), by roles and logs: builds of
before this question was asked say all that it takes.
"""

from collections.abc import Mapping
from typing import Final

from muster.v1.admin_pb2 import DescribeClusterResponse, Shard

BEHIND_MAX: Final = 1_000
"""Entries that a node's log may lack and still count: it has them within a second or so."""

Views = Mapping[int, DescribeClusterResponse]
"""By node id, what each node that answered says of itself."""


def unsafe_to_restart(node_id: int, views: Views) -> str:
    """Why some shard would stand still while node `node_id` is stopped; "" where none would.

    The others must hold the shard's log, have loaded its state, follow its present leader, and be
    connected to each other, so many of them that they are a majority of the cluster.
    """
    by_reason: dict[str, list[int]] = {}
    for number in sorted({one.shard for view in views.values() for one in view.shard_states}):
        reason = _unsafe(node_id, views, number)
        if reason:
            by_reason.setdefault(reason, []).append(number)
    if not views:
        return "no node answers"
    return "; ".join(f"shard {_ranges(shards)}: {why}" for why, shards in by_reason.items())


def _unsafe(node_id: int, views: Views, number: int) -> str:
    nodes = max(len(view.nodes) for view in views.values())
    needed = nodes // 2 + 1
    states = {
        node: state
        for node, view in views.items()
        for state in view.shard_states
        if state.shard == number
    }
    leaders = [(state.term, node) for node, state in states.items() if state.role == "Leader"]
    if not leaders:
        return "it has no leader"
    _, leader = max(leaders)
    committed = states[leader].commit_index
    fit = {
        node
        for node, state in states.items()
        if node != node_id
        if _counts(node, state, leader, committed)
        if not views[node].awaited
    }
    connected = max((len(_connected(views[node], fit) | {node}) for node in fit), default=0)
    if connected >= needed:
        return ""
    return (
        f"{connected} of {nodes} nodes would hold its log and reach each other, {needed} are needed"
        f"{_who_loads(node_id, states)}"
    )


def _who_loads(node_id: int, states: Mapping[int, Shard]) -> str:
    loading = [node for node, state in sorted(states.items()) if state.loading and node != node_id]
    return f": node {', '.join(map(str, loading))} is still loading it" if loading else ""


def _counts(node: int, state: Shard, leader: int, committed: int) -> bool:
    """Whether a node's replica could acknowledge, or lead, at once."""
    held = max(state.last_index, state.applied_index, state.commit_index)
    follows = node == leader or (state.role == "Follower" and state.leader_id == leader)
    fit = not state.quarantined and not state.loading
    return follows and fit and held + BEHIND_MAX >= committed


def _connected(view: DescribeClusterResponse, fit: set[int]) -> set[int]:
    return {node.node_id for node in view.nodes if node.connected and node.node_id in fit}


def _ranges(numbers: list[int]) -> str:
    """Spell numbers in rising order, such as "0-3,7"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in parts)
