"""Every byte of a node's write-ahead log flipped once: it refuses, or lost nothing vouched for."""

import json
import queue
import shutil
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from musterd.raft.contract import Applied, Role, ShardId
from musterd.raft.driver import Driver
from musterd.raft.identity import new_identity, write_identity
from musterd.raft.settings import RaftSettings
from musterd.storage.rocks import _MARK, RocksStore
from musterd.storage.store import CorruptStoreError

SHARD = ShardId(0)
SETTINGS = RaftSettings(first_election_ms=1, election_min_ms=310, mark_ms=0, soft_ms=0)


class Notes:
    """A state machine that stores each entry."""

    def apply(self, index, term, entry, batch):
        batch.put(index.to_bytes(8, "big"), entry)
        return index

    def reload(self, view):
        return None

    def examine(self):
        return lambda _key, _value: True

    def role_changed(self, role, term):
        return None


class NoLink:
    """A cluster of one has nobody to talk to."""

    def send(self, node, frame, bulk):
        return False

    def hang_up(self, node):
        return None


class Node:
    """A single node on a real database, driven by hand on the real clock."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.posted: queue.Queue = queue.Queue()
        self.failed: list = []
        self.store = RocksStore(
            path, self.posted.put, time.monotonic, self.failed.append, create=create
        )
        try:
            if create:
                write_identity(self.store, new_identity("wal", 0, 1, [0]))
                self.store.write()
            self.driver = Driver(
                self.store, lambda _: Notes(), NoLink(), time.monotonic, Random(1), SETTINGS
            )
            self.driver.start()
        except BaseException:
            self.store.close()
            raise

    @property
    def replica(self):
        return self.driver.replicas[SHARD]

    def run_until(self, condition) -> None:
        end = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end, "the node does not get there"
            try:
                self.posted.get(timeout=0.005)()
            except queue.Empty:
                self.driver.timer()
            self.driver.mark_all()
            self.driver.turn()

    def note(self, text: bytes) -> None:
        """Have one entry committed."""
        outcomes: list = []
        self.replica.propose(text, outcomes.append)
        self.run_until(lambda: outcomes)
        assert isinstance(outcomes[0], Applied)

    def log(self) -> list:
        journal = self.replica.journal
        return journal.read(journal.first_index, 1 << 20, 1 << 30)


@dataclass(frozen=True)
class Killed:
    """A node's directory as kill -9 leaves it."""

    path: Path
    wal: Path
    log: list
    """All entries that were acknowledged."""
    marked_index: int
    """The node vouches for this much."""
    wal_bytes: bytes


def _kill(node: Node, path: Path, to: Path) -> Killed:
    # The mark is renewed beside this: what it is written to first comes and goes.
    shutil.copytree(path, to, ignore=shutil.ignore_patterns("mark.new"))
    wal = max(to.glob("db/*.log"), key=lambda file: int(file.stem))
    return Killed(to, wal, node.log(), 0, wal.read_bytes())


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """A node killed right after its mark was renewed for all but the last entries."""
    base = tmp_path_factory.mktemp("wal")
    Node(base / "node", create=True).store.close()
    node = Node(base / "node")
    node.run_until(lambda: node.replica.role is Role.LEADER and node.replica.ready)
    node.note(b"first")
    node.note(b"second")
    mark = base / "node" / "mark"
    node.run_until(lambda: _vouched(mark.read_bytes()) >= node.replica.journal.last_index)
    kept = mark.read_bytes()
    node.note(b"third")
    result = _kill(node, base / "node", base / "killed")
    (result.path / "mark").write_bytes(kept)  # as if the kill came before the next renewal
    node.store.close()
    return Killed(result.path, result.wal, result.log, _vouched(kept), result.wal_bytes)


def _vouched(mark: bytes) -> int:
    """The index of the log's end in a mark file."""
    payload = mark[_MARK.size :]
    return json.loads(payload)["shards"]["0"][0] if payload else 0


def _open_damaged(killed: Killed, scratch: Path, damaged: bytes) -> tuple[str, list]:
    """("refused" or "opened", the log that was found). A refusal must say how to rebuild."""
    refusal = ""
    shutil.copytree(killed.path, scratch)
    (scratch / "db" / killed.wal.name).write_bytes(damaged)
    try:
        node = Node(scratch)
    except CorruptStoreError as error:
        refusal = str(error)
    if refusal:
        assert "muster cluster replace-node" in refusal
        return "refused", []
    try:
        return "opened", node.log()
    finally:
        node.store.close()


def test_an_undamaged_log_opens_with_everything(killed: Killed, tmp_path: Path) -> None:
    """The directory that the flips start from is a good one."""
    verdict, log = _open_damaged(killed, tmp_path / "n", killed.wal_bytes)
    assert verdict == "opened"
    assert log == killed.log
    assert 1 < killed.marked_index < killed.log[-1][1]
    assert len(killed.wal_bytes) > 300


def test_a_flipped_byte_never_loses_what_the_mark_vouches_for(
    killed: Killed, tmp_path: Path
) -> None:
    """Each byte once: refused with the way to rebuild, or all entries up to the mark are there."""
    vouched = [entry for entry in killed.log if entry[1] <= killed.marked_index]
    verdicts: Counter[str] = Counter()
    for at in range(len(killed.wal_bytes)):
        damaged = bytearray(killed.wal_bytes)
        damaged[at] ^= 0xFF
        verdict, log = _open_damaged(killed, tmp_path / "n", bytes(damaged))
        shutil.rmtree(tmp_path / "n")
        verdicts[verdict] += 1
        if verdict == "opened":
            assert log == killed.log[: len(log)], f"byte {at}: another log"
            assert log[: len(vouched)] == vouched, f"byte {at}: entries are gone"
    assert verdicts["refused"] > len(killed.wal_bytes) // 2


def test_a_log_cut_short_never_loses_what_the_mark_vouches_for(
    killed: Killed, tmp_path: Path
) -> None:
    """A torn end: at every length the node refuses, or has all entries up to the mark."""
    vouched = [entry for entry in killed.log if entry[1] <= killed.marked_index]
    verdicts: Counter[str] = Counter()
    for length in range(0, len(killed.wal_bytes), 7):
        verdict, log = _open_damaged(killed, tmp_path / "n", killed.wal_bytes[:length])
        shutil.rmtree(tmp_path / "n")
        verdicts[verdict] += 1
        if verdict == "opened":
            assert log == killed.log[: len(log)], f"length {length}: another log"
            assert log[: len(vouched)] == vouched, f"length {length}: entries are gone"
    assert verdicts["refused"] > 0
    assert verdicts["opened"] > 0
