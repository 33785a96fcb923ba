"""A node's database opened by another process: read-only, and as of the last catch-up.

RocksDB's secondary mode follows the primary's manifest and write-ahead log; it needs a folder of its own for its info
log and holds every data file open (`max_open_files` -1), because the primary deletes files under it.
"""

from collections.abc import Iterator
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from storage.store import Family, StoreError


class Secondary:
    """Everything read between two `catch_up` calls is of one moment. Not safe for threads."""

    def __init__(self, path: Path, scratch: Path) -> None:
        """`path` is the primary's database, `scratch` a folder of this process. Raises `StoreError`."""
        self._path = path
        self._scratch = scratch
        self.reopened = 0
        """How often a catch-up failed and the database was opened anew."""
        self._open()

    def _open(self) -> None:
        options = Options(raw_mode=True)
        options.set_max_open_files(-1)
        self._scratch.mkdir(parents=True, exist_ok=True)
        try:
            self._db = Rdict(
                str(self._path),
                options,
                column_families={family.name.lower(): options for family in Family},
                access_type=AccessType.secondary(str(self._scratch)),
            )
            self._families = {
                family: self._db.get_column_family(family.name.lower()) for family in Family
            }
        except Exception as error:  # rocksdict raises plain Exception
            raise StoreError(
                f"{self._path} cannot be read as a node's database: {error}"
            ) from error

    def catch_up(self) -> None:
        """Move to what the primary has written by now. A catch-up that fails opens the database anew."""
        try:
            self._db.try_catch_up_with_primary()
        except Exception:  # noqa: BLE001  # rocksdict raises plain Exception; opening anew is the remedy
            self.reopened += 1
            self.close()
            self._open()

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        value: bytes | None = self._families[family].get(key)
        return value

    def scan(self, family: Family, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys in [start, end), in order."""
        for key, value in self._families[family].items(from_key=start):
            if not isinstance(key, bytes) or key >= end:  # raw mode: keys are bytes
                return
            yield key, value

    def close(self) -> None:
        """Let go of the files."""
        for family in self._families.values():
            family.close()
        self._db.close()
