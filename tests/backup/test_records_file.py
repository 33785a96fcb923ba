"""A file of records is read as it was written; what is damaged or hostile is refused by name."""

import struct
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musterd.backup.errors import ArchiveError
from musterd.backup.records_file import (
    BLOCK_BYTES_MAX,
    END,
    KEY_BYTES_MAX,
    MAGIC,
    decode_records,
    encode_block,
)
from tests.backup.archives import stream

RECORDS = [(b"a", b"1"), (b"b", b""), (b"bb", b"x" * 5_000)]
WHOLE = MAGIC + encode_block(RECORDS[:2]) + encode_block(RECORDS[2:]) + END


def block(raw, stored=None, size=None, crc=None):
    """A block with any head."""
    stored = zlib.compress(raw) if stored is None else stored
    crc = zlib.crc32(raw) if crc is None else crc
    return struct.pack(">III", len(stored), len(raw) if size is None else size, crc) + stored


def record(key, value, key_bytes=None, value_bytes=None):
    """A record with any lengths."""
    lengths = (
        len(key) if key_bytes is None else key_bytes,
        len(value) if value_bytes is None else value_bytes,
    )
    return struct.pack(">II", *lengths) + key + value


@given(st.dictionaries(st.binary(min_size=1, max_size=40), st.binary(max_size=200), max_size=40))
def test_records_come_back_as_they_went(found):
    """In rising order of keys, however they are cut into blocks."""
    records = sorted(found.items())
    blocks = [encode_block(records[at : at + 7]) for at in range(0, len(records), 7)]
    assert list(decode_records(stream(MAGIC, *blocks, END), "f")) == records


HOSTILE = {
    "another beginning": b"PK\x03\x04" + WHOLE,
    "nothing": b"",
    "no end": WHOLE[: -len(END)],
    "cut in a head": WHOLE[: len(MAGIC) + 3],
    "cut in a block": WHOLE[:-40],
    "more behind the end": WHOLE + b"x",
    "a block of 4 GiB": MAGIC + struct.pack(">III", 0xFFFFFFFF, 1, 0),
    "a block that says 4 GiB": MAGIC + block(b"x", size=0xFFFFFFFF),
    "no zlib": MAGIC + block(b"x", stored=b"garbage"),
    "two streams": MAGIC + block(b"x", stored=zlib.compress(b"x") * 2),
    "another checksum": MAGIC + block(record(b"a", b"1"), crc=1) + END,
    "a bomb": MAGIC + block(b"x" * 10, stored=zlib.compress(bytes(10 * BLOCK_BYTES_MAX)), size=10),
    "a key of 4 GiB": MAGIC + block(record(b"a", b"1", key_bytes=0xFFFFFFFF)) + END,
    "a long key": MAGIC + block(record(b"k" * (KEY_BYTES_MAX + 1), b"")) + END,
    "a value of 4 GiB": MAGIC + block(record(b"a", b"1", value_bytes=0xFFFFFFFF)) + END,
    "half a record": MAGIC + block(record(b"a", b"1") + b"\x00\x00") + END,
    "a key twice": MAGIC + encode_block([(b"a", b"1"), (b"a", b"2")]) + END,
    "keys that fall": MAGIC + encode_block([(b"b", b"1")]) + encode_block([(b"a", b"2")]) + END,
    "an empty key": MAGIC + encode_block([(b"", b"1")]) + END,
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_what_is_hostile_is_refused_and_takes_no_memory(content):
    """The file is named; what it says it holds is not allocated."""
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveError, match="the-file"):
            list(decode_records(stream(content), "the-file"))
        assert tracemalloc.get_traced_memory()[1] < 4 * BLOCK_BYTES_MAX
    finally:
        tracemalloc.stop()


@given(st.data())
def test_an_edited_byte_never_gives_other_records(data):
    """It is refused, or (in what zlib pads) the records are the same."""
    at = data.draw(st.integers(0, len(WHOLE) - 1))
    edited = bytearray(WHOLE)
    edited[at] ^= data.draw(st.integers(1, 255))
    try:
        found = list(decode_records(stream(bytes(edited)), "f"))
    except ArchiveError:
        return
    assert found == RECORDS
