"""Cooperative rebalances as users see them: what stays goes on, what moves is given up first."""

import asyncio

import pytest

from muster import Partition, TopicPartition
from muster.assignors import Subscriber
from muster.errors import (
    ErrorCode,
    GroupClosed,
    IllegalGeneration,
    InvalidConfig,
    RebalanceInProgress,
    UnknownTopicOrPartition,
)
from muster.group.consumer_protocol import decode_subscription
from muster.testing import Refuse
from tests.client.listeners import Journal

TOPICS = {"a": 3, "b": 3}
KEYS = [TopicPartition(t, p) for t in TOPICS for p in range(3)]
COOPERATIVE = "cooperative-sticky"


class Worker:
    """A member that runs one endless task per partition and writes down what happens to it."""

    def __init__(self, client, assignor=COOPERATIVE, **options):
        self.started, self.cancelled = [], []
        self.partitions = {}
        journal = Journal()
        self.told = journal.told
        options = {"commit_interval_ms": 1, "listener": journal, **options}
        self.group = client.group("g", list(TOPICS), assignor=assignor, **options)
        self.group.on_partition(self._work)
        self.running = asyncio.create_task(self.group.run())

    async def _work(self, p: Partition) -> None:
        self.started.append(p.key)
        self.partitions[p.key] = p
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.append(p.key)
            del self.partitions[p.key]

    @property
    def works_on(self):
        return sorted(self.partitions)

    async def stop(self):
        self.group.stop()
        await self.running


async def until(condition):
    """Wait for what tasks do; the cluster sees calls only."""
    while not condition():
        await asyncio.sleep(0.001)


async def settled(*workers):
    """Until the members work on everything between them, and no round is open."""

    def is_settled():
        keys = [key for worker in workers for key in worker.works_on]
        states = {worker.group.state for worker in workers}
        return sorted(keys) == KEYS and states == {"Stable"}

    await until(is_settled)


async def test_what_stays_never_stops_and_what_moves_takes_two_rounds(open_cluster):
    """The worked example of gp-6.6, with two members and a third one."""
    async with open_cluster(1, topics=TOPICS) as (cluster, client):
        first = Worker(client)
        await settled(first)
        second = Worker(client)
        await settled(first, second)
        assert cluster.groups["g"].generation == 3, "one for the first, two for the second"
        stays = first.works_on
        assert len(stays) == 3
        assert first.started == KEYS
        assert sorted(first.cancelled + stays) == KEYS
        third = Worker(client)
        await settled(first, second, third)
        # Who has not asked yet what it has in generation 4 gives up in 5 what is not its any more.
        generation = cluster.groups["g"].generation
        assert generation in (5, 6)
        assert [len(w.works_on) for w in (first, second, third)] == [2, 2, 2]
        assert len(second.started) == 3
        assert set(second.works_on) < set(second.started)
        assert len(second.cancelled) == 1
        await third.stop()
        await settled(first, second)
        assert cluster.groups["g"].generation == generation + 1, "what a leaver leaves is free"
        assert len(second.cancelled) == 1
        await first.stop()
        await second.stop()


async def test_listeners_are_told_what_comes_and_what_goes(open_cluster):
    """Revoked: what moves. Assigned: what is new, in each generation. At the end: all the rest."""
    async with open_cluster(1, topics=TOPICS) as (_, client):
        first = Worker(client)
        await settled(first)
        second = Worker(client)
        await settled(first, second)
        kept, moved = tuple(first.works_on), tuple(sorted(first.cancelled))
        await first.stop()
        assert first.told == [
            ("assigned", 1, tuple(KEYS)),
            ("revoked", 2, moved),
            ("assigned", 2, ()),
            ("assigned", 3, ()),
            ("revoked", 3, kept),
        ]
        await settled(second)
        given = [keys for what, _, keys in second.told if what == "assigned"]
        # The first may begin generation 3 before the second has asked what it has in 2: nothing.
        assert given in ([(), moved, kept], [moved, kept])
        await second.stop()


async def test_a_kept_partition_commits_through_the_round_under_rising_tokens(open_cluster):
    """Buffered commits wait for the round's end; the handle's token is the current generation's."""
    async with open_cluster(1, topics=TOPICS) as (cluster, client):
        first = Worker(client)
        await settled(first)
        handle = first.partitions[KEYS[0]]
        assert (handle.generation, handle.fencing_token) == (1, 1)
        second = Worker(client)

        offset = 0
        while cluster.groups["g"].generation < 3 or len(second.works_on) < 3:
            offset += 1
            handle.commit(offset)
            await asyncio.sleep(0)
        await settled(first, second)
        handle.commit(offset + 1)
        stored = cluster.groups["g"].offsets
        await until(lambda: stored[KEYS[0]].value.offset == offset + 1)
        assert first.partitions[KEYS[0]] is handle
        assert (handle.generation, handle.fencing_token) == (3, 3)
        assert not first.running.done()
        await first.stop()
        await second.stop()


async def test_what_moves_is_flushed_before_its_next_owner_starts(open_cluster):
    """The next owner goes on where the commit of the last one stands."""
    async with open_cluster(1, topics=TOPICS) as (cluster, client):
        first = Worker(client, commit_interval_ms=3_600_000)
        await settled(first)
        for number, key in enumerate(KEYS):
            first.partitions[key].commit(100 + number)
        assert not cluster.groups["g"].offsets
        second = Worker(client)
        await settled(first, second)
        taken = {key: p.committed for key, p in second.partitions.items()}
        assert taken == {key: 100 + KEYS.index(key) for key in second.works_on}
        assert set(cluster.groups["g"].offsets) == set(second.works_on)
        await first.stop()
        assert len(cluster.groups["g"].offsets) == 6
        await second.stop()


async def test_an_older_assignment_counts_for_what_was_kept_since(open_cluster):
    """Work begun under generation 1 is committed for kept partitions, and refused for moved ones.

    A partition that went away and came back is not "kept".
    """
    async with open_cluster(1, topics=TOPICS) as (cluster, client):
        first = client.group("g", list(TOPICS), assignor=COOPERATIVE)
        old = await first.next_assignment()
        async with client.group("g", list(TOPICS), assignor=COOPERATIVE) as second:
            joining = asyncio.create_task(second.next_assignment())
            while not await joining or not second.assignment.partitions:
                joining = asyncio.create_task(second.next_assignment())
            while len(now := (await first.next_assignment()).partitions) > 3:
                pass
            await until(lambda: first.state == "Stable")
            kept, moved = now[0], next(key for key in KEYS if key not in now)
            await first.commit({kept: 7}, assignment=old)
            assert cluster.groups["g"].offsets[kept].value.offset == 7
            with pytest.raises(IllegalGeneration, match=f"generation 1 is over for {moved}"):
                await first.commit({moved: 7}, assignment=old)
            with pytest.raises(IllegalGeneration, match=str(moved)):
                await first.commit({moved: 7})
        await until(lambda: first.assignment.partitions == tuple(KEYS))
        await until(lambda: first.state == "Stable")
        with pytest.raises(IllegalGeneration, match=f"generation 1 is over for {moved}"):
            await first.commit({moved: 7}, assignment=old)
        await first.commit({kept: 8}, assignment=old)
        await first.commit({moved: 8})
        await first.close()


async def test_a_commit_that_meets_a_round_may_be_repeated(open_cluster):
    """Refused under a generation that the partition outlives, it says: commit again, not: lost.

    While the Sync is open no generation counts, and nothing is sent.
    """
    async with open_cluster(1, topics=TOPICS, interval_ms=3_600_000) as (cluster, client):
        first = Worker(client)
        await settled(first)
        cluster.script("JoinGroup", *[Refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)] * 3)
        cluster.script("SyncGroup", *[Refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)] * 3)
        cluster.script("OffsetCommit", Refuse(ErrorCode.REBALANCE_IN_PROGRESS))
        with pytest.raises(RebalanceInProgress):
            await first.group.commit({KEYS[0]: 1})
        assert first.group.state == "Joining"
        cluster.script("OffsetCommit", Refuse(ErrorCode.ILLEGAL_GENERATION))
        with pytest.raises(RebalanceInProgress, match="were kept") as caught:
            await first.group.commit({KEYS[0]: 2})
        assert caught.value.retriable
        await until(lambda: first.group.state == "Syncing")
        sent = len(cluster.seen("OffsetCommit"))
        with pytest.raises(RebalanceInProgress, match="about to end"):
            await first.group.commit({KEYS[0]: 3})
        assert len(cluster.seen("OffsetCommit")) == sent
        await until(lambda: first.group.state == "Stable")
        await first.group.commit({KEYS[0]: 4})
        assert first.started == KEYS
        assert not first.cancelled
        assert [what for what, *_ in first.told] == ["assigned", "assigned"]
        await first.stop()


async def test_a_fenced_member_loses_everything_at_once(open_cluster):
    """Also in the middle of a round: lost, not revoked; then it joins as a new member."""
    async with open_cluster(1, topics=TOPICS, interval_ms=3_600_000) as (cluster, client):
        first = Worker(client)
        await settled(first)
        member_id = first.group.member_id
        cluster.script("OffsetCommit", Refuse(ErrorCode.REBALANCE_IN_PROGRESS))
        cluster.script("JoinGroup", Refuse(ErrorCode.UNKNOWN_MEMBER_ID))
        with pytest.raises(RebalanceInProgress):
            await first.group.commit({KEYS[0]: 1})
        cluster.remove_member("g", member_id)
        await until(lambda: len(first.started) == 12)
        assert first.told == [
            ("assigned", 1, tuple(KEYS)),
            ("lost", 1, tuple(KEYS)),
            ("assigned", first.group.assignment.generation, tuple(KEYS)),
        ]
        assert sorted(first.cancelled) == KEYS
        assert first.group.member_id != member_id
        await first.stop()


async def test_closing_while_it_holds_partitions_flushes_them_all(open_cluster):
    """What is kept is committed too."""
    async with open_cluster(1, topics=TOPICS) as (cluster, client):
        first = Worker(client, commit_interval_ms=3_600_000)
        await settled(first)
        second = Worker(client)
        await settled(first, second)
        mine = first.works_on
        for key in mine:
            first.partitions[key].commit(5)
        await first.stop()
        assert {k for k, o in cluster.groups["g"].offsets.items() if o.value.offset == 5} == set(
            mine
        )
        await settled(second)
        await second.stop()


async def test_two_rolling_restarts_lead_from_eager_to_cooperative(open_cluster):
    """gp-3.1: first everybody lists both, then everybody drops the old one.

    At each step the group works on everything, whatever mixture of members it has.
    """
    async with open_cluster(1, topics=TOPICS) as (cluster, client):
        both = ["range", COOPERATIVE]
        workers = [Worker(client, "range"), Worker(client, "range")]
        await settled(*workers)
        protocols = [cluster.groups["g"].protocol_name]
        for kind in (both, both, COOPERATIVE, COOPERATIVE):
            await workers.pop(0).stop()
            workers.append(Worker(client, kind))
            await settled(*workers)
            protocols.append(cluster.groups["g"].protocol_name)
        assert protocols == ["range", "range", "range", COOPERATIVE, COOPERATIVE]
        third = Worker(client, COOPERATIVE)
        await settled(*workers, third)
        assert all(len(w.cancelled) < len(w.started) for w in workers), "nobody stopped everything"
        for worker in (*workers, third):
            await worker.stop()


async def test_each_assignor_is_told_what_it_asks_for(open_cluster):
    """A repeated Join says the same bytes to range, and to sticky what the member had."""
    async with open_cluster(1, topics=TOPICS) as (cluster, client):
        first = Worker(client, ["sticky", "range"])
        await settled(first)
        second = Worker(client, ["sticky", "range"])
        await settled(first, second)
        joins = [
            {p.name: decode_subscription("m", p.metadata) for p in call.request.protocols}
            for call in cluster.seen("JoinGroup")
            if call.request.member_id == first.group.member_id
            or call.request.join_nonce in first.group.member_id
        ]
        assert joins[0]["range"] == joins[1]["range"] == Subscriber("m", ("a", "b"))
        assert joins[0]["sticky"] == Subscriber("m", ("a", "b"))
        had = Subscriber("m", ("a", "b"), owned=tuple(KEYS), generation=1)
        assert joins[1]["sticky"] == had
        await first.stop()
        await second.stop()


@pytest.mark.parametrize("assignor", ["range", COOPERATIVE])
async def test_a_changed_subscription_costs_one_rebalance(open_cluster, assignor):
    """Alone in its group; what it keeps goes on where the assignor is cooperative."""
    async with open_cluster(1, topics=TOPICS) as (cluster, client):
        one = Worker(client, assignor)
        await settled(one)
        generation = cluster.groups["g"].generation
        await one.group.subscribe(["b"])
        kept = [key for key in KEYS if key.topic == "b"]
        await until(lambda: cluster.groups["g"].generation == generation + 1)
        await until(lambda: one.works_on == kept and one.group.state == "Stable")
        assert set(kept).isdisjoint(one.cancelled) == (assignor == COOPERATIVE)
        await one.group.subscribe(["b", "b"])
        with pytest.raises(UnknownTopicOrPartition):
            await one.group.subscribe(["b", "nowhere"])
        with pytest.raises(InvalidConfig):
            await one.group.subscribe([])
        assert one.group.state == "Stable", "the same topics, and refused ones, change nothing"
        await one.group.subscribe(list(TOPICS))
        await settled(one)
        assert cluster.groups["g"].generation == generation + 2
        await one.stop()
        with pytest.raises(GroupClosed):
            await one.group.subscribe(["a"])
