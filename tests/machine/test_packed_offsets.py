"""Offsets at rest: few bytes, the same offsets, and no change is lost on the way there and back."""

import tracemalloc
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musterd.coordinator.machine.commands import (
    DeleteGroup,
    DropOffsets,
    ExpireOffsets,
    OffsetCommit,
    OffsetDelete,
    PartitionCommit,
    TopicPartition,
)
from musterd.coordinator.machine.limits import LIMITS_VERSION
from musterd.coordinator.machine.records import group_records, packed_offsets
from musterd.coordinator.machine.records.encoding import RecordError
from musterd.coordinator.machine.records.packed_offsets import OffsetPacking, PackedOffsets
from musterd.coordinator.machine.shard_state import (
    Entry,
    ShardState,
    apply_entry,
    load_state,
    recount,
    reweigh,
    shard_records,
)
from musterd.coordinator.machine.state import Offset
from musterd.levels import LEVEL
from tests.machine.test_properties import SETTINGS

GROUPS, OFFSETS = 400, 20
SHARE = 1.5
OBJECTS = 3.0
"""So many times the bytes of its record does an offset take as an object: 4 were measured."""


def commit_of(group_id: str, partitions, metadata="", end=None, start=None, epoch=None):
    """A simple commit of these partitions of one topic, at an offset of their number."""
    columns = (metadata, end, None, start, epoch)
    return OffsetCommit(
        group_id,
        "",
        -1,
        0,
        tuple(PartitionCommit("orders", number, 7 + number, *columns) for number in partitions),
    )


def apply(state: ShardState, *commands, wall_ms: int = 5):
    """One entry."""
    return apply_entry(state, Entry(1, LEVEL, 5, wall_ms, LIMITS_VERSION, commands), 1)


def at_rest(state: ShardState) -> list[str]:
    """The groups whose offsets are packed."""
    return [g.group_id for g in state.groups.values() if isinstance(g.stored, PackedOffsets)]


def traced(make) -> tuple[int, object]:
    """The bytes that what `make` returns holds."""
    tracemalloc.start()
    try:
        made = make()
        return tracemalloc.get_traced_memory()[0], made
    finally:
        tracemalloc.stop()


def test_a_group_at_rest_takes_about_the_memory_of_its_records():
    """Its offsets as objects take several times as much."""
    state = ShardState()
    for number in range(GROUPS):
        apply(state, commit_of(f"group-{number}", range(OFFSETS)), wall_ms=number)
    records = sorted(shard_records(state))
    stored = sum(len(key) + len(value) for key, value in records)
    loaded, kept = traced(lambda: load_state(records))
    assert len(at_rest(kept)) == GROUPS
    assert loaded <= SHARE * stored
    objects, _ = traced(lambda: [group.thawed() for group in kept.groups.values()])
    assert objects >= OBJECTS * stored


def test_a_shard_keeps_few_offsets_as_objects(monkeypatch):
    """Those of two groups, used again before others; of deleted groups nothing is kept for ever."""
    monkeypatch.setattr(packed_offsets, "USED_OFFSETS_MAX", 10)
    state = ShardState()
    for number in (0, 0, 1, 1, 2):
        apply(state, commit_of(f"g{number}", range(4)))
    assert at_rest(state) == ["g0"]
    apply(state, commit_of("g0", range(1)))
    assert at_rest(state) == ["g2"], "it came last and was used once"
    apply(state, commit_of("g0", range(1)), commit_of("g2", range(1)))
    assert at_rest(state) == ["g1"], "it was not used for the longest"
    for number in range(20):
        apply(state, commit_of("g", range(1)), DeleteGroup("g"))
        apply(state, commit_of(f"h{number}", range(1)), DeleteGroup(f"h{number}"))
    assert len(state.in_use.group_ids) <= 10


@pytest.mark.parametrize(("groups", "offsets"), [(48, 200), (60, 400)])
def test_groups_of_hundreds_of_offsets_stay_objects_together(groups, offsets):
    """Were one packed for each that is used, a commit of 20 would take twelve times as long."""
    state = ShardState()
    for number in range(groups):
        apply(state, commit_of(f"g{number}", range(offsets)))
    assert at_rest(state) == []


def turns(state, names, rounds, monkeypatch) -> int:
    """How many groups are unpacked while those of these names commit in turn."""
    unpacked, calls = PackedOffsets.unpacked, []
    with monkeypatch.context() as patch:
        patch.setattr(PackedOffsets, "unpacked", lambda self: calls.append(1) or unpacked(self))
        for _ in range(rounds):
            for name in names:
                apply(state, commit_of(name, range(1)))
    return len(calls)


def test_where_more_groups_commit_in_turn_than_have_room_most_find_their_offsets(monkeypatch):
    """Of 60 groups of 200 offsets 49 have room; where it is lost in turns, all 600 are unpacked."""
    state, names = ShardState(), [f"g{number}" for number in range(60)]
    for name in names:
        apply(state, commit_of(name, range(200)))
    assert turns(state, names, 4, monkeypatch) < 4 * 60
    assert turns(state, names, 10, monkeypatch) < 10 * 60 * 2 / 5


def test_groups_that_commit_now_take_the_room_of_those_that_did_once(monkeypatch):
    """After some rounds nearly all find their offsets, whoever was there before."""
    state = ShardState()
    for name in [f"{kind}{number}" for kind in ("old", "new") for number in range(45)]:
        apply(state, *[commit_of(name, range(200))] * 2)
    turns(state, [f"old{number}" for number in range(45)], 10, monkeypatch)
    news = [f"new{number}" for number in range(45)]
    turns(state, news, 10, monkeypatch)
    assert turns(state, news, 3, monkeypatch) < 3 * 45 / 10


def test_large_groups_stay_as_they_are(monkeypatch):
    """To pack one, or to make it anew, would hold up the node."""
    monkeypatch.setattr(packed_offsets, "PACKED_OFFSETS_MAX", 10)
    monkeypatch.setattr(group_records, "PACKED_OFFSETS_MAX", 10)
    monkeypatch.setattr(packed_offsets, "USED_OFFSETS_MAX", 0)
    state = ShardState()
    apply(state, commit_of("large", range(25)), commit_of("edge", range(10)))
    apply(state, commit_of("small", range(9)), commit_of("other", range(1)))
    assert at_rest(state) == ["small"]
    loaded = load_state(sorted(shard_records(state)))
    assert sorted(at_rest(loaded)) == ["other", "small"]
    assert loaded == state
    apply(state, commit_of("small", range(9, 15)))
    assert at_rest(state) == ["other"]


@pytest.mark.parametrize("use", ["delete", "records"])
def test_a_group_at_rest_is_unpacked_few_times_for_all_its_offsets(monkeypatch, use):
    """To be deleted, exported or backed up: else it takes the square of the time."""
    state = ShardState()
    apply(state, commit_of("g", range(249)))
    state = load_state(sorted(shard_records(state)))
    assert at_rest(state) == ["g"]
    calls, unpacked = [], PackedOffsets.unpacked
    monkeypatch.setattr(PackedOffsets, "unpacked", lambda self: calls.append(1) or unpacked(self))
    if use == "delete":
        apply(state, DeleteGroup("g"))
        assert "g" not in state.groups
        assert state.digest == recount(state)
    else:
        assert len(list(shard_records(state))) >= 249
    assert 0 < len(calls) <= 10


def test_packed_offsets_differ_from_what_they_are_not():
    """As a dictionary."""
    state = ShardState()
    apply(state, commit_of("g", range(9)))
    offsets = dict(state.groups["g"].offsets)
    (packed,) = [one.stored for one in load_state(sorted(shard_records(state))).groups.values()]
    assert isinstance(packed, PackedOffsets)
    assert not packed != offsets  # noqa: SIM202 - the operator is what is tested
    assert packed != {}


def test_what_is_read_of_offsets_at_rest_cannot_be_changed():
    """It would be lost: it is made anew for each who reads."""
    state = ShardState()
    apply(state, commit_of("g", range(2)))
    (group,) = load_state(sorted(shard_records(state))).groups.values()
    assert group.offset_count == 2
    with pytest.raises(TypeError):
        group.offsets["orders", 0] = group.offsets["orders", 1]
    assert isinstance(group.stored, PackedOffsets)
    assert group.offsets == state.groups["g"].offsets


def test_a_commit_to_offsets_at_rest_is_kept():
    """Those that it names change, and the others stay."""
    state = ShardState()
    apply(state, commit_of("g", range(3)))
    loaded = load_state(sorted(shard_records(state)))
    for one in (state, loaded):
        apply(one, commit_of("g", range(1, 5), metadata="m"), wall_ms=6)
    assert len(loaded.groups["g"].offsets) == 5
    assert loaded == state
    assert loaded.digest == recount(loaded)


TOPICS = st.sampled_from(("t", "größe", ""))
NUMBERS = st.sampled_from((0, 1, 300, 2**63 - 1, -(2**63)))
MAYBE = st.one_of(st.none(), NUMBERS)
STORED = st.builds(
    Offset,
    NUMBERS,
    st.sampled_from(("", "", "é")),
    MAYBE,
    st.sampled_from(("", "member-1")),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    MAYBE,
    MAYBE,
)


@SETTINGS
@given(st.dictionaries(st.tuples(TOPICS, NUMBERS), STORED, max_size=8), st.booleans())
def test_packed_offsets_are_those_that_were_packed(offsets, known):
    """Each field, their order, and what is known of their records."""
    for number, one in enumerate(offsets.values()):
        one.digest = 2**100 + number if known else None
    packing = OffsetPacking()
    packing.add(offsets)
    packed = packing.packed()
    assert packed == offsets
    assert packed == deepcopy(packed)
    assert packed.offset_count == len(offsets)
    assert list(packed.unpacked()) == list(offsets)
    assert [one.digest for one in packed.unpacked().values()] == [
        one.digest for one in offsets.values()
    ]


PARTITIONS = st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True)
COMMITS = st.builds(
    commit_of,
    st.sampled_from("abc"),
    PARTITIONS,
    st.sampled_from(("", "", "m")),
    st.sampled_from((None, None, 9)),
    st.sampled_from((None, None, 0)),
    st.sampled_from((None, None, 4)),
)
CONDITIONS = st.builds(
    lambda one, expected: replace(
        one,
        partitions=tuple(p._replace(expected_offset=expected) for p in one.partitions),
    ),
    COMMITS,
    st.sampled_from((7, 8, -1)),
)
REMOVALS = st.builds(
    lambda group_id, numbers: OffsetDelete(
        group_id, tuple(TopicPartition("orders", number) for number in numbers)
    ),
    st.sampled_from("abc"),
    PARTITIONS,
)
EXPIRIES = st.builds(
    lambda group_id, numbers, wall_ms: ExpireOffsets(
        group_id, wall_ms, 3, tuple(TopicPartition("orders", number) for number in numbers)
    ),
    st.sampled_from("abc"),
    PARTITIONS,
    st.integers(0, 20),
)
DROPS = st.builds(
    lambda group_id, numbers: DropOffsets(group_id, "orders", 1, tuple(numbers)),
    st.sampled_from("abc"),
    PARTITIONS,
)
STEPS = st.tuples(
    st.one_of(
        COMMITS,
        COMMITS,
        CONDITIONS,
        REMOVALS,
        EXPIRIES,
        DROPS,
        st.builds(DeleteGroup, st.sampled_from("abc")),
    ),
    st.booleans(),
)


@SETTINGS
@given(st.lists(STEPS, min_size=3, max_size=15))
def test_what_changes_of_offsets_at_rest_is_kept(steps):
    """Whatever is packed in between, and loaded: results, state, records, digest are the same."""
    kept, resting = ShardState(), ShardState()
    kept.dropping["orders"] = resting.dropping["orders"] = 1
    kept.digest = resting.digest = recount(kept)
    kept.bytes = resting.bytes = reweigh(kept)[0]
    for wall_ms, (command, loads) in enumerate(steps):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(packed_offsets, "USED_OFFSETS_MAX", 10_000)
            wanted = apply(kept, command, wall_ms=wall_ms)
            patch.setattr(packed_offsets, "USED_OFFSETS_MAX", 0)
            assert apply(resting, command, wall_ms=wall_ms) == wanted
        stored = [g.group_id for g in resting.groups.values() if g.offset_count]
        assert len(stored) - len(at_rest(resting)) in (0, 1)  # the one that was used last
        assert resting == kept
        assert sorted(shard_records(resting)) == sorted(shard_records(kept))
        assert resting.digest == recount(resting)
        assert resting.bytes == reweigh(resting)[0]
        if loads:
            resting = load_state(sorted(shard_records(resting)))


@pytest.mark.parametrize(
    "damage",
    [
        lambda key, value: (key[:-9], value),
        lambda key, value: (key[:-15] + b"\x07" + key[-14:], value),
        lambda key, value: (key[:-9] + b"\xff" + key[-8:], value),
        lambda key, value: (key, value[:5]),
        lambda key, value: (key, value[:-1]),
        lambda key, value: (key, b"\x09" + value[1:]),
        lambda key, _: (key, b""),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_damaged_offset_is_found_at_the_load(damage, first):
    """Not when somebody needs it; also behind others of its commit, of which one alone is read."""
    state = ShardState()
    apply(state, commit_of("g", range(3)))
    records = sorted(shard_records(state))
    at = next(number for number, (key, _) in enumerate(records) if key.endswith(bytes(8)))
    at += 0 if first else 2
    records[at] = damage(*records[at])
    with pytest.raises(RecordError):
        load_state(records)
