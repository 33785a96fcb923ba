"""What is written of an entry is what is loaded again; checkpoints are this replica's own."""

from collections.abc import Iterable, Iterator

import pytest

import musterd.coordinator.machine.shard_state
from musterd.coordinator.machine.commands import (
    Checkpoint,
    DeleteGroup,
    OffsetCommit,
    PartitionCommit,
)
from musterd.coordinator.machine.records.checkpoint_keys import CHECKPOINT_PREFIX
from musterd.coordinator.machine.records.digest import digest_bytes
from musterd.coordinator.machine.records.encoding import RecordError
from musterd.coordinator.machine.records.group_records import (
    AssignmentOf,
    RoundOf,
    group_key,
    group_prefix,
)
from musterd.coordinator.machine.records.shard_records import load_in_slices
from musterd.coordinator.machine.shard_state import ShardState, recount, shard_records
from musterd.coordinator.runtime.persist import (
    CHECKPOINTS_MAX,
    CheckpointRecord,
    Persist,
    scrub,
    stored_checkpoints,
)
from tests.machine.world import World


class Disk:
    """A shard's slice of the store, as batch and as view."""

    def __init__(self) -> None:
        self.state: dict[bytes, bytes] = {}
        self.meta: dict[bytes, bytes] = {}
        self.applied_index = 0

    def put(self, key: bytes, value: bytes) -> None:
        self.state[key] = value

    def put_all(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self.state.update(pairs)

    def delete(self, key: bytes) -> None:
        del self.state[key]

    def delete_prefix(self, prefix: bytes) -> None:
        for key in [key for key in self.state if key.startswith(prefix)]:
            del self.state[key]

    def put_meta(self, key: bytes, value: bytes) -> None:
        self.meta[key] = value

    def delete_meta(self, key: bytes) -> None:
        del self.meta[key]

    def get(self, key: bytes) -> bytes | None:
        return self.state.get(key)

    def scan(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((k, v) for k, v in self.state.items() if k.startswith(prefix)))

    def scan_meta(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((k, v) for k, v in self.meta.items() if k.startswith(prefix)))


class Stored(World):
    """A world that writes every entry to a disk."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk()
        self.disk.state.update(shard_records(self.state))
        self.persist = Persist()

    def apply(self, *commands):
        results = super().apply(*commands)
        self.persist.write(self.disk, self.index, self.state, results)
        return results


HISTORY = (
    "join z",
    "topic t 3",
    "join a",
    "fire",
    "time 900",
    "fire",
    "sync z-1 z-1:Z a-1:A",
    "sync a-1",
    "commit a-1 t/0=5@9:note seq=2",
    "commit z-1 t/1=7 ; leave z-1 ; replace 2 uuid",
    "rejoin a-1",
    "join b group=other",
    "leave b-1 group=other",
    "fire group=other",
    "grow t 5",
    "commit - t/0=1 group=simple",
    "expire a-1",
)


@pytest.fixture
def stored():
    """A shard with a history of every kind of change."""
    world = Stored()
    for line in HISTORY:
        world.run(line)
    return world


def test_the_disk_holds_the_state_after_every_entry():
    """The touched records suffice: at each entry disk = state, to the byte."""
    world = Stored()
    for line in HISTORY:
        world.run(line)
        assert world.disk.state == dict(shard_records(world.state)), line
        assert Persist().load(world.disk) == world.state


def test_a_loaded_shard_has_its_digest(stored):
    """Recomputed from the keys, not remembered."""
    loaded = Persist().load(stored.disk)
    assert loaded.digest == recount(loaded) == stored.state.digest


def test_an_entry_writes_only_what_it_changed(stored):
    """One commit: its offset and shard time, nothing else."""
    before = dict(stored.disk.state)
    stored.run("time 90000")
    stored.run("commit - t/0=2 group=simple")
    changed = {k for k, v in stored.disk.state.items() if before.get(k) != v}
    assert changed == {group_key("simple", ("t", 0)), b"c"}


@pytest.mark.parametrize("offsets", [5, 6])
@pytest.mark.parametrize("loaded", [False, True])
def test_a_deleted_group_leaves_nothing_on_disk_and_in_the_digest(
    stored, offsets, loaded, monkeypatch
):
    """However many offsets it has, and whether they were read from disk or committed here.

    A group whose id begins alike stays, and one that comes back at once has what it was given.
    """
    monkeypatch.setattr(musterd.coordinator.machine.shard_state, "POINT_DELETIONS_MAX", 5)
    before = dict(stored.disk.state)
    for group_id in ("many", "many-more"):
        for number in range(offsets):
            partition = PartitionCommit("t", number, 7, "", None)
            stored.apply(OffsetCommit(group_id, "", -1, 0, (partition,)))
    if loaded:
        stored.state = Persist().load(stored.disk)
    again = OffsetCommit("many", "", -1, 0, (PartitionCommit("t", 1, 9, "", None),))
    stored.apply(DeleteGroup("many"), again)
    assert stored.disk.state == dict(shard_records(stored.state))
    assert len(stored.state.groups["many"].offsets) == 1
    assert len(stored.state.groups["many-more"].offsets) == offsets
    stored.apply(DeleteGroup("many"))
    stored.apply(DeleteGroup("many-more"))
    assert stored.disk.state == dict(shard_records(stored.state)) == before
    assert stored.state.digest == recount(stored.state)


def test_an_assignment_is_written_without_the_members_metadata(stored):
    """A vector rewrites what it assigns and its round's record; the members' descriptions stay."""
    for line in ("join a", "join b", "fire", "fire"):
        stored.run(f"{line} group=new")
    before = dict(stored.disk.state)
    stored.run("sync b-1 group=new")
    stored.run("sync a-1 a-1:A b-1:B group=new")
    changed = {k for k, v in stored.disk.state.items() if before.get(k) != v}
    assert changed == {
        group_key("new", ref)
        for ref in (None, "a-1", "b-1", AssignmentOf("a-1"), AssignmentOf("b-1"), RoundOf(1))
    }
    assert len(stored.disk.state[group_key("new", AssignmentOf("b-1"))]) == 6


@pytest.mark.parametrize("slice_records", [1, 3, 1_000])
def test_loading_in_slices_gives_the_same_shard(stored, slice_records):
    """With pauses between groups, the state and its digest are those of one go."""
    pauses: list[None] = []

    def drive(loading):
        while True:
            try:
                pauses.append(next(loading))
            except StopIteration as done:
                return done.value

    assert drive(load_in_slices(stored.disk.scan(), slice_records)) == stored.state
    assert (len(pauses) > 1) is (slice_records < 10)


def test_a_new_shard_is_empty():
    """Nothing on disk, nothing in state, digest 0."""
    assert Persist().load(Disk()) == ShardState()


def test_a_first_entry_at_time_zero_loads_with_its_digest():
    """Shard time 0 has no record, in memory and on disk alike."""
    world = Stored()
    world.run("topic t 1")
    assert Persist().load(world.disk) == world.state


def test_checkpoints_are_kept_with_index_and_digest(stored):
    """Under meta, so that a snapshot never brings another replica's word."""
    digest = stored.state.digest
    stored.run("checkpoint")
    record = CheckpointRecord(stored.index, digest_bytes(digest))
    assert stored.persist.checkpoints == stored_checkpoints(stored.disk) == (record,)
    assert all(key.startswith(CHECKPOINT_PREFIX) for key in stored.disk.meta)


def test_the_last_hundred_checkpoints_are_kept(stored):
    """The oldest goes; also after a restart in between."""
    for _ in range(CHECKPOINTS_MAX - 1):
        stored.run("checkpoint")
    first = stored.persist.checkpoints[0]
    stored.persist = Persist()
    stored.state = stored.persist.load(stored.disk)
    stored.run("checkpoint")
    assert stored.persist.checkpoints[0] == first
    stored.run("checkpoint")
    assert len(stored_checkpoints(stored.disk)) == CHECKPOINTS_MAX
    assert stored.persist.checkpoints == stored_checkpoints(stored.disk)
    assert first not in stored.persist.checkpoints


def test_two_checkpoints_in_one_entry_are_one_record(stored):
    """One index, one digest: the later one's."""
    stored.run("topic u 1 ; checkpoint ; topic v 1 ; checkpoint")
    (record,) = stored.persist.checkpoints
    assert record == CheckpointRecord(stored.index, digest_bytes(stored.state.digest))


def test_scrub_finds_the_group_whose_key_changed(stored):
    """Recomputed from disk in slices; the sum of its parts, and the odd group named."""
    slices = list(scrub(stored.disk, slice_records=2))
    honest = slices[-1]
    assert len(slices) > 2
    assert honest.total == stored.state.digest
    assert set(honest.groups) == set(stored.state.groups)
    parts = honest.shard_wide + sum(honest.groups.values())
    assert parts % 2**128 == honest.total

    key = next(k for k in stored.disk.state if k.startswith(group_prefix("simple")))
    value = stored.disk.state[key]
    stored.disk.state[key] = value[:-1] + bytes((value[-1] ^ 1,))
    *_, damaged = scrub(stored.disk)
    assert damaged.total != honest.total
    assert [g for g in honest.groups if honest.groups[g] != damaged.groups[g]] == ["simple"]
    assert damaged.shard_wide == honest.shard_wide


def test_every_cut_or_lengthened_record_is_refused(stored):
    """A typed error that says so, whatever the record and wherever the cut."""
    for key, value in list(stored.disk.state.items()):
        for broken in (value[:-1], value + b"\0", b"", b"\x09" + value[1:]):
            stored.disk.state[key] = broken
            with pytest.raises(RecordError):
                Persist().load(stored.disk)
        stored.disk.state[key] = value
    assert Persist().load(stored.disk) == stored.state


@pytest.mark.parametrize(
    "key",
    [
        b"x",
        b"g",
        b"g\x00\x00\x00\x01",
        group_prefix("nobody") + b"mm-1",
        group_prefix("g") + b"q",
        group_prefix("g") + b"h-",
        group_prefix("g") + b"o\x00",
        group_prefix("g") + b"m\xff",
        group_prefix("g") + b"vnobody",
        b"n\x00",
    ],
)
def test_a_key_of_no_known_kind_is_refused(stored, key):
    """Never skipped: replicas that skipped different things would diverge."""
    stored.disk.state[key] = b"\x01"
    with pytest.raises(RecordError):
        Persist().load(stored.disk)


def test_a_checkpoint_under_a_broken_key_is_refused(stored):
    """Meta is read as strictly as state."""
    stored.disk.meta[CHECKPOINT_PREFIX + b"1"] = b""
    with pytest.raises(RecordError, match="checkpoint"):
        Persist().load(stored.disk)


def test_a_checkpoint_command_changes_no_record(stored):
    """Only meta."""
    before = dict(stored.disk.state)
    stored.apply(Checkpoint())
    assert stored.disk.state == before
