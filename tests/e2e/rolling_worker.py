"""A worker in a process of its own, and the store that it works into: both refuse what may not be.

`python -m tests.e2e.rolling_worker BOOTSTRAP GROUP STORE NAME OPTIONS` works until SIGTERM, leaves
and ends with 0. It ends with another status where a promise is broken; its stderr says which.
"""

import asyncio
import json
import os
import sqlite3
import sys
from contextlib import contextmanager

import muster

PACE_S = 0.02
BUSY_S_MAX = 30

_SCHEMA = """
CREATE TABLE places (
    partition INTEGER PRIMARY KEY,
    offset INTEGER NOT NULL DEFAULT 0,
    token INTEGER NOT NULL DEFAULT 0,
    owner TEXT NOT NULL DEFAULT '',
    works INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE begun (
    id INTEGER PRIMARY KEY,
    partition INTEGER NOT NULL,
    owner TEXT NOT NULL,
    former TEXT NOT NULL
);
"""
_OWN = "WHERE partition = ? AND owner = ? AND works"


class Store:
    """A row for each partition: how far it is processed, who works on it, under which token."""

    def __init__(self, path):
        self.db = sqlite3.connect(path, timeout=BUSY_S_MAX, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = OFF")

    @classmethod
    def create(cls, path, partitions):
        """A new one, in which nobody works on anything."""
        store = cls(path)
        store.db.executescript(_SCHEMA)
        rows = [(partition,) for partition in range(partitions)]
        store.db.executemany("INSERT INTO places (partition) VALUES (?)", rows)
        return store

    @contextmanager
    def begun(self, owner, p):
        """Inside, this owner works on the partition, from the offset that is committed."""
        with self._transaction():
            row = "SELECT offset, token, owner, works FROM places WHERE partition = ?"
            offset, token, former, works = self.db.execute(row, (p.id,)).fetchone()
            assert not works, f"{owner} and {former} work on {p.key}"
            assert p.fencing_token >= token, f"the token of {p.key} fell"
            assert p.fencing_token > token or former == owner, f"an old token of {p.key}"
            assert (p.position or 0) == offset, f"a commit of {p.key} was lost"
            own = (p.fencing_token, owner, p.id)
            self.db.execute("UPDATE places SET token=?, owner=?, works=1 WHERE partition = ?", own)
            entry = "INSERT INTO begun (partition, owner, former) VALUES (?, ?, ?)"
            self.db.execute(entry, (p.id, owner, former))
        try:
            yield
        finally:
            self._change(f"UPDATE places SET works = 0 {_OWN}", (p.id, owner))

    def process(self, owner, p):
        """Process the next item under the present token, which never falls; return its offset."""
        token = p.fencing_token
        statement = f"UPDATE places SET offset = offset + 1, token = ? {_OWN} AND token <= ?"
        self._change(statement, (token, p.id, owner, token))
        row = self.db.execute("SELECT offset FROM places WHERE partition = ?", (p.id,))
        return row.fetchone()[0]

    def working(self):
        """Who works on each partition now."""
        return dict(self.db.execute("SELECT partition, owner FROM places WHERE works"))

    def offsets(self):
        """How far each partition is processed."""
        return dict(self.db.execute("SELECT partition, offset FROM places"))

    def beginnings(self):
        """Return partition, owner and the owner before it, as often as work began."""
        return self.db.execute("SELECT partition, owner, former FROM begun ORDER BY id").fetchall()

    def _change(self, statement, mine):
        assert self.db.execute(statement, mine).rowcount == 1, f"{mine} is superseded"

    @contextmanager
    def _transaction(self):
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")


async def work(bootstrap, name, path, worker, options):
    """Process items until SIGTERM."""
    store, owner = Store(path), f"{worker}:{os.getpid()}"
    async with muster.Client(bootstrap) as client:
        group = client.group(name, [name], commit_interval_ms=1, **options)

        @group.on_partition
        async def process(p):
            with store.begun(owner, p):
                while not p.revoking.is_set():
                    p.commit(store.process(owner, p))
                    await asyncio.sleep(PACE_S)

        await group.run()


if __name__ == "__main__":
    *where, said = sys.argv[1:]
    asyncio.run(work(*where, json.loads(said)))
