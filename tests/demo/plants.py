"""Broken workers, faults and historians: each breaks one promise that a check is for."""

import dataclasses
from pathlib import Path

from muster import CommitResult
from musterd.coordinator.runtime.routing import shard_of
from musterd.demo.corpus import PartitionReader
from musterd.demo.faults import Faults
from musterd.demo.history import Historian
from musterd.demo.ledger import Ledger, Owner
from musterd.demo.plan import GROUP
from musterd.demo.worker import Holding, Worker
from musterd.export.layout import shard_folder


class CommitsFirst(Worker):
    """Commits the batch that it counts next: a commit before its result."""

    async def send_commit(self, assignment, offsets):
        ahead = {number: self.grid.next_end(number, at) for number, at in offsets.items()}
        return await super().send_commit(assignment, ahead)


class LateOffsets(Ledger):
    """Writes counts at once and their offset with the next write: a result without its offset."""

    def __init__(self, other, lines):
        self._db = other._db
        self._lines = lines
        self._stored = {}

    def claim(self, partition, owner):
        row = super().claim(partition, owner)
        if row is not None:
            self._stored[partition] = row.offset
        return row

    def write(self, partition, owner, *, expected, offset, counts):
        stored = self._stored[partition]
        at = offset if offset == self._lines[partition] else expected
        self._stored[partition] = at
        return super().write(partition, owner, expected=stored, offset=at, counts=counts)


class WritesOffsetsLate(Worker):
    """See `LateOffsets`."""

    def __init__(self, settings, ledger, tell):
        super().__init__(settings, LateOffsets(ledger, settings.lines), tell)


class Liar(Worker):
    """Says that commits were acknowledged which it never sent."""

    term = 1

    def lies_about(self, number, offset):
        raise NotImplementedError

    async def send_commit(self, assignment, offsets):
        sent = {n: at for n, at in offsets.items() if not self.lies_about(n, at)}
        result = CommitResult({}, {}, 0, self.term)
        if sent:
            result = await super().send_commit(assignment, sent)
            self.term = result.term
        acknowledged = {self._key(number): at for number, at in offsets.items()}
        return dataclasses.replace(result, acknowledged=acknowledged)


class ForgetsTheLastCommit(Liar):
    """A result whose offset is never committed: the end of partition 0."""

    def lies_about(self, number, offset):
        return (number, offset) == (0, self.settings.lines[0])


class DropsACommit(Liar):
    """Commits of partition 0 by worker-1, from 10 % of it until the leader has changed."""

    dropped = False
    honest = False

    def lies_about(self, number, offset):
        first = self.settings.name == "worker-1" and number == 0
        return first and not self.honest and offset >= self.settings.lines[0] // 10

    async def send_commit(self, assignment, offsets):
        result = await super().send_commit(assignment, offsets)
        self.dropped |= self.lies_about(0, offsets.get(0, 0))
        return result

    async def compare(self, change):
        await super().compare(change)
        self.honest = self.dropped


class KeepsWithNewToken(Liar):
    """worker-2 goes on with what it lost while it owns others, under the newer token."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.mine = {}
        self.kept = set()

    async def take(self, work):
        await super().take(work)
        if self.settings.name != "worker-2":
            return
        lost = self.mine if self.allowed_ppm else {}  # nothing is kept before the work begins
        for number, was in lost.items():
            if number not in work.holdings and (kept := self.keep(work, was)) is not None:
                work.holdings[number] = kept
                self.kept.add(number)
        self.mine = dict(work.holdings)

    def keep(self, work, was):
        owner = Owner(work.assignment.fencing_token, work.assignment.member_id)
        row = self.ledger.claim(was.partition, owner)
        if row is None:
            return None
        return Holding(
            was.partition, owner, row.offset, row.counts, row.offset, self.reader(was, row.offset)
        )

    def reader(self, was, offset):
        return PartitionReader(Path(self.settings.corpus), was.partition, offset)

    def lies_about(self, number, offset):
        return number in self.kept


class KeepsWithOldToken(KeepsWithNewToken):
    """The same under the token that it had it with."""

    def keep(self, work, was):
        return dataclasses.replace(was, reader=self.reader(was, was.offset))


class DoesNotKill(Faults):
    """A kill that does not happen."""

    async def kill_leader(self, at_percent):
        usual, self.effect_s_max = self.effect_s_max, 3.0  # only what cannot come is cut short
        try:
            return await super().kill_leader(at_percent)
        finally:
            self.effect_s_max = usual

    def kill_node(self, node_id):
        return None


class FlipsAByte(Historian):
    """One changed byte in the export."""

    async def replay(self):
        folder = shard_folder(self.export_folder, shard_of(GROUP, 2))
        segment = max(folder.glob("part-*.parquet"), key=lambda path: path.stat().st_size)
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 0x01
        segment.write_bytes(data)
        return await super().replay()
