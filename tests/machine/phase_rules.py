"""What a cell of the phase tables leaves unsaid: who caused a round, and what stands after it.

Said once, by rule, and apart from the machine: the next phase and the armed timer follow from the
events alone (gp-1.6, gp-4.1, gp-4.3), trigger and culprit from the table's row (gp-3.4).
"""

from musterd.coordinator.machine.events import (
    AssignmentPublished,
    Event,
    GenerationFormed,
    GroupDeleted,
    GroupEmptied,
    RebalanceStarted,
    RoundExtended,
)
from musterd.coordinator.machine.state import Group, Phase

INITIAL_DELAY_MS = 500
REBALANCE_TIMEOUT_MS = 60_000
"""Of every member in the tables. A round that only an id handed out could join is due at once."""

OPENS = {
    "join new": "MEMBER_JOINED n-1",
    "join same, leader": "LEADER_REJOINED a-1",
    "join changed": "METADATA_CHANGED b-1",
    "leave": "MEMBER_LEFT b-1",
    "kick": "MEMBER_KICKED b-1",
    "expire": "SESSION_EXPIRY b-1",
    "close": "SYNC_TIMEOUT {unsynced}",
    "topic changed": "TOPICS_CHANGED -",
    "join, pending id": "MEMBER_JOINED p-9",
    "join, nonce is a pending one": "MEMBER_JOINED p-9",
    "join, static, new": "MEMBER_JOINED n-1",
    "join, static, no nonce": "MEMBER_JOINED k-9",
    "join, static, held": "STATIC_REPLACED b-2",
    "join, static, held, other protocol": "STATIC_REPLACED b-2",
    "join, static, held, no common protocol": "MEMBER_JOINED b-2",
    "join, static, repeated": "MEMBER_JOINED b-1",
    "join, static, known id, changed": "METADATA_CHANGED b-1",
    "join, other type": "MEMBER_JOINED n-1",
    "leave, by instance": "MEMBER_LEFT b-1",
    "leave, batch": "MEMBER_LEFT b-1",
    "leave, everybody": "MEMBER_LEFT a-1",
    "expire, static": "SESSION_EXPIRY b-1",
    "timer SYNC": "SYNC_TIMEOUT {unsynced}",
}
"""Trigger and culprit of the round that a row opens, in whatever phase it does.

Where nobody is a member there is nobody to replace: any Join is a newcomer's.
"""


def opened(name: str, group: Group | None) -> str:
    """What the round says that a row opens in this group."""
    if name not in OPENS:
        return "no round"
    trigger, culprit = OPENS[name].split()
    if group is None or group.phase is Phase.EMPTY:
        trigger = "MEMBER_JOINED"
    elif culprit == "{unsynced}":
        culprit = next(m.member_id for m in group.members.values() if not group.has_synced(m))
    return f"{trigger} {culprit}"


def standing(group: Group | None) -> str:
    """Phase and armed timer."""
    if group is None:
        return "none"
    return f"{group.phase} {_timer(group)}"


NEXT = {
    RebalanceStarted: Phase.PREPARING_REBALANCE,
    GenerationFormed: Phase.COMPLETING_REBALANCE,
    AssignmentPublished: Phase.STABLE,
    GroupEmptied: Phase.EMPTY,
}
"""The phase after an event; all others leave it."""


def follows(
    before: Group | None, events: tuple[Event, ...], after: Group | None, now_ms: int
) -> str:
    """What stands after the events, as `standing` says it; of `after` only the members count."""
    kinds = [type(event) for event in events]
    if GroupDeleted in kinds or (before is None and not kinds):
        return "none"
    phase, timer, deadline_ms = Phase.EMPTY, "-", 0
    if before is not None:
        phase, timer, deadline_ms = before.phase, _timer(before), before.deadline_ms
    initial = _armed("INITIAL_DELAY", now_ms + INITIAL_DELAY_MS)
    round_ms = now_ms + (REBALANCE_TIMEOUT_MS if after.members else 0)
    arms = {
        RebalanceStarted: initial if phase is Phase.EMPTY else _armed("JOIN", round_ms),
        RoundExtended: _armed("INITIAL_DELAY", deadline_ms + INITIAL_DELAY_MS),
        GenerationFormed: _armed("SYNC", round_ms),
    }
    for kind in kinds:
        phase, timer = NEXT.get(kind, phase), arms.get(kind, timer)
    synced = phase is Phase.STABLE and all(map(after.has_synced, after.members.values()))
    return f"{phase} {'-' if synced or phase is Phase.EMPTY else timer}"


def _timer(group: Group) -> str:
    return _armed(group.timer.name, group.deadline_ms) if group.timer else "-"


def _armed(timer: str, deadline_ms: int) -> str:
    return f"{timer}@{deadline_ms}"
