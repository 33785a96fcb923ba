"""A node's database opened by another process: read-only, and as of the last catch-up.

RocksDB's secondary mode follows the primary's manifest and write-ahead log; it needs a folder of
its own for its info log and holds every data file open (`max_open_files` -1), because the primary
deletes files under it.

A plain catch-up is not enough once the primary has flushed or compacted since: this process's
memory then still holds older values and deleted keys, and may win over the files, in which
compaction has set sequence numbers to 0 (measured with release 0.3.29: an overwritten key read its
old value; tests/storage/test_secondary.py shows it). So whenever the set of data files has changed
the database is opened anew, which reads files and log from their beginning.
"""

from collections.abc import Iterator
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from musterd.storage.cells import read_until
from musterd.storage.store import Family, StoreError

OPEN_TRIES = 20
"""A flush during an open is rare; so many in a row are not."""


class Secondary:
    """Everything read between two `catch_up` calls is of one moment. Not safe for threads."""

    def __init__(self, path: Path, scratch: Path) -> None:
        """`path` is the primary's database, `scratch` a folder of this process.

        Raises `StoreError`.
        """
        self._path = path
        self._scratch = scratch
        self.reopened = 0
        """How often the database was opened anew.

        After a flush, a compaction, a failed catch-up.
        """
        self._open()

    def _open(self) -> None:
        if not (self._path / "CURRENT").exists():  # opening would make a folder
            raise StoreError(f"{self._path} holds no database of a node")
        self._scratch.mkdir(parents=True, exist_ok=True)
        try:
            for _ in range(OPEN_TRIES):
                self._open_once()
                self._db.try_catch_up_with_primary()
                if self._data_files() == self._files:
                    return
                self.close()
        except Exception as error:  # rocksdict raises plain Exception
            raise StoreError(
                f"{self._path} cannot be read as a node's database: {error}"
            ) from error
        raise StoreError(f"{self._path}: its files changed {OPEN_TRIES} times while it was opened")

    def _open_once(self) -> None:
        options = Options(raw_mode=True)
        options.set_max_open_files(-1)
        self._db = Rdict(
            str(self._path),
            options,
            column_families={family.name.lower(): options for family in Family},
            access_type=AccessType.secondary(str(self._scratch)),
        )
        self._families = {
            family: self._db.get_column_family(family.name.lower()) for family in Family
        }
        self._files = self._data_files()

    def _data_files(self) -> frozenset[str]:
        return frozenset(str(file["name"]) for file in self._db.live_files())

    def catch_up(self) -> None:
        """Move to what the primary has written by now. Raises `StoreError`.

        Twice, because a flush between reading the manifest and reading the log would hide what was
        in the log before it: the second time shows that no such flush happened.
        """
        try:
            self._db.try_catch_up_with_primary()
            self._db.try_catch_up_with_primary()
            settled = self._data_files() == self._files
        except Exception:  # noqa: BLE001  # rocksdict raises plain Exception; opening anew is the remedy
            settled = False
        if not settled:
            self.reopened += 1
            self.close()
            self._open()

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value of a key, or None. Raises `StoreError`."""
        try:
            value: bytes | None = self._families[family].get(key)
        except Exception as error:  # rocksdict raises plain Exception
            raise self._read_error(error) from error
        return value

    def scan(self, family: Family, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys in [start, end), in order. Raises `StoreError` where they cannot be read."""
        cells = self._families[family].iter()
        cells.seek(start)
        return read_until(cells, end, self._read_error)

    def _read_error(self, error: Exception) -> StoreError:
        return StoreError(f"{self._path} cannot be read: {error}")

    def close(self) -> None:
        """Let go of the files."""
        for family in self._families.values():
            family.close()
        self._db.close()
