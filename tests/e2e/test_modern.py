"""Real processes: groups whose coordinator assigns, and kill -9 in each phase of a hand-over."""

import asyncio

import pytest

from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.node.launcher import Cluster
from tests.e2e.bare import Router, read
from tests.e2e.consumers import (
    AWAY,
    LEAVE,
    WAIT_S,
    Consumer,
    add_partitions,
    create_topic,
    owns,
    settle,
)

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.timeout(300)]
SHARDS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three nodes, which every test leaves as it found them."""
    with Cluster(tmp_path_factory.mktemp("modern"), nodes=3, shards=SHARDS) as cluster:
        cluster.wait_ready()
        yield cluster


class Stage:
    """A group with a topic of its own, on a cluster whose coordinator may be killed."""

    def __init__(self, cluster, router, name):
        self.cluster, self.router, self.name = cluster, router, name
        self.killed = None

    def member(self, name, **said):
        """A process that has not joined yet."""
        return Consumer(self.router, self.name, self.name, name, **said)

    async def settled(self, *names, **said):
        """Members that share the eight partitions."""
        members = [self.member(name, **said) for name in names]
        for one in members:
            assert await one.join() == 0
        await settle(*members)
        return members

    async def kill(self):
        """Kill -9 the coordinator; the next one is there when this returns."""
        known = await self.router.coordinator(self.name)
        self.cluster.kill(known.node_id)
        self.killed = known.node_id
        await self.router.coordinator(self.name, known.term)


def play(cluster, name, scene):
    """One scene with a topic of eight partitions; then the killed node is started again."""

    async def play_it():
        router = Router([node.endpoint for node in cluster.nodes.values()])
        stage = Stage(cluster, router, name)
        try:
            async with asyncio.timeout(3 * WAIT_S):
                await router.wait_ready()
                await create_topic(router, name, 8)
                await scene(stage)
        finally:
            if stage.killed is not None:
                cluster.start(stage.killed)
            await router.close()

    asyncio.run(play_it())


async def hand_over_begins(stage):
    """Two members share all; a third joins, and they are told to release some for it."""
    a, b = await stage.settled("a", "b")
    c = stage.member("c")
    assert await c.join() == 0
    for one in (a, b):
        await one.until(lambda one: one.revoking, confirms=False)
    assert not c.grants
    return a, b, c


async def hand_over_ends(a, b, c, before):
    """The third has what the others released, under larger tokens; they kept the rest's."""
    await settle(a, b, c)
    for one in (a, b):
        assert one.tokens == {p: before[p] for p in one.tokens}
    assert all(token > before[p] for p, token in c.tokens.items())
    assert len({a.epoch, b.epoch, c.epoch}) == 1
    for one in (a, b, c):
        assert set((await one.commit(100)).values()) == {0}


def test_partitions_move_once_their_owner_released_them(cluster):
    """Revoking, released, granted: the owner may commit until it has, and nobody after it."""

    async def scene(stage):
        a, b, c = await hand_over_begins(stage)
        before = {**a.tokens, **b.tokens}
        released = {p: a.tokens[p] for p in a.revoking}
        assert set((await a.commit(7)).values()) == {0}
        assert await a.confirm() == 0
        assert set((await a.commit(8, released)).values()) == {ErrorCode.STALE_MEMBER_EPOCH}
        assert await read(stage.router, stage.name, stage.name, min(released)) == 7
        await hand_over_ends(a, b, c, before)

    play(cluster, "moves", scene)


def test_a_stale_token_is_refused_for_its_partition_alone(cluster):
    """The others of the commit are stored."""

    async def scene(stage):
        (a,) = await stage.settled("a")
        tokens = dict(a.tokens)
        tokens[3] -= 1
        expected = dict.fromkeys(tokens, 0) | {3: ErrorCode.STALE_MEMBER_EPOCH}
        assert await a.commit(5, tokens) == expected
        assert await read(stage.router, stage.name, stage.name, 2) == 5

    play(cluster, "stale", scene)


def test_a_member_that_leaves_hands_over_at_once(cluster):
    """What the others had stays theirs under the tokens that they had."""

    async def scene(stage):
        a, b = await stage.settled("a", "b")
        kept, given = dict(a.tokens), dict(b.tokens)
        assert await b.beat(LEAVE) == 0
        await a.until(owns(8))
        assert not a.incomplete
        assert {p: a.tokens[p] for p in kept} == kept
        assert all(a.tokens[p] > token for p, token in given.items())
        assert await b.beat() == ErrorCode.UNKNOWN_MEMBER_ID

    play(cluster, "leaves", scene)


@pytest.mark.parametrize("phase", ["revoking", "confirmed", "granted"])
def test_a_hand_over_goes_on_at_the_next_coordinator(cluster, phase):
    """Epochs and tokens are those of before the kill, and nobody joins again."""

    async def scene(stage):
        a, b, c = await hand_over_begins(stage)
        before = {**a.tokens, **b.tokens}
        if phase != "revoking":
            assert await a.confirm() == 0
            assert await b.confirm() == 0
        if phase == "granted":
            await settle(a, b, c)
        stood = [(one, one.epoch, dict(one.grants)) for one in (a, b)]
        if phase == "granted":
            stood.append((c, c.epoch, dict(c.grants)))
        await stage.kill()
        for one, epoch, grants in stood:
            assert await one.beat() == 0
            assert (one.epoch, one.grants) == (epoch, grants)
        await hand_over_ends(a, b, c, before)

    play(cluster, f"kill-{phase}", scene)


def test_a_topic_that_grows_is_shared_out_anew(cluster):
    """What was granted stays, unless it has to move."""

    async def scene(stage):
        a, b = await stage.settled("a", "b")
        before = {**a.tokens, **b.tokens}
        await add_partitions(stage.router, stage.name, 12)
        await settle(a, b, partitions=12)
        for one in (a, b):
            assert {p: t for p, t in one.tokens.items() if p < 8} == {
                p: before[p] for p in one.tokens if p < 8
            }

    play(cluster, "grows", scene)


def test_a_member_that_is_away_finds_its_partitions_under_new_tokens(cluster):
    """Nothing is planned, and the others do not notice; its former tokens are worth nothing."""

    async def scene(stage):
        a, b = await stage.settled("a", "b")
        former, others = dict(a.tokens), dict(b.grants)
        assert await a.beat(AWAY, back_in_ms=60_000) == 0
        assert set((await a.commit(3, former)).values()) == {ErrorCode.STALE_MEMBER_EPOCH}
        assert await a.join() == 0
        await a.until(owns(4))
        assert set(a.tokens) == set(former)
        assert all(a.tokens[p] > token for p, token in former.items())
        epoch = b.epoch
        assert await b.beat() == 0
        assert (b.epoch, b.grants) == (epoch, others)

    play(cluster, "away", scene)


def test_a_member_that_does_not_come_back_in_time_is_removed(cluster):
    """Its partitions are the others' then."""

    async def scene(stage):
        a, b = await stage.settled("a", "b")
        assert await a.beat(AWAY, back_in_ms=1_000) == 0
        await b.until(owns(8))
        assert await a.beat() == ErrorCode.UNKNOWN_MEMBER_ID

    play(cluster, "not-back", scene)


def test_a_member_that_releases_nothing_is_removed(cluster):
    """After its rebalance timeout, though it is heard all the time."""

    async def scene(stage):
        (a,) = await stage.settled("a", rebalance_timeout_ms=1_000)
        b = stage.member("b")
        assert await b.join() == 0
        async with asyncio.timeout(WAIT_S):
            while await a.beat() == 0:
                await a.news()
        await b.until(owns(8))

    play(cluster, "releases-nothing", scene)


def test_a_member_that_is_silent_is_removed(cluster):
    """After its session, or its grace where its held call broke off."""

    async def scene(stage):
        a = stage.member("a", session_timeout_ms=1_000)
        assert await a.join() == 0
        b = stage.member("b")
        assert await b.join() == 0
        await b.until(owns(8))
        assert await a.beat() == ErrorCode.UNKNOWN_MEMBER_ID

    play(cluster, "silent", scene)


def test_a_new_process_takes_over_once_the_old_ones_connection_is_gone(cluster):
    """Not before; then the same partitions are its own, under new tokens, with no plan."""

    async def scene(stage):
        a, b = await stage.settled("a", "b", group_instance_id="")
        await a.beat(LEAVE)
        static = stage.member("static", group_instance_id="rack-1")
        assert await static.join() == 0
        await settle(b, static)
        held = asyncio.create_task(static.news())
        newcomer = stage.member("static", group_instance_id="rack-1")
        former, epoch = dict(static.tokens), b.epoch
        while static.call_seq < 1 or held.done():
            await asyncio.sleep(0)
        assert await newcomer.join() == ErrorCode.UNRELEASED_INSTANCE_ID
        held.cancel()
        async with asyncio.timeout(WAIT_S):
            while await newcomer.join():
                await asyncio.sleep(0.02)
        await newcomer.until(owns(4))
        assert set(newcomer.tokens) == set(former)
        assert all(newcomer.tokens[p] > token for p, token in former.items())
        assert await b.beat() == 0
        assert b.epoch == epoch
        assert set((await static.commit(9, former)).values()) != {0}

    play(cluster, "static", scene)
