"""Nodes that had to refuse service or lead less, taken from the faults for the checkers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from musterd.chaos.history import NodeState
from musterd.raft.settings import RaftSettings

LEAVES_S = 5.0
"""A node whose sync has hung for so long leads nothing: it has 3 s, the others need an election."""
ENDED_S = RaftSettings().sync_end_ms / 1000 + 7.0
"""By then it has ended. It counts 100 ms at most of a time in which it did not run itself."""
ENDED_CODE = 1
_FOUND = {"refused": "refused", "serves": "running", "behind": "behind"}
"""By what the fault says of the node that it started on damaged files."""
Facts = Mapping[str, Any]


def states_of(kind: str, facts: Facts, until_ns: int) -> list[NodeState]:
    """From the facts of a fault of `chaos/faults` that was held until `until_ns`.

    None for a kind after which no node has to be found in a certain state, or that did not get so
    far.
    """
    states, at_ns = _KINDS.get(kind), facts.get("at_ns")
    return [] if states is None or at_ns is None else states(facts, min(at_ns, until_ns), until_ns)


def _failed(facts: Facts, from_ns: int, until_ns: int) -> list[NodeState]:
    found = "running" if facts.get("exit_code") is None else "stopped"
    message = str(facts.get("message") or "")
    return [NodeState(facts["node"], "disk_error", from_ns, until_ns, found, message)]


def _damaged(facts: Facts, from_ns: int, until_ns: int) -> list[NodeState]:
    found = _FOUND.get(facts["outcome"], "silent")
    detail = f"{facts.get('how')}: {facts.get('file')} {facts.get('message') or ''}".strip()
    return [NodeState(facts["node"], "corrupt", from_ns, until_ns, found, detail)]


def _torn(facts: Facts, from_ns: int, until_ns: int) -> list[NodeState]:
    (state,) = _damaged(facts, from_ns, until_ns)
    if state.found == "running" and not facts.get("vouched"):
        # A torn last record is what a crash leaves: it is dropped, and the peers send it again.
        # The mark does not say yet that it had been synced; peers that were told do (I14).
        state = replace(state, found="repaired")
    return [state]


def _forgot(facts: Facts, from_ns: int, until_ns: int) -> list[NodeState]:
    found = _FOUND.get(facts["outcome"], "silent")
    if found == "running" and facts.get("losses"):
        found = "repaired"
    elif found == "running" and not facts.get("heard"):
        return []  # nobody could know: such a fault had no effect, and says so
    told = f"noticed {facts.get('losses')} times {facts.get('message') or ''}"
    detail = f"{facts.get('how')}, {told}".strip()
    return [NodeState(facts["node"], "forgot", from_ns, until_ns, found, detail)]


def _full(facts: Facts, from_ns: int, until_ns: int) -> list[NodeState]:
    return [
        NodeState(
            node,
            "no_room",
            from_ns,
            until_ns,
            "stopped" if str(node) in facts["ended"] else "stayed",
            str(facts.get("message") or ""),
        )
        for node in facts["nodes"]
    ]


def _hung(facts: Facts, from_ns: int, until_ns: int) -> list[NodeState]:
    unsynced_s, leads = facts.get("unsynced_s", 0.0), facts.get("leads", [])
    if unsynced_s < LEAVES_S:
        return []
    code = facts.get("exit_code")
    ended = "it ran on" if code is None else f"it ended with {code}"
    detail = f"no sync ended for {unsynced_s:.1f} s, it leads {len(leads)} shards, {ended}"
    found = "leading" if leads else "left"
    if not leads and unsynced_s >= ENDED_S and code != ENDED_CODE:
        found = "running" if code is None else "failed"
    return [NodeState(facts["node"], "sync_hangs", from_ns, until_ns, found, detail)]


def _slept(facts: Facts, from_ns: int, until_ns: int) -> list[NodeState]:
    before, after = facts["terms"], facts.get("terms_after")
    if after is None:
        return []  # it does not read the clock that jumped
    kept = [shard for shard, term in before.items() if after.get(shard, 0) <= term]
    detail = f"of {len(before)} shards that it led {len(kept)} are in the same term"
    found = "leading" if kept else "left"
    return [NodeState(facts["node"], "slept", from_ns, until_ns, found, detail)]


def _diverged(facts: Facts, from_ns: int, until_ns: int) -> list[NodeState]:
    """One for each node whose state was changed; what became of it holds for all."""
    where = facts["shard"], facts["from_index"], facts["until_index"]
    found, detail = facts["outcome"], facts["detail"]
    return [
        NodeState(node, "diverged", from_ns, until_ns, found, detail, *where)
        for node in facts["nodes"]
    ]


_KINDS: Mapping[str, Callable[[Facts, int, int], list[NodeState]]] = {
    "eio": _failed,
    "flipped_byte": _damaged,
    "torn_tail": _torn,
    "lost_synced": _forgot,
    "older_copy": _forgot,
    "leader_fsync_hangs": _hung,
    "disks_low": _full,
    "disks_full": _full,
    "suspend": _slept,
    "one_diverges": _diverged,
    "two_diverge": _diverged,
}
"""By kind of fault; the fact `at_ns` says since when."""
