"""Makes the state with which a restored cluster begins, of the state that was backed up. Pure.

Of one backup and one instant every node makes the same records. The clusters that went on from this
state have given out tokens since: the one that was backed up, and those that were restored from it
before. So the floors rise: no group takes a token below 2**20 for each second since 1970, which no
cluster gives out as fast, and generations leave a gap. All members are removed, as an operator
removes them, so nobody goes on with what it held. Offsets, settings, topics and rules of access
stay; offsets of groups without members are kept from the instant on, or an old backup would lose
them at once.
"""

from itertools import islice
from typing import Final, NamedTuple

from musterd.coordinator.machine.commands import CloseRound, GroupCommand, LeaveGroup, LeavingMember
from musterd.coordinator.machine.decide.dispatch import decide
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.evolve import evolve
from musterd.coordinator.machine.limits import LIMITS, LIMITS_VERSION
from musterd.coordinator.machine.records.digest import digest_of
from musterd.coordinator.machine.shard_state import ShardState, shard_records
from musterd.coordinator.machine.state import Group, Phase
from musterd.invariant import invariant

GENERATIONS: Final = 1_000_000
"""So far above every generation that a backup knows the next one is."""

TOKENS_PER_S: Final = 2**20
"""The floor of fencing tokens rises by so much with each second of the instant of a restore."""

REASON: Final = "restored from a backup"
SECOND_MS: Final = 1_000
FIRST_LEVEL: Final = 6
"""A restored cluster begins at the level of the backup, and no lower than that of the floors."""

LEAVING_MAX: Final = 500
"""Members that leave in one command."""

ROUNDS_MAX: Final = 1_000
"""Timers of one group that are fired until it is empty."""


class RestoredState(NamedTuple):
    """The records (key, value) of a shard in rising order of keys, and their digest."""

    records: list[tuple[bytes, bytes]]
    digest: int
    fence_floor: int


def highest_token(state: ShardState) -> int:
    """Return the highest fencing token that a shard may have given out: its groups', its floors."""
    tokens = [max(group.fence, group.generation) for group in state.groups.values()]
    return max([state.fence_floor, state.generation_floor, *tokens])


def restored(state: ShardState, instant_s: int, *, keep_tokens: bool = False) -> RestoredState:
    """Return what a restored cluster begins with; changes `state`, which is not used any more.

    `instant_s`: when it is restored, in seconds since 1970; `make_ticket` sees to it that the floor
    of its tokens is above `highest_token`. `keep_tokens`: bearer tokens stay,
    which are void otherwise: who has one of the old cluster is nobody in the new one.
    """
    state.level = max(state.level, FIRST_LEVEL)
    generations = [group.generation for group in state.groups.values()]
    token = highest_token(state)
    for group_id in list(state.groups):
        _empty(state, state.groups[group_id], instant_s * SECOND_MS)
    state.generation_floor = max([state.generation_floor, *generations]) + GENERATIONS
    state.fence_floor = max(instant_s * TOKENS_PER_S, state.generation_floor, token)
    state.replaced_nodes.clear()  # they are nodes of another cluster
    state.node_levels.clear()
    state.audit_batches.clear()
    if state.tokens and not keep_tokens:
        state.tokens.clear()
        state.access_version += 1
    records = sorted(shard_records(state))
    return RestoredState(records, digest_of(records), state.fence_floor)


def _empty(state: ShardState, group: Group, wall_ms: int) -> None:
    """Remove all members of a group, and end its round."""
    modern = group.modern
    members = group.members if modern is None else modern.members
    leaving = [
        LeavingMember(member.member_id, REASON, member.instance_id) for member in members.values()
    ]
    leaving += [LeavingMember(member_id, REASON) for member_id in sorted(group.pending)]
    rest = iter(leaving)
    while some := tuple(islice(rest, LEAVING_MAX)):
        _carry_out(state, group, LeaveGroup(group.group_id, some, kicked=True), wall_ms)
    for _ in range(ROUNDS_MAX):
        if group.timer is None:
            break
        fired = CloseRound(group.group_id, group.round, group.timer, group.deadline_ms)
        _carry_out(state, group, fired, wall_ms)
    invariant(group.phase is Phase.EMPTY, "a restored group is empty")
    invariant(not (group.member_count or group.pending), "a restored group has no members")
    group.emptied_wall_ms = wall_ms


def _carry_out(state: ShardState, group: Group, command: GroupCommand, wall_ms: int) -> None:
    """Decide and evolve as an entry would; it may wait for a deadline."""
    env = Envelope(
        time_ms=max(state.time_ms, group.deadline_ms),
        wall_ms=wall_ms,
        level=state.level,
        limits_version=LIMITS_VERSION,
        generation_floor=state.generation_floor,
        limits=LIMITS,
        topics_version=state.dropped_version,
        dropped_version=state.dropped_version,
        fence_floor=state.fence_floor,
    )
    for event in decide(group, command, env).events:
        left = evolve(group, event)
        invariant(left is group, "a restored group is not deleted")
