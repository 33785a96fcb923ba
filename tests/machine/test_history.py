"""The last rounds of a group: bounded, cheap, and what a reader of the events writes."""

from dataclasses import dataclass, field

from hypothesis import given

from musterd.coordinator.machine.commands import JoinGroup, Protocol
from musterd.coordinator.machine.events import (
    AssignmentPublished,
    GenerationFormed,
    GroupDeleted,
    GroupEmptied,
    MemberJoined,
    MemberRejoined,
    MemberReplaced,
    RebalanceStarted,
    RemovalCause,
    Trigger,
)
from musterd.coordinator.machine.evolve_history import rounds_of
from musterd.coordinator.machine.history import (
    HISTORY_ROUNDS,
    NAMES_MAX,
    RECORD_MAX_BYTES,
    Missing,
    Moves,
    Rebalance,
    RoundEnd,
    Who,
    put_rebalance,
    take_rebalance,
)
from musterd.coordinator.machine.records.group_records import RoundOf, group_key, group_records
from musterd.coordinator.machine.shard_state import load_state, recount, shard_records
from tests.machine.test_properties import HISTORIES, SETTINGS, live
from tests.machine.world import World


def with_rounds(world, count):
    """One member that changes what it says, again and again: a round each."""
    world.run("join a ; join a")
    world.run("fire")
    world.run("sync a-1 a-1:A")
    for number in range(2, count + 1):
        world.now_ms += 100
        world.run(f"rejoin a-1 meta=m{number}")
        world.run("sync a-1 a-1:A")
    return world.state.groups["g"]


def test_the_33rd_round_pushes_out_the_first():
    """At, under and over the limit; of the records on disk, too."""
    for count, first in ((31, 1), (32, 1), (33, 2), (40, 9)):
        world = World()
        group = with_rounds(world, count)
        assert list(group.rebalances) == list(range(first, count + 1))
        assert len(group.rebalances) <= HISTORY_ROUNDS
        kept = {key for key, _ in group_records(group)}
        assert group_key("g", RoundOf(first)) in kept
        assert group_key("g", RoundOf(first - 1)) not in kept
        assert load_state(sorted(shard_records(world.state))) == world.state


def test_rules_1_leave_no_history_and_the_digest_of_before():
    """Old entries decide, store and hash what they always did."""
    world = World(level=1)
    group = with_rounds(world, 5)
    world.now_ms += 100
    world.run("join b")
    assert (group.round, group.rebalances) == (6, {})
    assert {member.joined_ms for member in group.members.values()} == {0}
    assert f"{recount(world.state):032x}" == "62cfa423102db5d0589eeb498fa978ab"


def test_a_round_that_opened_under_rules_1_is_not_written_up_later():
    """Half a history would say wrong times: it begins with the next round."""
    world = World(level=1)
    for line in ("join a", "fire", "sync a-1", "time 2000", "join b"):
        world.run(line)
    world.level = 2
    for line in ("time 2100", "rejoin a-1", "sync a-1", "sync b-1"):
        world.run(line)
    assert world.state.groups["g"].rebalances == {}
    world.run("leave b-1")
    assert list(world.state.groups["g"].rebalances) == [3]


def test_a_join_of_a_large_group_writes_its_member_alone():
    """The open round's record is not touched until the last has joined."""
    world, members = World(), 40
    for number in range(members):
        world.run(f"join c{number}")
    world.run("fire")
    world.run("fire")
    world.run("sync c0-1")
    for number in range(1, members):
        world.run(f"sync c{number}-1")
    world.now_ms += 1_000
    world.run("rejoin c0-1")
    for number in range(1, members - 1):
        (result,) = world.apply(rejoin(f"c{number}"))
        assert [key for key, _ in result.writes] == [group_key("g", f"c{number}-1")]
    (result,) = world.apply(rejoin(f"c{members - 1}"))
    assert group_key("g", RoundOf(2)) in [key for key, _ in result.writes]


def rejoin(client_id):
    """A known member's Join."""
    return JoinGroup(
        "g",
        f"{client_id}-1",
        client_id,
        "10.0.0.1",
        "1",
        10_000,
        60_000,
        "consumer",
        (Protocol("range", b"x"),),
        ("t",),
        "",
    )


def test_the_largest_record_is_within_its_maximum():
    """Ids of 249 bytes, a reason of 255 characters of four bytes each, all names in use."""
    who = Who("m" * 249, "c" * 249, "i" * 249)
    record = Rebalance(0, 1, 2, Trigger.STATIC_REPLACED, who, "\U0001f600" * 255, True, 2_000, 7)
    record.last_joined = record.leader = who
    record.new_ids = ("n" * 249,) * NAMES_MAX
    record.joining_ms = record.syncing_ms = 2**40
    record.ended = RoundEnd.SUPERSEDED
    for number in range(2_000):
        one = Who(f"{number:0249}", who.client_id, who.instance_id)
        record.miss(one, RemovalCause.NOT_REJOINED, 5)
    assert (len(record.missing), record.missing_members) == (NAMES_MAX, 2_000)
    record.moves = Moves()
    for number in range(2_000):
        record.moves.note_gone(number, "g" * 249)
        if record.moves.add(2_000 + number, 4_000 + number, number % 8):
            record.moves.names |= dict.fromkeys((2_000 + number, 4_000 + number), "o" * 249)
    assert (len(record.moves.flows), sum(record.moves.count.values())) == (NAMES_MAX, 2_000)
    assert len(record.moves.names) == 3 * NAMES_MAX
    stored = put_rebalance(record)
    assert len(stored) <= RECORD_MAX_BYTES
    assert take_rebalance(stored) == record


@dataclass
class Told:
    """A round as somebody writes it down who reads the events of the log."""

    trigger: Trigger
    culprit: str
    generation: int = 0
    joining_ms: int | None = None
    ended: RoundEnd = RoundEnd.OPEN
    members_after: int = 0
    last_joined: tuple[set[str], int] = field(default_factory=lambda: (set(), 0))
    """Who may be called the last to join, and when it was."""


@dataclass
class Reader:
    """Reads one group's events."""

    rounds: dict[int, Told] = field(default_factory=dict)
    started_ms: int = 0
    joins: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Member -> round and time of its last Join."""

    def on(self, event, time_ms):
        """The next event."""
        last = self.rounds[max(self.rounds)] if self.rounds else None
        match event:
            case MemberJoined() | MemberRejoined() | MemberReplaced():
                self.joins[event.member_id] = (event.joined_round, time_ms)
            case RebalanceStarted():
                if last is not None and last.ended is RoundEnd.OPEN:
                    last.ended = RoundEnd.SUPERSEDED
                self.rounds[event.round] = Told(event.trigger, event.member_id)
                self.started_ms = time_ms
            case GenerationFormed() | GroupEmptied():
                last.generation = event.generation
                last.joining_ms = time_ms - self.started_ms
                last.members_after = len(getattr(event, "member_ids", ()))
                last.last_joined = self.latest(event)
                if isinstance(event, GroupEmptied):
                    last.ended = RoundEnd.EMPTIED
            case AssignmentPublished():
                last.ended = RoundEnd.STABLE

    def latest(self, event):
        """Of the members of a generation those that joined it last."""
        members = getattr(event, "member_ids", ())
        joins = {m: self.joins[m][1] for m in members if self.joins[m][0] == event.round}
        when_ms = max(joins.values(), default=0)
        return {m for m, at_ms in joins.items() if at_ms == when_ms}, when_ms


def told(results, entries):
    """Group -> round -> what the events say of it."""
    readers = {}
    for result, entry in zip(results, entries, strict=True):
        for event in result.events:
            if isinstance(event, GroupDeleted):
                del readers[event.group_id]
            elif hasattr(event, "group_id"):
                readers.setdefault(event.group_id, Reader()).on(event, entry.time_ms)
    return {group_id: reader.rounds for group_id, reader in readers.items()}


OUT = {*RemovalCause} - {RemovalCause.NOT_SYNCED}
"""Why a member is gone before a generation is formed."""
NOBODY_WENT = {
    Trigger.MEMBER_JOINED,
    Trigger.METADATA_CHANGED,
    Trigger.PARTITIONS_RELEASED,
    Trigger.LEADER_REJOINED,
    Trigger.STATIC_REPLACED,
    Trigger.TOPICS_CHANGED,
}
"""Who goes and thereby opens a round is counted before it, and is its culprit."""


@SETTINGS
@given(HISTORIES)
def test_the_history_is_what_a_reader_of_the_events_writes(history):
    """Every round has its one recorded cause, its end and its time, restarts or not."""
    state, entries, results = live(history)
    expected = told(results, entries)
    for group_id, group in state.groups.items():
        rounds = expected.get(group_id, {})
        assert list(group.rebalances) == list(rounds)[-HISTORY_ROUNDS:]
        for number, record in rounds_of(group):
            one = rounds[number]
            assert (record.trigger, record.culprit.member_id) == (one.trigger, one.culprit)
            assert (record.generation, record.ended) == (one.generation, one.ended)
            assert (record.joining_ms, record.members_after) == (one.joining_ms, one.members_after)
            latest, when_ms = one.last_joined
            assert (record.last_joined.member_id in latest) == bool(latest)
            if latest:
                assert record.started_ms + record.last_join_ms == when_ms
            assert record.started_wall_ms == record.started_ms + 7
            unsynced = record.ended in {RoundEnd.OPEN, RoundEnd.EMPTIED}
            assert (record.syncing_ms is None) == unsynced
            assert (record.syncing_ms or 0) >= 0
            if record.trigger in NOBODY_WENT and record.members_after:
                gone = [
                    m for m, who in record.missing.items() if who.cause in OUT and who.client_id
                ]
                there = record.members_before + record.new_members - len(gone)
                assert record.members_after == there, "nobody goes unnamed"


def test_a_missing_member_without_a_cause_is_read_back():
    """None is a value of its own."""
    record = Rebalance(0, 1, 0, Trigger.MEMBER_JOINED, Who("a-1", "a"), "", False, 1, 0)
    record.miss(Who("b-1", "b", "i"), None, 60)
    assert record.missing == {"b-1": Missing("b", "i", None, 60)}
    assert take_rebalance(put_rebalance(record)) == record
