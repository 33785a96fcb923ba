"""State stays below its limits in bytes, and low disks refuse what grows it: before the log."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from musterd.coordinator.machine.commands import (
    AWAY_EPOCH,
    LEAVE_EPOCH,
    NO_OWNER,
    AlterGroupConfig,
    ConfigSetting,
    ConsumerGroupHeartbeat,
    CreateTopic,
    DeleteGroup,
    NoteTopics,
    OffsetDelete,
    PartitionCommit,
    PatternTopics,
    Reconcile,
    StoreTarget,
    TargetChange,
    TopicCount,
    TopicPartition,
)
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import Subscription
from musterd.coordinator.machine.replies import Committed, Joined, Refused, Synced
from musterd.coordinator.machine.shard_state import reweigh
from musterd.coordinator.runtime.growth import (
    GOES_ON_SHARE,
    GRANT_BYTES,
    NO_GROWTH,
    OWNER_BYTES,
    RETURNS_SHARE,
    StateLimits,
    growth_of,
)
from musterd.raft.contract import Room
from tests.coordinator.fakes import Rig, commit, id_of, join, leave, sync
from tests.machine.world import World

KIB = 1024
MANY = 10**9


def rig_with(**limits):
    """A shard that leads, with these limits and no others."""
    rig = Rig(limits=StateLimits(**{"group": MANY, "shard": MANY, "node": MANY} | limits))
    rig.log.lead()
    rig.turn()
    return rig


def simple(number, partitions=1, metadata="", first=0, offset=1):
    """A commit of a group of its own."""
    wanted = tuple(
        PartitionCommit("t", p, offset, metadata, None) for p in range(first, first + partitions)
    )
    return replace(commit("", -1, 1, group=f"g{number}"), partitions=wanted)


def formed(rig, *members):
    """A group g of these members, at rest."""
    for member in members:
        rig.ask(f"join {member}", join(member))
    rig.run(1_500)
    joined = rig.answers[f"join {members[0]}"]
    shares = dict.fromkeys(members, b"x" * 10)
    for member in members:
        own = joined.leader_id == id_of(member)
        rig.ask(f"sync {member}", sync(member, joined.generation, shares if own else {}))
    rig.turn()
    assert all(isinstance(rig.answers[f"sync {member}"], Synced) for member in members)
    return joined.generation


def errors(answer):
    """Of the partitions of a commit."""
    return [one.error for one in answer.partitions]


def is_refused(answer, error):
    """Whether an answer is a refusal with this error."""
    return isinstance(answer, Refused) and answer.error is error


@pytest.mark.parametrize("scope", ["group", "shard", "node"])
def test_growth_ends_at_each_limit(scope):
    """Offsets with metadata; what is refused changes nothing, and the error names the limit."""
    limit = 64 * KIB
    rig = rig_with(**{scope: limit})
    number = 0
    while True:
        group = 0 if scope == "group" else number
        rig.ask(number, simple(group, metadata="m" * 1_000, first=number))
        rig.turn()
        if not isinstance(rig.answers[number], Committed):
            break
        number += 1
        assert number < limit // 1_000
    refused = rig.answers[number]
    assert is_refused(refused, Error.POLICY_VIOLATION)
    assert f"state_{scope}_max_bytes" in refused.message
    assert limit - 3 * KIB < rig.shard.state.bytes <= limit
    assert rig.shard.node.state_size.refused[scope] == 1
    assert rig.shard.state.bytes == reweigh(rig.shard.state)[0]


def test_a_burst_that_is_not_applied_counts():
    """Reserved from when it is offered: 100 commits in one turn stop at the limit, too."""
    limit = 64 * KIB
    rig = rig_with(shard=limit)
    for number in range(200):
        rig.ask(number, simple(number, metadata="m" * 1_000))
    assert rig.shard.state.bytes < KIB
    rig.drain()
    assert rig.shard.state.bytes <= limit
    stored = [n for n in range(200) if isinstance(rig.answers[n], Committed)]
    assert 30 < len(stored) < 70
    assert rig.proposer.reserved == 0


def test_what_fails_in_the_log_gives_its_reservation_back():
    """Another leader's term begins: nothing is under way here any more."""
    rig = rig_with()
    rig.ask(1, simple(1, metadata="m" * 1_000))
    assert rig.proposer.reserved > 1_000
    rig.shard.turn(rig_turn(rig))
    proposer = rig.proposer
    rig.log.follow()
    assert proposer.reserved == proposer.reserved_of("g1") == 0
    assert rig.shard.state_bytes() == rig.shard.state.bytes


def rig_turn(rig):
    """A turn whose entry is proposed and not applied."""
    from musterd.coordinator.runtime.turn import Turn  # noqa: PLC0415

    rig.clock_ms += 10
    return Turn(rig.clock_ms, 0, rig.loop_round)


def full(rig, scope="shard"):
    """Lower the limit to what there is."""
    size = rig.shard.node.state_size
    size.limits = replace(size.limits, **{scope: rig.shard.state.bytes})


def test_at_the_limit_what_does_not_grow_goes_on():
    """Commits over offsets that are there, leaves, rounds of who stays, deletions."""
    rig = rig_with()
    generation = formed(rig, "a", "b")
    rig.ask("first", commit("a", generation, 1))
    rig.ask("other", simple(7, partitions=100))
    rig.turn()
    full(rig)
    rig.ask("again", commit("a", generation, 10**15, seq=1))
    rig.ask("more", commit("a", generation, 1, partition=1))
    rig.ask("newcomer", join("c"))
    rig.ask("new group", simple(8))
    rig.ask("topic", CreateTopic("new", 1))
    setting = AlterGroupConfig("g9", (ConfigSetting("offsets.retention.ms", "1000"),), ())
    rig.ask("setting", setting)
    rig.turn()
    assert errors(rig.answers["again"]) == [Error.NONE]
    for refused in ("more", "newcomer", "new group", "topic", "setting"):
        assert is_refused(rig.answers[refused], Error.POLICY_VIOLATION), refused
    rig.ask("leave", leave("b"))
    rig.turn()
    rig.ask("rejoin", join("a", member_id=id_of("a")))
    rig.run(100)
    joined = rig.answers["rejoin"]
    assert isinstance(joined, Joined)
    rig.ask("sync", sync("a", joined.generation, {"a": b"x" * 25}))
    rig.turn()
    assert isinstance(rig.answers["sync"], Synced)
    rig.ask("one offset", OffsetDelete("g7", (TopicPartition("t", 0),)))
    rig.ask("delete", DeleteGroup("g7"))
    rig.turn()
    assert "g7" not in rig.shard.state.groups
    rig.ask("newcomer again", simple(8))
    rig.turn()
    assert errors(rig.answers["newcomer again"]) == [Error.NONE]


def test_of_a_commit_what_grows_is_refused_and_the_rest_stored():
    """Each partition has its answer, in the order of the request."""
    rig = rig_with()
    rig.ask("first", simple(1, partitions=2))
    rig.turn()
    full(rig)
    wanted = (
        PartitionCommit("t", 5, 7, "", None),
        PartitionCommit("t", 0, 7, "", None),
        PartitionCommit("t", 1, 7, "m", None),
    )
    rig.ask("mixed", replace(simple(1), partitions=wanted))
    rig.ask("atomic", replace(simple(1), partitions=wanted, atomic=True))
    rig.turn()
    no = Error.POLICY_VIOLATION
    assert errors(rig.answers["mixed"]) == [no, Error.NONE, no]
    assert is_refused(rig.answers["atomic"], no)
    offsets = rig.shard.state.groups["g1"].offsets
    assert (offsets["t", 0].offset, offsets["t", 1].offset, len(offsets)) == (7, 1, 2)


def test_workers_that_restart_come_back_though_others_took_their_room():
    """New members of a group that has offsets pass by half of the tenth; those of others do not."""
    rig = rig_with()
    for number in range(100):
        rig.ask(number, simple(number, metadata="m" * 2_000))
    rig.drain()
    rig.ask("commit", commit("a", formed(rig, "a"), 5))
    rig.ask("leave", leave("a"))
    rig.turn()
    full(rig)
    rig.ask("back", join("b"))
    rig.ask("elsewhere", replace(join("c"), group_id="new"))
    rig.run(5_000)
    assert isinstance(rig.answers["back"], Joined)
    assert is_refused(rig.answers["elsewhere"], Error.POLICY_VIOLATION)
    size = rig.shard.node.state_size
    size.limits = replace(size.limits, shard=int(rig.shard.state.bytes / RETURNS_SHARE))
    rig.ask("too many", join("d"))
    rig.turn()
    assert is_refused(rig.answers["too many"], Error.POLICY_VIOLATION)


def test_what_a_group_goes_on_with_ends_a_tenth_above_the_limit():
    """Assignments count: nobody grows without end by Syncs alone."""
    rig = rig_with()
    generation = formed(rig, "a")
    full(rig)
    allowed = int(rig.shard.state.bytes * (GOES_ON_SHARE - 1))
    rig.ask("large", sync("a", generation, {"a": b"x" * (allowed + 20)}))
    rig.turn()
    assert is_refused(rig.answers["large"], Error.POLICY_VIOLATION)


@pytest.mark.parametrize(
    "command",
    [
        simple(1),
        simple(1, partitions=50, metadata="é" * 100),
        replace(simple(1), blob=b"b" * 1_000),
        join("a", metadata=b"m" * 5_000),
        join("a", metadata=b"m" * 5_000, instance="i" * 200),
        join("a", drawn="d" * 32),
        AlterGroupConfig("g", (ConfigSetting("offsets.retention.ms", "1000"),), ()),
        CreateTopic("t" * 249, 10),
    ],
)
def test_growth_is_never_less_than_what_is_stored(command):
    """What is reserved is an upper bound, and not a loose one for what there is much of."""
    rig = rig_with()
    before = rig.shard.state.bytes
    growth = growth_of(rig.shard.state, command)
    rig.ask("it", command)
    rig.turn()
    added = rig.shard.state.bytes - before - 300  # shard time's record
    assert 0 < added + 300 <= growth.size + 300
    assert growth.size < 3 * added + 3_000


def test_state_is_weighed_the_same_once_it_is_loaded():
    """A restart counts what the limits count."""
    rig = rig_with()
    formed(rig, "a", "b")
    rig.ask("x", simple(3, partitions=20, metadata="m"))
    rig.ask("y", simple(3, partitions=5, metadata="mm"))
    rig.turn()
    again = Rig(view=rig.log.view)
    assert again.shard.state.bytes == rig.shard.state.bytes
    sizes = [{g.group_id: g.bytes for g in r.shard.state.groups.values()} for r in (rig, again)]
    assert sizes[0] == sizes[1]


def test_low_disks_refuse_growth_alone():
    """New groups, new offsets, newcomers; what is there goes on, and it comes back by itself."""
    rig = rig_with()
    generation = formed(rig, "a", "b")
    rig.ask("first", commit("a", generation, 1))
    rig.turn()
    rig.log.room = Room.LOW
    rig.ask("again", commit("a", generation, 2, seq=1))
    rig.ask("more", commit("a", generation, 1, partition=1))
    rig.ask("newcomer", join("c"))
    rig.ask("group", simple(1))
    rig.turn()
    assert errors(rig.answers["again"]) == [Error.NONE]
    for name in ("more", "newcomer", "group"):
        assert is_refused(rig.answers[name], Error.KAFKA_STORAGE_ERROR), name
        assert rig.answers[name].error.retriable
    rig.ask("leave", leave("b"))
    rig.turn()
    rig.ask("rejoin", join("a", member_id=id_of("a")))
    rig.run(100)
    assert isinstance(rig.answers["rejoin"], Joined)
    rig.log.room = Room.ENOUGH
    rig.ask("group again", simple(1))
    rig.turn()
    assert errors(rig.answers["group again"]) == [Error.NONE]


def test_full_disks_take_no_entry_and_forget_none_of_their_timers():
    """Not even what waits in the queue; sessions that ended meanwhile end when there is room."""
    rig = rig_with()
    generation = formed(rig, "a")
    rig.ask("before", commit("a", generation, 1))
    rig.log.room = Room.NONE
    rig.ask("after", commit("a", generation, 2, seq=1))
    entries = len(rig.log.entries)
    rig.run(15_000)
    assert len(rig.log.entries) == entries
    assert is_refused(rig.answers["after"], Error.KAFKA_STORAGE_ERROR)
    assert "before" in rig.answers
    assert not isinstance(rig.answers["before"], Committed)
    assert rig.shard.state.groups["g"].members
    rig.log.room = Room.ENOUGH
    rig.run(3_000)
    assert not rig.shard.state.groups["g"].members


# ---- modern groups


def modern(offsets=0):
    """A shard with a group g: m, in join order 0, reads t, and shall own one of its partitions."""
    said = Subscription("c", "h", 10_000, 60_000, ("t",))
    group = SimpleNamespace(
        instances={"i": "m"},
        offset_count=offsets,
        modern=SimpleNamespace(
            members={"m": SimpleNamespace(said=said)},
            topics={"t": 2},
            patterns={},
            target={"t": [0, NO_OWNER]},
            wanted={0: {"t": {0: None}}},
        ),
    )
    return SimpleNamespace(groups={"g": group})


HEARTBEAT = ConsumerGroupHeartbeat("g", "m", 5)
NOBODY = SimpleNamespace(groups={})


def joins(member_id="new", topics=("t",), instance=""):
    return ConsumerGroupHeartbeat("g", member_id, 0, topics=topics, group_instance_id=instance)


@pytest.mark.parametrize("epoch", [LEAVE_EPOCH, AWAY_EPOCH, 5])
def test_a_member_that_says_nothing_new_does_not_grow_a_modern_group(epoch):
    """It leaves, goes away, or says what it released: a group at its limit takes that."""
    assert growth_of(modern(), replace(HEARTBEAT, member_epoch=epoch)).size == 0
    assert growth_of(modern(), Reconcile("g")) == NO_GROWTH


def test_a_new_member_of_a_modern_group_weighs_what_it_says():
    """The first one makes the group. Members of a group with offsets are let in above the limit."""
    one = growth_of(modern(), joins())
    assert growth_of(NOBODY, joins()).size > one.size
    many = growth_of(modern(), joins(topics=("t" * 100, "u" * 100)))
    assert many.size >= one.size + 199
    assert one.share == 1.0
    assert growth_of(modern(offsets=1), joins()).share == RETURNS_SHARE


def test_a_member_of_a_modern_group_that_joins_again_goes_on():
    """Also as the new process of a static one; what it says more of itself is growth."""
    new = growth_of(modern(), joins()).size
    for command in (joins("m"), joins("new", instance="i")):
        assert growth_of(modern(), command).share == GOES_ON_SHARE
        assert growth_of(modern(), command).size < new
    more = growth_of(modern(), replace(HEARTBEAT, topics=("t", "u" * 200)))
    assert more.size >= 200
    assert more.share == 1.0
    assert growth_of(modern(), replace(HEARTBEAT, pattern="p" * 200)).size >= 200
    assert growth_of(modern(), replace(HEARTBEAT, topics=())).size == 0


def test_a_classic_member_of_a_modern_group_that_is_told_to_join_goes_on():
    """At the limit it would else be refused, and removed for not having joined in time."""
    world = World()
    for line in ("topic t 4", "hear m join topics=t", "settle", "join c keeps= instance=i"):
        world.run(line)
    again = world.do_rejoin(["c-1"], {"keeps": "", "instance": "i"})
    replaces = world.do_join(["c"], {"nonce": "2", "keeps": "", "instance": "i"})
    for command in (again, replaces):
        assert growth_of(world.state, command).share == GOES_ON_SHARE
    more = replace(again, subscribed_topics=("t", "u" * 200))
    assert growth_of(world.state, more).size >= 200
    assert growth_of(world.state, more).share == 1.0


def test_a_classic_group_that_becomes_a_modern_one_grows_by_what_is_counted():
    """Who owns what is stored for each partition then."""
    world = World()
    partitions = ",".join(f"t/{number}" for number in range(3_000))
    for line in ("topic t 3000", "join c keeps=", "fire", f"sync c-1 c-1:={partitions}"):
        world.run(line)
    before = world.state.bytes
    counted = growth_of(world.state, world.do_hear(["m", "join"], {})).size
    next_one = growth_of(world.state, world.do_hear(["n", "join"], {}), counted).size
    assert next_one < counted / 20  # the first of a fleet has reserved what the conversion takes
    world.run("hear m join")
    assert world.state.groups["g"].modern is not None
    assert 5 * 3_000 < world.state.bytes - before <= counted


def test_topics_that_a_modern_group_comes_to_know_grow_it():
    """By their partitions and names; that it reads less does not."""
    note = NoteTopics("g", (), (), 1)
    grown = growth_of(modern(), replace(note, counts=(TopicCount("t", 12),)))
    assert grown == (10 * OWNER_BYTES, GOES_ON_SHARE)
    new = growth_of(modern(), replace(note, counts=(TopicCount("u" * 100, 10),)))
    assert new.size >= grown.size + 100
    found = (PatternTopics("u.*", ("u" * 100, "v" * 100), ()),)
    assert growth_of(modern(), replace(note, patterns=found)).size >= 200
    less = replace(note, counts=(TopicCount("t", 0),), patterns=(PatternTopics("u.*", (), ("u",)),))
    assert growth_of(modern(), less) == NO_GROWTH
    assert growth_of(NOBODY, replace(note, counts=(TopicCount("t", 12),))) == NO_GROWTH


def test_a_target_grows_a_modern_group_by_what_had_no_owner():
    """A partition that moves adds the topic to what its new owner has, where it is new there."""

    def target(numbers, owners):
        change = TargetChange("t", numbers, owners, (1,) * len(numbers))
        return growth_of(modern(), StoreTarget("g", 1, 0, (change,), last=True))

    assert target((0,), (0,)) == NO_GROWTH
    assert target((0,), (NO_OWNER,)) == NO_GROWTH
    assert target((1,), (0,)) == (GRANT_BYTES, GOES_ON_SHARE)
    assert 0 < target((0,), (1,)).size < GRANT_BYTES
    assert target((0, 1), (1, 1)).size == target((0,), (1,)).size + GRANT_BYTES
