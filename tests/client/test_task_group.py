"""muster.Tasks against the cluster in memory."""

import asyncio

import pytest

import muster
from muster.errors import ErrorCode, IllegalGeneration, InvalidRequest, RebalanceInProgress
from muster.tasks.task_store import DEFINITION_BYTES_MAX, TASKS_MAX, VERSION
from muster.tasks.task_topics import DEFINITIONS, PROGRESS
from muster.testing import Hang, LoseAnswer, Refuse
from muster.types import TopicPartition


class Fleet:
    """Workers of one group; every start and end of a task, and waiting for them."""

    def __init__(self, client):
        self.client = client
        self.events = []
        self.running = {}  # name of a task -> the worker that runs it
        self.tasks = {}  # name of a task -> the Task
        self._news = asyncio.Event()
        self._workers = []

    def worker(self, name, *, grace_ms=0, step=None, **options):
        """A member that works; `step` is what it does once per task."""
        tasks = self.client.tasks("crawl", **options)

        @tasks.on_task(grace_ms=grace_ms)
        async def work(task):
            assert task.name not in self.running, "two have it"
            self.running[task.name], self.tasks[task.name] = name, task
            self.tell("start", name, task)
            try:
                if step is None:
                    await asyncio.Event().wait()
                else:
                    await step(task)
            finally:
                self.tell("end", name, task)
                del self.running[task.name], self.tasks[task.name]

        self._workers.append((tasks, asyncio.create_task(tasks.run(handle_sigterm=False))))
        return tasks

    def tell(self, what, name, task):
        self.events.append((what, name, task.name))
        self._news.set()

    async def until(self, condition):
        while not condition():
            self._news.clear()
            await self._news.wait()

    async def settled(self, **counts):
        """Until these workers have so many tasks each."""

        def shares():
            return {n: list(self.running.values()).count(n) for n in counts}

        await self.until(lambda: shares() == counts)

    def started(self):
        """The names that were started since this was asked last."""
        found = [name for what, _, name in self.events if what == "start"]
        self.events.clear()
        return found

    async def stop(self):
        for tasks, _ in self._workers:
            tasks.stop()
        for _, running in self._workers:
            await running


def named(count):
    """So many tasks."""
    return {f"t{i}": {"n": i} for i in range(count)}


async def test_tasks_are_shared_and_only_what_moves_is_stopped(open_cluster):
    """One worker has all; a second one takes its half, with the progress; the rest goes on."""
    async with open_cluster(1, topics={}) as (cluster, client):
        fleet = Fleet(client)
        first = fleet.worker("a")
        assert await first.put(named(4)) == 1
        await fleet.settled(a=4)
        assert fleet.started() == ["t0", "t1", "t2", "t3"]
        assert {n: t.config for n, t in fleet.tasks.items()} == named(4)
        for task in fleet.tasks.values():
            assert task.committed is None
            task.commit(100 + task.config["n"], "note")
        kept = dict(fleet.tasks)
        tokens = {t.fencing_token for t in kept.values()}
        fleet.worker("b")
        await fleet.settled(a=2, b=2)
        moved = fleet.started()
        assert len(moved) == 2
        for name in moved:
            task = fleet.tasks[name]
            assert (task.committed, task.metadata) == (100 + task.config["n"], "note")
        assert all(fleet.tasks[n] is kept[n] for n in set(kept) - set(moved))
        # One worker may be told of the last generation after the other one has begun.
        generation = cluster.groups["crawl"].generation
        while {t.fencing_token for t in fleet.tasks.values()} != {generation}:
            await asyncio.sleep(0.001)
        assert min(t.fencing_token for t in fleet.tasks.values()) > max(tokens)
        await fleet.stop()


async def test_tasks_come_change_and_go_at_run_time(open_cluster):
    """By somebody that does not work; a change restarts that task alone, where it was."""
    async with open_cluster(1, topics={}) as (cluster, client):
        fleet = Fleet(client)
        worker = fleet.worker("a")
        async with client.tasks("crawl") as office:
            await office.put(named(3))
            await fleet.settled(a=3)
            assert fleet.started() == ["t0", "t1", "t2"]
            assert office.owned == ()
            old = fleet.tasks["t1"]
            old.commit(7, "seven")
            generation = cluster.groups["crawl"].generation
            assert await office.put({"t1": {"n": "new"}, "t2": {"n": 2}}) == 2
            await fleet.until(lambda: "start" in [what for what, _, _ in fleet.events])
            assert fleet.started() == ["t1"]
            new = fleet.tasks["t1"]
            assert (new.config, new.committed, new.metadata) == ({"n": "new"}, 7, "seven")
            assert new.version == 2 > old.version
            assert cluster.groups["crawl"].generation > generation
            reasons = {call.request.reason for call in cluster.seen("JoinGroup")}
            assert "the set of tasks changed" in reasons
            with pytest.raises(IllegalGeneration, match="was changed"):
                old.commit(8)
            assert await office.remove("t0", "nobody") == 3
            await fleet.settled(a=2)
            assert worker.owned == ("t1", "t2")
            assert list(await office.definitions()) == ["t1", "t2"]
            # The slot is used again, and what its last task had committed is not taken over.
            fleet.tasks["t1"].commit(9)
            assert await office.remove("t1") == 4
            await fleet.settled(a=1)
            assert await office.put({"t1": {}}) == 5
            await fleet.settled(a=2)
            assert fleet.tasks["t1"].committed is None
        await fleet.stop()


async def test_what_is_so_already_changes_nothing(open_cluster):
    """Declaring the same tasks at every start costs no round."""
    async with open_cluster(1, topics={}) as (cluster, client):
        fleet = Fleet(client)
        worker = fleet.worker("a")
        await worker.put(named(2))
        await fleet.settled(a=2)
        generation = cluster.groups["crawl"].generation
        assert await worker.put({"t1": {"n": 1}}) == 1
        assert await worker.remove("other") == 1
        assert cluster.groups["crawl"].generation == generation
        assert len(cluster.seen("OffsetCommit")) == 1
        await fleet.stop()


async def test_many_change_the_set_at_once_and_nothing_is_lost(open_cluster):
    """Each change expects the version that it was made from."""
    async with open_cluster(1, topics={}) as (_, client):
        fleet = Fleet(client)
        workers = [fleet.worker(name) for name in "abc"]
        changes = [workers[i % 3].put({f"t{i}": {"n": i}}) for i in range(9)]
        versions = await asyncio.gather(*changes)
        assert len(set(versions)) == 9
        await fleet.settled(a=3, b=3, c=3)
        assert {n: t.config["n"] for n, t in fleet.tasks.items()} == {f"t{i}": i for i in range(9)}
        found = await workers[0].definitions()
        assert sorted(one.version for one in found.values()) == sorted(versions)
        await fleet.stop()


async def test_a_change_whose_answer_is_lost_is_made_once(open_cluster):
    """The retry expects what is not so any more; the set is read, and is as it was wanted."""
    async with (
        open_cluster(1, topics={}, client={"request_timeout_ms": 10_000}) as (
            cluster,
            client,
        ),
        client.tasks("crawl") as office,
    ):
        await office.put({"a": {}})
        cluster.script("OffsetCommit", LoseAnswer())
        assert await office.put({"b": {}}) == 2
        assert {n: one.since for n, one in (await office.definitions()).items()} == {
            "a": 1,
            "b": 2,
        }


async def test_the_set_outlives_every_member(open_cluster):
    """Nobody there for a while; the next one works on the same tasks, where they were."""
    async with open_cluster(3, topics={}) as (cluster, client):
        fleet = Fleet(client)
        worker = fleet.worker("a")
        await worker.put(named(2))
        await fleet.settled(a=2)
        fleet.tasks["t0"].commit(5)
        await fleet.stop()
        await cluster.kill(cluster.leader)
        fleet = Fleet(client)
        fleet.worker("b")
        await fleet.settled(b=2)
        assert fleet.tasks["t0"].committed == 5
        assert fleet.tasks["t1"].committed is None
        await fleet.stop()


async def test_a_change_is_seen_when_its_author_dies_at_once(open_cluster):
    """It was durable; the round that the death makes is decided over the new set."""
    async with open_cluster(1, topics={}, interval_ms=100) as (cluster, client):
        fleet = Fleet(client)
        fleet.worker("a")
        async with muster.Client(cluster.bootstrap) as other:
            author = other.tasks("crawl", session_timeout_ms=1_000)
            await author.put({"t0": {}})
            await fleet.settled(a=1)
            # Its next round never comes: the Join that tells the others hangs.
            cluster.script("JoinGroup", Hang())
            await author.put({"t1": {}})
            member_id = author._group.member_id
            cluster.remove_member("crawl", member_id)
            author.stop()
            await fleet.settled(a=2)
        await fleet.stop()


async def test_a_member_that_missed_a_change_makes_another_round(open_cluster):
    """The group leader read the set before the change; whoever sees that joins again."""
    async with open_cluster(1, topics={}) as (cluster, client):
        fleet = Fleet(client)
        worker = fleet.worker("a")
        await worker.put({"t0": {}})
        await fleet.settled(a=1)
        stored = cluster.groups["crawl"].offsets
        request_of = cluster.seen("OffsetCommit")[0].request
        # The change of somebody that is gone already: in the offsets, and nobody was told.
        for one in request_of.partitions:
            one.offset = 2
            one.metadata = one.metadata.replace('"t0"', '"t1"').replace('"since":1', '"since":2')
            if one.topic == DEFINITIONS and one.partition == 1:
                one.partition = 2
        request_of.ClearField("atomic")
        for one in request_of.partitions:
            one.ClearField("expected_offset")
        request_of.generation = cluster.groups["crawl"].generation
        cluster.groups["crawl"].commit(request_of)
        assert stored[VERSION].value.offset == 2
        fleet.worker("b")
        await fleet.settled(a=1, b=1)
        assert set(fleet.tasks) == {"t0", "t1"}
        await fleet.stop()


async def test_lost_is_not_revoked(open_cluster):
    """Fenced: cancelled at once, commits refused, told by name; then it joins anew."""
    async with open_cluster(1, topics={}) as (cluster, client):
        lost, refused, wait_s = [], [], 60
        fleet = Fleet(client)

        async def step(task):
            try:
                await task.revoking.wait()
                await asyncio.sleep(wait_s)
            finally:
                try:
                    task.commit(1)
                except IllegalGeneration:
                    refused.append(task.name)

        worker = fleet.worker("a", step=step, on_lost=lost.append, grace_ms=60_000)
        await worker.put(named(2))
        await fleet.settled(a=2)
        cluster.remove_member("crawl", worker._group.member_id)
        await fleet.until(lambda: len(fleet.events) == 6)
        assert lost == [("t0", "t1")]
        assert sorted(refused) == ["t0", "t1"]
        assert fleet.running == {"t0": "a", "t1": "a"}
        wait_s = 0
        await fleet.stop()
        assert lost == [("t0", "t1")], "leaving is in good order"


async def test_grace_lets_a_task_end_by_itself(open_cluster):
    """When it is changed and when it moves; its last commit counts."""
    async with open_cluster(1, topics={}) as (_, client):
        fleet = Fleet(client)

        async def step(task):
            await task.revoking.wait()
            task.commit((task.committed or 0) + 1)

        worker = fleet.worker("a", step=step, grace_ms=60_000)
        await worker.put({"t": {"n": 1}})
        await fleet.settled(a=1)
        await worker.put({"t": {"n": 2}})
        await fleet.until(lambda: len(fleet.events) == 3 and fleet.running)
        assert fleet.tasks["t"].committed == 1
        await fleet.stop()
        found = await client.committed("crawl", [TopicPartition(PROGRESS, 0)])
        assert found.offset(TopicPartition(PROGRESS, 0)) == 2


async def test_a_task_that_returns_has_finished_until_it_is_changed(open_cluster):
    """It keeps its place, and is not started again by a round."""
    async with open_cluster(1, topics={}) as (_, client):
        fleet = Fleet(client)

        async def step(task):
            task.commit(task.config["n"])

        worker = fleet.worker("a", step=step)
        await worker.put({"t": {"n": 1}})
        await fleet.until(lambda: ("end", "a", "t") in fleet.events)
        await worker.put({"u": {"n": 5}})
        await fleet.until(lambda: ("end", "a", "u") in fleet.events)
        assert fleet.started() == ["t", "u"]
        assert worker.owned == ("t", "u")
        await worker.put({"t": {"n": 2}})
        await fleet.until(lambda: ("end", "a", "t") in fleet.events)
        assert fleet.started() == ["t"]
        await fleet.stop()


async def test_a_task_can_remove_itself(open_cluster):
    """The end of a job."""
    async with open_cluster(1, topics={}) as (_, client):
        fleet = Fleet(client)

        async def step(task):
            await worker.remove(task.name)

        worker = fleet.worker("a", step=step)
        await worker.put(named(3))
        while await worker.definitions():
            await asyncio.sleep(0.01)
        await fleet.stop()


async def test_what_a_task_raises_ends_the_member_and_is_raised_by_run(open_cluster):
    """Others take its tasks over."""
    async with (
        open_cluster(1, topics={}) as (cluster, client),
        client.tasks("crawl") as office,
        client.tasks("crawl") as broken,
    ):
        await office.put({"t": {}})

        @broken.on_task
        async def work(task):
            raise LookupError("no such site")

        with pytest.raises(LookupError, match="no such site"):
            await broken.run(handle_sigterm=False)
        assert len(cluster.groups["crawl"].members) == 1


async def test_bounds_of_a_change_at_under_and_over(open_cluster):
    """Bytes of a definition, tasks in one change, tasks of a group, metadata of a commit."""
    async with open_cluster(1, topics={}) as (_cluster, client):
        async with client.tasks("crawl") as office:
            # As it is stored, with the largest version there may be.
            frame = len('{"config":{"x":""},"name":"big","since":9223372036854775807}')
            most = "x" * (DEFINITION_BYTES_MAX - frame)
            await office.put({"big": {"x": most[1:]}})
            await office.put({"big": {"x": most}})
            with pytest.raises(InvalidRequest, match=f"have {DEFINITION_BYTES_MAX + 1} bytes"):
                await office.put({"big": {"x": most + "x"}})
            for wrong in ({"": {}}, {"a": 5}, {"a": {"x": object()}}, {"a": {"x": float("nan")}}):
                with pytest.raises(InvalidRequest):
                    await office.put(wrong)
            await office.remove("big")
            with pytest.raises(InvalidRequest, match="at most 100"):
                await office.put(named(101))
            for start in range(0, TASKS_MAX, 100):
                await office.put({f"t{start + i}": {} for i in range(100)})
            assert len(await office.definitions()) == TASKS_MAX
            with pytest.raises(InvalidRequest, match="at most 1000 tasks"):
                await office.put({"one too many": {}})
            assert len(await office.definitions()) == TASKS_MAX
        fleet = Fleet(client)
        worker = fleet.worker("a")
        await fleet.settled(a=TASKS_MAX)
        task = fleet.tasks["t0"]
        task.commit(1, "m" * 4000)
        with pytest.raises(InvalidRequest, match="at most 4000"):
            task.commit(1, "m" * 4001)
        assert len(worker.owned) == TASKS_MAX
        await fleet.stop()


async def test_a_change_that_finds_no_rest_says_so(open_cluster):
    """The group never comes to an assignment: an error, in time, and nothing is changed."""
    async with (
        open_cluster(1, topics={}, client={"request_timeout_ms": 4_000}) as (cluster, client),
        client.tasks("crawl") as office,
    ):
        await office.put({"a": {}})
        refuse = Refuse(ErrorCode.REBALANCE_IN_PROGRESS, "not now")
        cluster.script("OffsetCommit", *[refuse] * 1_000)
        with pytest.raises(RebalanceInProgress, match="not now"):
            await office.put({"b": {}})
        assert list(await office.definitions()) == ["a"]


async def test_a_cluster_that_cannot_keep_tasks_yet_is_waited_for(open_cluster):
    """A fleet that starts while nodes are away works when they are back."""
    async with (
        open_cluster(1, topics={}) as (cluster, client),
        client.tasks("crawl") as office,
        muster.Client(cluster.bootstrap, request_timeout_ms=200) as impatient,
    ):
        cluster.script("CreateTopic", Hang(), Hang())
        fleet = Fleet(impatient)
        fleet.worker("a")
        await cluster.until(lambda: len(cluster.seen("CreateTopic")) > 2)
        await office.put({"t0": {}})
        await fleet.settled(a=1)
        await fleet.stop()


async def test_a_worker_that_waits_for_a_cluster_can_be_stopped(open_cluster):
    """At once, and for nothing of the cluster's."""
    async with open_cluster(1, topics={}) as (cluster, client):
        cluster.script("CreateTopic", Hang())
        fleet = Fleet(client)
        fleet.worker("a")
        await cluster.until(lambda: bool(cluster.seen("CreateTopic")))
        await fleet.stop()
        assert not cluster.seen("JoinGroup")
        assert len(cluster.seen("CreateTopic")) == 1


async def test_running_without_a_handler_and_a_handler_too_late_are_said(open_cluster):
    """Both are mistakes in the program."""
    async with open_cluster(1, topics={}) as (_, client), client.tasks("crawl") as office:
        with pytest.raises(InvalidRequest, match="on_task"):
            await office.run()
        await office.put({"a": {}})
        with pytest.raises(InvalidRequest, match="before joining"):
            office.on_task(lambda task: asyncio.sleep(0))
