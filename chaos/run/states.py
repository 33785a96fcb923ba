"""What faults found out, as checkers want it: nodes that had to refuse service, or to lead less."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from musterd.chaos.history import NodeState
from musterd.raft.settings import RaftSettings

LEAVES_S = 5.0
"""A node whose sync has hung for so long leads nothing: it has 3 s, the others need an election."""
ENDED_S = RaftSettings().sync_end_ms / 1000 + 7.0
"""By then it has ended. It counts 100 ms at most of a time in which it did not run itself."""
ENDED_CODE = 1
_FOUND: Mapping[object, str] = {"refused": "refused", "serves": "running", "behind": "behind"}
"""By what the fault says of the node that it started on damaged files."""
Facts = Mapping[str, object]


def states_of(kind: str, facts: Facts, until_ns: int) -> list[NodeState]:
    """From the facts of a fault of `chaos/faults` that was held until `until_ns`.

    None for a kind after which no node has to be found in a certain state, or that did not get so
    far.
    """
    since, states = _KINDS.get(kind, ("", _none))
    at_ns = facts.get(since)
    return states(facts, min(at_ns, until_ns), until_ns) if isinstance(at_ns, int) else []


def _none(_facts: Facts, _from_ns: int, _until_ns: int) -> list[NodeState]:
    return []


def _node(facts: Facts) -> int:
    node = facts["node"]
    if not isinstance(node, int):
        raise TypeError(f"a fault names node {node!r}")
    return node


def _failed(facts: Facts, from_ns: int, until_ns: int) -> list[NodeState]:
    found = "running" if facts.get("exit_code") is None else "stopped"
    message = str(facts.get("message") or "")
    return [NodeState(_node(facts), "disk_error", from_ns, until_ns, found, message)]


def _damaged(facts: Facts, from_ns: int, until_ns: int) -> list[NodeState]:
    found = _FOUND.get(facts.get("outcome"), "silent")
    detail = f"{facts.get('how')}: {facts.get('file')} {facts.get('message') or ''}".strip()
    return [NodeState(_node(facts), "corrupt", from_ns, until_ns, found, detail)]


def _torn(facts: Facts, from_ns: int, until_ns: int) -> list[NodeState]:
    (state,) = _damaged(facts, from_ns, until_ns)
    if state.found == "running" and not facts.get("vouched"):
        # A torn last record is what a crash leaves: it is dropped, and the peers send it again.
        # The mark does not say yet that it had been synced; peers that were told do (I14).
        state = replace(state, found="repaired")
    return [state]


def _forgot(facts: Facts, from_ns: int, until_ns: int) -> list[NodeState]:
    found = _FOUND.get(facts.get("outcome"), "silent")
    if found == "running" and facts.get("losses"):
        found = "repaired"
    elif found == "running" and not facts.get("heard"):
        return []  # nobody could know: such a fault had no effect, and says so
    told = f"noticed {facts.get('losses')} times {facts.get('message') or ''}"
    detail = f"{facts.get('how')}, {told}".strip()
    return [NodeState(_node(facts), "forgot", from_ns, until_ns, found, detail)]


def _full(facts: Facts, from_ns: int, until_ns: int) -> list[NodeState]:
    nodes, ended = facts.get("nodes"), facts.get("ended")
    if not isinstance(nodes, list) or not isinstance(ended, dict):
        return []
    return [
        NodeState(
            node,
            "no_room",
            from_ns,
            until_ns,
            "stopped" if str(node) in ended else "stayed",
            str(facts.get("message") or ""),
        )
        for node in nodes
    ]


def _hung(facts: Facts, from_ns: int, until_ns: int) -> list[NodeState]:
    unsynced_s, leads = facts.get("unsynced_s"), facts.get("leads")
    if not isinstance(unsynced_s, float) or unsynced_s < LEAVES_S or not isinstance(leads, list):
        return []
    code = facts.get("exit_code")
    ended = "it ran on" if code is None else f"it ended with {code}"
    detail = f"no sync ended for {unsynced_s:.1f} s, it leads {len(leads)} shards, {ended}"
    found = "leading" if leads else "left"
    if not leads and unsynced_s >= ENDED_S and code != ENDED_CODE:
        found = "running" if code is None else "failed"
    return [NodeState(_node(facts), "sync_hangs", from_ns, until_ns, found, detail)]


def _slept(facts: Facts, from_ns: int, until_ns: int) -> list[NodeState]:
    before, after = facts.get("terms"), facts.get("terms_after")
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return []  # it does not read the clock that jumped
    kept = [shard for shard, term in before.items() if after.get(shard, 0) <= term]
    detail = f"of {len(before)} shards that it led {len(kept)} are in the same term"
    found = "leading" if kept else "left"
    return [NodeState(_node(facts), "slept", from_ns, until_ns, found, detail)]


def _diverged(facts: Facts, from_ns: int, until_ns: int) -> list[NodeState]:
    """One for each node whose state was changed; what became of it holds for all."""
    nodes, shard = facts["nodes"], facts["shard"]
    first, last = facts["from_index"], facts["until_index"]
    if not (
        isinstance(nodes, list)
        and isinstance(shard, int)
        and isinstance(first, int)
        and isinstance(last, int)
    ):
        raise TypeError(f"a fault that changed nodes {nodes!r} of shard {shard!r}")
    found, detail = str(facts["outcome"]), str(facts["detail"])
    return [
        NodeState(node, "diverged", from_ns, until_ns, found, detail, shard, first, last)
        for node in nodes
    ]


_KINDS: Mapping[str, tuple[str, Callable[[Facts, int, int], list[NodeState]]]] = {
    "eio": ("refuses_ns", _failed),
    "flipped_byte": ("at_ns", _damaged),
    "torn_tail": ("at_ns", _torn),
    "lost_synced": ("at_ns", _forgot),
    "older_copy": ("at_ns", _forgot),
    "leader_fsync_hangs": ("at_ns", _hung),
    "disks_low": ("at_ns", _full),
    "disks_full": ("at_ns", _full),
    "suspend": ("at_ns", _slept),
    "one_diverges": ("at_ns", _diverged),
    "two_diverge": ("at_ns", _diverged),
}
"""By kind of fault: the fact that says since when, and what is made of it."""
