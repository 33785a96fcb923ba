"""Every command in every phase: the page at the head of state.py, as tables (gp-1.6).

The first table has dynamic members only; the second a static member b, a pending id p-9, and the
initial round as a column of its own. A cell says which events and which answer; trigger, culprit,
timer and the next phase of each are those of phase_rules.py.
"""

from copy import deepcopy
from dataclasses import dataclass, replace

import pytest

from musterd.coordinator.machine.commands import (
    NEVER_JOINED,
    AlterGroupConfig,
    Assignment,
    CloseRound,
    ConfigSetting,
    ConsumerGroupHeartbeat,
    DeleteGroup,
    DropOffsets,
    DropPart,
    ExpireMember,
    ExpireOffsets,
    GroupCommand,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    NoteTopics,
    OffsetCommit,
    OffsetDelete,
    PartitionCommit,
    Protocol,
    Reconcile,
    RoundTimer,
    StoreTarget,
    SyncGroup,
    TopicPartition,
    TopicsChanged,
)
from musterd.coordinator.machine.decide.dispatch import decide, heartbeat
from musterd.coordinator.machine.events import GroupDeleted, RebalanceStarted
from musterd.coordinator.machine.evolve import evolve
from musterd.coordinator.machine.invariants import check
from musterd.coordinator.machine.records.digest import digest_of
from musterd.coordinator.machine.records.group_records import group_records
from musterd.coordinator.machine.replies import (
    PARKED,
    Committed,
    Configured,
    Done,
    IdGiven,
    Joined,
    Left,
    OffsetsDeleted,
    Refused,
    Synced,
)
from musterd.coordinator.machine.state import Group, Phase
from tests.machine.phase_rules import OPENS, follows, opened, standing
from tests.machine.text import WALL_MS
from tests.machine.world import World

BEFORE = "commit - u/0=1"
SETUP = {
    None: [],
    Phase.EMPTY: [BEFORE, "join a", "fire", "leave a-1"],
    Phase.PREPARING_REBALANCE: [BEFORE, "join a", "join b", "fire", "fire", "sync a-1", "join c"],
    Phase.COMPLETING_REBALANCE: [BEFORE, "join a", "join b", "fire", "fire"],
    Phase.STABLE: [BEFORE, "join a", "join b", "fire", "fire", "sync a-1"],
    Phase.DEAD: [BEFORE, "join a", "fire", "leave a-1"],
}
"""How each phase is reached: a-1 leads, b-1 has not synced; in Preparing c-1 has joined.

Offset u/0 is stored from before; nobody subscribes to u.
"""


def group_in(phase: Phase | None) -> Group | None:
    """A group in `phase`. A deleted one is gone at once, so Dead is made by hand."""
    world = World()
    for line in SETUP[phase]:
        world.run(line)
    group = world.state.groups.get("g")
    if phase is Phase.DEAD:
        group.phase = Phase.DEAD
    assert (group and group.phase) == phase
    return group


def join(
    member_id: str = "",
    client: str = "n",
    meta: bytes = b"x",
    *,
    nonce: str = "1",
    instance: str = "",
    protocols: tuple[str, ...] = ("range",),
) -> JoinGroup:
    """A Join; a known member's with its id. Without a nonce the coordinator draws 9."""
    return JoinGroup(
        group_id="g",
        member_id=member_id,
        client_id=client,
        client_host="10.0.0.1",
        join_nonce=nonce,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=tuple(Protocol(name, meta) for name in protocols),
        subscribed_topics=("t",),
        reason="",
        group_instance_id=instance,
        drawn_nonce="" if nonce or member_id else "9",
    )


def commit(member_id: str, generation: int, instance: str = "") -> OffsetCommit:
    """One partition."""
    partitions = (PartitionCommit("t", 0, 1, "", None),)
    return OffsetCommit("g", member_id, generation, 0, partitions, instance)


def sync(member_id: str, generation: int, instance: str = "") -> SyncGroup:
    """With a vector, which counts where the group leader sends it."""
    return SyncGroup("g", member_id, generation, "", "", (Assignment("b-1", b"B"),), instance)


def config(name: str, value: str) -> AlterGroupConfig:
    """One setting."""
    return AlterGroupConfig("g", (ConfigSetting(name, value),), ())


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
    "delete group": lambda _: DeleteGroup("g"),
    "delete offset, subscribed": lambda _: OffsetDelete("g", (TopicPartition("t", 0),)),
    "delete offset, other": lambda _: OffsetDelete("g", (TopicPartition("u", 0),)),
    "sweep": lambda _: ExpireOffsets("g", 2 * WALL_MS, 1, (TopicPartition("u", 0),)),
    "sweep early": lambda _: ExpireOffsets("g", WALL_MS, 1, (TopicPartition("u", 0),)),
    "sweep, never": lambda _: ExpireOffsets("g", 2 * WALL_MS, 0, (TopicPartition("u", 0),)),
    "topic changed": lambda _: TopicsChanged("g", "t", 2, 1),
    "topic changed, known": lambda _: TopicsChanged("g", "t", 2, 0),
    "topic changed, other": lambda _: TopicsChanged("g", "u", 2, 1),
    "drop": lambda _: DropOffsets("g", "u", 1, (0, 7)),
    "kick": lambda _: LeaveGroup("g", (LeavingMember("b-1", ""),), kicked=True),
    "kick stranger": lambda _: LeaveGroup("g", (LeavingMember("z-1", ""),), kicked=True),
    "config": lambda _: config("classic.max.size", "7"),
    "config, unknown": lambda _: config("max.size", "7"),
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
    "delete group":        [MISSING, "GroupDeleted done", *["NON_EMPTY_GROUP"] * 3, MISSING],
    "delete offset, subscribed": [MISSING, "deleted NONE",
                            *["deleted GROUP_SUBSCRIBED_TO_TOPIC"] * 3, MISSING],
    "delete offset, other": [MISSING, *["OffsetRemoved deleted NONE"] * 4, MISSING],
    "sweep":               ["done", "OffsetRemoved GroupDeleted done", "done", "done",
                            "OffsetRemoved done", "done"],
    "sweep early":         ["done"] * 6,
    "sweep, never":        ["done"] * 6,
    "topic changed":       [*["done"] * 3, *["RebalanceStarted done"] * 2, "done"],
    "topic changed, known": ["done"] * 6,
    "topic changed, other": ["done"] * 6,
    "drop":                ["done", *["OffsetRemoved done"] * 4, "done"],
    "kick":                [MISSING, "left UNKNOWN_MEMBER_ID", "MemberRemoved left NONE",
                            f"{GONE} left NONE", f"{GONE} left NONE", CNA],
    "kick stranger":       [MISSING, *["left UNKNOWN_MEMBER_ID"] * 4, CNA],
    "config":              [*["GroupConfigChanged configured"] * 5, CNA],
    "config, unknown":     [*["INVALID_CONFIG"] * 5, CNA],
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
        case IdGiven():
            words.append("id")
        case OffsetsDeleted():
            words.append("deleted " + " ".join(r.error.name for r in reply.partitions))
        case Joined() | Synced() | Committed() | Configured() | Done():
            words.append(type(reply).__name__.lower())
        case _:
            assert reply is PARKED
            words.append("parked")
    return " ".join(words)


OF_MODERN_GROUPS = {ConsumerGroupHeartbeat, NoteTopics, StoreTarget, DropPart, Reconcile}
"""They have scenarios of their own (testdata/golden/modern), and random histories."""


def test_the_table_has_every_command_and_every_phase():
    """A new phase or a new kind of command needs its row."""
    assert set(SETUP) == {None, *Phase} - {Phase.MODERN}  # test_modern.py
    assert set(TABLE) == set(COMMANDS)
    kinds = {type(make(Armed())) for make in COMMANDS.values()}
    assert kinds == set(GroupCommand.__args__) - OF_MODERN_GROUPS
    assert all(len(row) == len(SETUP) for row in TABLE.values())


@pytest.mark.parametrize(("phase", "name", "expected"), CELLS)
def test_each_phase_answers_each_command_as_the_table_says(phase, name, expected):
    """Events and answer are the cell's, the group is not touched, the result is legal.

    Dead: sc-J34, sc-J35, sc-J48, sc-Y03, sc-L03, sc-L04; its heartbeat below: sc-H05.
    """
    hold_against(group_in(phase), name, COMMANDS[name], expected)


def hold_against(group: Group | None, name: str, make, expected: str) -> None:
    """One cell: decided from `group`, then applied to a copy of it."""
    timer = group.timer if group and group.timer else RoundTimer.JOIN
    at = Armed(group.generation, group.round, timer, group.deadline_ms) if group else Armed()
    world = World()
    world.now_ms = 1_000_000
    before = digest_of(group_records(group)) if group else None
    decision = decide(group, make(at), world.envelope())
    assert outcome(*decision) == expected
    assert (digest_of(group_records(group)) if group else None) == before
    after = deepcopy(group)
    for event in decision.events:
        after = evolve(after, event)
        assert (after is None) == isinstance(event, GroupDeleted)
        if after is not None:
            check(after, at_rest=False)
    if after is not None:
        check(after)
    assert standing(after) == follows(group, decision.events, after, world.now_ms)
    for event in decision.events:
        if isinstance(event, RebalanceStarted):
            culprit = event.member_id or "-"
            assert f"{event.trigger.name} {culprit}" == opened(name, group)


def test_every_row_that_opens_a_round_says_why():
    """And no other row does."""
    rows = [*TABLE.items(), *MORE.items()]
    assert {name for name, row in rows if any("RebalanceStarted" in cell for cell in row)} == {
        *OPENS
    }


@pytest.mark.parametrize("phase", HEARTBEATS)
def test_each_phase_answers_a_heartbeat_as_the_table_says(phase):
    """gp-H2 to gp-H6; a stranger and a wrong generation keep their own errors."""
    group = group_in(phase)
    generation = group.generation if group else 0
    assert heartbeat(group, "a-1", generation).name == HEARTBEATS[phase]
    if group is not None and group.members:
        assert heartbeat(group, "a-1", generation + 1).name == STALE
        assert heartbeat(group, "z-1", generation).name == UNKNOWN


# ---- static members, pending ids, each timer; the initial round

MEMBERS = ["join a protocols=range,rr", "join b instance=i protocols=range,rr", "fire", "fire"]
PENDING = "join p nonce= drawn=9"
COLUMNS = {
    "none": (None, []),
    "Empty": (Phase.EMPTY, ["join a", "fire", "leave a-1", PENDING]),
    "initial": (Phase.PREPARING_REBALANCE, [*MEMBERS[:2], PENDING]),
    "Preparing": (
        Phase.PREPARING_REBALANCE,
        [*MEMBERS, "sync a-1", PENDING, "join c protocols=range,rr"],
    ),
    "Completing": (Phase.COMPLETING_REBALANCE, [*MEMBERS, PENDING]),
    "Stable": (Phase.STABLE, [*MEMBERS, "sync a-1", "sync b-1", PENDING]),
    "Dead": (Phase.DEAD, ["join a", "fire", "leave a-1", PENDING]),
}
"""a-1 leads, b-1 is static, p-9 is pending; in Preparing c-1 alone has joined."""

BOTH = ("range", "rr")


def standing_at(column: str) -> Group | None:
    """The group of a column."""
    phase, lines = COLUMNS[column]
    world = World()
    for line in lines:
        world.run(line)
    group = world.state.groups.get("g")
    if phase is Phase.DEAD:
        group.phase = Phase.DEAD
    assert (group and group.phase) == phase
    return group


def leaving(*entries: tuple[str, str]) -> LeaveGroup:
    """Pairs of member and instance id."""
    return LeaveGroup("g", tuple(LeavingMember(member, "", i) for member, i in entries))


def firing(timer: RoundTimer):
    """The named timer, at the deadline of whatever is armed."""
    return lambda at: CloseRound("g", at.round, timer, at.deadline_ms)


EVENTS = {
    "join, no nonce": lambda _: join(nonce=""),
    "join, pending id": lambda _: join("p-9", "p"),
    "join, pending id as static": lambda _: join("p-9", "p", instance="k"),
    "join, nonce is a pending one": lambda _: join("", "p", nonce="9"),
    "join, static, new": lambda _: join(instance="k"),
    "join, static, no nonce": lambda _: join(instance="k", nonce=""),
    "join, static, held": lambda _: join("", "b", nonce="2", instance="i", protocols=BOTH),
    "join, static, held, other protocol": lambda _: join(
        "", "b", nonce="2", instance="i", protocols=("rr",)
    ),
    "join, static, held, no common protocol": lambda _: join(
        "", "b", nonce="2", instance="i", protocols=("sticky",)
    ),
    "join, static, repeated": lambda _: join("", "b", instance="i", protocols=BOTH),
    "join, static, known id": lambda _: join("b-1", "b", instance="i", protocols=BOTH),
    "join, static, known id, changed": lambda _: join(
        "b-1", "b", b"y", instance="i", protocols=BOTH
    ),
    "join, static, known id, instance omitted": lambda _: join("b-1", "b", protocols=BOTH),
    "join, fenced": lambda _: join("z-1", "z", instance="i", protocols=BOTH),
    "join, another's instance": lambda _: join("a-1", "a", instance="i", protocols=BOTH),
    "join, nobody's instance": lambda _: join("b-1", "b", instance="k", protocols=BOTH),
    "join, other type": lambda _: replace(join(), protocol_type="connect"),
    "join, no protocol": lambda _: join(protocols=()),
    "sync, static": lambda at: sync("b-1", at.generation, "i"),
    "sync, fenced": lambda at: sync("z-1", at.generation, "i"),
    "sync, nobody's instance": lambda at: sync("b-1", at.generation, "k"),
    "sync, pending id": lambda at: sync("p-9", at.generation),
    "sync, other name": lambda at: replace(sync("b-1", at.generation), protocol_name="rr"),
    "commit, static": lambda at: commit("b-1", at.generation, "i"),
    "commit, fenced": lambda at: commit("z-1", at.generation, "i"),
    "commit, pending id": lambda at: commit("p-9", at.generation),
    "commit, simple with an instance": lambda _: commit("", -1, "i"),
    "leave, by instance": lambda _: leaving(("", "i")),
    "leave, nobody's instance": lambda _: leaving(("", "k"), ("b-1", "k"), ("", "")),
    "leave, fenced": lambda _: leaving(("z-1", "i")),
    "leave, pending id": lambda _: leaving(("p-9", "")),
    "leave, batch": lambda _: leaving(("b-1", "i"), ("p-9", ""), ("b-1", "i"), ("z-1", "")),
    "leave, everybody": lambda _: leaving(("a-1", ""), ("b-1", ""), ("c-1", "")),
    "expire, static": lambda at: ExpireMember("g", "b-1", at.generation, 1, ""),
    "expire, pending id": lambda _: ExpireMember("g", "p-9", 77, NEVER_JOINED, ""),
    "expire, used id": lambda at: ExpireMember("g", "b-1", at.generation, NEVER_JOINED, ""),
    "delete group": lambda _: DeleteGroup("g"),
    "sweep": lambda _: ExpireOffsets("g", 2 * WALL_MS, 1, ()),
    "timer INITIAL_DELAY": firing(RoundTimer.INITIAL_DELAY),
    "timer JOIN": firing(RoundTimer.JOIN),
    "timer SYNC": firing(RoundTimer.SYNC),
}

IN = "MemberJoined parked"
SAME = "MemberRejoined parked"
TAKEN = "MemberReplaced RebalanceStarted parked"
FENCED = "FENCED_INSTANCE_ID"
INVALID = "INVALID_REQUEST"
OTHER = "INCONSISTENT_GROUP_PROTOCOL"
ID = "PendingAdded id"
STORED = "OffsetCommitted committed"
TWO = "MemberRemoved PendingRemoved"
BOTH_GONE = "MemberRemoved MemberRemoved"


def left(*errors: str) -> str:
    """What a LeaveGroup's entries are told."""
    return " ".join(("left", *errors))


SOME = left("NONE", "NONE", UNKNOWN, UNKNOWN)

# columns: none, Empty, initial, Preparing, Completing, Stable, Dead
MORE = {
    "join, no nonce":               [ID] * 6 + [CNA],
    "join, pending id":             [UNKNOWN, NEW, IN, IN, NEW, NEW, CNA],
    "join, pending id as static":   [UNKNOWN] + [INVALID] * 5 + [CNA],
    "join, nonce is a pending one": [NEW, NEW, IN, IN, NEW, NEW, CNA],
    "join, static, new":            [NEW, NEW, IN, IN, NEW, NEW, CNA],
    "join, static, no nonce":       [NEW, NEW, IN, IN, NEW, NEW, CNA],
    "join, static, held":           [NEW, NEW, "MemberReplaced parked", "MemberReplaced parked",
                                     TAKEN, "MemberReplaced joined", CNA],
    "join, static, held, other protocol": [NEW, NEW, "MemberReplaced parked",
                                     "MemberReplaced parked", TAKEN, TAKEN, CNA],
    "join, static, held, no common protocol": [NEW, NEW] + [OTHER] * 4 + [CNA],
    "join, static, repeated":       [NEW, NEW, "parked", SAME, "joined", "joined", CNA],
    "join, static, known id":       [UNKNOWN, UNKNOWN, "parked", SAME, "joined", "joined", CNA],
    "join, static, known id, changed": [UNKNOWN, UNKNOWN, SAME, SAME, ROUND, ROUND, CNA],
    "join, static, known id, instance omitted": [UNKNOWN, UNKNOWN, "parked", SAME, "joined",
                                     "joined", CNA],
    "join, fenced":                 [UNKNOWN, UNKNOWN] + [FENCED] * 4 + [CNA],
    "join, another's instance":     [UNKNOWN, UNKNOWN] + [FENCED] * 4 + [CNA],
    "join, nobody's instance":      [UNKNOWN] * 6 + [CNA],
    "join, other type":             ["MemberJoined RebalanceStarted parked"] * 2 + [OTHER] * 4
                                    + [CNA],
    "join, no protocol":            [OTHER] * 6 + [CNA],
    "sync, static":                 [UNKNOWN, UNKNOWN, REBALANCING, REBALANCING,
                                     "MemberSynced parked", "synced", CNA],
    "sync, fenced":                 [UNKNOWN, UNKNOWN] + [FENCED] * 4 + [CNA],
    "sync, nobody's instance":      [UNKNOWN] * 6 + [CNA],
    "sync, pending id":             [UNKNOWN] * 6 + [CNA],
    "sync, other name":             [UNKNOWN, UNKNOWN, REBALANCING] + [OTHER] * 3 + [CNA],
    "commit, static":               [MISSING, UNKNOWN, STORED, STORED, REBALANCING, STORED, CNA],
    "commit, fenced":               [MISSING, UNKNOWN] + [FENCED] * 4 + [CNA],
    "commit, pending id":           [MISSING] + [UNKNOWN] * 5 + [CNA],
    "commit, simple with an instance": [STORED, STORED] + [FENCED] * 4 + [CNA],
    "leave, by instance":           [left(UNKNOWN)] * 2 + ["MemberRemoved left NONE"] * 2
                                    + [f"{GONE} left NONE"] * 2 + [CNA],
    "leave, nobody's instance":     [left(*[UNKNOWN] * 3)] * 6 + [CNA],
    "leave, fenced":                [left(UNKNOWN)] * 2 + [left(FENCED)] * 4 + [CNA],
    "leave, pending id":            [left(UNKNOWN)] + ["PendingRemoved left NONE"] * 5 + [CNA],
    "leave, batch":                 [left(*[UNKNOWN] * 4),
                                     f"PendingRemoved {left(UNKNOWN, 'NONE', UNKNOWN, UNKNOWN)}",
                                     f"{TWO} {SOME}", f"{TWO} {SOME}",
                                     f"{TWO} RebalanceStarted {SOME}",
                                     f"{TWO} RebalanceStarted {SOME}", CNA],
    "leave, everybody":             [left(*[UNKNOWN] * 3)] * 2
                                    + [f"{BOTH_GONE} {left('NONE', 'NONE', UNKNOWN)}",
                                       f"{BOTH_GONE} MemberRemoved left NONE NONE NONE"]
                                    + [f"{BOTH_GONE} RebalanceStarted left NONE NONE {UNKNOWN}"] * 2
                                    + [CNA],
    "expire, static":               ["done", "done", "MemberRemoved done", "MemberRemoved done",
                                     f"{GONE} done", f"{GONE} done", "done"],
    "expire, pending id":           ["done"] + ["PendingRemoved done"] * 5 + ["done"],
    "expire, used id":              ["done"] * 7,
    "delete group":                 [MISSING, "PendingRemoved GroupDeleted done"]
                                    + ["NON_EMPTY_GROUP"] * 4 + [MISSING],
    "sweep":                        ["done"] * 7,
    "timer INITIAL_DELAY":          ["done", "done", "RoundExtended done"] + ["done"] * 4,
    "timer JOIN":                   ["done"] * 3 + ["MemberRemoved GenerationFormed done"]
                                    + ["done"] * 3,
    "timer SYNC":                   ["done"] * 4
                                    + ["MemberRemoved MemberRemoved RebalanceStarted done"]
                                    + ["done"] * 2,
}  # fmt: skip
MORE_CELLS = [(column, name, MORE[name][i]) for i, column in enumerate(COLUMNS) for name in EVENTS]


def test_the_second_table_is_complete():
    """Each event has a row, each row a cell in every column, and each phase a column."""
    assert set(MORE) == set(EVENTS)
    assert all(len(row) == len(COLUMNS) for row in MORE.values())
    assert {phase for phase, _ in COLUMNS.values()} == {None, *Phase} - {Phase.MODERN}


@pytest.mark.parametrize(("column", "name", "expected"), MORE_CELLS)
def test_static_members_and_pending_ids_in_every_phase(column, name, expected):
    """As the first table: events, answer, nothing touched, the result legal."""
    hold_against(standing_at(column), name, EVENTS[name], expected)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_heartbeat_of_a_static_member_in_every_phase(column):
    """sc-S14, sc-S22, sc-S31, sc-H03: the instance id first, then the member id, then the rest."""
    phase, _ = COLUMNS[column]
    group = standing_at(column)
    generation = group.generation if group else 0
    told = HEARTBEATS[phase]
    assert heartbeat(group, "b-1", generation, "i").name == told
    assert heartbeat(group, "b-1", generation).name == told
    strangers = {None: UNKNOWN, Phase.EMPTY: UNKNOWN, Phase.DEAD: CNA}
    assert heartbeat(group, "z-1", generation, "i").name == strangers.get(phase, FENCED)
    assert heartbeat(group, "b-1", generation, "k").name == strangers.get(phase, UNKNOWN)
    assert heartbeat(group, "p-9", generation).name == strangers.get(phase, UNKNOWN)
    if group is not None and group.members:
        assert heartbeat(group, "b-1", generation + 1, "i").name == STALE
