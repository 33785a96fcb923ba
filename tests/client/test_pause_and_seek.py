"""Pause, resume and seek: what they do to tasks, and how long they hold."""

import asyncio

import pytest

from muster import TopicPartition
from muster.errors import GroupClosed, IllegalGeneration, InvalidRequest
from tests.client.listeners import Calls

T = [TopicPartition("t", i) for i in range(4)]
ELSEWHERE = TopicPartition("t", 9)


async def until(condition):
    """Wait for what tasks do; the cluster sees calls only."""
    while not condition():
        await asyncio.sleep(0.001)


class Worker:
    """Reads one number after the other where it is let, and commits each."""

    def __init__(self, client, *, grace_ms=0, **options):
        self.group = client.group("g", ["t"], commit_interval_ms=1, **options)
        self.group.on_partition(grace_ms=grace_ms)(self.work)
        self.read, self.begun, self.ended, self.waiting = {}, [], [], set()
        self.turn = asyncio.Event()
        self.running = asyncio.create_task(self.group.run())

    async def work(self, p):
        self.begun.append((p.key, p.position))
        offset = p.position or 0
        try:
            while True:
                self.waiting.add(p.key)
                await p.resumed()
                self.waiting.discard(p.key)
                self.read.setdefault(p.key, []).append(offset)
                offset += 1
                p.commit(offset)
                await asyncio.sleep(0.001)
        finally:
            self.ended.append(p.key)

    async def working(self, *keys):
        """Until each of these was read once more."""
        before = {key: len(self.read.get(key, ())) for key in keys}
        await until(lambda: all(len(self.read.get(k, ())) > n for k, n in before.items()))

    async def stop(self):
        self.group.stop()
        await self.running


async def test_a_paused_partition_is_owned_and_nothing_is_read_from_it(open_cluster):
    """Heartbeats go on, what it committed counts, the others go on; until it is resumed."""
    async with open_cluster(1, interval_ms=5) as (cluster, client):
        worker = Worker(client)
        await worker.working(*T)
        worker.group.pause([T[0]])
        assert worker.group.paused == {T[0]}
        await until(lambda: T[0] in worker.waiting)
        stood = list(worker.read[T[0]])
        beats = len(cluster.seen("Heartbeat"))
        await worker.working(*T[1:])
        await cluster.until(lambda: len(cluster.seen("Heartbeat")) > beats + 2)
        await cluster.until(lambda: cluster.groups["g"].offsets[T[0]].value.offset == len(stood))
        assert worker.read[T[0]] == stood
        assert worker.group.assignment.partitions == tuple(T)
        assert await worker.group.position(T[0]) == len(stood)
        await worker.group.commit({T[0]: len(stood)})
        worker.group.resume([T[0], T[1]])
        await worker.working(T[0])
        assert worker.read[T[0]][: len(stood) + 1] == [*stood, len(stood)]
        assert not worker.group.paused
        assert not worker.ended
        await worker.stop()


async def test_seek_starts_the_task_again_at_the_offset(open_cluster):
    """Back and forth; the others do not notice. What the new task commits is what counts."""
    async with open_cluster(1) as (cluster, client):
        worker = Worker(client)
        await worker.working(*T)
        for offset in (1000, 100):
            worker.group.seek(T[2], offset)
            assert await worker.group.position(T[2]) == offset
            await until(lambda offset=offset: (T[2], offset) in worker.begun)
            await worker.working(T[2])
            assert offset in worker.read[T[2]]
        assert worker.ended == [T[2], T[2]]
        await worker.stop()
        assert cluster.groups["g"].offsets[T[2]].value.offset == worker.read[T[2]][-1] + 1
        assert 100 < cluster.groups["g"].offsets[T[2]].value.offset < 1000
        assert [key for key, _ in worker.begun].count(T[1]) == 1


async def test_a_task_may_seek_itself_and_two_never_work_on_one_partition(open_cluster):
    """Its next await is cancelled; the new one waits until the old one has ended."""
    async with open_cluster(1, topics={"t": 1}) as (cluster, client):
        group = client.group("g", ["t"], commit_interval_ms=1)
        begun, at_work, most = [], [], []

        @group.on_partition
        async def work(p):
            begun.append((p.position, p.committed))
            at_work.append(p)
            most.append(len(at_work))
            try:
                if len(begun) == 1:
                    p.commit(5)
                    group.seek(p.key, 3)
                    group.seek(p.key, 4)
                    p.commit(6)  # work that began before the seek
                    assert p.position == 4
                    await asyncio.Event().wait()
                group.stop()
            finally:
                await asyncio.sleep(0.01)
                at_work.remove(p)

        await group.run()
        assert begun == [(None, None), (4, None)]
        assert max(most) == 1
        assert cluster.groups["g"].offsets[T[0]].value.offset == 6, "it was done, and is not lost"


async def test_the_listener_pauses_and_seeks_before_tasks_start(open_cluster):
    """A task of a paused partition does not begin; a sought one begins there."""
    async with open_cluster(1) as (_, client):

        def assigned(group, assignment):
            group.pause(assignment.partitions[:1])
            group.seek(assignment.partitions[1], 70)

        worker = Worker(client, listener=Calls(assigned=assigned))
        await worker.working(*T[1:])
        assert (T[1], 70) in worker.begun
        assert T[0] not in dict(worker.begun)
        worker.group.seek(T[0], 50)
        worker.group.resume([T[0]])
        await worker.working(T[0])
        assert [at for at in worker.begun if at[0] == T[0]] == [(T[0], 50)]
        await worker.stop()


async def test_pause_holds_for_what_is_kept_and_ends_with_what_moves(open_cluster):
    """Cooperative, as in Kafka: a kept partition stays paused and in its place."""
    async with open_cluster(1) as (_, client):
        options = {"assignor": "cooperative-sticky"}
        worker = Worker(client, **options)
        await worker.working(*T)
        worker.group.pause(T)
        await until(lambda: worker.waiting == set(T))
        positions = {key: await worker.group.position(key) for key in T}
        other = Worker(client, **options)
        await until(lambda: len(other.read) == 2)
        moved = set(other.read)
        assert worker.group.paused == set(T) - moved
        assert sorted(worker.ended) == sorted(moved)
        for key in worker.group.paused:
            assert await worker.group.position(key) == positions[key]
        with pytest.raises(IllegalGeneration, match="not owned"):
            worker.group.resume(list(moved))
        await other.stop()
        await until(lambda: worker.group.assignment.partitions == tuple(T))
        await worker.working(*moved)
        assert worker.group.paused == set(T) - moved, "what comes back is not paused"
        for key in moved:
            again = [position for at, position in worker.begun if at == key]
            assert again[-1] >= positions[key] + 1, "and starts where the other one was"
        await worker.stop()


async def test_an_eager_round_and_a_loss_end_every_pause_and_every_position(open_cluster):
    """Everything was taken back: it starts anew from what is committed."""
    async with open_cluster(1) as (cluster, client):
        worker = Worker(client)
        await worker.working(*T)
        worker.group.pause(T)
        worker.group.seek(T[0], 999)
        await until(lambda: worker.ended == [T[0]])
        other = client.group("g", ["t"])
        await other.next_assignment()
        await until(lambda: len(worker.begun) == 4 + 2)
        assert not worker.group.paused
        await other.close()
        await until(lambda: len(worker.begun) == 4 + 2 + 4)
        worker.group.pause(T)
        worker.group.seek(T[0], 999)
        before = len(worker.begun)
        cluster.remove_member("g", worker.group.member_id)
        await until(lambda: len(worker.begun) == before + 4)
        assert not worker.group.paused
        assert 999 not in dict(worker.begun[4:]).values()
        await worker.stop()


async def test_who_waits_for_the_resume_has_no_grace(open_cluster):
    """Closing does not wait an hour for a task that does nothing."""
    async with open_cluster(1) as (_, client):
        worker = Worker(client, grace_ms=3_600_000)
        await worker.working(*T)
        worker.group.pause(T)
        await until(lambda: worker.waiting == set(T))
        await worker.stop()
        assert sorted(worker.ended) == T


async def test_a_task_in_its_grace_that_asks_again_is_ended(open_cluster):
    """It was paused while it worked on its last piece."""
    async with open_cluster(1, topics={"t": 1}) as (_, client):
        group = client.group("g", ["t"])
        asked = []

        @group.on_partition(grace_ms=3_600_000)
        async def work(p):
            group.pause([p.key])
            group.stop()
            await p.revoking.wait()
            asked.append(p.paused)
            await p.resumed()
            asked.append("went on")

        await group.run()
        assert asked == [True]


async def test_what_is_not_owned_is_refused_and_nothing_is_done(open_cluster):
    """Before the assignment, beyond it, after the end; a negative offset."""
    async with open_cluster(1) as (_, client):
        group = client.group("g", ["t"])
        for call in (group.pause, group.resume, lambda keys: group.seek(*keys, 5)):
            with pytest.raises(IllegalGeneration, match="t-0 is not owned"):
                call([T[0]])
        with pytest.raises(IllegalGeneration):
            await group.position(T[0])
        await group.next_assignment()
        with pytest.raises(IllegalGeneration, match="t-9"):
            group.pause([T[0], ELSEWHERE])
        assert not group.paused
        group.pause(T)
        with pytest.raises(IllegalGeneration, match="t-9"):
            group.resume([T[0], ELSEWHERE])
        assert group.paused == set(T)
        with pytest.raises(InvalidRequest, match="-1"):
            group.seek(T[0], -1)
        assert await group.position(T[0]) is None
        await group.close()
        for call in (group.pause, group.resume, lambda keys: group.seek(*keys, 5)):
            with pytest.raises(GroupClosed):
                call([T[0]])


async def test_positions_of_who_takes_assignments_one_by_one(open_cluster):
    """What was committed; what was sought; never what was committed by work before the seek."""
    async with open_cluster(1) as (_, client):
        await client.commit_offsets("g", {T[0]: 5})
        group = client.group("g", ["t"])
        await group.next_assignment()
        assert [await group.position(key) for key in T[:2]] == [5, None]
        await group.commit({T[0]: 6, T[1]: 60})
        assert [await group.position(key) for key in T[:2]] == [6, 60]
        committing = asyncio.create_task(group.commit({T[0]: 7}))
        await asyncio.sleep(0)
        group.seek(T[0], 2)
        await committing
        assert await group.position(T[0]) == 2
        assert (await group.committed([T[0]])).offset(T[0]) == 7
        await group.close()
