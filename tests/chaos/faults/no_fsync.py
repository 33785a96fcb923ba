"""`python no_fsync.py -m muster.cli serve ...`: a server that syncs nothing to its disk.

What it has written is in the page cache; the durable mark, which would find that out at the next
start, is not renewed.
"""

import sys

from muster.cli import main
from storage.rocks import RocksStore

_open = RocksStore._open


class PageCache:
    """A database that is asked to sync and only hands over."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def flush_wal(self, sync):
        self._inner.flush_wal(False)


def open_unsynced(self, create):
    """Open it, and sync nothing from then on."""
    _open(self, create)
    self._db = PageCache(self._db)


RocksStore._open = open_unsynced
RocksStore._write_mark_file = lambda self: None
main(sys.argv[3:])
