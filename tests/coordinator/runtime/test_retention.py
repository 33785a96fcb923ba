"""What retention takes, on a shard that leads: when it looks, what it proposes, and how much."""

import pytest

from musterd.coordinator.machine.commands import (
    CloseRound,
    DeleteGroup,
    OffsetCommit,
    OffsetDelete,
    PartitionCommit,
    TopicPartition,
)
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import Committed, Done, Refused
from musterd.coordinator.machine.shard_state import recount
from musterd.coordinator.runtime import retention
from musterd.coordinator.runtime.persist import scrub
from musterd.coordinator.runtime.retention import Retention, Sweep
from musterd.raft.contract import NodeId
from tests.coordinator.fakes import Rig, commit, join, leave
from tests.coordinator.runtime.test_shard import settle

DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture
def rig():
    """Offsets are kept for a day; a look every 200 ms."""
    rig = Rig(retention=Retention(offsets_ms=DAY_MS, interval_ms=200))
    rig.log.lead()
    return rig


def stored(rig, group):
    """A simple group with one offset."""
    rig.ask(f"commit {group}", commit("", -1, 5, group=group))
    rig.turn()
    assert isinstance(rig.answers[f"commit {group}"], Committed)


def test_what_is_due_goes_and_nothing_else(rig):
    """sc-E05, sc-E08: by the wall time of the leader; the records on disk go, too."""
    stored(rig, "old")
    rig.wall_ms += DAY_MS - 1
    stored(rig, "new")
    rig.run(500)
    assert set(rig.shard.state.groups) == {"old", "new"}
    rig.wall_ms += 1
    rig.run(500)
    assert set(rig.shard.state.groups) == {"new"}
    *_, digests = scrub(rig.log.view)
    assert digests.total == rig.shard.state.digest == recount(rig.shard.state)
    assert set(digests.groups) == {"new"}


def test_nothing_due_takes_no_entry(rig):
    """A sweep of a shard at rest leaves its log alone."""
    stored(rig, "g")
    rig.run(10_500)  # the last checkpoint is taken
    before = len(rig.log.entries)
    rig.run(1_000)
    assert len(rig.log.entries) == before


def test_an_empty_group_without_offsets_goes_and_its_generation_stays(rig):
    """sc-E11: the next life of the group begins above."""
    generation = settle(rig, "a")
    rig.ask("leave", leave("a"))
    rig.run(500)
    assert rig.shard.state.groups == {}
    assert rig.shard.state.generation_floor == generation + 1
    rig.ask("again", join("b"))
    rig.run(1_100)
    assert rig.answers["again"].generation == generation + 2


def test_a_sweep_that_failed_is_repeated(rig):
    """sc-E12: the next look finds the same."""
    stored(rig, "g")
    rig.wall_ms += DAY_MS
    rig.log.overloaded = True
    rig.run(500)
    assert "g" in rig.shard.state.groups
    rig.log.overloaded = False
    rig.run(500)
    assert "g" not in rig.shard.state.groups


def test_a_new_leader_waits_an_interval(rig):
    """What a deposed one had listed is forgotten."""
    stored(rig, "g")
    rig.wall_ms += DAY_MS
    rig.log.follow(NodeId(1))
    rig.run(500)
    assert "g" in rig.shard.state.groups
    rig.log.lead()
    rig.run(100)
    assert "g" in rig.shard.state.groups
    rig.run(300)
    assert "g" not in rig.shard.state.groups


def test_a_turn_looks_at_a_few_groups(rig, monkeypatch):
    """The rest comes in the next turns."""
    monkeypatch.setattr(retention, "SWEEP_GROUPS_PER_TURN", 2)
    for number in range(5):
        stored(rig, f"g{number}")
    sweep, late_ms = Sweep(Retention(DAY_MS, 0), 0), rig.wall_ms + DAY_MS
    sizes = [len(list(sweep.turn(t, late_ms, rig.shard.state.groups))) for t in range(3)]
    assert sizes == [2, 2, 1]


def test_a_large_group_goes_in_bounded_commands(rig):
    """Each names so many offsets, and fits into an entry; the group goes with the last."""
    topic = "t" * LIMITS.id_max_bytes
    for start in (0, 900):
        parts = tuple(PartitionCommit(topic, start + n, 1, "", None) for n in range(900))
        rig.ask(start, OffsetCommit("g", "", -1, 0, parts), size=400_000)
        rig.turn()
    rig.wall_ms += DAY_MS
    left = []
    for _ in range(60):
        rig.turn()
        group = rig.shard.state.groups.get("g")
        left.append(len(group.offsets) if group else None)
    assert list(dict.fromkeys(left)) == [1_800, 800, None]


def test_members_keep_what_they_read(rig):
    """sc-E03: a stable group's subscribed topic stays for ever."""
    stored(rig, "g")
    settle(rig, "a")
    rig.wall_ms += 100 * DAY_MS
    rig.ask("beat", commit("a", 1, 6))
    rig.turn()
    rig.wall_ms += 100 * DAY_MS
    rig.run(1_000)
    assert ("t", 0) in rig.shard.state.groups["g"].offsets


def test_deletion_is_answered_by_the_log_and_refusals_take_no_entry(rig):
    """gp-2.11: what a quorum confirms to be refused is not written."""
    settle(rig, "a")
    entries = len(rig.log.entries)
    rig.ask("early", DeleteGroup("g"))
    rig.ask("nothing", DeleteGroup("nope"))
    rig.ask("offsets", OffsetDelete("nope", (TopicPartition("t", 0),)))
    rig.turn()
    told = [rig.answers[name] for name in ("early", "nothing", "offsets")]
    assert all(isinstance(one, Refused) for one in told)
    assert [one.error for one in told] == [
        Error.NON_EMPTY_GROUP,
        Error.GROUP_ID_NOT_FOUND,
        Error.GROUP_ID_NOT_FOUND,
    ]
    assert len(rig.log.entries) == entries
    rig.ask("leave", leave("a"))
    rig.ask("late", DeleteGroup("g"))
    rig.turn()
    assert rig.answers["late"] == Done()
    rig.ask("stale", CloseRound("g", 1, 1, 1))
    rig.turn()
    assert rig.shard.state.groups == {}


def test_a_settled_read_waits_for_what_is_under_way(rig):
    """sc-O28: a plain read is confirmed at once, a settled one after the commit before it."""
    told = []
    rig.shard.submit(commit("", -1, 5), 1_000, told.append)
    rig.shard.read_settled(lambda ok: told.append(("settled", ok)))
    rig.shard.read(lambda ok: told.append(("plain", ok)))
    rig.log.run(entries=0)
    assert told == [("plain", True)]
    rig.turn()
    rig.log.run(entries=0)
    assert isinstance(told[1], Committed)
    assert told[2:] == [("settled", True)]


def test_a_settled_read_fails_with_its_leader(rig):
    """Never an old offset: the caller asks the next coordinator."""
    told = []
    rig.shard.submit(commit("", -1, 5), 1_000, lambda _: None)
    rig.shard.read_settled(told.append)
    rig.log.follow(NodeId(1))
    assert told == [False]


def test_a_settled_read_does_not_wait_for_what_the_log_refused(rig):
    """Leadership was being handed over, and stayed: nothing is applied that would wake the read."""
    told = []
    rig.log.handed_to = NodeId(1)
    rig.shard.submit(commit("", -1, 5), 1_000, lambda _: None)
    rig.shard.read_settled(told.append)
    assert told == []
    rig.turn()
    assert told == [True]
