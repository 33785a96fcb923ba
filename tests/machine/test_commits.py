"""A commit that is stored as a whole is decided, evolved and counted in columns.

Whatever it does has to be what partition by partition, event by event and record by record does.
"""

from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from musterd.coordinator.machine.commands import (
    NoteBackup,
    OffsetCommit,
    PartitionCommit,
    ShardLevel,
)
from musterd.coordinator.machine.commit_events import CommitEvents
from musterd.coordinator.machine.decide import commit, dispatch
from musterd.coordinator.machine.envelope import FORMAT, Envelope
from musterd.coordinator.machine.events import OffsetSuperseded
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.plain_partitions import PlainPartitions
from musterd.coordinator.machine.records.digest import record_digest
from musterd.coordinator.machine.records.shard_records import load_in_slices
from musterd.coordinator.machine.replies import Committed, Done
from musterd.coordinator.machine.shard_state import (
    Entry,
    ShardState,
    apply_entry,
    evolve_counted,
    load_state,
    recount,
    reweigh,
    shard_records,
)
from musterd.coordinator.machine.state import Group, Member
from musterd.coordinator.machine.state import Phase as GroupPhase
from musterd.levels import LAST_UNNAMED, LEVEL
from tests.machine.test_properties import SETTINGS

FEW = replace(LIMITS, group_max_offsets=6, offset_metadata_max_bytes=8)
TOPICS = ("t", "größe")
MOSTLY_NOT = st.sampled_from((False, False, False, True))

OFFSETS = st.tuples(
    st.sampled_from(TOPICS), st.integers(0, 3), st.sampled_from((0, 1, 2, 3, 0, 1, 2, 3, -1))
).map(lambda row: PartitionCommit(*row, "", None))
PARTITIONS = OFFSETS | st.builds(
    PartitionCommit,
    st.sampled_from(TOPICS),
    st.integers(0, 3),
    st.sampled_from((0, 1, 2, 3, 0, 1, 2, 3, -1)),
    st.sampled_from((*([""] * 12), "m", "é" * 4, "é" * 5)),
    st.sampled_from((None, 0, 9)),
    st.sampled_from((*([None] * 15), -1, 0, 1)),
    st.sampled_from((None, None, 0, 1)),
    st.sampled_from((None, None, 0, 7)),
)
COMMITS = st.builds(
    OffsetCommit,
    st.just("g"),
    st.just(""),
    st.just(-1),
    st.just(0),
    st.lists(OFFSETS, min_size=1, max_size=5, unique_by=lambda p: (p.topic, p.partition)).map(tuple)
    | st.lists(PARTITIONS, min_size=1, max_size=5, unique_by=lambda p: (p.topic, p.partition)).map(
        tuple
    ),
    atomic=MOSTLY_NOT,
    forward_only=MOSTLY_NOT,
)
TWICE = COMMITS.map(lambda c: replace(c, partitions=c.partitions + c.partitions[:1], atomic=False))
NUMBERED = st.tuples(st.sampled_from(("a", "a", "b", "")), st.integers(0, 2))
STEPS = st.tuples(
    st.one_of(COMMITS, COMMITS, COMMITS, TWICE),
    NUMBERED,
    st.sampled_from((None, b"", b"blob")),
    st.sampled_from((1, *([LEVEL] * 3))),
    MOSTLY_NOT,
)


def in_columns(command: OffsetCommit) -> OffsetCommit:
    """The command as the log gives it: in columns where its partitions have offsets alone."""
    partitions = command.partitions
    if any(one != PartitionCommit(*one[:3], "", None) for one in partitions):
        return command
    columns = zip(*(one[:3] for one in partitions), strict=True)
    return replace(command, partitions=PlainPartitions(*columns))


def envelope(level: int, wall_ms: int) -> Envelope:
    """Of a command that is decided under low limits."""
    return Envelope(1, wall_ms, level, 1, 0, FEW, 0)


def plainly(group, command, env):
    """Each partition looked at by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "_store_all", lambda *_: None)
        return commit.decide_commit(group, command, env)


@settings(SETTINGS, max_examples=200, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(STEPS, min_size=4, max_size=10))
def test_a_commit_in_columns_is_one_partition_by_partition(steps):
    """Decision, state, records to write and digest: the same, also after a load."""
    with pytest.MonkeyPatch.context() as patch:  # who may commit is not what this is about
        patch.setattr(commit, "_refuse", lambda *_: None)
        fast, plain = ShardState(), ShardState()
        for number, (asked, writer, blob, level, loads) in enumerate(steps):
            member_id, commit_seq = writer
            command = replace(
                asked,
                member_id=member_id,
                generation=1 if member_id else -1,
                commit_seq=commit_seq,
                blob=blob if asked.atomic else None,
            )
            env = envelope(level, number // 3)
            group = fast.groups.get("g")
            decision = commit.decide_commit(group, in_columns(command), env)
            one_by_one = plainly(group, command, env)
            assert tuple(decision.events) == one_by_one.events
            assert tuple(decision.reply.partitions) == one_by_one.reply.partitions
            if decision.events:
                _, writes = evolve_counted(fast, group, decision.events)
                _, wanted = evolve_counted(plain, plain.groups.get("g"), one_by_one.events)
                assert writes == wanted
            assert fast == plain
            assert fast.digest == recount(fast)
            assert fast.bytes == reweigh(fast)[0]
            if loads:
                fast = load_state(sorted(shard_records(fast)))


ONE_OF_MEMBERS = st.builds(
    OffsetCommit,
    st.just("g"),
    st.sampled_from(("a", "a", "b", "b", "c", "")),
    st.sampled_from((*([3] * 8), 2, 4, -1)),
    st.sampled_from((0, 1, 2, 3, -1)),
    st.lists(OFFSETS, min_size=1, max_size=2).map(tuple)
    | st.lists(PARTITIONS, min_size=1, max_size=2).map(tuple),
    st.sampled_from(("", "", "", "i", "j", "k")),
    atomic=MOSTLY_NOT,
    forward_only=MOSTLY_NOT,
    expected_generation=st.sampled_from((None, None, None, 3, 2)),
    blob=st.sampled_from((None, None, None, b"", b"blob")),
    creation_version=st.sampled_from((0, 0, 5, 6)),
)


CLASSIC = [phase for phase in GroupPhase if phase is not GroupPhase.MODERN]


def group_of_two(phase: GroupPhase) -> Group:
    """Generation 3 of two members, of whom `a` is static."""
    members = {name: Member(name, "", "", 1, 1, (), (), at, 3) for at, name in enumerate("ab")}
    members["a"].instance_id = "i"
    return Group("g", phase, "", "", 3, 3, "a", members, 2, topics_version=5, instances={"i": "a"})


@settings(SETTINGS, max_examples=300, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.sampled_from(CLASSIC), st.sampled_from((1, 3, 5, LEVEL)), st.data())
def test_a_commit_that_is_decided_at_once_is_what_each_rule_in_turn_makes_of_it(phase, level, data):
    """Who may commit, bounds, numbers, flags: what stands against it is found by rules alone."""
    state = ShardState()
    state.groups["g"] = group = group_of_two(phase)
    plain = OffsetCommit("g", "a", 3, 1, (PartitionCommit("t", 0, 1, "", None),))
    for command in (plain, *data.draw(st.lists(ONE_OF_MEMBERS, min_size=2, max_size=8))):
        env = envelope(level, 7)
        decision = dispatch.decide(group, in_columns(command), env)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dispatch, "decide_again", lambda *_: None)
            by_rules = dispatch.decide(group, command, env)
        assert decision == by_rules
        if type(decision.reply) is Committed:
            assert list(decision.reply.partitions) == list(by_rules.reply.partitions)
        if isinstance(decision.events, CommitEvents):
            evolve_counted(state, group, decision.events)


def test_a_members_commit_over_an_offset_is_decided_at_once():
    """Else nearly every commit would ask for the bounds of what is stored."""
    state = ShardState()
    state.groups["g"] = group = group_of_two(GroupPhase.STABLE)
    command = OffsetCommit("g", "a", 3, 1, (PartitionCommit("t", 0, 1, "", None),), "i")
    assert commit.decide_again(group, command, envelope(LEVEL, 1)) is None
    decision = commit.decide_commit(group, command, envelope(LEVEL, 1))
    evolve_counted(state, group, decision.events)
    later = replace(command, commit_seq=2)
    assert commit.decide_again(group, later, envelope(LEVEL, 2)) is not None


def test_a_members_commit_over_offsets_is_decided_at_once_in_columns():
    """All of it; a partition that is new, late, named twice or below 0 is one for the rules."""
    state = ShardState()
    state.groups["g"] = group = group_of_two(GroupPhase.STABLE)
    numbers = (0, 1, 2)
    command = OffsetCommit("g", "a", 3, 1, PlainPartitions(("t",) * 3, numbers, (5, 6, 7)))
    assert commit.decide_again(group, command, envelope(LEVEL, 1)) is None
    evolve_counted(state, group, commit.decide_commit(group, command, envelope(LEVEL, 1)).events)
    later = replace(command, commit_seq=2)
    assert commit.decide_again(group, later, envelope(LEVEL, 2)) is not None
    assert commit.decide_again(group, command, envelope(LEVEL, 2)) is None  # it repeats the number
    for others, offsets in (((0, 1, 3), (5, 6, 7)), ((0, 1, 1), (5, 6, 7)), (numbers, (5, -1, 7))):
        other = replace(later, partitions=PlainPartitions(("t",) * 3, others, offsets))
        assert commit.decide_again(group, other, envelope(LEVEL, 2)) is None


def test_a_commit_of_nothing_but_offsets_leaves_nothing_of_those_before(monkeypatch):
    """Metadata, ends, starts and epochs go with the commit that brought them, as by its events."""
    monkeypatch.setattr(commit, "_refuse", lambda *_: None)
    full = tuple(PartitionCommit("t", n, 1, f"m{n}", n, None, n, n) for n in range(3))
    columns = PlainPartitions(("t",) * 3, (0, 1, 2), (5, 6, 7))
    whole, by_events = ShardState(), ShardState()
    for seq, partitions in enumerate((full, columns), start=1):
        command = OffsetCommit("g", "a", 1, seq, partitions)
        group = whole.groups.get("g")
        events = commit.decide_commit(group, command, envelope(LEVEL, seq)).events
        assert isinstance(events, CommitEvents)
        _, writes = evolve_counted(whole, group, events)
        _, wanted = evolve_counted(by_events, by_events.groups.get("g"), tuple(events))
        assert writes == wanted
        assert whole == by_events
    assert {one.metadata for one in whole.groups["g"].offsets.values()} == {""}


def test_what_follows_in_an_entry_is_decided_under_what_the_commands_before_it_made():
    """Commits share an envelope; a command that may change what is in it ends it."""
    state = ShardState()
    commands = (ShardLevel(LEVEL), NoteBackup(1))  # which no shard takes below level 6
    entry = Entry(FORMAT, LAST_UNNAMED, 1, 1, 1, commands)
    assert [type(result.reply) for result in apply_entry(state, entry, 2)] == [Done, Done]


def stored(count: int) -> tuple[ShardState, OffsetCommit]:
    """A group with so many offsets, and the commit that stored them."""
    partitions = tuple(PartitionCommit("t", number, 1, "", None) for number in range(count))
    state, command = ShardState(), OffsetCommit("g", "", -1, 0, partitions)
    decision = commit.decide_commit(None, command, envelope(1, 1))
    assert isinstance(decision.events, CommitEvents)
    evolve_counted(state, None, decision.events)
    return state, command


def test_each_offset_knows_the_digest_of_its_record():
    """So the next commit takes it off without putting the record anew."""
    state, _ = stored(3)
    (group,) = state.groups.values()
    digests = {record_digest(key, value) for key, value in shard_records(state)}
    assert {offset.digest for offset in group.offsets.values()} < digests


def test_offsets_that_a_commit_leaves_as_they_are_are_not_written():
    """A repeated simple commit of the same moment has events and no writes."""
    state, command = stored(3)
    before = deepcopy(state)
    decision = commit.decide_commit(state.groups["g"], command, envelope(1, 1))
    assert len(decision.events) == 3
    assert evolve_counted(state, state.groups["g"], decision.events)[1] == ()
    assert state == before


def test_offsets_share_the_name_of_their_topic():
    """A name for each of 100,000 offsets would be most of what they hold, loaded ones too."""
    state, _ = stored(3)
    loaded = load_state(sorted(shard_records(state)))
    assert len({id(topic) for topic, _ in loaded.groups["g"].offsets}) == 1


def test_a_group_of_many_offsets_is_loaded_in_slices():
    """100,000 offsets of one group took a second, in one slice, while the node served nobody."""
    state, _ = stored(1_000)
    loaded = []

    def load():
        loaded.append((yield from load_in_slices(sorted(shard_records(state)), slice_records=100)))

    assert sum(1 for _ in load()) == 10
    assert loaded == [state]
    assert loaded[0].digest == state.digest


def test_one_partition_that_is_late_is_found_among_the_others():
    """Columns decide only where nothing stands against any of them."""
    state, command = stored(3)
    command = replace(command, forward_only=True)
    backward = PartitionCommit("t", 2, 0, "", None)
    late = replace(command, partitions=(*command.partitions[:2], backward))
    decision = commit.decide_commit(state.groups["g"], late, envelope(1, 2))
    assert [type(event) is OffsetSuperseded for event in decision.events] == [False, False, True]
