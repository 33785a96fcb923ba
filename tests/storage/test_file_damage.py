"""Bytes of a data file flipped: a store refuses, or a read says so. It never ends a scan early."""

import queue
import shutil
import struct
import time
from pathlib import Path

import pytest

from musterd.storage.manifest import damage_of
from musterd.storage.rocks import RocksStore
from musterd.storage.secondary import Secondary
from musterd.storage.store import CorruptStoreError, Family, StoreError

RECORDS = 300
END = b"\xff" * 9


def opened(path: Path, *, create: bool = False) -> RocksStore:
    """A store whose sync thread tells nobody."""
    posted: queue.Queue = queue.Queue()
    return RocksStore(path, posted.put, time.monotonic, lambda _: None, create=create)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State in a data file, nothing in the write-ahead log."""
    path = tmp_path_factory.mktemp("damage") / "node"
    store = opened(path, create=True)
    for number in range(RECORDS):
        store.batch.put(Family.STATE, number.to_bytes(8, "big"), bytes([number % 256]) * 60)
    store.write()
    store.close()
    opened(path).close()  # what was in the log is in a file now
    return path


def data_file(path: Path) -> Path:
    """The one with the state: the largest."""
    return max(path.glob("db/*.sst"), key=lambda file: file.stat().st_size)


def damaged(stored: Path, to: Path, share: float) -> Path:
    """A copy with one bit flipped, so far into the data file."""
    shutil.copytree(stored, to)
    path = data_file(to)
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 0x10
    path.write_bytes(bytes(content))
    return to


PLACES = [step / 40 for step in range(40)]


def test_no_flipped_byte_of_a_data_file_makes_a_scan_shorter(stored: Path, tmp_path: Path) -> None:
    """A node would take the part that it can read for all of its state, and serve it."""
    read, refused = 0, 0
    for number, share in enumerate(PLACES):
        path = damaged(stored, tmp_path / str(number), share)
        try:
            store = opened(path)
        except CorruptStoreError:
            refused += 1
            continue
        with pytest.raises(CorruptStoreError, match="muster cluster replace-node"):
            list(store.scan(Family.STATE, b"", END))
        read += 1
        store.close()
    assert read > len(PLACES) // 2, "most of the file is data, which an open does not read"
    assert refused + read == len(PLACES)


def test_an_undamaged_data_file_is_read_to_its_end(stored: Path, tmp_path: Path) -> None:
    """As a store, and beside it."""
    shutil.copytree(stored, tmp_path / "node")
    store = opened(tmp_path / "node")
    assert len(list(store.scan(Family.STATE, b"", END))) == RECORDS
    store.close()
    beside = Secondary(tmp_path / "node" / "db", tmp_path / "scratch")
    assert len(list(beside.scan(Family.STATE, b"", END))) == RECORDS
    beside.close()


def test_a_key_that_cannot_be_read_is_no_missing_key(stored: Path, tmp_path: Path) -> None:
    """Nor an error that nobody expects."""
    store = opened(damaged(stored, tmp_path / "node", 0.1))
    with pytest.raises(CorruptStoreError):
        store.get(Family.STATE, (0).to_bytes(8, "big"))
    store.close()


def test_an_export_of_a_damaged_data_file_says_so(stored: Path, tmp_path: Path) -> None:
    """It would leave out entries, and call them missing."""
    beside = Secondary(damaged(stored, tmp_path / "node", 0.1) / "db", tmp_path / "scratch")
    with pytest.raises(StoreError, match="cannot be read"):
        list(beside.scan(Family.STATE, b"", END))
    with pytest.raises(StoreError, match="cannot be read"):
        beside.get(Family.STATE, (0).to_bytes(8, "big"))
    beside.close()


# -- the manifest


@pytest.fixture(scope="module")
def flushed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As kill -9 leaves it: the last record of the manifest alone names the file with the state."""
    base = tmp_path_factory.mktemp("manifest")
    store = opened(base / "live", create=True)
    for number in range(RECORDS):
        store.batch.put(Family.STATE, number.to_bytes(8, "big"), b"x" * 60)
    store.write()
    for family in (Family.LOG, Family.META, Family.STATE):
        store._families[family].flush()
    store._db.flush_wal(True)
    shutil.copytree(base / "live", base / "node")
    store.close()
    return base / "node"


def manifest_of(path: Path) -> Path:
    """The newest."""
    return path / "db" / (path / "db" / "CURRENT").read_text().strip()


def records(content: bytes) -> list[int]:
    """Where each begins; the file is one block."""
    starts, at = [], 0
    while at < len(content):
        starts.append(at)
        at += 7 + struct.unpack_from("<H", content, at + 4)[0]
    return starts


def test_a_changed_length_or_kind_of_a_manifest_record_is_refused(
    flushed: Path, tmp_path: Path
) -> None:
    """Each bit of them, in the last records. RocksDB drops files for it, or never comes back."""
    content = manifest_of(flushed).read_bytes()
    places = [start + byte for start in records(content)[-4:] for byte in (4, 5, 6)]
    for place in places:
        for bit in range(8):
            path = tmp_path / "node"
            shutil.copytree(flushed, path)
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            manifest_of(path).write_bytes(bytes(changed))
            with pytest.raises(CorruptStoreError, match="muster cluster replace-node"):
                opened(path)
            shutil.rmtree(path)


def test_a_manifest_that_a_crash_cut_off_is_no_damage(flushed: Path, tmp_path: Path) -> None:
    """Wherever within its last record, nor one with zeros behind it; and a whole one is none."""
    database = tmp_path / "db"
    database.mkdir()
    content = manifest_of(flushed).read_bytes()
    (database / "CURRENT").write_text("MANIFEST-000001\n")
    for end in range(records(content)[-1], len(content) + 1):
        (database / "MANIFEST-000001").write_bytes(content[:end])
        assert damage_of(database) == ""
    (database / "MANIFEST-000001").write_bytes(content + bytes(100))
    assert damage_of(database) == ""


def test_records_of_a_manifest_of_many_blocks_are_found(tmp_path: Path) -> None:
    """Parts of a record end with their block; less than a header at its end is filled up."""
    tmp_path.joinpath("CURRENT").write_text("MANIFEST-000001\n")
    block = struct.pack("<IHB", 1, 32 * 1024 - 7 - 3, 1) + bytes(32 * 1024 - 7 - 3) + bytes(3)
    assert len(block) == 32 * 1024
    strange = struct.pack("<IHB", 1, 4, 5) + bytes(4)
    tmp_path.joinpath("MANIFEST-000001").write_bytes(block + block + strange)
    assert damage_of(tmp_path) == "MANIFEST-000001 has a record of an unknown kind at byte 65536"
