"""Per-group metrics: counted by the coordinator alone, bounded, never falling."""

from types import SimpleNamespace

import pytest

from muster.v1 import group_pb2
from muster.v1.errors_pb2 import ErrorCode, Status
from musterd.coordinator.codec import decode_entry
from musterd.coordinator.machine.commands import (
    Assignment,
    DeleteGroup,
    ExpireOffsets,
    OffsetCommit,
    OffsetDelete,
    PartitionCommit,
    TopicPartition,
)
from musterd.coordinator.machine.events import AssignmentPublished, Ending, MemberReplaced, Trigger
from musterd.coordinator.machine.shard_state import ShardState, apply_entry
from musterd.coordinator.machine.state import Group, Phase
from musterd.coordinator.metrics.api import APIS, FENCED, ApiMeter, commit_result
from musterd.coordinator.metrics.groups import (
    ASSIGNMENTS_BYTES_MAX,
    COMMIT_RESULTS,
    OTHER,
    OWNERS_MAX,
    ROUND_S,
    GroupCounts,
    GroupMeter,
    Ownership,
    add_offsets,
    ownership,
)
from tests.coordinator.fakes import Rig, commit, id_of, join, leave, sync


class Metered(Rig):
    """One shard with a meter of at most `groups_max` groups and a clock of its own."""

    def __init__(self, groups_max=3):
        super().__init__()
        self.now_s = 0.0
        self.meter = GroupMeter([self.shard], lambda: self.now_s, groups_max)
        self.shard.subscribe(self.meter.applied)
        self.serial = 0

    def ask(self, name, command, size=1_000):
        self.serial += 1
        super().ask(f"{name} {self.serial}", command, size)
        return f"{name} {self.serial}"

    def settle(self, *members, group="g", shares=None):
        """Bring members into a Stable generation with the given partitions of topic t."""
        joins = [self.ask("join", join(m, group)) for m in members]
        self.run(1_200)
        joined = [self.answers[name] for name in joins]
        leader = next(m for m in members if id_of(m) == joined[0].leader_id)
        vector = {m: assignment(*(shares or {}).get(m, ())) for m in members}
        for member in [leader, *(m for m in members if m != leader)]:
            given = vector if member == leader else ()
            self.ask("sync", sync(member, joined[0].generation, given, group))
            self.turn()
        return joined[0].generation

    def simple(self, group):
        """A group that only has an offset."""
        self.ask("commit", commit("", -1, 1, group=group))
        self.turn()


@pytest.fixture
def rig():
    """A shard that leads, with a meter of three places."""
    rig = Metered()
    rig.log.lead()
    return rig


def assignment(*numbers):
    """An assignment of partitions of topic t."""
    return group_pb2.ConsumerAssignment(
        assigned=[group_pb2.TopicPartitions(topic="t", partitions=numbers)]
    ).SerializeToString()


def test_a_rebalance_is_counted_by_its_trigger_and_timed_once(rig):
    """First join, then a leave: one round each, with its duration in shard time."""
    rig.settle("a", "b")
    counts = rig.meter.own["g"]
    assert {t: n for t, n in counts.rebalances.items() if n} == {Trigger.MEMBER_JOINED: 1}
    joined = rig.meter.durations[Trigger.MEMBER_JOINED]
    assert joined.count == 1
    assert 0.5 <= joined.total <= 1.2  # the initial delay, in the rig's own clock
    rig.ask("leave", leave("b"))
    rig.turn()
    assert counts.rebalances[Trigger.MEMBER_LEFT] == 1


def test_a_follower_counts_nothing(rig):
    """The sum over all nodes is the truth: only the coordinator counts."""
    rig.settle("a")
    before = dict(rig.meter.own["g"].rebalances)
    rig.log.role = rig.log.role.__class__.FOLLOWER
    event = rig.log.entries[0]
    rig.meter.applied(0, 1, _decoded(event), _results_of(rig, event))
    assert rig.meter.own["g"].rebalances == before


def _decoded(entry):
    return decode_entry(entry)


def _results_of(rig, entry):
    return apply_entry(ShardState(), _decoded(entry), 1)


def test_an_expired_session_is_counted(rig):
    """A member that falls silent: one expiration, and the round it causes."""
    rig.settle("a", "b")
    end_ms = rig.clock_ms + 13_000
    while rig.clock_ms < end_ms:
        rig.turn()
        rig.shard.sessions.heard(
            next(k for k in rig.shard.sessions._sessions if k[1] == id_of("a"))
        )
    counts = rig.meter.own["g"]
    assert counts.expirations == 1
    assert counts.rebalances[Trigger.SESSION_EXPIRY] == 1


def test_what_is_removed_is_counted_by_its_end(rig):
    """Deleted and expired, groups and offsets; where nothing was there nothing is counted."""
    for name in ("one", "two"):
        rig.simple(name)
    gone = (TopicPartition("t", 0),)
    for number, command in enumerate(
        (
            OffsetDelete("one", gone),
            OffsetDelete("one", gone),
            DeleteGroup("one"),
            ExpireOffsets("two", 2 * rig.wall_ms, 1, gone),
            ExpireOffsets("two", 2 * rig.wall_ms, 1, gone),
        )
    ):
        rig.ask(number, command)
        rig.turn()
    once = {Ending.DELETED: 1, Ending.EXPIRED: 1, Ending.TOPIC_DELETED: 0}
    assert rig.meter.offsets_removed == rig.meter.groups_removed == once


def test_groups_beyond_the_limit_share_one_series(rig):
    """With three places, five groups: three have counters, the rest is in OTHER, none is lost."""
    for number in range(5):
        rig.simple(f"g{number}")
        for _ in range(2):
            rig.meter.of(f"g{number}").commits["ok"] += 1
    assert sorted(rig.meter.own) == ["g0", "g1", "g2"]
    assert rig.meter.other.commits["ok"] == 4
    assert sum(c.commits["ok"] for c in rig.meter.own.values()) == 6


def test_busy_groups_displace_quiet_ones_and_no_counter_falls(rig):
    """After a round the busiest rivals have series; what OTHER has counted stays there."""
    for number in range(4):
        rig.simple(f"g{number}")
    rig.meter.choose()
    assert "g3" not in rig.meter.own
    for _ in range(50):
        rig.meter.of("g3").commits["ok"] += 1
    rig.now_s = ROUND_S + 1
    rig.meter.choose()
    assert "g3" in rig.meter.own
    assert len(rig.meter.own) == 3
    assert rig.meter.own["g3"].commits["ok"] == 0
    assert rig.meter.other.commits["ok"] == 50


def test_groups_that_do_not_exist_get_no_series(rig):
    """A commit to an unknown group cannot make a label out of thin air."""
    rig.meter.of("ghost").commits["rejected"] += 1
    assert rig.meter.own == {}
    assert rig.meter.other.commits["rejected"] == 1


def test_a_group_named_like_the_rest_is_part_of_the_rest(rig):
    """Two series of one name would break every scrape."""
    rig.simple(OTHER)
    rig.meter.choose()
    rig.meter.of(OTHER).commits["ok"] += 1
    assert OTHER not in rig.meter.own
    assert rig.meter.other.commits["ok"] == 1


def test_a_demoted_node_drops_its_series(rig):
    """Who coordinates has the series; the former coordinator has none."""
    rig.settle("a")
    rig.meter.choose()
    assert "g" in rig.meter.own
    rig.log.follow()
    rig.meter.choose()
    assert rig.meter.own == {}


def test_quiet_groups_fill_free_places(rig):
    """A group that existed before this node led it is shown without any event."""
    rig.simple("g0")
    rig.meter.own.clear()
    rig.meter.choose()
    assert list(rig.meter.own) == ["g0"]


def test_ownership_counts_unowned_partitions_and_idle_members(rig):
    """Topic t has 4 partitions, 3 are assigned, all to a: one is unowned, b is idle."""
    rig.settle("a", "b", shares={"a": (0, 1, 2)})
    found = ownership(rig.shard.state.groups["g"], rig.meter.own["g"], {"t": 4}, {})
    assert (found.unassigned, found.idle_members) == (1, 1)


def test_ownership_is_unknown_while_a_group_rebalances(rig):
    """During a round nobody can say what is unowned."""
    rig.settle("a", "b")
    rig.ask("leave", leave("b"))
    rig.turn()
    assert ownership(rig.shard.state.groups["g"], rig.meter.own["g"], {"t": 4}, {}) is None


def _fall_silent(rig, members=(), *, until_gone=("a", "b")):
    """Let time pass until the sessions of `until_gone` have ended; `members` are heard."""
    ids = [id_of(m) for m in until_gone]
    for _ in range(3_000):
        rig.turn()
        group = rig.shard.state.groups["g"]
        if not any(i in group.members for i in ids):
            return
        for key in [k for k in rig.shard.sessions._sessions if k[1] in map(id_of, members)]:
            rig.shard.sessions.heard(key)
    raise AssertionError("the sessions did not end")


def test_of_a_group_whose_workers_all_died_nothing_is_owned(rig):
    """All partitions of the topics that they owned are nobody's, until somebody is there again."""
    rig.settle("a", "b", shares={"a": (0, 1), "b": (2, 3)})
    _fall_silent(rig)
    group = rig.shard.state.groups["g"]
    assert group.phase is Phase.EMPTY
    found = ownership(group, rig.meter.own["g"], {"t": 4, "u": 9}, {})
    assert found is not None
    assert (found.unassigned, found.idle_members) == (4, 0)
    rig.settle("c", shares={"c": (0, 1, 2, 3)})
    assert ownership(group, rig.meter.own["g"], {"t": 4}, {}).unassigned == 0


def test_a_new_coordinator_knows_that_the_workers_died(rig):
    """It goes by the offsets; without any, one partition at least was somebody's."""
    rig.settle("a", shares={"a": (0,)})
    _fall_silent(rig, until_gone=("a",))
    group = rig.shard.state.groups["g"]
    assert ownership(group, GroupCounts(), {"t": 4}, {}).unassigned == 1
    rig.ask("commit", commit("", -1, 1))
    rig.turn()
    assert ownership(group, GroupCounts(), {"t": 4}, {}).unassigned == 4


def test_workers_that_died_are_missed_in_a_group_of_any_kind(rig):
    """Named tasks and elections have protocol types of their own."""
    rig.settle("a", shares={"a": (0,)})
    _fall_silent(rig, until_gone=("a",))
    group = rig.shard.state.groups["g"]
    group.protocol_type = "tasks"
    assert ownership(group, GroupCounts(), {"t": 4}, {}).unassigned == 1


def test_a_death_while_others_leave_is_a_death(rig):
    """One leaves, which opens the round, and the others never come to it."""
    rig.settle("a", "b", shares={"a": (0, 1), "b": (2, 3)})
    rig.ask("leave", leave("a"))
    _fall_silent(rig, until_gone=("b",))
    found = ownership(rig.shard.state.groups["g"], rig.meter.own["g"], {"t": 4}, {})
    assert found is not None
    assert found.unassigned == 4


def test_a_group_whose_members_all_left_is_not_missed(rig):
    """Who stops its workers on purpose wants no alarm."""
    rig.settle("a", "b", shares={"a": (0, 1), "b": (2, 3)})
    for member in ("a", "b"):
        rig.ask("leave", leave(member))
        rig.turn()
    group = rig.shard.state.groups["g"]
    assert group.phase is Phase.EMPTY
    assert ownership(group, rig.meter.own["g"], {"t": 4}, {}) is None


def test_partitions_that_change_their_owner_are_counted(rig):
    """The first assignment moves nothing; the next one moves what has another owner."""
    rig.settle("a", shares={"a": (0, 1, 2)})
    assert rig.meter.own["g"].partitions_moved == 0
    rig.ask("join", join("b"))
    rig.turn()
    again = rig.ask("join", join("a"))
    rig.turn()
    generation = rig.answers[again].generation
    rig.ask("sync", sync("a", generation, {"a": assignment(0), "b": assignment(1, 2)}))
    rig.turn()
    assert rig.meter.own["g"].partitions_moved == 2


def test_what_a_cooperative_rebalance_moves_is_counted_once(rig):
    """One round takes two partitions from a, who comes back as another process; the next moves."""
    rig.settle("a", shares={"a": (0, 1, 2, 3)})
    a, counts = id_of("a"), rig.meter.own["g"]
    rig.meter._moved(published(2, {a: assignment(0, 1), "b": assignment()}))
    assert counts.partitions_moved == 0
    rig.meter._renamed(replaced(a, "a2"))
    rig.meter._moved(published(3, {"a2": assignment(0, 1, 3), "b": assignment(2)}))
    assert counts.partitions_moved == 1
    assert counts.released == {}
    rig.meter._moved(published(4, {"a2": assignment(0, 1, 3), "b": assignment(2)}))
    assert counts.partitions_moved == 1


def published(generation, assignments):
    """The event."""
    entries = tuple(Assignment(member_id, one) for member_id, one in assignments.items())
    return AssignmentPublished("g", generation, entries)


def replaced(old_id, new_id):
    """The event."""
    return MemberReplaced("g", old_id, new_id, "i", "c", "h", 1, 1, (), (), 1)


def named(partitions, topics=1):
    """An assignment of so many topics with so many partitions each."""
    entry = group_pb2.TopicPartitions(topic="t", partitions=range(partitions))
    return group_pb2.ConsumerAssignment(assigned=[entry] * topics).SerializeToString()


@pytest.mark.parametrize(
    ("most", "more"),
    [
        ((named(OWNERS_MAX - 1), named(1)), (named(OWNERS_MAX), named(1))),
        ((named(1, OWNERS_MAX),), (named(0, OWNERS_MAX + 1),)),
        ((b"x" * ASSIGNMENTS_BYTES_MAX,), (b"x" * ASSIGNMENTS_BYTES_MAX, b"x")),
    ],
    ids=["partitions", "topics", "bytes"],
)
def test_who_owns_what_is_not_known_of_a_group_that_is_too_large(rig, most, more):
    """Its owners took 380 ms on the leader, and 50 MiB; now nothing is said of it, nor alarmed."""
    rig.simple("g")
    for generation, assignments in ((1, most), (2, more)):
        vector = dict(zip(("a", "b"), (*assignments, b"")[:2], strict=True))
        rig.meter._moved(published(generation, vector))
        counts = rig.meter.own["g"]
        assert counts.owners_generation == generation
        assert (counts.owners is None) == (assignments is more)
    assert counts.partitions_moved == 0
    group = Group("g", Phase.STABLE, "consumer", "range", generation=2)
    assert ownership(group, counts, {"t": 4}, {}) is None


def test_of_a_large_group_whose_workers_all_died_nothing_is_owned(rig):
    """The alarm on it goes by the topics with offsets."""
    rig.settle("a", shares={"a": range(OWNERS_MAX + 1)})
    assert rig.meter.own["g"].owners is None
    _fall_silent(rig, until_gone=("a",))
    group = rig.shard.state.groups["g"]
    assert ownership(group, rig.meter.own["g"], {"t": 4}, {}).unassigned == 1
    rig.ask("commit", commit("", -1, 1))
    rig.turn()
    assert ownership(group, rig.meter.own["g"], {"t": 4}, {}).unassigned == 4


def test_a_static_member_that_comes_back_costs_nothing_for_each_partition(rig):
    """Of a fleet that restarts each did, though nothing moves; what moves later is counted."""
    rig.simple("g")
    rig.meter._moved(published(1, {"a": assignment(0, 1), "b": assignment(2)}))
    counts = rig.meter.own["g"]
    owners = counts.owners
    for old, new in (("a", "a2"), ("a2", "a3")):
        rig.meter._renamed(replaced(old, new))
    assert counts.owners is owners
    group = Group("g", Phase.STABLE, "consumer", "range", generation=1)
    group.members = dict.fromkeys(("a3", "b", "c"), SimpleNamespace())
    group.tally.topics["t"] = 3
    assert ownership(group, counts, {"t": 4}, {}) == Ownership(unassigned=1, idle_members=1)
    rig.meter._moved(published(2, {"a3": assignment(0, 2), "b": assignment(1)}))
    assert counts.partitions_moved == 2
    rig.meter._moved(published(3, {"a3": assignment(0, 2), "b": assignment(1)}))
    assert counts.partitions_moved == 2


def of_topic_t(group):
    """What the page says of a group's offsets in topic t."""
    topics = {}
    add_offsets(topics, group.offsets.items())
    return topics["t"]


def test_lag_is_known_only_where_the_end_is_reported(rig):
    """Lag is summed over the partitions that report an end; without one it is unknown, not 0."""
    rig.simple("g")
    group = rig.shard.state.groups["g"]
    assert of_topic_t(group).lag is None
    partitions = (PartitionCommit("t", 1, 10, "", 25), PartitionCommit("t", 2, 9, "", 5))
    rig.ask("commit", OffsetCommit("g", "", -1, 0, partitions))
    rig.turn()
    found = of_topic_t(group)
    assert found.lag == 15
    assert found.last_commit_ms == 1_700_000_000_000


def _answer(*codes, status=ErrorCode.NONE, superseded=False):
    return group_pb2.OffsetCommitResponse(
        status=_status(status),
        partitions=[
            group_pb2.OffsetCommitResponse.Partition(status=_status(c), superseded=superseded)
            for c in codes
        ],
    )


def _status(code):
    retriable = {ErrorCode.NOT_COORDINATOR, ErrorCode.REBALANCE_IN_PROGRESS}
    return Status(code=code, retriable=code in retriable)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (_answer(0, 0), "ok"),
        (_answer(0, superseded=True), "superseded"),
        (_answer(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), "rejected"),
        (_answer(status=ErrorCode.ILLEGAL_GENERATION), "fenced"),
        (_answer(ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_MEMBER_ID), "fenced"),
        (_answer(status=ErrorCode.NOT_COORDINATOR), "retriable"),
        (_answer(status=ErrorCode.INVALID_GROUP_ID), "rejected"),
    ],
)
def test_a_commit_has_one_result(response, expected):
    """The worst partition names the call's result."""
    assert expected in COMMIT_RESULTS
    assert commit_result(response) == expected


def test_fenced_requests_are_counted_by_api_and_reason(rig):
    """Each API's fencing answers count; other refusals do not."""
    meter = ApiMeter(rig.meter)
    beat = group_pb2.HeartbeatResponse
    fenced = beat(results=[beat.Result(status=_status(ErrorCode.UNKNOWN_MEMBER_ID))] * 2)
    meter.replied("Heartbeat", group_pb2.HeartbeatRequest(), fenced, 0.1)
    join_answer = group_pb2.JoinGroupResponse(status=_status(ErrorCode.FENCED_INSTANCE_ID))
    meter.replied("JoinGroup", group_pb2.JoinGroupRequest(), join_answer, 0.1)
    commit_answer = _answer(status=ErrorCode.ILLEGAL_GENERATION)
    meter.replied("OffsetCommit", group_pb2.OffsetCommitRequest(group_id="g"), commit_answer, 0.1)
    sync_answer = group_pb2.SyncGroupResponse(status=_status(ErrorCode.REBALANCE_IN_PROGRESS))
    meter.replied("SyncGroup", group_pb2.SyncGroupRequest(), sync_answer, 0.1)
    assert {key: n for key, n in meter.fenced.items() if n} == {
        ("Heartbeat", "unknown_member_id"): 2,
        ("JoinGroup", "fenced_instance_id"): 1,
        ("OffsetCommit", "illegal_generation"): 1,
    }
    assert set(meter.fenced) == {(api, reason) for api in APIS for reason in FENCED.values()}
    assert meter.commit_seconds.count == 0
