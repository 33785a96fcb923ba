"""Single rules that a scenario would hide: limits, refusals' messages, broken invariants."""

from copy import deepcopy
from dataclasses import replace
from sys import getsizeof

import pytest

from muster.v1 import errors_pb2
from musterd.coordinator.machine.commands import (
    AddPartitions,
    Assignment,
    Checkpoint,
    CloseRound,
    CreateTopic,
    ExpireOffsets,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    OffsetDelete,
    PartitionCommit,
    Protocol,
    ReplaceNode,
    RoundTimer,
    SyncGroup,
    TopicPartition,
    TopicsChanged,
)
from musterd.coordinator.machine.decide import delete, replacement
from musterd.coordinator.machine.decide.dispatch import decide, would_refuse
from musterd.coordinator.machine.decide.join import is_noop_join
from musterd.coordinator.machine.decide.protocols import select
from musterd.coordinator.machine.decide.sync import is_noop_sync
from musterd.coordinator.machine.envelope import FORMAT
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import (
    AssignmentPublished,
    Ending,
    GenerationFormed,
    GroupDeleted,
    GroupEmptied,
    MemberJoined,
    MemberRemoved,
    MemberReplaced,
    MemberSynced,
    PartitionsAdded,
    PendingAdded,
    PendingRemoved,
    RebalanceStarted,
    RemovalCause,
    RoundExtended,
    TopicCreated,
    Trigger,
)
from musterd.coordinator.machine.evolve import evolve
from musterd.coordinator.machine.invariants import check
from musterd.coordinator.machine.limits import LIMITS, LIMITS_VERSION
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.replies import PARKED, Refused, RemovalResult
from musterd.coordinator.machine.shard_state import (
    Entry,
    ShardState,
    apply_entry,
    decide_shard,
    evolve_shard,
    recount,
)
from musterd.coordinator.machine.state import Phase, deadlines, naming_bytes
from musterd.coordinator.machine.subscriptions import is_subscribed, named_topics
from musterd.invariant import InvariantError, invariant
from musterd.levels import LEVEL
from tests.machine.test_phase_table import join
from tests.machine.world import World


@pytest.fixture
def stable():
    """Two members, synced, a-1 leads."""
    world = World()
    for line in ("join a", "join b", "fire", "fire", "sync a-1 a-1:A b-1:B", "sync b-1"):
        world.run(line)
    return world


def reply_to(world, command, **limits):
    """The answer without applying."""
    world.limits = replace(world.limits, **limits)
    return decide(world.state.groups.get(command.group_id), command, world.envelope()).reply


def test_errors_are_those_of_the_wire():
    """Names and numbers of errors.proto, no more, no less."""
    wire = {value.name: value.number for value in errors_pb2.ErrorCode.DESCRIPTOR.values}
    assert wire == {error.name: error.value for error in Error}


def test_only_what_may_pass_by_itself_is_retriable():
    """A refusal that needs another request is not."""
    assert Error.COORDINATOR_LOAD_IN_PROGRESS.retriable
    assert not Error.ILLEGAL_GENERATION.retriable
    assert not Error.NONE.retriable


@pytest.mark.parametrize(
    ("command", "error", "word"),
    [
        (replace(join(), group_id=""), Error.INVALID_GROUP_ID, "1 to 249"),
        (replace(join(), group_id="é" * 125), Error.INVALID_GROUP_ID, "250"),
        (replace(join(), join_nonce=""), Error.INVALID_REQUEST, "join_nonce"),
        (replace(join(), client_id="c" * 248), Error.INVALID_REQUEST, "member id"),
        (replace(join("m"), client_id="c" * 250), Error.INVALID_REQUEST, "client id"),
        (replace(join(), client_host="h" * 250), Error.INVALID_REQUEST, "host"),
        (replace(join(), protocol_type="p" * 250), Error.INVALID_REQUEST, "protocol type"),
        (replace(join(), protocols=(Protocol("", b""),)), Error.INVALID_REQUEST, "name"),
        (replace(join(), rebalance_timeout_ms=0), Error.INVALID_REQUEST, "rebalance"),
        (join(meta=b"x" * 65_536), Error.INVALID_REQUEST, "65536"),
        (
            SyncGroup("g", "a", 1, "", "", (Assignment("a", b"x" * 65_537),)),
            Error.INVALID_REQUEST,
            "65536",
        ),
        (
            SyncGroup("g", "a", 1, "", "", (Assignment("a", b"x" * 65_536),) * 9),
            Error.INVALID_REQUEST,
            "vector",
        ),
        (LeaveGroup("g", (LeavingMember("a", ""),) * 2_001), Error.INVALID_REQUEST, "2000"),
        (OffsetCommit("g", "a", 1, -1, ()), Error.INVALID_REQUEST, "commit_seq"),
        (
            OffsetCommit("g", "a", 1, 0, (PartitionCommit("t", 0, 1, "", None),) * 1_001),
            Error.INVALID_REQUEST,
            "1000",
        ),
        (
            OffsetCommit("g", "a", 1, 0, (PartitionCommit("", 0, 1, "", None),)),
            Error.INVALID_REQUEST,
            "topic",
        ),
    ],
)
def test_what_is_out_of_bounds_is_refused_whatever_the_state(command, error, word):
    """Both sides: no group is made, and the sentence names the bound."""
    reply = reply_to(World(), command)
    assert isinstance(reply, Refused)
    assert reply.error is error
    assert word in reply.message


@pytest.mark.parametrize(
    "command",
    [
        replace(join(), group_id="g" * 249),
        replace(join(), client_id="c" * 247),
        replace(join(), session_timeout_ms=1_000),
        replace(join(), session_timeout_ms=1_800_000),
        join(meta=b"x" * (65_536 - len("range") - len("t"))),
    ],
)
def test_the_bounds_themselves_are_accepted(command):
    """The last value inside."""
    assert reply_to(World(), command) is PARKED


def test_a_groups_metadata_is_bounded(stable):
    """GROUP_MAX_SIZE_REACHED for the one that would exceed it; a member's old share is free."""
    share = len("range") + len("x") + len("t") + naming_bytes("a-1", "", ("t",))
    assert reply_to(stable, join(), group_metadata_max_bytes=3 * share) is PARKED
    full = reply_to(stable, join(), group_metadata_max_bytes=3 * share - 1)
    assert isinstance(full, Refused)
    assert full.error is Error.GROUP_MAX_SIZE_REACHED
    own = join("a-1", "a")
    assert reply_to(stable, own, group_metadata_max_bytes=2 * share) is PARKED


def test_a_long_reason_is_cut_and_kept_in_the_event():
    """sc-J54: 255 characters, with trigger and member."""
    world = World()
    decision = decide(None, replace(join(), reason="é" * 400), world.envelope())
    (started,) = [e for e in decision.events if isinstance(e, RebalanceStarted)]
    assert started.reason == "é" * 255
    assert (started.trigger, started.member_id) == (Trigger.MEMBER_JOINED, "n-1")


def test_the_generation_floor_counts():
    """gp-5.6.6: the next number is above the group's and above the floor."""
    world = World()
    world.state.generation_floor = 40
    world.state.digest = 0
    events = decide(None, join(), world.envelope()).events
    group = None
    for event in events:
        group = evolve(group, event)
    world.now_ms = group.deadline_ms
    close = CloseRound("g", 1, RoundTimer.INITIAL_DELAY, group.deadline_ms)
    (formed,) = decide(group, close, world.envelope()).events
    assert formed.generation == 41


def test_reparking_needs_no_entry_where_nothing_changes():
    """sc-J60: exactly when decide would park without events; any change needs an entry."""
    world = World()
    world.run("join n")
    group = world.state.groups["g"]
    for command, noop in (
        (join(), True),
        (join("n-1"), True),
        (join(meta=b"y"), False),
        (replace(join(), session_timeout_ms=9_000), False),
        (replace(join(), rebalance_timeout_ms=9_000), False),
        (replace(join(), subscribed_topics=("u",)), False),
        (replace(join(), protocol_type="connect"), False),
        (replace(join(), join_nonce="2"), False),
    ):
        assert is_noop_join(group, command) is noop
        decision = decide(group, command, world.envelope())
        assert (decision.reply is PARKED and not decision.events) is noop
    assert not is_noop_join(None, join())
    world.run("fire")
    assert not is_noop_join(world.state.groups["g"], join("n-1"))


def test_a_synced_member_parks_again_without_an_entry():
    """Like a join: only while the vector is awaited, with the right generation."""
    world = World()
    for line in ("join a", "join b", "fire", "fire", "sync b-1"):
        world.run(line)
    group = world.state.groups["g"]
    assert is_noop_sync(group, SyncGroup("g", "b-1", 1, "", "", ()))
    assert not is_noop_sync(group, SyncGroup("g", "b-1", 2, "", "", ()))
    assert not is_noop_sync(group, SyncGroup("g", "a-1", 1, "", "", ()))
    assert not is_noop_sync(None, SyncGroup("g", "b-1", 1, "", "", ()))
    world.run("sync a-1")
    assert not is_noop_sync(group, SyncGroup("g", "b-1", 1, "", "", ()))


def test_a_refusal_is_known_without_an_entry(stable):
    """arch-5.1: the refusal that decide gives; None for what would change."""
    group = stable.state.groups["g"]
    env = stable.envelope()
    assert would_refuse(group, join("z-9"), env).error is Error.UNKNOWN_MEMBER_ID
    assert would_refuse(group, join(), env) is None
    assert would_refuse(group, LeaveGroup("g", (LeavingMember("z", ""),)), env) is None


def test_a_refused_topic_is_quoted_once_however_many_partitions_are_named(stable, monkeypatch):
    """Quoting goes by character: for each of a thousand partitions it took 90 ms."""
    quotes = []

    def counted(text):
        quotes.append(text)
        return quoted(text)

    monkeypatch.setattr(delete, "quoted", counted)
    partitions = tuple(TopicPartition("t", number) for number in range(1_000))
    reply = reply_to(stable, OffsetDelete("g", partitions))
    message = "The group subscribes to 't': stop the members that read it first."
    assert quotes == ["t"]
    assert reply.partitions == tuple(
        RemovalResult(*key, Error.GROUP_SUBSCRIBED_TO_TOPIC, message) for key in partitions
    )


@pytest.mark.parametrize("who", ["the group leader", "another"])
def test_a_static_member_that_lists_the_same_comes_back_without_a_selection(monkeypatch, who):
    """A selection asks every member: a fleet of 2,000 that restarts held up each replica."""
    world = World()
    names = [f"s{number}" for number in range(20)]
    for name in names:
        world.run(f"join {name} instance={name}")
    for line in ("fire", "fire", *(f"sync {name}-1 instance={name}" for name in names)):
        world.run(line)
    before = world.state.groups["g"]
    assert (before.phase, before.leader_id) == (Phase.STABLE, "s0-1")
    ids = list(before.members)

    def unwanted(*_):
        raise AssertionError("a protocol was selected anew")

    monkeypatch.setattr(replacement, "select", unwanted)
    came = "s0" if who == "the group leader" else "s7"
    world.run(f"join {came} nonce=2 instance={came} meta=other")
    after = world.state.groups["g"]
    assert after.phase is Phase.STABLE
    assert list(after.members) == [f"{came}-2" if one == f"{came}-1" else one for one in ids]
    assert after.leader_id == ("s0-2" if came == "s0" else "s0-1")
    check(after)
    with pytest.raises(AssertionError, match="selected anew"):
        world.run(f"join {came} nonce=3 instance={came} protocols=rr,range")


def test_deadlines_name_what_is_armed(stable):
    """What a new coordinator re-arms: the round's timer, or nothing."""
    group = stable.state.groups["g"]
    assert list(deadlines(group)) == []
    stable.run("join c")
    (((group_id, number, timer, _), deadline_ms),) = deadlines(group)
    assert (group_id, number, timer) == ("g", 2, RoundTimer.JOIN)
    assert deadline_ms == stable.now_ms + 60_000


def test_selection_needs_members():
    """sc-G07."""
    member = World()
    member.run("join a")
    (a,) = member.state.groups["g"].members.values()
    with pytest.raises(InvariantError, match="G07"):
        select([], a)


def formed(group, **changes):
    """A GenerationFormed that would fit an open round of two, but for `changes`."""
    number, token = group.generation + 1, group.fence + 1
    event = GenerationFormed("g", group.round, number, "range", "a-1", (), 0, token=token)
    return replace(event, **{"member_ids": tuple(group.members), **changes})


ILLEGAL = {
    "sc-G02 Stable to Completing": lambda g: formed(g, member_ids=tuple(g.members)),
    "Stable to Stable": lambda g: AssignmentPublished(
        "g", g.generation, tuple(Assignment(m, b"") for m in g.members)
    ),
    "another generation's vector": lambda g: AssignmentPublished("g", g.generation - 1, ()),
    "a vector with a gap": lambda g: AssignmentPublished("g", g.generation, ()),
    "emptied with members": lambda g: GroupEmptied("g", g.round, g.generation + 1),
    "a number used twice": lambda g: formed(g, generation=g.generation),
    "a skipped round": lambda g: RebalanceStarted(
        "g", g.round + 2, 1, Trigger.MEMBER_LEFT, "a-1", "", RoundTimer.JOIN, 1, 0
    ),
    "an extension without an initial round": lambda g: RoundExtended(
        "g", g.round, RoundTimer.INITIAL_DELAY, 1, 0
    ),
    "a stranger removed": lambda _: MemberRemoved("g", "z", RemovalCause.LEFT, ""),
    "a stranger synced": lambda g: MemberSynced("g", "z", g.generation),
    "synced in another generation": lambda g: MemberSynced("g", "a-1", g.generation + 1),
    "joined twice": lambda _: MemberJoined(
        "g", "a-1", "a", "h", 1, 1, "consumer", (Protocol("range", b""),), (), 2
    ),
    "sc-G24 an instance held twice": lambda g: _static(g, "c-1", "i"),
    "sc-G19 nobody replaced": lambda g: _replaced(g, "z", "i"),
    "replaced by a member": lambda g: _replaced(g, "b-1", "i", by="a-1"),
    "replaced under another instance": lambda g: _replaced(g, "b-1", "k"),
    "a dynamic member replaced": lambda g: _replaced(g, "a-1", ""),
    "sc-G23 a member's id handed out": lambda _: PendingAdded("g", "a-1", 1),
    "an id handed out twice": lambda _: PendingAdded("g", "p-1", 1),
    "sc-G25 an unknown id dropped": lambda _: PendingRemoved("g", "z-1", RemovalCause.LEFT, ""),
    "an extension of another timer": lambda g: RoundExtended("g", g.round, RoundTimer.JOIN, 1, 0),
    "I9 a token taken twice": lambda g: _replaced(g, "b-1", "i", token=g.fence),
    "I9 no token under rules 3": lambda g: _replaced(g, "b-1", "i", token=0),
    "another group's event": lambda g: MemberSynced("h", "a-1", g.generation),
}


def _static(group, member_id, instance_id):
    return MemberJoined(
        group.group_id, member_id, "c", "h", 1, 1, "consumer", (), (), group.round + 1, instance_id
    )


def _replaced(group, old_id, instance_id, by="c-1", token=9):
    return MemberReplaced(
        group.group_id, old_id, by, instance_id, "c", "h", 1, 1, (), (), group.round, token=token
    )


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_event_that_does_not_fit_stops_the_process(name):
    """sc-G02, the guards of gp-I2 to gp-I9: evolve never applies what the rules forbid."""
    world = World()
    for line in (
        *("join a", "join b instance=i", "fire", "fire", "sync a-1 a-1:A b-1:B", "sync b-1"),
        "join p nonce= drawn=1",
    ):
        world.run(line)
    group = world.state.groups["g"]
    with pytest.raises(InvariantError):
        evolve(group, ILLEGAL[name](group))


def test_nothing_but_a_join_an_id_or_a_commit_makes_a_group():
    """An event about a group that is not there is a bug."""
    with pytest.raises(InvariantError, match="without a group"):
        evolve(None, MemberSynced("g", "a-1", 1))


def _open_with_everybody(group):
    group.phase, group.timer, group.deadline_ms = Phase.PREPARING_REBALANCE, RoundTimer.JOIN, 1


def _empty_out(group):
    group.members.clear()
    group.leader_id = ""


def _lead_absent(group):
    group.members["a-1"].instance_id = "i"
    group.instances["i"] = "a-1"
    group.members["a-1"].joined_round = 0


def _hold_twice(group):
    for member in group.members.values():
        member.instance_id = "i"
    group.instances["i"] = "b-1"


BROKEN = {
    "I1 complete round left open": _open_with_everybody,
    "I2 empty with members": lambda g: setattr(g, "phase", Phase.EMPTY),
    "I2 leader a stranger": lambda g: setattr(g, "leader_id", "z"),
    "I2 without members": _empty_out,
    "I4 synced ahead": lambda g: setattr(g.members["a-1"], "synced_generation", 9),
    "I4 unsynced without timer": lambda g: setattr(g.members["a-1"], "synced_generation", 0),
    "I5 nothing in common": lambda g: setattr(
        g.members["a-1"], "protocols", (Protocol("rr", b""),)
    ),
    "I5 not the selected": lambda g: setattr(g, "protocol_name", "rr"),
    "I7 under another id": lambda g: setattr(g.members["a-1"], "member_id", "x"),
    "I7 out of order": lambda g: setattr(g.members["a-1"], "join_seq", 5),
    "I7 sequence behind": lambda g: setattr(g, "next_join_seq", 1),
    "I1 did not join": lambda g: setattr(g.members["a-1"], "joined_round", 0),
    "I1 joined the future": lambda g: setattr(g.members["a-1"], "joined_round", 9),
    "timer of another phase": lambda g: setattr(g, "timer", RoundTimer.JOIN),
    "deadline without a timer": lambda g: setattr(g, "deadline_ms", 9),
    "extension without initial": lambda g: setattr(g, "remaining_ms", 9),
    "I1 led by an absent member": _lead_absent,
    "I3 an instance unmapped": lambda g: setattr(g.members["a-1"], "instance_id", "i"),
    "I3 a stale mapping": lambda g: g.instances.update(i="z-1"),
    "I3 an instance held twice": _hold_twice,
    "I4 a member is pending": lambda g: g.pending.update({"a-1": 1}),
    "tally of the synced": lambda g: setattr(g.tally, "synced", 1),
    "tally of the joined": lambda g: setattr(g.tally, "joined", 1),
    "tally of the protocols": lambda g: g.tally.support.clear(),
    "tally of the metadata": lambda g: setattr(g.tally, "metadata_bytes", 1),
    "tally of the names": lambda g: setattr(g.tally, "naming_bytes", 1),
    "tally of the topics": lambda g: g.tally.topics.update(t=1),
    "tally of who names none": lambda g: setattr(g.tally, "without_topics", 1),
    "I9 a generation's token not taken": lambda g: setattr(g, "token", 9),
    "I9 a member's token not taken": lambda g: setattr(g.members["a-1"], "token", 9),
    "newcomer without initial": lambda g: setattr(g, "new_member_added", True),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_invariant_is_really_checked(stable, name):
    """A state broken in one way is found."""
    group = stable.state.groups["g"]
    check(group)
    BROKEN[name](group)
    with pytest.raises(InvariantError):
        check(group)


def test_an_invariant_that_holds_is_silent():
    """And one that does not says what."""
    invariant(True, "fine")
    with pytest.raises(InvariantError, match="not fine"):
        invariant(False, "not fine")


def test_a_broken_invariant_names_its_place_in_the_log(stable):
    """The line that stops the process says which entry and command."""
    stable.state.groups["g"].group_id = "h"
    leave = LeaveGroup("g", (LeavingMember("a-1", ""),))
    entry = Entry(FORMAT, LEVEL, 5_000, 0, LIMITS_VERSION, (Checkpoint(), leave))
    with pytest.raises(InvariantError, match="another group") as caught:
        apply_entry(stable.state, entry, 77)
    assert caught.value.__notes__ == ["entry 77, command 1: LeaveGroup"]


def test_shard_time_never_goes_back():
    """arch-3.1: an entry with an older time is decided at the largest applied one."""
    state = ShardState()
    for time_ms in (100, 50):
        entry = Entry(FORMAT, LEVEL, time_ms, 0, LIMITS_VERSION, (Checkpoint(),))
        apply_entry(state, entry, 1)
    assert state.time_ms == 100
    assert state.digest == recount(state)


def test_a_checkpoint_holds_the_digest_at_its_place():
    """arch-3.9: of all before it in the log, with its entry's time and earlier commands."""
    state = ShardState()
    create, again = CreateTopic("t", 1), CreateTopic("u", 1)
    entry = Entry(FORMAT, LEVEL, 9, 0, LIMITS_VERSION, (create, Checkpoint(), again, Checkpoint()))
    seen = []
    results = apply_entry(state, entry, 1, lambda _: seen.append(recount(state)))
    digests = [int.from_bytes(r.events[0].digest, "big") for r in results[1::2]]
    assert digests == [seen[0], seen[2]]
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (CreateTopic("", 1), Error.INVALID_TOPIC_EXCEPTION),
        (CreateTopic("t" * 250, 1), Error.INVALID_TOPIC_EXCEPTION),
        (CreateTopic("t", 0), Error.INVALID_PARTITIONS),
        (CreateTopic("t", 10_001), Error.INVALID_PARTITIONS),
        (AddPartitions("t", 1), Error.UNKNOWN_TOPIC_OR_PARTITION),
        (AddPartitions("known", 10_001), Error.INVALID_PARTITIONS),
        (ReplaceNode(1, ""), Error.INVALID_REQUEST),
        (ReplaceNode(-1, "u"), Error.INVALID_REQUEST),
    ],
)
def test_shard_commands_out_of_bounds_change_nothing(command, error):
    """A clear error and the same state."""
    state = ShardState(topics={"known": 3})
    decision = decide_shard(state, command, LIMITS)
    assert decision.events == ()
    assert decision.reply.error is error


def test_replaced_nodes_are_bounded():
    """The map has a maximum; a known node may be replaced again at any time."""
    state = ShardState(replaced_nodes={1: "u"})
    limits = replace(LIMITS, max_nodes=1)
    assert decide_shard(state, ReplaceNode(2, "v"), limits).reply.error is Error.INVALID_REQUEST
    assert decide_shard(state, ReplaceNode(1, "v"), limits).events


def test_topics_never_shrink():
    """A PartitionsAdded that does not add is a bug."""
    with pytest.raises(InvariantError, match="only grow"):
        evolve_shard(ShardState(topics={"t": 3}), PartitionsAdded("t", 3))
    with pytest.raises(InvariantError, match="once"):
        evolve_shard(ShardState(topics={"t": 3}), TopicCreated("t", 3))


def test_a_group_reads_what_its_members_name():
    """sc-G14, sc-G35: the union, from the members as they are now."""
    world = World()
    for line in ("join b topics=u,t", "join a topics=t,v"):
        world.run(line)
    group = world.state.groups["g"]
    assert named_topics(group) == {"u", "t", "v"}
    assert is_subscribed(group, "v")
    assert not is_subscribed(group, "w")
    world.run("rejoin a-1 topics=w")
    assert named_topics(group) == {"u", "t", "w"}
    assert not is_subscribed(group, "v")
    world.run("leave a-1 b-1")
    assert named_topics(group) == set()
    assert not is_subscribed(group, "u")


def test_a_group_of_another_type_reads_no_topics():
    """sc-G35: only consumers do, whatever the others name."""
    world = World()
    world.run("join a topics=t type=connect")
    assert not is_subscribed(world.state.groups["g"], "t")


class Unread(tuple):
    """A member's topics, which nobody may look at."""

    __slots__ = ()

    def __iter__(self):
        raise AssertionError("somebody walks what the members name")

    def __contains__(self, item):
        raise AssertionError("somebody looks through what the members name")


@pytest.mark.parametrize(
    "command",
    [
        OffsetDelete("g", (TopicPartition("t", 0), TopicPartition("w", 0))),
        ExpireOffsets("g", 10_000_000, 1, (TopicPartition("t", 0), TopicPartition("w", 0))),
        TopicsChanged("g", "w", 3, 5),
    ],
)
def test_no_command_walks_what_the_members_name(stable, command):
    """A group of 48 members may name 238,000 topics, and one entry may carry 400 such commands."""
    group = stable.state.groups["g"]
    for member in group.members.values():
        member.subscribed_topics = Unread(member.subscribed_topics)
    assert decide(group, command, stable.envelope()).events == ()
    assert list(delete.due_offsets(group, 10_000_000, 1)) == []


def test_a_tally_holds_no_room_for_topics_that_nobody_names_any_more():
    """A dict keeps the room of what was taken out: a group that was left would weigh for ever."""
    world = World()
    for client in "abcd":
        names = ",".join(f"{client}{number}" for number in range(500))
        world.run(f"join {client} topics={names}")
    group = world.state.groups["g"]
    most = getsizeof(group.tally.topics)
    for line in ("leave c-1", "leave b-1", "rejoin a-1 topics=t"):
        world.run(line)
    assert getsizeof(group.tally.topics) < most / 2
    world.run("leave d-1")
    assert named_topics(group) == {"t"}
    assert getsizeof(group.tally.topics) < most / 50
    world.run("leave a-1")
    assert getsizeof(group.tally.topics) == getsizeof({})


def test_who_holds_an_instance_is_told_to_the_fenced():
    """gp-9.3: the refusal names the member and its host, so that a person finds the process."""
    world = World()
    for line in ("join a instance=i", "join b nonce=2 instance=i"):
        world.run(line)
    heard = SyncGroup("g", "a-1", 0, "", "", (), "i")
    refused = decide(world.state.groups["g"], heard, world.envelope()).reply
    assert refused.error is Error.FENCED_INSTANCE_ID
    assert "'b-2'" in refused.message
    assert "10.0.0.1" in refused.message


def test_an_old_entry_is_decided_by_its_own_rules():
    """arch-3.7: under rules 1 a full group counts members, in an open round too (gp-J6)."""
    lines = ["limits group_max_members=2", "join a", "join b", "fire", "fire", "sync a-1"]
    world = World()
    for line in [*lines, "sync b-1", "rejoin a-1"]:
        world.run(line)
    group = world.state.groups["g"]
    newcomer = world.do_join(["c"], {})
    old = replace(world.envelope(), level=1)
    assert decide(group, newcomer, old).reply.error is Error.GROUP_MAX_SIZE_REACHED
    assert decide(group, newcomer, world.envelope()).reply is PARKED


def test_a_deleted_groups_last_token_is_in_the_floor():
    """gp-5.6.6: a floor of its generation alone would let a store refuse all that come after."""
    world = World()
    world.run("join a instance=i")
    world.run("fire")
    for nonce in range(2, 9):
        world.run(f"join a instance=i nonce={nonce}")
    group = world.state.groups["g"]
    fence = group.fence
    assert fence > group.generation
    world.run(f"leave {group.leader_id}")
    assert (
        evolve(deepcopy(group), GroupDeleted("g", group.generation, Ending.DELETED, fence)) is None
    )
    with pytest.raises(InvariantError, match="another token"):
        evolve(group, GroupDeleted("g", group.generation, Ending.DELETED))
    world.run("delete-group")
    assert world.state.generation_floor == fence


def test_an_instance_id_has_the_length_of_an_id():
    """249 bytes; more is INVALID_REQUEST."""
    world = World()
    for size, accepted in ((249, True), (250, False)):
        joining = world.do_join(["a"], {"instance": "i" * size})
        reply = decide(None, joining, world.envelope()).reply
        assert (reply is PARKED) == accepted


def test_a_rejoin_under_anothers_instance_is_not_parked_unseen():
    """gp-2.0.4: it would change nothing but is refused, so it is not parked without an entry."""
    world = World()
    for line in ("join a instance=i", "join b instance=j"):
        world.run(line)
    group = world.state.groups["g"]
    for instance, noop in (("i", True), ("", True), ("j", False), ("k", False)):
        rejoin = world.do_rejoin(["a-1"], {"instance": instance})
        assert is_noop_join(group, rejoin) is noop
