"""Damage is done where it is said to be, and only there."""

from pathlib import Path
from random import Random

import pytest

from musterd.chaos.faults import damage as torn
from musterd.chaos.faults.contract import FaultError
from musterd.chaos.world import damage
from musterd.chaos.world.damage import DamageError, Part


@pytest.fixture
def data(tmp_path):
    """The files of a node, as RocksDB names them."""
    db = tmp_path / "db"
    db.mkdir()
    for name in ("000009.log", "000010.log", "000008.sst", "MANIFEST-000005", "CURRENT", "LOG"):
        (db / name).write_bytes(name.encode() * 100)
    (tmp_path / "mark").write_bytes(b"mark" * 10)
    return tmp_path


def contents(data):
    """Every file, byte for byte."""
    return {p.relative_to(data): p.read_bytes() for p in data.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (Part.WAL, "db/000010.log"),
        (Part.SST, "db/000008.sst"),
        (Part.MANIFEST, "db/MANIFEST-000005"),
        (Part.CURRENT, "db/CURRENT"),
        (Part.MARK, "mark"),
    ],
)
def test_a_flip_changes_one_bit_of_the_newest_file_of_its_part(data, part, name) -> None:
    """At the offset it tells."""
    for seed in range(20):
        before = contents(data)
        done = damage.flip(data, part, Random(seed))
        after = contents(data)
        assert done.file == name
        [changed] = [path for path in before if before[path] != after[path]]
        assert str(changed) == name
        pairs = enumerate(zip(before[changed], after[changed], strict=True))
        [(offset, (old, new))] = [(i, pair) for i, pair in pairs if pair[0] != pair[1]]
        assert offset == done.offset
        assert (old ^ new).bit_count() == 1


def test_a_tear_takes_a_few_bytes_from_the_end_of_the_newest_log(data) -> None:
    """And nothing else."""
    before = (data / "db/000010.log").read_bytes()
    done = damage.tear(data, Random(1))
    after = (data / "db/000010.log").read_bytes()
    assert before.startswith(after)
    assert 0 < len(before) - len(after) <= damage.TORN_BYTES_MAX
    assert done.offset == len(after)


@pytest.mark.parametrize(
    ("renewals", "sizes", "found"),
    [
        (torn.MARKS, [100, 100], ("a.log", 100)),
        (torn.MARKS - 1, [100, 100], None),
        (0, [100, 100], None),
        (0, [0, 50], None),
    ],
)
def test_only_marks_that_are_renewed_vouch_for_a_size(renewals, sizes, found, monkeypatch):
    """An idle node renews none, and a young one has no log yet."""
    marks, logs = [bytes([one]) for one in range(renewals + 1)], list(sizes)
    monkeypatch.setattr(torn, "POLL_S", 0.0)
    monkeypatch.setattr(torn, "MARKS_S_MAX", 0.05)
    monkeypatch.setattr(damage, "mark", lambda _: marks.pop(0) if marks[1:] else marks[0])
    monkeypatch.setattr(damage, "log_size", lambda _: ("a.log", logs.pop(0)))
    assert torn._vouched(Path("node-1")) == found


def test_a_node_that_writes_and_renews_no_mark_is_told(monkeypatch):
    """It would pass every cut."""
    sizes = [100, 200]
    monkeypatch.setattr(torn, "MARKS_S_MAX", 0.05)
    monkeypatch.setattr(damage, "mark", lambda _: b"as ever")
    monkeypatch.setattr(damage, "log_size", lambda _: ("a.log", sizes.pop(0)))
    with pytest.raises(FaultError, match="node-1 writes, and renewed no mark"):
        torn._vouched(Path("node-1"))


def test_a_tear_below_a_size_takes_all_behind_it_too(data) -> None:
    """So that what the durable mark vouches for is gone for sure."""
    done = damage.tear(data, Random(1), 300)
    assert 300 - damage.TORN_BYTES_MAX <= done.offset < 300
    assert (data / "db/000010.log").stat().st_size == done.offset


def test_a_half_written_log_has_a_part_of_what_was_lost(data) -> None:
    """What was synced is whole, and more than that came of what was lost, never other bytes."""
    log = data / "db/000010.log"
    seen = damage.written(data)
    log.write_bytes(seen[1][:300])
    done = damage.half_written(data, seen, Random(3))
    assert done is not None
    assert 300 < log.stat().st_size <= len(seen[1])
    assert seen[1].startswith(log.read_bytes())


def test_where_nothing_was_lost_nothing_is_half_written(data) -> None:
    """The fault then says that it did nothing."""
    assert damage.half_written(data, damage.written(data), Random(3)) is None


def test_a_part_that_is_not_there_is_an_error(data) -> None:
    """A flip that flips nothing would pass for one that was survived."""
    (data / "db/000008.sst").unlink()
    with pytest.raises(DamageError, match="no sst"):
        damage.flip(data, Part.SST, Random(1))


def test_what_a_log_has_lost_is_counted(data) -> None:
    """Of the log that was the newest before, also where it is gone; never less than nothing."""
    before = damage.log_size(data)
    assert before == ("000010.log", 1000)
    assert damage.lost_since(data, before) == 0
    log = data / "db/000010.log"
    log.write_bytes(bytes(400))
    (data / "db/000011.log").write_bytes(bytes(5))
    assert damage.lost_since(data, before) == 600
    log.unlink()
    assert damage.lost_since(data, before) == 1000
    assert damage.lost_since(data, ("", 0)) == 0


def test_a_node_without_a_log_has_none(tmp_path) -> None:
    """It is young, or its disk is dead."""
    assert damage.log_size(tmp_path) == ("", 0)
