"""The demo's results: one SQLite row per partition, guarded by the fencing token.

An owner first *claims* a partition, then writes. The row holds everything that must change
together: how far the partition is counted, and the counts up to there. A journal beside it keeps
every claim, every write and every refusal; nothing reads it while work goes on, the checks do
afterwards, because a store's own record is better evidence than what workers say of themselves.
"""

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

BUSY_MS_MAX = 30_000
"""How long a transaction waits for the others before it fails."""

NOBODY = ""

_SCHEMA = """
CREATE TABLE results (
    partition INTEGER PRIMARY KEY,
    offset INTEGER NOT NULL,
    token INTEGER NOT NULL,
    member TEXT NOT NULL,
    counts TEXT NOT NULL
);
CREATE TABLE journal (
    id INTEGER PRIMARY KEY,
    at_ns INTEGER NOT NULL,
    kind TEXT NOT NULL,
    granted INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    lines INTEGER NOT NULL,
    token INTEGER NOT NULL,
    member TEXT NOT NULL,
    former_token INTEGER NOT NULL,
    former_member TEXT NOT NULL
);
"""
_CLAIM = """
UPDATE results SET token = :token, member = :member
WHERE partition = :partition AND (token < :token OR (token = :token AND member = :member))
RETURNING offset, counts
"""
_WRITE = """
UPDATE results SET offset = :offset, counts = :counts
WHERE partition = :partition AND token = :token AND member = :member AND offset = :expected
"""
_NOTE = """
INSERT INTO journal (at_ns, kind, granted, partition, offset, lines, token, member,
                     former_token, former_member)
VALUES (:at_ns, :kind, :granted, :partition, :offset, :lines, :token, :member,
        :former_token, :former_member)
"""

CLAIM, WRITE = "claim", "write"


class Owner(NamedTuple):
    """The member that works on a partition, and its fencing token."""

    token: int
    member: str


class Row(NamedTuple):
    """The offset and the counts from which an owner goes on."""

    offset: int
    counts: Counter[str]


class Note(NamedTuple):
    """One line of the journal. `at_ns` is CLOCK_MONOTONIC, the same for all processes of a machine.

    `offset` is the row's after a claim, or where a write wanted to take it; `lines` are those that
    a granted write added. `former_*` is the owner in the row before.
    """

    id: int
    at_ns: int
    kind: str
    granted: bool
    partition: int
    offset: int
    lines: int
    token: int
    member: str
    former_token: int
    former_member: str


class Ledger:
    """One process's connection. Transactions are durable against the end of any process."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, timeout=BUSY_MS_MAX / 1000, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")

    @classmethod
    def create(cls, path: Path, partitions: int) -> Self:
        """A new ledger in which nobody has counted anything."""
        ledger = cls(path)
        ledger._db.executescript(_SCHEMA)
        rows = [(partition, 0, 0, NOBODY, "{}") for partition in range(partitions)]
        ledger._db.executemany("INSERT INTO results VALUES (?, ?, ?, ?, ?)", rows)
        return ledger

    def close(self) -> None:
        self._db.close()

    # ---- what owners do

    def claim(self, partition: int, owner: Owner) -> Row | None:
        """Become the owner in the row; None where a newer token, or another member, has it."""
        with self._transaction():
            former = self._owner(partition)
            parameters = {"partition": partition, **owner._asdict()}
            found = self._db.execute(_CLAIM, parameters).fetchone()
            offset = found[0] if found else -1
            self._note(
                CLAIM, partition, owner, granted=found is not None, offset=offset, former=former
            )
        return Row(offset, Counter(json.loads(found[1]))) if found else None

    def write(
        self, partition: int, owner: Owner, *, expected: int, offset: int, counts: Mapping[str, int]
    ) -> bool:
        """Replace the row's offset and counts, both absolute; False = fenced, stop this partition.

        Args:
            partition: which.
            owner: must be the one in the row.
            expected: the offset in the row now.
            offset: the next line to read.
            counts: tokens of all lines before `offset`.
        """
        with self._transaction():
            former = self._owner(partition)
            parameters = {
                "partition": partition,
                "expected": expected,
                "offset": offset,
                "counts": _encode(counts),
                **owner._asdict(),
            }
            granted = self._db.execute(_WRITE, parameters).rowcount == 1
            self._note(
                WRITE,
                partition,
                owner,
                granted=granted,
                offset=offset,
                former=former,
                lines=offset - expected if granted else 0,
            )
        return granted

    # ---- what others read

    def offsets(self) -> dict[int, int]:
        """How far each partition is counted."""
        return dict(self._db.execute("SELECT partition, offset FROM results"))

    def owners(self) -> dict[int, Owner]:
        """Who claimed each partition last; `NOBODY` at first."""
        rows = self._db.execute("SELECT partition, token, member FROM results")
        return {partition: Owner(token, member) for partition, token, member in rows}

    def totals(self) -> Counter[str]:
        """The token table of all partitions."""
        totals: Counter[str] = Counter()
        for (counts,) in self._db.execute("SELECT counts FROM results"):
            totals.update(json.loads(counts))
        return totals

    def notes(self) -> list[Note]:
        """The whole journal, in order."""
        rows = self._db.execute("SELECT * FROM journal ORDER BY id")
        return [note._replace(granted=bool(note.granted)) for note in map(Note._make, rows)]

    # ---- inside

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _owner(self, partition: int) -> Owner:
        found = self._db.execute(
            "SELECT token, member FROM results WHERE partition = ?", (partition,)
        ).fetchone()
        if found is None:
            raise KeyError(f"the ledger has no partition {partition}")
        return Owner(*found)

    def _note(
        self,
        kind: str,
        partition: int,
        owner: Owner,
        *,
        granted: bool,
        offset: int,
        former: Owner,
        lines: int = 0,
    ) -> None:
        self._db.execute(
            _NOTE,
            {
                "at_ns": time.monotonic_ns(),
                "kind": kind,
                "granted": granted,
                "partition": partition,
                "offset": offset,
                "lines": lines,
                **owner._asdict(),
                "former_token": former.token,
                "former_member": former.member,
            },
        )


def _encode(counts: Mapping[str, int]) -> str:
    return json.dumps(counts, ensure_ascii=False, separators=(",", ":"))
