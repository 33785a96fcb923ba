"""Opening and closing a round: what joins, departures and timers have in common (gp-1.5, P3-P6).

Functions here take the roster, the members as they will be once the events so far are applied,
because `decide` never changes the group it reads.
"""

from collections.abc import Sequence

from coordinator.machine.commands import RoundTimer
from coordinator.machine.envelope import Envelope
from coordinator.machine.events import (
    GenerationFormed,
    GroupEmptied,
    GroupEvent,
    RebalanceStarted,
    Trigger,
)
from coordinator.machine.protocols import select
from coordinator.machine.state import Group, Member, Phase


def rebalance_timeout_ms(roster: Sequence[Member]) -> int:
    """The group's rebalance timeout: the longest of its members' (gp-1.1); 0 without members."""
    return max((member.rebalance_timeout_ms for member in roster), default=0)


def rebalance(
    group: Group,
    env: Envelope,
    roster: Sequence[Member],
    trigger: Trigger,
    member_id: str,
    reason: str,
) -> list[GroupEvent]:
    """Go on with the open round, or open one for this reason (P3)."""
    if group.phase is Phase.PREPARING_REBALANCE:
        return close_if_complete(group, env, roster)
    return _open(group, env, roster, trigger, member_id, reason)


def _open(
    group: Group,
    env: Envelope,
    roster: Sequence[Member],
    trigger: Trigger,
    member_id: str,
    reason: str,
) -> list[GroupEvent]:
    """P4: from Empty with the initial delay (gp-4.3), else with the join timer."""
    round_ = group.round + 1
    timeout_ms = rebalance_timeout_ms(roster)
    initial = group.phase is Phase.EMPTY
    delay_ms = env.limits.initial_delay_ms if initial else timeout_ms
    started = RebalanceStarted(
        group_id=group.group_id,
        round=round_,
        from_generation=group.generation,
        trigger=trigger,
        member_id=member_id,
        reason=reason[: env.limits.reason_max_chars],
        timer=RoundTimer.INITIAL_DELAY if initial else RoundTimer.JOIN,
        deadline_ms=env.time_ms + delay_ms,
        remaining_ms=max(timeout_ms - delay_ms, 0) if initial else 0,
    )
    if not initial and all(member.joined_round == round_ for member in roster):
        return [started, close(group, env, round_, roster)]
    return [started]


def close_if_complete(group: Group, env: Envelope, roster: Sequence[Member]) -> list[GroupEvent]:
    """P5: close the open round once all have joined; an initial one only by timer (gp-4.3)."""
    if group.from_empty or not all(member.joined_round == group.round for member in roster):
        return []
    return [close(group, env, group.round, roster)]


def close(
    group: Group, env: Envelope, round_: int, roster: Sequence[Member]
) -> GenerationFormed | GroupEmptied:
    """P6: the next generation, of everybody in `roster`; all of them have joined.

    Its number was never used before (gp-5.6.6). The group leader stays, else it is the first in
    join order (gp-3.3).
    """
    generation = max(group.generation, env.generation_floor) + 1
    if not roster:
        return GroupEmptied(group.group_id, round_, generation)
    leader = next((m for m in roster if m.member_id == group.leader_id), roster[0])
    return GenerationFormed(
        group_id=group.group_id,
        round=round_,
        generation=generation,
        protocol_name=select(roster, leader),
        leader_id=leader.member_id,
        member_ids=tuple(member.member_id for member in roster),
        deadline_ms=env.time_ms + rebalance_timeout_ms(roster),
    )
