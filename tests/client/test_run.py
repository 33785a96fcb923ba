"""`run`: one task per owned partition, buffered commits, draining."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from muster import Partition, TopicPartition
from muster.errors import (
    ErrorCode,
    IllegalGeneration,
    InvalidRequest,
    KafkaStorageError,
    OffsetMetadataTooLarge,
    UnknownTopicOrPartition,
)
from muster.group import partition_tasks
from muster.testing import Hang, Refuse
from tests.client.listeners import Journal
from tests.docs.block_runners import record_run

T = [TopicPartition("t", i) for i in range(4)]
EXAMPLE = Path(__file__).parents[2] / "docs" / "example.py"


def offsets(cluster):
    """What the coordinator holds, by partition number."""
    return {key.partition: one.value.offset for key, one in cluster.groups["g"].offsets.items()}


async def test_each_owned_partition_has_a_task_that_goes_on_where_the_last_one_stopped(
    open_cluster,
):
    """Committed offsets are read first; tokens and ids are those of the assignment."""
    async with open_cluster(1) as (cluster, client):
        await client.commit_offsets("g", {T[2]: 42})
        group = client.group("g", ["t"])
        seen = {}

        @group.on_partition
        async def work(p: Partition) -> None:
            seen[p.id] = p
            if len(seen) == 4:
                group.stop()

        await group.run()
        assert {i: p.committed for i, p in seen.items()} == {0: None, 1: None, 2: 42, 3: None}
        assert {p.fencing_token for p in seen.values()} == {1}
        assert {p.topic for p in seen.values()} == {"t"}
        assert not cluster.groups["g"].members


async def test_buffered_commits_go_out_together_and_the_last_on_exit(open_cluster):
    """Each partition's latest offset; one commit carries many partitions."""
    async with open_cluster(1) as (cluster, client):
        group = client.group("g", ["t"], commit_interval_ms=20)
        done = []

        @group.on_partition
        async def work(p: Partition) -> None:
            for offset in range(1, 101):
                p.commit(offset, metadata="m", end_offset=100)
            done.append(p.id)
            if len(done) == 4:
                await cluster.until(lambda: bool(cluster.seen("OffsetCommit")))
                p.commit(101)
                group.stop()

        await group.run()
        last = done[-1]
        assert offsets(cluster) == {i: 101 if i == last else 100 for i in range(4)}
        assert len(cluster.seen("OffsetCommit")) <= 4
        assert cluster.most_open["OffsetCommit"] == 1


async def test_a_member_may_own_more_partitions_than_one_call_names(open_cluster):
    """2,500: where each stopped is read in several calls, and the commits go out in several."""
    topics = {"t": 2_500}
    keys = [TopicPartition("t", i) for i in range(2_500)]
    async with open_cluster(1, topics=topics) as (cluster, client):
        for start in range(0, 2_500, 1_000):
            await client.commit_offsets("g", dict.fromkeys(keys[start : start + 1000], 7))
        group = client.group("g", ["t"])
        started = []

        @group.on_partition
        async def work(p: Partition) -> None:
            started.append((p.id, p.committed))
            p.commit(8)
            if len(started) == 2_500:
                group.stop()

        await group.run()
        assert sorted(started) == [(i, 7) for i in range(2_500)]
        assert set(offsets(cluster).values()) == {8}


async def test_buffered_commits_with_long_metadata_fit_into_commands(open_cluster):
    """200 partitions of 4,000 bytes each are more than the 512 KiB that a command may have."""
    async with open_cluster(1, topics={"t": 200}) as (cluster, client):
        group = client.group("g", ["t"], commit_interval_ms=20)
        started = []

        @group.on_partition
        async def work(p: Partition) -> None:
            p.commit(1, metadata="x" * 4_000)
            started.append(p.id)
            if len(started) == 200:
                group.stop()

        await group.run()
        assert set(offsets(cluster)) == set(range(200))
        assert max(call.request.ByteSize() for call in cluster.seen("OffsetCommit")) < 512 * 1024


async def test_revoke_ends_the_tasks_and_flushes_before_the_next_owner_starts(open_cluster):
    """What was buffered is committed under the old generation; the next owner goes on there."""
    async with open_cluster(1) as (cluster, client):
        first = client.group("g", ["t"], commit_interval_ms=3_600_000)
        at_work, ended, begun = [], [], []

        @first.on_partition
        async def work(p: Partition) -> None:
            if p.generation == 1:
                p.commit(10 + p.id)
                at_work.append(p.id)
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append((p.id, p.revoking.is_set()))

        running = asyncio.create_task(first.run())
        await cluster.until(lambda: len(at_work) == 4)
        second = client.group("g", ["t"])

        @second.on_partition
        async def go_on(p: Partition) -> None:
            begun.append((p.id, p.committed))
            if len(begun) == 2:
                second.stop()

        await second.run()
        assert sorted(ended) == [(i, True) for i in range(4)]
        assert all(committed == 10 + number for number, committed in begun)
        first.stop()
        await running


async def test_grace_lets_a_task_finish_before_it_is_cancelled(open_cluster):
    """With grace, `revoking` is a request; the task ends by itself and its commit counts."""
    async with open_cluster(1, topics={"t": 1}) as (cluster, client):
        group = client.group("g", ["t"], commit_interval_ms=3_600_000)
        ends = []

        @group.on_partition(grace_ms=30_000)
        async def work(p: Partition) -> None:
            group.stop()
            await p.revoking.wait()
            p.commit(7)
            ends.append("by itself")

        await group.run()
        assert ends == ["by itself"]
        assert offsets(cluster) == {0: 7}


async def test_a_lost_partition_ends_at_once_and_commits_nothing(open_cluster):
    """Fenced: tasks are cancelled, what was buffered is dropped, `commit` raises."""
    async with open_cluster(1, topics={"t": 1}) as (cluster, client):
        group = client.group("g", ["t"], commit_interval_ms=3_600_000)
        errors = []

        @group.on_partition(grace_ms=30_000)
        async def work(p: Partition) -> None:
            if p.generation > 1:
                group.stop()
                return
            p.commit(5)
            cluster.remove_member("g", p.member_id)
            try:
                await asyncio.Event().wait()
            finally:
                try:
                    p.commit(6)
                except IllegalGeneration as error:
                    errors.append(error)

        await group.run()
        assert len(errors) == 1
        assert not cluster.seen("OffsetCommit")


async def test_a_partition_that_is_over_refuses_commits(open_cluster):
    """Also long after: the object never speaks for a newer generation."""
    async with open_cluster(1, topics={"t": 1}) as (_, client):
        group = client.group("g", ["t"])
        kept = []

        @group.on_partition
        async def work(p: Partition) -> None:
            kept.append(p)
            group.stop()

        await group.run()
        with pytest.raises(IllegalGeneration, match="is over"):
            kept[0].commit(1)


async def test_what_a_task_raises_is_raised_by_run_after_leaving(open_cluster):
    """The others' work is flushed, the member leaves, then the error is the user's."""
    async with open_cluster(1) as (cluster, client):
        group = client.group("g", ["t"], commit_interval_ms=3_600_000)
        started = []

        @group.on_partition
        async def work(p: Partition) -> None:
            p.commit(3)
            started.append(p)
            if len(started) == 4:
                raise LookupError("row 17")

        with pytest.raises(LookupError, match="row 17"):
            await group.run()
        assert offsets(cluster) == dict.fromkeys(range(4), 3)
        assert not cluster.groups["g"].members


async def test_a_buffered_commit_survives_a_change_of_coordinator(open_cluster):
    """The leader dies with the commit open: what was buffered is committed at the next one."""
    async with open_cluster(3, topics={"t": 1}) as (cluster, client):
        group = client.group("g", ["t"], commit_interval_ms=1)
        cluster.script("OffsetCommit", Hang())

        @group.on_partition
        async def work(p: Partition) -> None:
            p.commit(1)
            await cluster.until(lambda: bool(cluster.seen("OffsetCommit")))
            p.commit(2)
            await cluster.kill(1)
            await cluster.until(lambda: offsets(cluster) == {0: 2})
            group.stop()

        await group.run()
        assert cluster.groups["g"].generation == 2  # 1, and empty after the leave


async def test_full_disks_are_waited_out(open_cluster):
    """Whatever is refused meanwhile is tried again; who commits himself is told."""
    async with open_cluster(1, topics={"t": 1}) as (cluster, client):
        group = client.group("g", ["t"], commit_interval_ms=1)
        full = Refuse(ErrorCode.KAFKA_STORAGE_ERROR, "no space", retriable=True)
        for method in ("JoinGroup", "SyncGroup"):
            cluster.script(method, full)
        refused = []

        @group.on_partition
        async def work(p: Partition) -> None:
            cluster.script("OffsetCommit", full)
            with pytest.raises(KafkaStorageError) as told:
                await group.commit({p.key: 1})
            refused.append(told.value.retriable)
            cluster.script("OffsetCommit", full, full)
            p.commit(2)
            await cluster.until(lambda: offsets(cluster) == {0: 2})
            group.stop()

        await group.run()
        assert refused == [True]
        assert len(cluster.seen("OffsetCommit")) == 4


async def test_a_buffered_commit_that_cannot_be_is_raised_by_run(open_cluster):
    """Too much metadata is not waited out."""
    async with open_cluster(1, topics={"t": 1}) as (cluster, client):
        group = client.group("g", ["t"], commit_interval_ms=1)
        cluster.script("OffsetCommit", Refuse(ErrorCode.OFFSET_METADATA_TOO_LARGE))

        @group.on_partition
        async def work(p: Partition) -> None:
            p.commit(1)
            await asyncio.Event().wait()

        with pytest.raises(OffsetMetadataTooLarge):
            await group.run()


async def test_what_is_committed_while_an_earlier_part_is_on_its_way_goes_out(
    open_cluster, monkeypatch
):
    """Two commits for two partitions: the second waits, and its task is a record further then."""
    monkeypatch.setattr(partition_tasks, "COMMIT_BYTES", 1)
    async with open_cluster(1, topics={"t": 2}) as (cluster, client):
        group = client.group("g", ["t"], commit_interval_ms=50)
        cluster.script("OffsetCommit", Hang())

        @group.on_partition
        async def work(p: Partition) -> None:
            p.commit(1)
            if p.id == 0:
                return
            await cluster.until(lambda: bool(cluster.seen("OffsetCommit")))
            (first,) = cluster.seen("OffsetCommit")[0].request.partitions
            assert first.partition == 0
            p.commit(2)
            await cluster.until(lambda: 1 in offsets(cluster))
            group.stop()

        await group.run()
        assert offsets(cluster) == {0: 1, 1: 2}


async def test_what_a_hook_raises_under_a_buffered_commit_is_raised_by_run(open_cluster):
    """Nothing would be committed any more; on the way out it is tried once more."""
    asked = []

    def hook(_change):
        asked.append(1)
        if len(asked) == 1:
            raise OSError("planted")

    async with open_cluster(3, topics={"t": 1}) as (cluster, client):
        group = client.group("g", ["t"], commit_interval_ms=1, on_coordinator_change=hook)

        @group.on_partition
        async def work(p: Partition) -> None:
            p.commit(1)
            await cluster.until(lambda: offsets(cluster) == {0: 1})
            await cluster.kill(1)
            p.commit(2)
            await asyncio.Event().wait()

        with pytest.raises(OSError, match="planted"):
            await group.run()
        assert offsets(cluster) == {0: 2}


async def test_a_hook_that_always_raises_does_not_keep_the_end_from_the_user(open_cluster):
    """The tasks have ended and nothing is committed: `revoked` is told all the same."""

    def hook(_change):
        raise OSError("planted")

    async with open_cluster(3, topics={"t": 1}) as (cluster, client):
        journal, worked = Journal(), []
        group = client.group(
            "g", ["t"], commit_interval_ms=1, on_coordinator_change=hook, listener=journal
        )

        @group.on_partition
        async def work(p: Partition) -> None:
            worked.append(p)
            p.commit(1)
            await cluster.until(lambda: offsets(cluster) == {0: 1})
            await cluster.kill(1)
            p.commit(2)
            await asyncio.Event().wait()

        with pytest.raises(OSError, match="planted"):
            await group.run()
        assert [what for what, _, _ in journal.told] == ["assigned", "revoked"]
        assert offsets(cluster) == {0: 1}
        with pytest.raises(IllegalGeneration):
            worked[0].commit(3)


@pytest.mark.parametrize("offset", [-1, 2**63])
async def test_an_offset_that_cannot_be_is_refused_where_it_is_committed(open_cluster, offset):
    """And not to all partitions of the next commit."""
    async with open_cluster(1, topics={"t": 1}) as (cluster, client):
        group = client.group("g", ["t"], commit_interval_ms=1)

        @group.on_partition
        async def work(p: Partition) -> None:
            p.commit(offset)

        with pytest.raises(InvalidRequest, match=f"not {offset}"):
            await group.run()
        assert not cluster.seen("OffsetCommit")


async def test_run_without_work_is_refused(open_cluster):
    """Nothing decorated: said at once."""
    async with open_cluster(1) as (cluster, client):
        with pytest.raises(InvalidRequest, match="on_partition"):
            await client.group("g", ["t"]).run()
        assert not cluster.seen("JoinGroup")


async def test_run_raises_what_joining_cannot_mend(open_cluster):
    """A topic that does not exist."""
    async with open_cluster(1) as (_, client):
        group = client.group("g", ["missing"])

        @group.on_partition
        async def work(p: Partition) -> None:
            raise AssertionError(p)

        with pytest.raises(UnknownTopicOrPartition):
            await group.run()


async def test_a_cancelled_run_leaves(open_cluster):
    """The user cancels the task that runs the group: it gives up what it has, and leaves."""
    async with open_cluster(1) as (cluster, client):
        group = client.group("g", ["t"], commit_interval_ms=3_600_000)

        all_started, started = asyncio.Event(), []

        @group.on_partition
        async def work(p: Partition) -> None:
            p.commit(9)
            started.append(p)
            if len(started) == 4:
                all_started.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(group.run())
        await all_started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not cluster.groups["g"].members
        assert offsets(cluster) == dict.fromkeys(range(4), 9)


WORKER = """
import asyncio, sys
import muster

async def main():
    async with muster.Client(sys.argv[1]) as client, client.group("g", ["t"]) as group:
        @group.on_partition
        async def work(p):
            p.commit(11)
            print(p.id, flush=True)
            await asyncio.Event().wait()
        await group.run()
    print("drained", flush=True)

asyncio.run(main())
"""


async def test_sigterm_drains_a_worker_process(open_cluster):
    """Commits are flushed, the member leaves, the process ends with 0."""
    async with open_cluster(1) as (cluster, _):
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, cluster.bootstrap, stdout=subprocess.PIPE
        )
        printed = [await worker.stdout.readline() for _ in range(4)]
        assert sorted(printed) == [f"{i}\n".encode() for i in range(4)]
        worker.send_signal(signal.SIGTERM)
        rest, _ = await worker.communicate()
        assert rest == b"drained\n"
        assert worker.returncode == 0
        assert offsets(cluster) == dict.fromkeys(range(4), 11)
        assert not cluster.groups["g"].members


async def start_example(bootstrap, store):
    """docs/example.py, which the README shows as it stands, in a process of its own."""
    record_run(EXAMPLE.read_text())
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLE),
        bootstrap,
        str(store),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(EXAMPLE.parents[1])},
    )


async def seen_in(process, word, count):
    """Read what it prints until this many partitions are named with this word; the numbers."""
    numbers = set()
    while len(numbers) < count:
        line = (await process.stdout.readline()).decode().split()
        assert line, "it ended"
        if word in line:
            numbers.add(int(line[1]))
    return numbers


async def ended(process):
    """SIGTERM ends it in good order."""
    process.send_signal(signal.SIGTERM)
    rest, _ = await process.communicate()
    assert process.returncode == 0
    return rest


def test_the_readme_shows_the_example_as_it_stands():
    """Byte for byte, and short enough to be read."""
    text = EXAMPLE.read_text()
    assert f"```python\n{text}```\n" in (EXAMPLE.parents[1] / "README.md").read_text()
    assert len(text.splitlines()) <= 25


async def test_a_second_example_takes_over_half_and_who_has_the_lower_token_is_fenced(
    open_cluster, tmp_path
):
    """It paces itself, so there is work left to take over; one SQL statement refuses a zombie."""
    store = tmp_path / "orders.db"
    async with open_cluster(1, topics={}) as (cluster, _):
        first = await start_example(cluster.bootstrap, store)
        assert await seen_in(first, "offset", 4) == {0, 1, 2, 3}
        second = await start_example(cluster.bootstrap, store)
        taken = await seen_in(second, "offset", 2)
        assert taken in ({0, 1}, {2, 3})
        await ended(second)
        with contextlib.closing(sqlite3.connect(store, isolation_level=None)) as db:
            rows = db.execute("SELECT partition, token FROM done").fetchall()
            assert sorted(partition for partition, _ in rows) == [0, 1, 2, 3]
            db.execute("UPDATE done SET token = 1000000")  # of a later owner
        assert await seen_in(first, "fenced:", 4) == {0, 1, 2, 3}
        await ended(first)


async def test_the_example_is_deployed_again_after_its_topic_has_grown(open_cluster, tmp_path):
    """With all partitions, where it stopped."""
    async with open_cluster(1, topics={}) as (cluster, client):
        example = await start_example(cluster.bootstrap, tmp_path / "orders.db")
        await seen_in(example, "offset", 4)
        await ended(example)
        await client.add_partitions("orders", 6)
        stored = await client.committed("billing-eu")
        again = await start_example(cluster.bootstrap, tmp_path / "orders.db")
        first = [(await again.stdout.readline()).decode().split() for _ in range(6)]
        assert {int(line[1]) for line in first} == set(range(6))
        for _, partition, _, offset, *_ in first:
            kept = stored.offset(TopicPartition("orders", int(partition)))
            assert int(offset) == (kept or 0)
        await ended(again)
