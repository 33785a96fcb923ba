"""The broken builds that a real server can be: all of them, and some for real servers alone.

Without fsync on a real disk means: the write-ahead log stays in the page cache, and the durable
mark, which would find that out at the next start, is not renewed.
"""

from contextlib import suppress
from typing import Any

from musterd.chaos.mutants.build import Build
from musterd.chaos.mutants.builds import BUILDS
from musterd.chaos.mutants.of_groups import BUILDS as OF_GROUPS
from musterd.chaos.mutants.of_quarantine import BUILDS as OF_QUARANTINE
from musterd.storage.rocks import _STALLED, RocksStore

_open_store, _write_mark = RocksStore._open, RocksStore._write_mark_file


class _PageCache:
    """A database that is asked to sync and only hands over."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def flush_wal(self, _sync: bool) -> None:
        self._inner.flush_wal(False)


def _open_unsynced(store: RocksStore, create: bool) -> None:
    _open_store(store, create)
    store._db = _PageCache(store._db)  # type: ignore[assignment]


def _no_mark(_store: RocksStore) -> None:
    """Leave the mark as it was."""


class _Heedless:
    """A database whose errors nobody hears; that it asks to wait is none."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, *what: Any) -> None:
        try:
            self._inner.write(*what)
        except Exception as error:
            if str(error).startswith(_STALLED):
                raise

    def flush_wal(self, sync: bool) -> None:
        with suppress(Exception):
            self._inner.flush_wal(sync)


def _open_heedless(store: RocksStore, create: bool) -> None:
    _open_store(store, create)
    store._db = _Heedless(store._db)  # type: ignore[assignment]


def _mark_heedless(store: RocksStore) -> None:
    with suppress(OSError):
        _write_mark(store)


def _believe(_store: RocksStore) -> None:
    """There is no mark that anything could be held against."""


PROCESS_BUILDS: dict[str, Build] = {
    **BUILDS,
    **{build.name: build for build in (*OF_GROUPS, *OF_QUARANTINE)},
    "no_fsync": Build(
        "no_fsync",
        "Acknowledges, votes and commits on what is in the page cache.",
        ((RocksStore, "_open", _open_unsynced), (RocksStore, "_write_mark_file", _no_mark)),
    ),
    "disk_error_ignored": Build(
        "disk_error_ignored",
        "Goes on after a write or a sync has failed, as if it had not.",
        ((RocksStore, "_open", _open_heedless), (RocksStore, "_write_mark_file", _mark_heedless)),
    ),
    "mark_unread": Build(
        "mark_unread",
        "Opens its files without a look at the durable mark, whatever that says.",
        ((RocksStore, "_read_mark_file", _believe),),
    ),
}
