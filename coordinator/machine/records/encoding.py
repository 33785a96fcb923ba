"""Canonical bytes: integers of 8 bytes, text with its length, sequences with their count.

One value has one encoding, on every machine and in every version that writes RECORD_VERSION.
"""

from collections.abc import Iterable, Sequence
from struct import Struct

RECORD_VERSION = 1

_INT = Struct(">q")
_LENGTH = Struct(">I")
INT_BYTES = _INT.size


class RecordError(Exception):
    """A stored record cannot be read: damaged, or written by a later version. Not retriable."""


def put_int(value: int) -> bytes:
    """8 bytes, signed, big-endian."""
    return _INT.pack(value)


def put_ints(values: Iterable[int]) -> list[bytes]:
    """Each as `put_int` does, without a call."""
    return list(map(_INT.pack, values))


def put_optional(value: int | None) -> bytes:
    """One byte that says whether there is a value, and the value."""
    return b"\x00" if value is None else b"\x01" + _INT.pack(value)


def put_bytes(value: bytes) -> bytes:
    """The length in 4 bytes, big-endian, then the value."""
    return _LENGTH.pack(len(value)) + value


def put_text(value: str) -> bytes:
    """The text in UTF-8, as `put_bytes` writes it."""
    return put_bytes(value.encode())


def put_texts(values: Sequence[str]) -> bytes:
    """The count in 4 bytes, big-endian, then each text."""
    return _LENGTH.pack(len(values)) + b"".join(map(put_text, values))


def put_count(count: int) -> bytes:
    """How many items follow, in 4 bytes, big-endian."""
    return _LENGTH.pack(count)


class Reader:
    """Takes the fields of one record off the front, in the order they were put."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        end = self._at + size
        if end > len(self._data):
            raise RecordError(f"a record ends at {len(self._data)}, not at {end} bytes")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def integer(self) -> int:
        return int.from_bytes(self.take(_INT.size), "big", signed=True)

    def count(self) -> int:
        """A length or a count."""
        return int.from_bytes(self.take(_LENGTH.size), "big")

    def flag(self) -> bool:
        """One byte, 0 or 1."""
        flag = self.take(1)
        if flag not in {b"\x00", b"\x01"}:
            raise RecordError(f"a flag of a record is {flag.hex()}")
        return flag == b"\x01"

    def optional(self) -> int | None:
        """An integer that may be missing."""
        return self.integer() if self.flag() else None

    def blob(self) -> bytes:
        return self.take(self.count())

    def text(self) -> str:
        try:
            return self.blob().decode()
        except UnicodeDecodeError as error:
            raise RecordError("text of a record is not UTF-8") from error

    def texts(self) -> tuple[str, ...]:
        return tuple(self.text() for _ in range(self.count()))

    def rest(self) -> str:
        """All that is left, as UTF-8."""
        try:
            return self.take(len(self._data) - self._at).decode()
        except UnicodeDecodeError as error:
            raise RecordError("text of a record is not UTF-8") from error

    def version(self, last: int = RECORD_VERSION) -> int:
        """Each value starts with the version of its form; the last one of this kind is `last`."""
        version = self.take(1)[0]
        if not RECORD_VERSION <= version <= last:
            raise RecordError(f"a record of version {version}; this build reads {last}")
        return version

    def end(self) -> None:
        """Raise RecordError where anything is left."""
        if self._at != len(self._data):
            raise RecordError(f"{len(self._data) - self._at} bytes too many in a record")
