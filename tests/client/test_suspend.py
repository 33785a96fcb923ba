"""A machine that slept hands out no work until a heartbeat says that it is a member still."""

import asyncio

import grpc
import pytest

from muster import TopicPartition
from muster.errors import IllegalGeneration
from muster.group.session import CallTime, Session
from muster.net import sleep_clock
from muster.testing import Abort
from tests.client.listeners import Journal

T = [TopicPartition("t", i) for i in range(4)]
LONG_MS = 60_000
SESSION_MS = 10_000
ROUND_MS = 3_000
NAP_S = ROUND_MS / 1000 + 1
"""Longer than a round, shorter than the session."""
SILENT = [Abort(grpc.StatusCode.RESOURCE_EXHAUSTED)] * 200
"""So many heartbeats are not answered; each is asked again a little later."""


@pytest.fixture
def sleep(monkeypatch):
    """Have the machine sleep: CLOCK_BOOTTIME goes on, the loop's clock does not."""
    slept_s = sleep_clock.slept_s()
    monkeypatch.setattr(sleep_clock, "slept_s", lambda: slept_s)

    def sleep_for(seconds):
        nonlocal slept_s
        slept_s += seconds

    return sleep_for


async def until(condition):
    """Wait for what tasks do; the cluster sees calls only."""
    while not condition():
        await asyncio.sleep(0.001)


class Worker:
    """Asks before each piece of work, and commits it."""

    def __init__(self, client, **options):
        options = {"session_timeout_ms": SESSION_MS, "commit_interval_ms": 1} | options
        self.group = client.group("g", ["t"], **options)
        self.group.on_partition(self.work)
        self.done, self.waiting, self.partitions = {}, set(), {}
        self.running = asyncio.create_task(self.group.run())

    async def work(self, p):
        self.partitions[p.key] = p
        while True:
            self.waiting.add(p.key)
            await p.resumed()
            self.waiting.discard(p.key)
            self.done[p.key] = self.done.get(p.key, 0) + 1
            p.commit(self.done[p.key])
            await asyncio.sleep(0.001)

    async def working(self):
        """Until each partition has come further."""
        before = dict.fromkeys(T, 0) | self.done
        await until(lambda: all(self.done.get(key, 0) > before[key] for key in T))

    async def stop(self):
        self.group.stop()
        await self.running


@pytest.mark.parametrize(
    ("round_ms", "asleep_s"), [(LONG_MS, SESSION_MS / 1000 + 1), (ROUND_MS, NAP_S)]
)
async def test_after_sleep_no_work_begins_until_a_heartbeat_is_answered(
    open_cluster, sleep, round_ms, asleep_s
):
    """Another one may own it all. Commits are for the server to judge."""
    async with open_cluster(1, interval_ms=50) as (cluster, client):
        worker = Worker(client, rebalance_timeout_ms=round_ms)
        await worker.working()
        cluster.script("Heartbeat", *SILENT)
        beats = len(cluster.seen("Heartbeat"))
        await cluster.until(lambda: len(cluster.seen("Heartbeat")) > beats + 1)
        sleep(asleep_s)
        assert all(p.paused for p in worker.partitions.values())
        await until(lambda: worker.waiting == set(T))
        done = dict(worker.done)
        result = await worker.group.commit({T[0]: 100_000})
        assert result.acknowledged == {T[0]: 100_000}
        assert worker.done == done
        assert worker.group.assignment is not None
        cluster._scripts["Heartbeat"].clear()
        await worker.working()
        assert not any(p.paused for p in worker.partitions.values())
        await worker.stop()


async def test_after_sleep_the_next_heartbeat_is_answered_at_once(open_cluster, sleep):
    """What was held when the machine fell asleep was answered then, and says nothing of now."""
    async with open_cluster(1, interval_ms=200) as (cluster, client):
        worker = Worker(client)
        await worker.working()
        await cluster.until(lambda: cluster.seen("Heartbeat"))
        sleep(3600)
        await until(lambda: worker.waiting == set(T))
        await worker.working()
        assert any(call.request.at_once for call in cluster.seen("Heartbeat"))
        await worker.stop()


async def test_a_nap_shorter_than_session_and_round_stops_nothing(open_cluster, sleep):
    """Neither can have ended without this member meanwhile."""
    async with open_cluster(1, interval_ms=LONG_MS) as (_, client):
        worker = Worker(client)
        await worker.working()
        sleep(SESSION_MS / 1000 - 5)
        assert not any(p.paused for p in worker.partitions.values())
        await worker.working()
        await worker.stop()


async def test_an_assignment_that_came_while_it_slept_is_not_handed_out_yet(open_cluster, sleep):
    """It was asked for before; neither the listener nor who waits is told."""
    async with open_cluster(1, interval_ms=50) as (cluster, client):
        told = Journal()
        group = client.group("g", ["t"], session_timeout_ms=SESSION_MS, listener=told)
        cluster.script("Heartbeat", *SILENT)
        sync = group._calls.sync

        async def answered_while_asleep(action):
            answer = await sync(action)
            sleep(SESSION_MS / 1000 + 1)
            return answer

        group._calls.sync = answered_while_asleep
        given = asyncio.create_task(group.next_assignment())
        await until(lambda: group.state == "Stable")
        beats = len(cluster.seen("Heartbeat"))
        await cluster.until(lambda: len(cluster.seen("Heartbeat")) > beats + 2)
        assert not given.done()
        assert told.lines == []
        cluster._scripts["Heartbeat"].clear()
        assert (await given).partitions == tuple(T)


async def test_a_leader_that_slept_leads_no_more_when_it_wakes(open_cluster, sleep):
    """Before any answer, and before any timer of its loop: those did not move."""
    async with open_cluster(1, interval_ms=LONG_MS) as (_, client):
        election = client.election("e", session_timeout_ms=SESSION_MS)
        term = await election.lead()
        assert term.is_held
        sleep(SESSION_MS / 1000)
        assert not term.is_held
        assert election.leadership is None
        await election.close()


async def test_a_leader_that_slept_for_longer_than_a_round_leads_no_more(open_cluster, sleep):
    """A candidate may have joined meanwhile: a round of candidates takes a third of the session."""
    async with open_cluster(1, interval_ms=LONG_MS) as (_, client):
        election = client.election("e", session_timeout_ms=SESSION_MS)
        term = await election.lead()
        sleep(1)
        assert term.is_held
        sleep(SESSION_MS / 1000 / 3)
        assert not term.is_held
        with pytest.raises(IllegalGeneration):
            term.check()
        assert election.leadership is None
        await election.close()


async def test_a_task_waits_too_where_a_round_may_have_ended_while_it_slept(open_cluster, sleep):
    """A task that comes to a member's slot begins when a heartbeat is answered."""
    async with open_cluster(1, interval_ms=50) as (cluster, client):
        tasks = client.tasks("g", session_timeout_ms=SESSION_MS, rebalance_timeout_ms=ROUND_MS)
        begun = []

        @tasks.on_task
        async def work(task):
            begun.append(task.name)
            await asyncio.Event().wait()

        cluster.script("Heartbeat", *SILENT)
        read = tasks._store.fetch

        async def read_asleep(keys, *limits):
            found = await read(keys, *limits)
            if len(keys) > 1:  # what the slots hold
                sleep(NAP_S)
            return found

        tasks._store.fetch = read_asleep
        running = asyncio.create_task(tasks.run())
        await tasks.put({"a": {}})
        await until(lambda: tasks.owned == ("a",))
        beats = len(cluster.seen("Heartbeat"))
        await cluster.until(lambda: len(cluster.seen("Heartbeat")) > beats + 2)
        assert begun == []
        cluster._scripts["Heartbeat"].clear()
        await until(lambda: begun == ["a"])
        tasks.stop()
        await running


class Doubts:
    """A session without a cluster, in a loop whose clock hardly moves."""

    def __init__(self, sleep):
        self.sleep = sleep
        self.ended = 0
        self.session = Session(SESSION_MS, ROUND_MS, self._certain)

    def _certain(self):
        self.ended += 1


async def test_a_sign_of_life_within_a_round_does_not_put_its_end_off(sleep):
    """The round began before it was heard of; whoever does not join by its end is dropped."""
    of = Doubts(sleep)
    sleep(2)
    of.session.round_began()
    of.session.heard(CallTime.now())
    assert not of.session.in_doubt
    sleep(2)
    assert of.session.in_doubt
    of.session.heard(CallTime.now())
    assert not of.session.in_doubt, "it was a member still when it was awake again"
    assert of.ended == 1


async def test_the_time_for_the_sync_counts_from_the_join(sleep):
    """Who has joined and does not sync is dropped, too, whatever its heartbeats."""
    of = Doubts(sleep)
    of.session.round_began()
    sleep(2)
    of.session.joined(CallTime.now(), synced=False)
    sleep(2)
    assert not of.session.in_doubt
    of.session.heard(CallTime.now())
    sleep(2)
    assert of.session.in_doubt
    of.session.joined(CallTime.now(), synced=True)
    sleep(2)
    of.session.heard(CallTime.now())
    sleep(2)
    assert not of.session.in_doubt
