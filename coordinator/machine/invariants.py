"""Checks the invariants that hold of every group at all times (gp-1.4)."""

from musterd.coordinator.machine.commands import RoundTimer
from musterd.coordinator.machine.history import (
    HISTORY_ROUNDS,
    NAMES_MAX,
    Rebalance,
    RoundEnd,
    take_rebalance,
)
from musterd.coordinator.machine.modern.invariants import check_modern
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.state import Group, Phase, holders, recount
from musterd.invariant import invariant


def check(group: Group, *, at_rest: bool = True) -> None:
    """Check those group invariants (gp-1.4) that one state can show: gp-I1 to gp-I5, gp-I7, gp-I9.

    gp-I6 (generations rise), gp-I8 (one vector per generation) and gp-I9 (a fencing token is taken
    once) concern two states: `evolve` guards them. `at_rest` is False between the events of one
    decision, where a member may be in (or out) before the round opens for it.
    """
    where = f"group {quoted(group.group_id)} in {group.phase}: "
    _check_members(group, where)
    invariant(group.tally == recount(group), where + "the tally is not its members' (I1, I4, I5)")
    invariant(group.instances == holders(group), where + "instances are not their members' (I3)")
    invariant(
        not any(member_id in group.members for member_id in group.pending),
        where + "a member's id is pending (I4)",
    )
    tokens = (group.token, *(member.token for member in group.members.values()))
    invariant(0 <= min(tokens) <= max(tokens) <= group.fence, where + "a token not taken yet (I9)")
    _check_timer(group, where, at_rest=at_rest)
    _check_history(group, where, at_rest=at_rest)
    invariant((group.modern is not None) == (group.phase is Phase.MODERN), where + "modern, or not")
    if group.modern is not None and at_rest:
        check_modern(group, group.modern, where)
    if at_rest:
        _check_phase(group, where)


def _check_members(group: Group, where: str) -> None:
    last_seq = -1
    for member_id, member in group.members.items():
        invariant(member.member_id == member_id, where + "a member under another's id (I7)")
        invariant(member.join_seq > last_seq, where + "members not in join order (I7)")
        invariant(member.joined_round <= group.round + 1, where + "joined a future round (I1)")
        invariant(member.synced_generation <= group.generation, where + "synced ahead of time (I4)")
        invariant(
            not member.instance_id or group.instances.get(member.instance_id) == member_id,
            where + "an instance id that another holds (I3)",
        )
        last_seq = member.join_seq
    invariant(last_seq < group.next_join_seq, where + "join sequence behind its members (I7)")
    invariant(
        (group.leader_id in group.members) if group.members else not group.leader_id,
        where + "the group leader is no member (I2)",
    )
    if group.members:
        first = next(iter(group.members.values()))
        invariant(
            any(all(m.supports(p.name) for m in group.members.values()) for p in first.protocols),
            where + "no protocol in common (I5)",
        )


def _check_history(group: Group, where: str, *, at_rest: bool) -> None:
    rounds = list(group.rebalances)
    invariant(len(rounds) <= HISTORY_ROUNDS, where + "more rounds kept than the history holds")
    invariant(
        rounds == sorted(group.rebalances), where + "the history is not in the order of its rounds"
    )
    invariant(not rounds or rounds[-1] == group.round, where + "the last round is not in it")
    open_now = group.phase in {Phase.PREPARING_REBALANCE, Phase.COMPLETING_REBALANCE}
    for number, kept in group.rebalances.items():
        is_last = number == group.round
        invariant(isinstance(kept, Rebalance) == is_last, where + f"round {number}'s form")
        record = kept if isinstance(kept, Rebalance) else take_rebalance(kept)
        expected = open_now and is_last
        if group.former and is_last and not at_rest:  # its next round opens with the next event
            expected = record.ended is RoundEnd.OPEN
        if group.phase is Phase.MODERN and is_last:
            due = group.modern is not None and group.generation > group.modern.target_epoch
            expected = (due and at_rest) or record.ended is RoundEnd.OPEN
        invariant((record.ended is RoundEnd.OPEN) == expected, where + f"round {number} is open")
        invariant(len(record.missing) <= NAMES_MAX, where + "more names than are kept")


def _check_timer(group: Group, where: str, *, at_rest: bool) -> None:
    match group.phase:
        case Phase.EMPTY | Phase.DEAD | Phase.MODERN:
            timers: tuple[RoundTimer | None, ...] = (None,)
        case Phase.PREPARING_REBALANCE:
            timers = (RoundTimer.INITIAL_DELAY, RoundTimer.JOIN)
        case Phase.COMPLETING_REBALANCE:
            timers = (RoundTimer.SYNC,)
        case Phase.STABLE:
            timers = (RoundTimer.SYNC, None)
    invariant(group.timer in timers, where + f"timer {group.timer}")
    if group.timer is None:
        invariant(group.deadline_ms == 0, where + "a deadline without a timer")
    if not group.from_empty:
        invariant(group.remaining_ms == 0, where + "an extension outside the initial delay")
        invariant(not group.new_member_added, where + "a newcomer outside the initial delay")
    if at_rest and group.phase is Phase.STABLE:
        pending = any(not group.has_synced(member) for member in group.members.values())
        invariant(pending == (group.timer is not None), where + "sync timer without a reason (I4)")


def _check_phase(group: Group, where: str) -> None:
    members = group.members.values()
    match group.phase:
        case Phase.EMPTY | Phase.DEAD | Phase.MODERN:
            invariant(not group.members, where + "has members (I2)")
            invariant(not group.protocol_name, where + "has a protocol (I2)")
        case Phase.PREPARING_REBALANCE:
            joined = sum(group.has_joined(member) for member in members)
            if group.from_empty:
                invariant(joined == len(members), where + "a member outside the round (I1)")
            else:
                invariant(
                    joined < len(members) or bool(group.pending),
                    where + "a complete round left open (I1)",
                )
        case Phase.COMPLETING_REBALANCE | Phase.STABLE:
            invariant(bool(group.members), where + "has no members (I2)")
            invariant(
                all(m.instance_id or m.joined_round == group.round for m in members),
                where + "a dynamic member that did not join the generation's round (I1)",
            )
            invariant(
                group.members[group.leader_id].joined_round == group.round,
                where + "the group leader did not join the generation's round (I2)",
            )
            invariant(
                all(m.supports(group.protocol_name) for m in members),
                where + "a member without the selected protocol (I2, I5)",
            )
            if group.phase is Phase.COMPLETING_REBALANCE:
                invariant(
                    not group.has_synced(group.members[group.leader_id]),
                    where + "the group leader synced and nothing was published (I8)",
                )
