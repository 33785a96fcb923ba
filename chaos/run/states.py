"""What faults of disks found out, as checkers want it: nodes that had to refuse service."""

from collections.abc import Mapping

from chaos.history import NodeState
from raft.settings import RaftSettings

_DAMAGES = frozenset({"torn_tail", "flipped_byte"})
_FORGETFUL = frozenset({"older_copy", "lost_synced"})
LEAVES_S = 5.0
"""A node whose sync has hung for so long leads nothing: it has 3 s, the others need an election."""
ENDED_S = RaftSettings().sync_end_ms / 1000 + 7.0
"""By then it has ended. It counts 100 ms at most of a time in which it did not run itself."""
ENDED_CODE = 1
_FOUND: Mapping[object, str] = {"refused": "refused", "serves": "running"}
"""By what the fault says of the node that it started on damaged files."""


def states_of(kind: str, facts: Mapping[str, object], until_ns: int) -> list[NodeState]:
    """From the facts of a fault (chaos/faults/disk.py, damage.py) that was held until `until_ns`.

    None for a kind that damages no disk, or that did not get so far.
    """
    node = facts.get("node")
    if not isinstance(node, int):
        return []
    message = str(facts.get("message") or "")
    if kind == "eio" and isinstance(refuses_ns := facts.get("refuses_ns"), int):
        found = "running" if facts.get("exit_code") is None else "stopped"
        return [NodeState(node, "disk_error", refuses_ns, until_ns, found, message)]
    if kind in _DAMAGES and isinstance(at_ns := facts.get("at_ns"), int):
        found = _FOUND.get(facts.get("outcome"), "silent")
        if kind == "torn_tail" and found == "running" and not facts.get("vouched"):
            # A torn last record is what a crash leaves: it is dropped, and the peers send it again.
            # The mark does not say yet that it had been synced; peers that were told do (I14).
            found = "repaired"
        detail = f"{facts.get('how')}: {facts.get('file')} {message}".strip()
        return [NodeState(node, "corrupt", min(at_ns, until_ns), until_ns, found, detail)]
    if kind in _FORGETFUL and isinstance(at_ns := facts.get("at_ns"), int):
        return _forgot(node, facts, min(at_ns, until_ns), until_ns)
    if kind == "leader_fsync_hangs" and isinstance(at_ns := facts.get("at_ns"), int):
        return _hung(node, facts, at_ns, until_ns)
    return []


def _forgot(node: int, facts: Mapping[str, object], from_ns: int, until_ns: int) -> list[NodeState]:
    found = _FOUND.get(facts.get("outcome"), "silent")
    if found == "running" and facts.get("losses"):
        found = "repaired"
    elif found == "running" and not facts.get("heard"):
        return []  # nobody could know: such a fault had no effect, and says so
    detail = f"{facts.get('how')}, noticed {facts.get('losses')} times {facts.get('message')}"
    return [NodeState(node, "forgot", from_ns, until_ns, found, detail.strip())]


def _hung(node: int, facts: Mapping[str, object], from_ns: int, until_ns: int) -> list[NodeState]:
    unsynced_s, leads = facts.get("unsynced_s"), facts.get("leads")
    if not isinstance(unsynced_s, float) or unsynced_s < LEAVES_S or not isinstance(leads, list):
        return []
    code = facts.get("exit_code")
    ended = "it ran on" if code is None else f"it ended with {code}"
    detail = f"no sync ended for {unsynced_s:.1f} s, it leads {len(leads)} shards, {ended}"
    found = "leading" if leads else "left"
    if not leads and unsynced_s >= ENDED_S and code != ENDED_CODE:
        found = "running" if code is None else "failed"
    return [NodeState(node, "sync_hangs", from_ns, until_ns, found, detail)]
