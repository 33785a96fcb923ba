"""Real processes: groups whose coordinator assigns, and kill -9 in each phase of a hand-over."""

import asyncio
import contextlib

import grpc
import pytest

from muster.v1 import admin_pb2 as admin
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
        """Kill -9 the coordinator; the term that it led in."""
        known = await self.router.coordinator(self.name)
        self.cluster.kill(known.node_id)
        self.killed = known.node_id
        return known.term

    async def stands(self, later_than=0):
        """Return what the coordinator, of a later term, says: the epochs, and each member.

        Members are (epoch, grants) by id, a grant (partition, token, whether it is revoking).
        """
        request = admin.DescribeGroupsRequest(group_ids=[self.name], linearizable=True)
        async with asyncio.timeout(WAIT_S):
            while True:
                known = await self.router.coordinator(self.name, later_than)
                with contextlib.suppress(grpc.aio.AioRpcError):
                    stub = self.router.admins[known.endpoint]
                    (group,) = (await stub.DescribeGroups(request, timeout=2)).groups
                    if group.status.code == 0:
                        members = {
                            one.member_id: (one.member_epoch, grants_of(one))
                            for one in group.members
                        }
                        return group.generation, group.target_epoch, members
                await asyncio.sleep(0.01)


def grants_of(member):
    """The grants of a described member."""
    return sorted(
        (partition, token, grants.revoking)
        for grants in member.grants
        for partition, token in zip(grants.partitions, grants.fencing_tokens, strict=True)
    )


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


def test_a_commit_without_tokens_is_taken_at_every_epoch_since_the_grant(cluster):
    """KIP-1251: a member's epoch that rose meanwhile refuses nothing; one before a grant does."""

    async def scene(stage):
        a, b = await stage.settled("a", "b")
        kept, first = dict(a.tokens), a.epoch
        assert await b.beat(LEAVE) == 0
        await a.until(owns(8))
        assert a.epoch > first
        since = dict.fromkeys(a.tokens, ErrorCode.STALE_MEMBER_EPOCH) | dict.fromkeys(kept, 0)
        assert await a.commit(5, epoch=first) == since
        assert await a.commit(6, epoch=a.epoch) == dict.fromkeys(a.tokens, 0)
        stale = dict.fromkeys(a.tokens, ErrorCode.STALE_MEMBER_EPOCH)
        assert await a.commit(7, epoch=a.epoch + 1) == stale
        former = a.epoch
        assert await a.join() == 0
        assert a.epoch > former
        assert await a.commit(8, epoch=former) == stale
        assert await a.commit(9, epoch=a.epoch) == dict.fromkeys(a.tokens, 0)
        assert await read(stage.router, stage.name, stage.name, min(kept)) == 9

    play(cluster, "tokenless", scene)


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


async def revoking(_stage, _a, _b, _c):
    """Both were told to release some, and did not."""


async def confirmed(stage, a, _b, c):
    """One has released, and the next owner has that; the other one is still to release."""
    moved = sorted(a.revoking)
    assert await a.confirm() == 0
    _, _, members = await stage.stands()
    assert [partition for partition, _, _ in members[c.member_id][1]] == moved


async def granted(stage, a, b, c):
    """The next owner has all of it, by the coordinator's account, and was not told."""
    moved = sorted(a.revoking | b.revoking)
    assert await a.confirm() == await b.confirm() == 0
    _, _, members = await stage.stands()
    assert [partition for partition, _, _ in members[c.member_id][1]] == moved
    assert not c.grants


async def pushed(_stage, a, b, c):
    """The call that the next owner held is answered by what another one released.

    It is not the end of its interval that does: that of a call held before it is not over.
    """
    moved = a.revoking | b.revoking
    earlier, telling = await holds(b), await holds(c)
    assert await a.confirm() == 0
    too_slow_to_tell = earlier.done()
    await asyncio.wait({earlier, telling}, return_when=asyncio.FIRST_COMPLETED)
    assert too_slow_to_tell or not earlier.done(), "nothing was pushed"
    assert await telling == ErrorCode.REBALANCE_IN_PROGRESS
    assert await b.confirm() == 0
    await earlier
    await c.until(lambda one: one.active == moved)


async def holds(one):
    """Hold a call of a member that was told everything; it is held once it supersedes another."""
    assert await one.beat() == 0
    former, call = (asyncio.create_task(one.news()) for _ in range(2))
    assert await former == 0
    return call


@pytest.mark.parametrize("phase", [revoking, confirmed, granted, pushed])
def test_a_hand_over_goes_on_at_the_next_coordinator(cluster, phase):
    """Epochs, grants and tokens are those of before the kill, and nobody joins again.

    What was acknowledged is there, and no token of a partition that moved counts any more.
    """

    async def scene(stage):
        a, b, c = await hand_over_begins(stage)
        before = {**a.tokens, **b.tokens}
        moved = {p: before[p] for p in a.revoking | b.revoking}
        for one in (a, b):
            assert set((await one.commit(7)).values()) == {0}
        await phase(stage, a, b, c)
        stood = await stage.stands()
        term = await stage.kill()
        assert await stage.stands(later_than=term) == stood
        for p in before:
            assert await read(stage.router, stage.name, stage.name, p) == 7
        await hand_over_ends(a, b, c, before)
        epoch, target_epoch, members = await stage.stands()
        assert (epoch, target_epoch) == stood[:2]
        assert members.keys() == stood[2].keys()
        assert c.tokens.keys() == moved.keys()
        for one in (a, b):
            mine = {p: token for p, token in moved.items() if p not in one.tokens}
            codes = await one.commit(200, {**one.tokens, **mine})
            expected = dict.fromkeys(mine, ErrorCode.STALE_MEMBER_EPOCH)
            assert codes == dict.fromkeys(one.tokens, 0) | expected
        for p in moved:
            assert await read(stage.router, stage.name, stage.name, p) == 100

    play(cluster, f"kill-{phase.__name__}", scene)


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
        await b.until(owns(8))
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
        codes = await static.commit(9, former)
        assert codes == dict.fromkeys(former, ErrorCode.UNKNOWN_MEMBER_ID)

    play(cluster, "static", scene)
