"""Cuts for backups: they stand still, are read in bounded slices, and end by themselves."""

import asyncio

import pytest

from muster.v1 import admin_pb2 as admin
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.integrity import backup_cuts
from musterd.coordinator.integrity.backup_cuts import (
    CUTS_MAX,
    SLICE_BYTES,
    SLICE_RECORDS,
    BackupCuts,
)
from musterd.coordinator.integrity.frozen import Frozen
from tests.coordinator.local import local_node


class View:
    """Records of one applied index; whether a scan of them is open."""

    def __init__(self, records):
        self.applied_index = 40
        self.records = records
        self.open = 0

    def scan(self):
        self.open += 1
        try:
            yield from self.records
        finally:
            self.open -= 1


class Disk:
    """A disk that gives one view, or asks to wait."""

    def __init__(self, records):
        self.view = View(records)
        self.waits = False

    def freeze(self, _shard):
        return None if self.waits else Frozen(self.view, 7)


def run(test):
    """A coroutine function on a loop of its own."""
    asyncio.run(asyncio.wait_for(test(), 30))


@pytest.mark.parametrize(
    ("value_bytes", "most"), [(0, SLICE_RECORDS), (SLICE_BYTES // 4, 4), (3 * SLICE_BYTES, 1)]
)
def test_a_slice_is_bounded_in_records_and_bytes(value_bytes, most):
    """All records come, in order, each once; the slice before may be had again."""
    records = [(b"%06d" % n, bytes(value_bytes)) for n in range(2 * most + 1)]

    async def test():
        cut = BackupCuts(Disk(records)).begin(3, 5)
        assert (cut.shard, cut.index, cut.term, cut.digest) == (3, 40, 5, 7)
        found = [*cut.slice.records]
        while not cut.slice.last:
            again = cut.read(cut.number)
            assert again is cut.slice
            part = cut.read(cut.number + 1)
            assert len(part.records) <= most
            found += part.records
        assert found == records
        assert cut.read(cut.number + 1) is None
        assert cut.read(0) is None

    run(test)


def test_a_cut_that_nobody_reads_lets_go_of_its_files(monkeypatch):
    """And one that is read goes on; the end of the node ends all."""
    monkeypatch.setattr(backup_cuts, "CUT_IDLE_MS", 60)
    disk = Disk([(b"%06d" % n, b"") for n in range(5 * SLICE_RECORDS)])

    async def test():
        cuts = BackupCuts(disk)
        idle, read = cuts.begin(0, 1), cuts.begin(0, 1)
        assert disk.view.open == 2
        while cuts._cuts.get(idle.id):
            assert cuts.find(read.id) is read
            await asyncio.sleep(0.01)
        assert disk.view.open == 1
        cuts.close()
        assert disk.view.open == 0
        assert cuts.find(read.id) is None

    run(test)


def test_so_many_cuts_at_a_time_and_none_of_a_disk_that_stalls():
    """The next one is refused until one has ended."""
    disk = Disk([(b"%06d" % n, b"") for n in range(SLICE_RECORDS + 1)])

    async def test():
        cuts = BackupCuts(disk)
        made = [cuts.begin(0, 1) for _ in range(CUTS_MAX)]
        assert cuts.full
        cuts.end(made[0].id)
        assert not cuts.full
        disk.waits = True
        assert cuts.begin(0, 1) is None
        cuts.close()

    run(test)


def test_cuts_that_were_read_to_their_end_leave_room_for_others():
    """A backup cuts one shard after the other; some are kept for an answer that was lost."""
    disk = Disk([(b"%06d" % n, b"") for n in range(SLICE_RECORDS + 1)])

    async def test():
        cuts = BackupCuts(disk)
        made = []
        for _ in range(5 * CUTS_MAX):
            assert not cuts.full
            made.append(cuts.begin(0, 1))
            last = made[-1].read(1)
            assert last.last
            assert cuts.find(made[-1].id).read(1) is last
        assert disk.view.open == 0
        assert sum(cuts.find(one.id) is not None for one in made) <= CUTS_MAX + 1
        cuts.close()

    run(test)


def test_over_the_wire_a_cut_is_its_shards_and_of_its_leader():
    """Another shard's, one that does not come next, and a node that does not lead are refused."""

    async def test():
        async with local_node() as node:
            first = await node.admin.ReadBackup(admin.ReadBackupRequest(shard=1))
            assert first.status.code == ErrorCode.NONE
            assert first.last
            for wrong in (
                {"shard": 0, "cut_id": first.cut_id},
                {"shard": 1, "cut_id": first.cut_id, "slice": 2},
                {"shard": 1, "cut_id": b"x"},
                {"shard": 99},
            ):
                answer = await node.admin.ReadBackup(admin.ReadBackupRequest(**wrong))
                assert answer.status.code == ErrorCode.INVALID_REQUEST
            again = await node.admin.ReadBackup(
                admin.ReadBackupRequest(shard=1, cut_id=first.cut_id, slice=0)
            )
            assert again == first

    run(test)
