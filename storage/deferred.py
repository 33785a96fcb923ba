"""Writes that may come late, since the log can make them again: the last value of each key.

A replica's state follows from its log, so a write of log entries need not carry the state that
earlier entries left (thesis section 5.1: the state that is on disk may lag behind the log). What is
changed again before it is written is written once.
"""

from collections.abc import Sequence
from typing import cast

from musterd.storage.store import Batch, Family

KEY_BYTES = 24
"""Counted for each key besides its own bytes and its value's."""


class Deferred:
    """Puts and deletes, by family and key. No ranges: what deletes one settles these before."""

    __slots__ = ("_families", "_size")

    def __init__(self) -> None:
        self._families: dict[Family, dict[bytes, bytes | None]] = {}
        self._size = 0

    @property
    def size(self) -> int:
        """About how many bytes there are; 0 where there is nothing."""
        return self._size + sum(map(len, self._families.values())) * KEY_BYTES

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        self._set(family, key, value)

    def delete(self, family: Family, key: bytes) -> None:
        """Remove a key."""
        self._set(family, key, None)

    def _set(self, family: Family, key: bytes, value: bytes | None) -> None:
        values = self._families.setdefault(family, {})
        if key in values:
            self._size -= len(values[key] or b"")
        else:
            self._size += len(key)
        values[key] = value
        self._size += len(value or b"")

    def put_all(self, family: Family, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """`put` each of these keys and values."""
        values, last = self._families.setdefault(family, {}), dict(pairs)
        replaced = sum(map(len, filter(None, map(values.get, last))))
        self._size += sum(map(len, last.values())) - replaced
        before = len(values)
        values.update(last)
        if len(values) > before:
            self._size += sum(map(len, last))

    def settle(self, batch: Batch) -> None:
        """Move everything to the end of `batch`: what is put there next comes after it."""
        if not self._families:
            return
        families, self._families, self._size = self._families, {}, 0
        for family, values in families.items():
            deleted = [key for key, value in values.items() if value is None]
            for key in deleted:
                del values[key]
                batch.delete(family, key)
            batch.put_all(family, cast("Sequence[tuple[bytes, bytes]]", list(values.items())))
