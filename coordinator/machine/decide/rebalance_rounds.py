"""Open and close a round: what joins, departures and timers have in common (gp-P3 to gp-P6)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from musterd.coordinator.machine.commands import RoundTimer
from musterd.coordinator.machine.decide.fencing import next_token
from musterd.coordinator.machine.decide.protocols import select
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.events import (
    GenerationFormed,
    GroupEmptied,
    GroupEvent,
    RebalanceStarted,
    Trigger,
)
from musterd.coordinator.machine.state import Group, Member, Phase
from musterd.invariant import invariant


@dataclass(frozen=True, slots=True)
class Roster:
    """A group's members as they will be once the events so far are applied.

    `decide` never changes the group it reads, so it says what differs: `put` is a member that is
    new, has joined again or replaces one, `gone` are the ids of those removed or replaced,
    `settled` those ids of `pending` that are used or dropped.
    """

    group: Group
    put: Member | None = None
    gone: Collection[str] = ()
    settled: Collection[str] = ()

    def complete(self) -> bool:
        """True where everybody has joined the open round. Costs nothing per member (gp-I1)."""
        group, put = self.group, self.put
        if self.is_awaited():
            return False
        joined, total = group.tally.joined, len(group.members)
        for member_id in self.gone:
            joined -= group.has_joined(group.members[member_id])
            total -= 1
        if put is not None:
            before = group.members.get(put.member_id)
            joined += group.has_joined(put) - (before is not None and group.has_joined(before))
            total += before is None
        return joined == total

    def is_awaited(self) -> bool:
        """True where an id that was handed out may still be used: it holds up the round (gp-P8)."""
        return len(self.group.pending) > len(self.settled)

    def members(self) -> list[Member]:
        """The members after the decision, in the order in which they joined."""
        put = self.put
        present = [m for m in self.group.members.values() if m.member_id not in self.gone]
        if put is None:
            return present
        if put.member_id in self.group.members:
            return [put if member.member_id == put.member_id else member for member in present]
        return sorted([*present, put], key=lambda member: member.join_seq)

    @property
    def leader_id(self) -> str:
        """Who leads the group: its role goes over to whoever replaces it (gp-3.3)."""
        leader_id = self.group.leader_id
        if self.put is not None and leader_id and self.put.replaced_id == leader_id:
            return self.put.member_id
        return leader_id


def rebalance_timeout_ms(members: Sequence[Member]) -> int:
    """The group's rebalance timeout: the longest of its members' (gp-1.1); 0 without members."""
    return max((member.rebalance_timeout_ms for member in members), default=0)


def rebalance(
    group: Group,
    env: Envelope,
    roster: Roster,
    trigger: Trigger,
    member_id: str,
    reason: str,
) -> list[GroupEvent]:
    """Go on with the open round, or open one for this reason (gp-P3)."""
    if group.phase is not Phase.PREPARING_REBALANCE:
        return _open(roster, env, trigger, member_id, reason)
    if group.from_empty or not roster.complete():
        return []  # gp-P5; an initial round is closed by its timer alone (gp-4.3)
    return [close(group, env, group.round, roster.members(), roster.leader_id)]


def _open(
    roster: Roster, env: Envelope, trigger: Trigger, member_id: str, reason: str
) -> list[GroupEvent]:
    """gp-P4: from Empty with the initial delay (gp-4.3), else with the join timer."""
    group, members = roster.group, roster.members()
    round_ = group.round + 1
    timeout_ms = rebalance_timeout_ms(members)
    initial = group.phase is Phase.EMPTY
    delay_ms = env.limits.initial_delay_ms if initial else timeout_ms
    client_id, instance_id = _names(roster, member_id) if env.noted_wall_ms else ("", "")
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
        time_ms=env.noted_ms,
        wall_ms=env.noted_wall_ms,
        client_id=client_id,
        group_instance_id=instance_id,
        members_before=len(group.members) if env.noted_wall_ms else 0,
    )
    if initial or roster.is_awaited():
        return [started]
    if all(member.joined_round == round_ for member in members):
        return [started, close(group, env, round_, members, roster.leader_id)]
    return [started]


def _names(roster: Roster, member_id: str) -> tuple[str, str]:
    """Client and instance id of who caused the round: it may be new, or go with it."""
    put = roster.put
    if put is not None and put.member_id == member_id:
        return put.client_id, put.instance_id
    member = roster.group.members.get(member_id)
    return (member.client_id, member.instance_id) if member else ("", "")


def close(
    group: Group, env: Envelope, round_: int, members: Sequence[Member], leader_id: str
) -> GenerationFormed | GroupEmptied:
    """gp-P6: the next generation, of `members`; who of them has not joined is static.

    Its number was never used before (gp-5.6.6). The group leader stays, if it has joined, else it
    is the first in join order that has (gp-3.3).
    """
    generation = max(group.generation, env.generation_floor) + 1
    if not members:
        return GroupEmptied(
            group.group_id, round_, generation, env.noted_wall_ms, time_ms=env.noted_ms
        )
    joined = [member for member in members if member.joined_round == round_]
    invariant(bool(joined), "a generation of which nobody has joined (gp-P6.3)")
    leader = next((m for m in joined if m.member_id == leader_id), joined[0])
    return GenerationFormed(
        group_id=group.group_id,
        round=round_,
        generation=generation,
        protocol_name=select(members, leader),
        leader_id=leader.member_id,
        member_ids=tuple(member.member_id for member in members),
        deadline_ms=env.time_ms + rebalance_timeout_ms(members),
        topics_version=env.topics_version,
        time_ms=env.noted_ms,
        token=next_token(group, env, max(member.token for member in members)),
    )
