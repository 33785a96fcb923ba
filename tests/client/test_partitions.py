"""The tasks of a member over several assignments, without a coordinator."""

import asyncio

import pytest

from muster import Assignment, Committed, CommittedOffset, TopicPartition
from muster.errors import IllegalGeneration, RebalanceInProgress, RequestTimedOut
from muster.group import partition_tasks
from muster.group.partition_positions import PartitionPositions
from muster.group.partition_tasks import PartitionTasks

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def assignment(generation, *keys):
    """What member m of group g owns."""
    return Assignment(
        "g",
        generation,
        "m",
        keys,
        "cooperative-sticky",
        is_group_leader=False,
        fencing_token=generation,
    )


class World:
    """Reads that are answered by hand, and commits that are written down or refused."""

    def __init__(self):
        self.reads, self.commits, self.started, self.refusals = [], [], [], []
        self.sent = 0
        """Commits that were sent, answered or not."""
        self.answering = asyncio.Event()
        """Cleared: what is sent is not answered yet."""
        self.answering.set()
        self.places = PartitionPositions()
        self.tasks = PartitionTasks(
            self.work,
            read=self.read,
            commit=self.commit,
            crash=self.crash,
            places=self.places,
            grace_ms=0,
            commit_interval_ms=0,
        )

    async def work(self, p):
        self.started.append(p)
        await asyncio.Event().wait()

    async def read(self, keys):
        answer = asyncio.get_running_loop().create_future()
        self.reads.append(answer)
        offset = await answer
        return Committed(dict.fromkeys(keys, CommittedOffset(offset, "", None, 1, 0)), 1, 1)

    async def commit(self, offsets, under):
        self.sent += 1
        await self.answering.wait()
        if self.refusals:
            raise self.refusals.pop()
        found = {key: what.offset for key, what in offsets.items()}
        self.commits.append((under.generation, found))

    def crash(self, error):
        raise error

    async def until(self, condition):
        while not condition():
            await asyncio.sleep(0)


async def test_a_partition_that_comes_back_starts_from_its_own_read():
    """The read that began before it was taken away would be older than the other owner's work."""
    world = World()
    world.tasks.give(assignment(1, A))
    await world.until(lambda: len(world.reads) == 1)
    await world.tasks.take([A], 1000)
    world.tasks.give(assignment(5, A))
    await world.until(lambda: len(world.reads) == 2)
    world.reads[0].set_result(10)
    world.reads[1].set_result(99)
    await world.until(lambda: world.started)
    assert [(p.committed, p.generation) for p in world.started] == [(99, 5)]
    await world.tasks.stop(1000)
    assert len(world.started) == 1


async def test_taking_one_leaves_the_others_at_work():
    """The one is flushed and over; the other goes on and commits under the later generation."""
    world = World()
    world.tasks.give(assignment(1, A, B))
    await world.until(lambda: world.reads)
    world.reads[0].set_result(0)
    await world.until(lambda: len(world.started) == 2)
    a, b = world.started
    world.tasks.give(assignment(2, B))
    a.buffered, b.buffered = None, None
    a.commit(7)
    await world.tasks.take([A], 1000)
    assert (2, {A: 7}) in world.commits
    assert a.revoking.is_set()
    assert not b.revoking.is_set()
    b.commit(8)
    await world.until(lambda: (2, {B: 8}) in world.commits)
    assert b.generation == b.fencing_token == 2
    b.commit(9)
    await world.tasks.stop(1000)
    assert world.commits[-1] == (2, {B: 9})
    assert len(world.started) == 2


async def test_what_is_lost_while_others_are_sent_is_never_committed(monkeypatch):
    """It would go out under the token of a later grant; the others are not touched."""
    monkeypatch.setattr(partition_tasks, "COMMIT_BYTES", 1)  # each in a commit of its own
    world = World()
    world.tasks.give(assignment(1, A, B))
    await world.until(lambda: world.reads)
    world.reads[0].set_result(0)
    await world.until(lambda: len(world.started) == 2)
    a, b = world.started
    world.answering.clear()
    a.commit(7)
    b.commit(8)
    await world.until(lambda: world.sent == 1)
    world.tasks.begin_to_drop([B])
    with pytest.raises(IllegalGeneration):
        b.commit(9)
    world.answering.set()
    await world.tasks.drop([B], 1000)
    a.commit(10)
    await world.until(lambda: (1, {A: 10}) in world.commits)
    await world.tasks.stop(1000)
    assert [keys.keys() for _, keys in world.commits] == [{A}, {A}]
    assert (a.phase, b.phase) == ("revoking", "revoking")


@pytest.mark.parametrize("refusals", [1, 3])
async def test_a_buffered_commit_waits_for_the_end_of_a_round(refusals):
    """RebalanceInProgress: it is buffered again, and goes out once it is taken."""
    world = World()
    world.tasks.give(assignment(1, A))
    await world.until(lambda: world.reads)
    world.reads[0].set_result(0)
    await world.until(lambda: world.started)
    world.refusals = [RebalanceInProgress("a round") for _ in range(refusals)]
    (a,) = world.started
    a.commit(1)
    await world.until(lambda: len(world.refusals) < refusals)
    await world.until(lambda: world.commits)
    assert world.commits == [(1, {A: 1})]
    await world.tasks.stop(1000)


@pytest.mark.parametrize("error", [RequestTimedOut, RebalanceInProgress])
async def test_what_is_tried_again_never_goes_out_after_something_newer(error):
    """Of two commits of one partition the later one counts, though the earlier one failed last."""
    world = World()
    a, b = await started(world, A, B)
    world.answering.clear()
    world.refusals = [error("no answer")]
    a.commit(5)
    b.commit(70)
    await world.until(lambda: world.sent == 1)
    a.commit(9)
    world.answering.set()
    await world.until(lambda: world.commits)
    assert world.commits == [(1, {A: 9, B: 70})]
    await world.tasks.stop(1000)
    assert len(world.commits) == 1


async def test_what_is_committed_while_a_commit_is_under_way_goes_out_after_it():
    """It is newer than what is being sent, and nothing else brings it out."""
    world = World()
    (a,) = await started(world, A)
    world.answering.clear()
    a.commit(5)
    await world.until(lambda: world.sent == 1)
    a.commit(9)
    world.answering.set()
    await world.until(lambda: world.commits)
    await world.tasks.stop(1000)
    assert world.commits == [(1, {A: 5}), (1, {A: 9})]


async def test_what_was_buffered_for_lost_partitions_never_goes_out():
    """Others may own them: neither the commit interval nor the end of the tasks sends it."""
    world = World()
    a, b = await started(world, A, B)
    world.answering.clear()
    a.commit(5)
    await world.until(lambda: world.sent == 1)
    a.commit(9)
    b.commit(70)
    world.tasks.lose()
    world.answering.set()
    for handle in (a, b):
        with pytest.raises(IllegalGeneration):
            handle.commit(99)
    for _ in range(20):
        await asyncio.sleep(0)
    await world.tasks.stop(1000)
    assert world.sent == 1


async def started(world, *keys):
    """One task for each."""
    world.tasks.give(assignment(1, *keys))
    await world.until(lambda: world.reads)
    world.reads[0].set_result(0)
    await world.until(lambda: len(world.started) == len(keys))
    return world.started[:]


@pytest.mark.parametrize("end", ["take", "stop", "lose"])
async def test_a_seek_that_meets_the_end_starts_nothing(end):
    """The task was to start again, and is taken away while the old one ends."""
    world = World()
    (a,) = await started(world, A)
    world.places[A].seek(50)
    world.tasks.restart(A)
    await asyncio.sleep(0)
    if end == "take":
        await world.tasks.take([A], 1000)
    if end == "lose":
        world.tasks.lose()
    await world.tasks.stop(1000)
    await asyncio.sleep(0.01)
    assert world.started == [a]
    assert not world.tasks._tasks


async def test_a_partition_that_comes_back_during_a_seek_is_started_once():
    """Taken and given again before the restart was through: only the new start counts."""
    world = World()
    (a,) = await started(world, A)
    world.places[A].seek(50)
    world.tasks.restart(A)
    await asyncio.sleep(0)
    await world.tasks.take([A], 1000)
    world.places.drop([A])
    world.tasks.give(assignment(3, A))
    await world.until(lambda: len(world.reads) == 2)
    world.reads[1].set_result(7)
    await world.until(lambda: len(world.started) == 2)
    await asyncio.sleep(0.01)
    assert [(p.generation, p.position) for p in world.started] == [(1, 50), (3, 7)]
    assert a.revoking.is_set()
    await world.tasks.stop(1000)


async def test_what_was_buffered_before_a_seek_outlives_a_flush_that_failed():
    """It was done. The new task's handle carries it until it goes out."""
    world = World()
    (a,) = await started(world, A)
    world.refusals = [RebalanceInProgress("a round")] * 3
    a.commit(5)
    await world.until(lambda: len(world.refusals) < 3)
    world.places[A].seek(50)
    world.tasks.restart(A)
    await world.until(lambda: len(world.started) == 2)
    await world.until(lambda: world.commits)
    assert world.commits == [(1, {A: 5})]
    with pytest.raises(IllegalGeneration):
        a.commit(6)
    assert world.started[1].position == 50
    await world.tasks.stop(1000)
