"""Rules between a node's configured times and the fixed ones, checked before it starts.

docs/timeouts.md has each line with its reason, and those between fixed times alone.
"""

from collections.abc import Callable
from typing import Final

from muster import timeouts as sdk
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.runtime import timeouts as server
from musterd.raft.settings import RaftSettings

SETTABLE: Final = ("heartbeat_ms", "quorum_ms", "election_min_ms", "election_max_ms")

RULES: Final[dict[str, Callable[[RaftSettings], bool]]] = {
    "election_max_ms > election_min_ms": lambda raft: raft.election_max_ms > raft.election_min_ms,
    "election_min_ms >= quorum_ms": lambda raft: raft.election_min_ms >= raft.quorum_ms,
    "quorum_ms >= 3 * heartbeat_ms": lambda raft: raft.quorum_ms >= 3 * raft.heartbeat_ms,
    "heartbeat_ms >= 20 * REST_MS_MAX": lambda raft: raft.heartbeat_ms >= 20 * server.REST_MS_MAX,
    "LOADING_HOLD_MS > election_max_ms": lambda raft: raft.election_max_ms < server.LOADING_HOLD_MS,
    "FIND_COORDINATOR_HOLD_MS > election_max_ms": lambda raft: (
        raft.election_max_ms < server.FIND_COORDINATOR_HOLD_MS
    ),
    "session_timeout_min_ms > election_max_ms": lambda raft: (
        raft.election_max_ms < LIMITS.session_timeout_min_ms
    ),
    "DISCONNECT_GRACE_MS >= election_max_ms + LOADING_HOLD_MS": lambda raft: (
        raft.election_max_ms + server.LOADING_HOLD_MS <= server.DISCONNECT_GRACE_MS
    ),
    "TOPIC_WAIT_MS > 2 * election_max_ms": lambda raft: (
        2 * raft.election_max_ms < sdk.TOPIC_WAIT_MS
    ),
    "LARGE_STALLED_MS > election_max_ms": lambda raft: (
        raft.election_max_ms < server.LARGE_STALLED_MS
    ),
    "sync_stall_ms >= 2 * transfer_ms + election_max_ms": lambda raft: (
        raft.sync_stall_ms >= 2 * raft.transfer_ms + raft.election_max_ms
    ),
}


def broken_rules(raft: RaftSettings) -> list[str]:
    """The lines that do not hold for these times, with their values."""
    return [
        f"{rule} ({', '.join(f'{n} is {getattr(raft, n)}' for n in SETTABLE if n in rule)})"
        for rule, holds in RULES.items()
        if not holds(raft)
    ]
