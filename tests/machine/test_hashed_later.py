"""What commits store is hashed when somebody asks for the digest, as if it had been at once."""

from unittest import mock

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from musterd.coordinator.machine import shard_state
from musterd.coordinator.machine.commands import Checkpoint, DeleteGroup, DropOffsets, OffsetCommit
from musterd.coordinator.machine.decide import commit
from musterd.coordinator.machine.envelope import FORMAT
from musterd.coordinator.machine.plain_partitions import PlainPartitions
from musterd.coordinator.machine.records import group_records, packed_offsets
from musterd.coordinator.machine.records import shard_records as records
from musterd.coordinator.machine.records.packed_offsets import PackedOffsets
from musterd.coordinator.machine.shard_state import (
    Entry,
    ShardState,
    apply_entry,
    load_state,
    recount,
    reweigh,
    shard_records,
)
from musterd.levels import LAST_UNNAMED
from tests.machine.test_properties import SETTINGS

GROUPS = st.sampled_from(("g", "h", "größe"))
NUMBERS = st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True)
COMMITS = st.tuples(st.just("commit"), GROUPS, NUMBERS)
STEPS = st.one_of(
    *[COMMITS] * 6,
    st.tuples(st.just("simple"), GROUPS, NUMBERS),
    st.tuples(st.just("drop"), GROUPS, NUMBERS),
    st.tuples(st.just("delete"), GROUPS, st.none()),
    st.tuples(st.just("checkpoint"), st.none(), st.none()),
    st.tuples(st.just("ask"), st.none(), st.none()),
    st.tuples(st.just("load"), st.none(), st.none()),
)


def committing(group_id: str, numbers: list[int], at: int, *, member_id: str = "m") -> OffsetCommit:
    """A commit of these partitions of two topics, at offset `at`; a member's, or nobody's."""
    topics = ["t" if number % 3 else "u" for number in numbers]
    partitions = PlainPartitions(topics, tuple(numbers), (at,) * len(numbers))
    if member_id:
        return OffsetCommit(group_id, member_id, 0, at, partitions)
    return OffsetCommit(group_id, "", -1, 0, partitions)


def run(state: ShardState, at: int, *commands):
    """One entry over the commands."""
    return apply_entry(state, Entry(FORMAT, LAST_UNNAMED, at, at, 1, commands), at)


@pytest.fixture
def _anybody(monkeypatch):
    """Who may commit is not what this is about."""
    monkeypatch.setattr(commit, "_refuse", lambda *_: None)


@pytest.fixture
def _small(monkeypatch):
    """A few offsets in use, a few not hashed, and groups of a few that are large."""
    monkeypatch.setattr(packed_offsets, "USED_OFFSETS_MAX", 6)
    monkeypatch.setattr(records, "UNHASHED_OFFSETS_MAX", 6)
    monkeypatch.setattr(shard_state, "HASHED_AT_ONCE", 6)
    for module in (packed_offsets, group_records):
        monkeypatch.setattr(module, "PACKED_OFFSETS_MAX", 4)


def _command(kind: str, group_id: str, numbers: list[int], at: int):
    match kind:
        case "commit":
            return committing(group_id, numbers, at)
        case "simple":
            return committing(group_id, numbers, at, member_id="")
        case "drop":
            return DropOffsets(group_id, "t", 0, tuple(numbers))
        case "delete":
            return DeleteGroup(group_id)
        case _:
            return Checkpoint()


@pytest.mark.usefixtures("_anybody", "_small")
@settings(SETTINGS, max_examples=200, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(STEPS, min_size=4, max_size=20))
def test_digests_and_records_are_those_of_a_shard_that_is_asked_after_each_command(steps):
    """Whatever was written over, removed, packed, deleted or loaded in between."""
    later, asked = ShardState(), ShardState()
    for state in (later, asked):
        state.dropping["t"] = 0
        state.digest, state.bytes = recount(state), reweigh(state)[0]
    for at, (kind, group_id, numbers) in enumerate(steps, start=2):
        if kind == "ask":
            assert later.digest == asked.digest
        elif kind == "load":
            later = load_state(sorted(shard_records(later)))
        else:
            command = _command(kind, group_id, numbers, at)
            (found,), (wanted,) = run(later, at, command), run(asked, at, command)
            assert (*found.events,) == (*wanted.events,)
            assert found.reply == wanted.reply
            assert found.writes == wanted.writes
        assert asked.digest == recount(asked)
        _bounded(later)
    assert later.bytes == reweigh(later)[0]
    assert later == asked
    assert sum(group.digest for group in later.groups.values()) == sum(
        group.digest for group in asked.groups.values()
    )
    assert later.unhashed == {}


def _bounded(state: ShardState) -> None:
    waiting = {group_id: len(refs) for group_id, refs in state.unhashed.items()}
    assert all(count < 6 for count in waiting.values())
    assert sum(waiting.values()) == state.unhashed_count <= 6
    assert not any(isinstance(state.groups[one].stored, PackedOffsets) for one in waiting)


@pytest.mark.usefixtures("_anybody")
def test_an_offset_that_is_written_over_is_never_hashed():
    """Nor is it where nobody asks: most of what a commit stores is hashed once in ten seconds."""
    state = ShardState()
    run(state, 2, committing("g", [0, 1, 2], 2))
    with mock.patch.object(
        group_records, "record_digest", wraps=group_records.record_digest
    ) as one:
        for at in range(3, 20):
            run(state, at, committing("g", [0, 1, 2], at))
        assert one.call_count == 0
        assert state.digest == recount(state)
        assert one.call_count == 3
        assert state.digest == recount(state)
        assert one.call_count == 3


@pytest.mark.usefixtures("_anybody")
def test_few_offsets_wait_to_be_hashed(monkeypatch):
    """Who asks holds up the node for all of them; those just stored wait, not hashed too early."""
    monkeypatch.setattr(records, "UNHASHED_OFFSETS_MAX", 6)
    state = ShardState()
    run(state, 2, committing("g", [0, 1, 2, 3], 2), committing("h", [0, 1], 2))
    assert [*state.unhashed] == ["g", "h"]
    run(state, 3, committing("g", [4, 5], 3))
    assert [*state.unhashed] == ["g"]
    run(state, 4, committing("h", [1, 2], 4))
    assert [*state.unhashed] == ["h"]
    assert state.unhashed_count == 2
    assert state.digest == recount(state)
    assert state.unhashed_count == 0


@pytest.mark.usefixtures("_anybody")
def test_a_checkpoint_has_what_waited_to_be_hashed():
    """All replicas record the same digest, whatever each of them was asked before."""
    asked, later = ShardState(), ShardState()
    for at in range(2, 6):
        for state in (asked, later):
            run(state, at, committing("g", [0, 1], at), committing("h", [1, 2, 3], at))
        assert asked.digest == recount(asked)
    told = [run(state, 9, Checkpoint())[0].events[0].digest for state in (asked, later)]
    assert told[0] == told[1]
    assert int.from_bytes(told[1], "big") == recount(later)


@pytest.mark.usefixtures("_anybody", "_small")
def test_a_group_that_grows_large_leaves_nothing_to_be_hashed():
    """All at once would hold up the node."""
    state = ShardState()
    run(state, 2, committing("g", [0, 1, 2], 2))
    run(state, 3, committing("g", [0, 1], 3))
    assert state.unhashed == {"g": dict.fromkeys((("u", 0), ("t", 1), ("t", 2)))}
    run(state, 4, committing("g", [2, 3, 4], 4))
    assert state.unhashed == {}
    assert state.digest == recount(state)


@pytest.mark.usefixtures("_anybody")
def test_an_offset_that_goes_before_it_is_hashed_leaves_nothing():
    """By an event, or with its group."""
    state = ShardState()
    state.dropping["t"] = 0
    state.digest = recount(state)
    run(state, 2, committing("g", [1, 2], 2), committing("h", [1, 2], 2))
    run(state, 3, DropOffsets("g", "t", 0, (1,)))
    assert state.digest == recount(state)
    run(state, 4, committing("h", [1, 2], 4), DeleteGroup("h"))
    assert "h" not in state.groups
    assert state.digest == recount(state)
