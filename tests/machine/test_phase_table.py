"""Every command in every phase: the page at the head of state.py, as a table (gp-1.6)."""

from copy import deepcopy
from dataclasses import dataclass

import pytest

from coordinator.machine import decide, evolve, heartbeat
from coordinator.machine.commands import (
    Assignment,
    CloseRound,
    ExpireMember,
    GroupCommand,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    PartitionCommit,
    Protocol,
    RoundTimer,
    SyncGroup,
)
from coordinator.machine.digest import digest_of
from coordinator.machine.invariants import check
from coordinator.machine.records import group_records
from coordinator.machine.replies import PARKED, Committed, Done, Joined, Left, Refused, Synced
from coordinator.machine.state import Group, Phase
from tests.machine.world import World

SETUP = {
    None: [],
    Phase.EMPTY: ["join a", "fire", "leave a-1"],
    Phase.PREPARING_REBALANCE: ["join a", "join b", "fire", "fire", "sync a-1", "join c"],
    Phase.COMPLETING_REBALANCE: ["join a", "join b", "fire", "fire"],
    Phase.STABLE: ["join a", "join b", "fire", "fire", "sync a-1"],
    Phase.DEAD: ["join a", "fire", "leave a-1"],
}
"""How each phase is reached: a-1 leads, b-1 has not synced; in Preparing c-1 has joined."""


def group_in(phase: Phase | None) -> Group | None:
    """A group in `phase`. Nothing ends Dead yet, so that one is made by hand."""
    world = World()
    for line in SETUP[phase]:
        world.run(line)
    group = world.state.groups.get("g")
    if phase is Phase.DEAD:
        group.phase = Phase.DEAD
    assert (group and group.phase) == phase
    return group


def join(member_id: str = "", client: str = "n", meta: bytes = b"x") -> JoinGroup:
    """A Join; a known member's with its id."""
    return JoinGroup(
        group_id="g",
        member_id=member_id,
        client_id=client,
        client_host="10.0.0.1",
        join_nonce="1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=(Protocol("range", meta),),
        subscribed_topics=("t",),
        reason="",
    )


def commit(member_id: str, generation: int) -> OffsetCommit:
    """One partition."""
    return OffsetCommit("g", member_id, generation, 0, (PartitionCommit("t", 0, 1, "", None),))


def sync(member_id: str, generation: int) -> SyncGroup:
    """With a vector, which counts where the group leader sends it."""
    return SyncGroup("g", member_id, generation, "", "", (Assignment("b-1", b"B"),))


@dataclass(frozen=True)
class Armed:
    """What the group stands at: commands name it."""

    generation: int = 1
    round: int = 1
    timer: RoundTimer = RoundTimer.JOIN
    deadline_ms: int = 0


COMMANDS = {
    "join new": lambda _: join(),
    "join same, leader": lambda _: join("a-1", "a"),
    "join same, follower": lambda _: join("b-1", "b"),
    "join changed": lambda _: join("b-1", "b", b"y"),
    "join stranger": lambda _: join("z-1", "z"),
    "sync leader": lambda at: sync("a-1", at.generation),
    "sync follower": lambda at: sync("b-1", at.generation),
    "sync stale": lambda at: sync("a-1", at.generation - 1),
    "leave": lambda _: LeaveGroup("g", (LeavingMember("b-1", ""),)),
    "leave stranger": lambda _: LeaveGroup("g", (LeavingMember("z-1", ""),)),
    "expire": lambda at: ExpireMember("g", "b-1", at.generation, 1, ""),
    "expire stale": lambda at: ExpireMember("g", "b-1", at.generation, 0, ""),
    "close": lambda at: CloseRound("g", at.round, at.timer, at.deadline_ms),
    "close stale": lambda at: CloseRound("g", at.round, at.timer, at.deadline_ms + 1),
    "commit member": lambda at: commit("a-1", at.generation),
    "commit stale": lambda at: commit("a-1", at.generation - 1),
    "commit simple": lambda _: commit("", -1),
}

UNKNOWN = "UNKNOWN_MEMBER_ID"
CNA = "COORDINATOR_NOT_AVAILABLE"
REBALANCING = "REBALANCE_IN_PROGRESS"
MISSING = "GROUP_ID_NOT_FOUND"
ROUND = "MemberRejoined RebalanceStarted parked"
NEW = "MemberJoined RebalanceStarted parked"
STALE = "ILLEGAL_GENERATION"
GONE = "MemberRemoved RebalanceStarted"

# columns: no group, Empty, Preparing, Completing, Stable, Dead
TABLE = {
    "join new":            [NEW, NEW, "MemberJoined parked", NEW, NEW, CNA],
    "join same, leader":   [UNKNOWN, UNKNOWN, "MemberRejoined parked", "joined", ROUND, CNA],
    "join same, follower": [UNKNOWN, UNKNOWN, "MemberRejoined parked", "joined", "joined", CNA],
    "join changed":        [UNKNOWN, UNKNOWN, "MemberRejoined parked", ROUND, ROUND, CNA],
    "join stranger":       [UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, CNA],
    "sync leader":         [UNKNOWN, UNKNOWN, REBALANCING,
                            "MemberSynced AssignmentPublished parked", "synced", CNA],
    "sync follower":       [UNKNOWN, UNKNOWN, REBALANCING, "MemberSynced parked",
                            "MemberSynced synced", CNA],
    "sync stale":          [UNKNOWN, UNKNOWN, STALE, STALE, STALE, CNA],
    "leave":               ["left UNKNOWN_MEMBER_ID", "left UNKNOWN_MEMBER_ID",
                            "MemberRemoved left NONE", f"{GONE} left NONE", f"{GONE} left NONE",
                            CNA],
    "leave stranger":      ["left UNKNOWN_MEMBER_ID"] * 5 + [CNA],
    "expire":              ["done", "done", "MemberRemoved done", f"{GONE} done", f"{GONE} done",
                            "done"],
    "expire stale":        ["done"] * 6,
    "close":               ["done", "done", "MemberRemoved MemberRemoved GenerationFormed done",
                            "MemberRemoved MemberRemoved RebalanceStarted GroupEmptied done",
                            f"{GONE} done", "done"],
    "close stale":         ["done"] * 6,
    "commit member":       [MISSING, UNKNOWN, "OffsetCommitted committed", REBALANCING,
                            "OffsetCommitted committed", CNA],
    "commit stale":        [MISSING, UNKNOWN, STALE, STALE, STALE, CNA],
    "commit simple":       ["OffsetCommitted committed", "OffsetCommitted committed", UNKNOWN,
                            UNKNOWN, UNKNOWN, CNA],
}  # fmt: skip

HEARTBEATS = {
    None: UNKNOWN,
    Phase.EMPTY: UNKNOWN,
    Phase.PREPARING_REBALANCE: REBALANCING,
    Phase.COMPLETING_REBALANCE: "NONE",
    Phase.STABLE: "NONE",
    Phase.DEAD: CNA,
}
CELLS = [(phase, name, TABLE[name][i]) for i, phase in enumerate(SETUP) for name in COMMANDS]


def outcome(events, reply) -> str:
    """The events' names and the kind of answer."""
    words = [type(event).__name__ for event in events]
    match reply:
        case Refused():
            words.append(reply.error.name)
        case Left():
            words.append("left " + " ".join(result.error.name for result in reply.results))
        case Joined() | Synced() | Committed() | Done():
            words.append(type(reply).__name__.lower())
        case _:
            assert reply is PARKED
            words.append("parked")
    return " ".join(words)


def test_the_table_has_every_command_and_every_phase():
    """A new phase or a new kind of command needs its row."""
    assert set(SETUP) == {None, *Phase}
    assert set(TABLE) == set(COMMANDS)
    kinds = {type(make(Armed())) for make in COMMANDS.values()}
    assert kinds == set(GroupCommand.__args__)
    assert all(len(row) == len(SETUP) for row in TABLE.values())


@pytest.mark.parametrize(("phase", "name", "expected"), CELLS)
def test_each_phase_answers_each_command_as_the_table_says(phase, name, expected):
    """Events and answer are the cell's, the group is not touched, the result is legal."""
    group = group_in(phase)
    timer = group.timer if group and group.timer else RoundTimer.JOIN
    at = Armed(group.generation, group.round, timer, group.deadline_ms) if group else Armed()
    world = World()
    world.now_ms = 1_000_000
    before = digest_of(group_records(group)) if group else None
    decision = decide(group, COMMANDS[name](at), world.envelope())
    assert outcome(*decision) == expected
    assert (digest_of(group_records(group)) if group else None) == before
    after = deepcopy(group)
    for event in decision.events:
        after = evolve(after, event)
        check(after, at_rest=False)
    if after is not None:
        check(after)


@pytest.mark.parametrize("phase", HEARTBEATS)
def test_each_phase_answers_a_heartbeat_as_the_table_says(phase):
    """H2-H6 of gp-2.4; a stranger and a wrong generation keep their own errors."""
    group = group_in(phase)
    generation = group.generation if group else 0
    assert heartbeat(group, "a-1", generation).name == HEARTBEATS[phase]
    if group is not None and group.members:
        assert heartbeat(group, "a-1", generation + 1).name == STALE
        assert heartbeat(group, "z-1", generation).name == UNKNOWN
