"""Groups whose coordinator assigns, as users of the SDK see them."""

import asyncio
import contextlib
import os
import signal

import grpc
import pytest

import muster
from muster.errors import (
    ErrorCode,
    FencedInstanceId,
    GroupClosed,
    IllegalGeneration,
    InvalidConfig,
    InvalidRequest,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedVersion,
)
from muster.testing import Abort, Refuse
from muster.v1 import group_pb2 as pb
from tests.client.listeners import Journal

T = [muster.TopicPartition("t", i) for i in range(4)]


class Worker:
    """A member that runs one endless task per partition and writes down what happens to it."""

    def __init__(self, client, **options):
        self.started, self.ended = [], []
        self.partitions = {}
        journal = Journal()
        self.told = journal.told
        options = {"commit_interval_ms": 1, "listener": journal, **options}
        self.group = client.group("g", ["t"], assignment="server", **options)
        self.group.on_partition(self._work)
        self.run()

    def run(self):
        self.running = asyncio.create_task(self.group.run())

    async def _work(self, p):
        self.started.append(p.id)
        self.partitions[p.key] = p
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append((p.id, str(p.phase)))
            del self.partitions[p.key]

    @property
    def works_on(self):
        return sorted(self.partitions)

    @property
    def what(self):
        return [(what, [key.partition for key in keys]) for what, _, keys in self.told]

    async def stop(self):
        self.group.stop()
        await self.running


async def until(condition):
    """Wait for what tasks do; the cluster sees calls only."""
    while not condition():
        await asyncio.sleep(0.001)


async def settled(cluster, *workers):
    """Until the members work on everything between them."""

    def is_settled():
        keys = [key for worker in workers for key in worker.works_on]
        ready = all(worker.group.is_ready for worker in workers)
        return sorted(keys) == T and ready and cluster.modern["g"].state == "Stable"

    await until(is_settled)


async def test_one_member_works_on_everything_under_the_tokens_of_its_grants(open_cluster):
    """Heartbeats name the version of its assignment; commits the token of each partition."""
    async with open_cluster(1) as (cluster, client):
        worker = Worker(client)
        await worker.group.ready()
        await settled(cluster, worker)
        (member,) = cluster.modern["g"].members.values()
        assert member.member_id.startswith("muster-")
        assert len(member.member_id) == len("muster-") + 32
        for key, p in worker.partitions.items():
            assert (p.fencing_token, p.phase) == (member.assigned[key], muster.Phase.ACTIVE)
            assert p.phase == "active"
        worker.partitions[T[2]].commit(7)
        await until(lambda: T[2] in cluster.groups["g"].offsets)
        (commit,) = [call.request for call in cluster.seen("OffsetCommit")]
        assert list(commit.fencing_tokens) == [member.assigned[T[2]]]
        assert commit.generation == member.epoch
        assert {one.generation for one in cluster.seen("Heartbeat")[-1].request.members} == {
            member.version
        }
        await worker.stop()
        assert not cluster.modern["g"].members
        assert cluster.seen("ConsumerGroupHeartbeat")[-1].request.member_epoch == -1
        assert worker.what == [("assigned", [0, 1, 2, 3]), ("revoked", [0, 1, 2, 3])]


async def test_what_stays_never_stops_and_what_moves_is_committed_first(open_cluster):
    """Two members and a third one; each listener is told of what comes and what goes."""
    async with open_cluster(1) as (cluster, client):
        first = Worker(client, commit_interval_ms=3_600_000)
        await settled(cluster, first)
        before = {key: p.fencing_token for key, p in first.partitions.items()}
        for p in first.partitions.values():
            p.commit(10 + p.id)
        second = Worker(client)
        await settled(cluster, first, second)
        moved = second.works_on
        assert len(moved) == 2
        assert {key: cluster.groups["g"].offsets[key].value.offset for key in moved} == {
            key: 10 + key.partition for key in moved
        }
        assert [second.partitions[key].committed for key in moved] == [
            10 + key.partition for key in moved
        ]
        assert first.started == [0, 1, 2, 3]
        assert sorted(first.ended) == [(key.partition, "revoking") for key in moved]
        said = [call.request for call in cluster.seen("ConsumerGroupHeartbeat")]
        released = next(one for one in said[::-1] if one.member_id == first.group.member_id)
        assert [sorted(one.partitions) for one in released.owned.topics] == [
            [key.partition for key in first.works_on]
        ]
        assert released.known_token == max(before.values()), "up to which it was told"
        for key, p in second.partitions.items():
            assert p.fencing_token > before[key]
        assert {key: p.fencing_token for key, p in first.partitions.items()} == {
            key: before[key] for key in first.works_on
        }
        assert first.what == [
            ("assigned", [0, 1, 2, 3]),
            ("revoked", [key.partition for key in moved]),
            ("assigned", []),
        ]
        await second.stop()
        await settled(cluster, first)
        await first.stop()


async def test_a_fenced_member_loses_everything_and_is_back_under_its_id(open_cluster):
    """Lost, not revoked; what was buffered never goes out."""
    async with open_cluster(1) as (cluster, client):
        worker = Worker(client, commit_interval_ms=3_600_000)
        await settled(cluster, worker)
        (member_id,) = cluster.modern["g"].members
        before = worker.partitions[T[0]]
        before.commit(5)
        cluster.remove_member("g", member_id)
        await until(lambda: len(worker.started) == 8)
        await settled(cluster, worker)
        assert list(cluster.modern["g"].members) == [member_id]
        assert worker.what[:2] == [("assigned", [0, 1, 2, 3]), ("lost", [0, 1, 2, 3])]
        assert worker.partitions[T[0]].fencing_token > before.fencing_token
        with pytest.raises(IllegalGeneration):
            before.commit(6)
        await worker.stop()
        assert T[0] not in cluster.groups["g"].offsets


async def test_a_partition_whose_token_changed_is_lost_alone(open_cluster):
    """Its task ends at once and another one begins; the others never stop."""
    async with open_cluster(1) as (cluster, client):
        worker = Worker(client, commit_interval_ms=3_600_000)
        await settled(cluster, worker)
        old = worker.partitions[T[1]]
        old.commit(5)
        group = cluster.modern["g"]
        (member,) = group.members.values()
        member.assigned[T[1]] = group._next_token()
        group._change(member)
        await until(lambda: len(worker.started) == 5)
        await worker.group.ready()
        assert worker.started == [0, 1, 2, 3, 1]
        assert worker.what == [
            ("assigned", [0, 1, 2, 3]),
            ("lost", [1]),
            ("assigned", [1]),
        ]
        assert worker.partitions[T[1]].fencing_token == group.fence
        await worker.stop()
        assert T[1] not in cluster.groups["g"].offsets, "work of the former grant is not committed"


async def test_the_stand_in_takes_no_release_of_what_the_member_was_not_told_of(open_cluster):
    """As a coordinator; who does not say what it was told of was told of everything."""
    async with open_cluster(1) as (cluster, client):
        worker = Worker(client)
        await settled(cluster, worker)
        modern = cluster.modern["g"]
        (member,) = modern.members.values()
        del member.assigned[T[1]]
        token = modern._next_token()
        for said, is_kept in (
            ({"known_token": token - 1}, True),
            ({"known_token": token}, False),
            ({}, False),
        ):
            member.revoking = {T[1]: token}
            beat = pb.ConsumerGroupHeartbeatRequest(group_id="g", **said)
            beat.owned.topics.add(topic="t", partitions=[0, 2, 3])
            modern._confirm(member, beat)
            assert (T[1] in member.revoking) is is_kept
        await worker.stop()


async def test_a_commit_under_a_token_that_is_over_fails_and_is_not_sent_again(open_cluster):
    """StaleMemberEpoch is an IllegalGeneration; partitions of the same commit are committed."""
    async with open_cluster(1, interval_ms=60_000) as (cluster, client):
        async with client.group("g", ["t"], assignment="server") as group:
            mine = await group.next_assignment()
            modern = cluster.modern["g"]
            (member,) = modern.members.values()
            member.assigned[T[1]] = modern._next_token()
            with pytest.raises(StaleMemberEpoch, match="committed: 1 of 2") as raised:
                await group.commit({T[0]: 1, T[1]: 1})
            assert isinstance(raised.value, IllegalGeneration)
            while (await group.next_assignment()).fencing_tokens.get(T[1]) != modern.fence:
                pass
            with pytest.raises(IllegalGeneration):
                await group.commit({T[1]: 2}, assignment=mine)
            await group.commit({T[0]: 2}, assignment=mine)
            await group.commit({T[1]: 3})
        stored = {key: one.value.offset for key, one in cluster.groups["g"].offsets.items()}
        assert stored == {T[0]: 2, T[1]: 3}


async def test_commits_count_until_the_listener_of_a_revocation_returns(open_cluster):
    """Under the tokens of what is given up."""

    class Last(Journal):
        async def revoked(self, group, assignment):
            await group.commit(dict.fromkeys(assignment.partitions, 9))

    async with open_cluster(1) as (cluster, client):
        first = Worker(client, listener=Last())
        await settled(cluster, first)
        second = Worker(client)
        await settled(cluster, first, second)
        assert {p.committed for p in second.partitions.values()} == {9}
        await first.stop()
        await second.stop()


async def test_a_member_that_is_away_keeps_its_partitions(open_cluster):
    """Its work is committed; it is back under new tokens, and the others notice nothing."""
    async with open_cluster(1) as (cluster, client):
        first, second = Worker(client, commit_interval_ms=3_600_000), Worker(client)
        await settled(cluster, first, second)
        mine, theirs = first.works_on, list(second.told)
        tokens = {key: p.fencing_token for key, p in first.partitions.items()}
        for p in first.partitions.values():
            p.commit(4)
        await first.group.away(back_in=30, reason="deploy")
        await first.running
        assert first.group.state == "Away"
        assert not first.group.is_ready
        assert first.works_on == []
        assert first.what[-1] == ("revoked", [key.partition for key in mine])
        last = cluster.seen("ConsumerGroupHeartbeat")[-1].request
        assert (last.member_epoch, last.back_in_ms, last.reason) == (-2, 30_000, "deploy")
        assert {cluster.groups["g"].offsets[key].value.offset for key in mine} == {4}
        with pytest.raises(GroupClosed):
            await first.group.ready()
        first.run()
        await until(lambda: first.works_on == mine)
        await settled(cluster, first, second)
        assert all(p.fencing_token > tokens[key] for key, p in first.partitions.items())
        assert second.told == theirs
        await first.group.away(back_in=30)
        await first.running
        calls = len(cluster.seen("ConsumerGroupHeartbeat"))
        await first.group.close()
        assert len(cluster.seen("ConsumerGroupHeartbeat")) == calls, "nothing more is said"
        await second.stop()


async def test_a_member_that_is_back_and_not_yet_joined_goes_away_again(open_cluster):
    """Its topics are being looked up still: SIGTERM with `back_in` ends it all the same."""
    async with open_cluster(1) as (cluster, client):
        worker = Worker(client)
        await settled(cluster, worker)
        await worker.group.away(back_in=30)
        await worker.running
        worker.run()
        await asyncio.sleep(0)
        assert worker.group.state == "Away"
        await worker.group.away(back_in=30)
        await worker.running
        (member,) = cluster.modern["g"].members.values()
        assert member.away_until is not None
        worker.run()
        await settled(cluster, worker)
        await worker.stop()


async def test_a_member_that_has_failed_does_not_go_away(open_cluster):
    """The call raises why: there is no member whose partitions could be kept."""
    async with open_cluster(1) as (cluster, client):
        cluster.script("ConsumerGroupHeartbeat", Refuse(ErrorCode.FENCED_INSTANCE_ID, "no"))
        async with client.group("g", ["t"], assignment="server") as group:
            with pytest.raises(FencedInstanceId):
                await group.next_assignment()
            with pytest.raises(FencedInstanceId):
                await group.away(back_in=30)


async def test_a_member_that_was_removed_before_it_goes_away_is_told_so(open_cluster):
    """Nobody keeps its partitions for it, so a deploy would move them."""
    async with open_cluster(1) as (cluster, client):
        worker = Worker(client)
        await settled(cluster, worker)
        cluster.script("ConsumerGroupHeartbeat", Refuse(ErrorCode.UNKNOWN_MEMBER_ID, "no such"))
        with pytest.raises(UnknownMemberId):
            await worker.group.away(back_in=30)
        await worker.running


async def test_a_member_that_closes_while_it_loses_its_partitions_leaves_no_task_behind(
    open_cluster,
):
    """Its listener is told slowly of a deleted topic; closing begins meanwhile, and once."""
    async with open_cluster(1) as (cluster, client):
        told, go_on = asyncio.Event(), asyncio.Event()

        class Slow(Journal):
            async def lost(self, group, assignment):
                super().lost(group, assignment)
                told.set()
                await go_on.wait()

        worker = Worker(client, listener=(journal := Slow()))
        await settled(cluster, worker)
        await client.delete_topic("t")
        await told.wait()
        worker.group.stop()
        await asyncio.sleep(0)
        go_on.set()
        await worker.running
        assert [what for what, *_ in journal.told] == ["assigned", "lost", "revoked"]


async def test_a_worker_that_is_told_to_end_is_away(open_cluster):
    """SIGTERM, with `back_in`: its work is committed, and nothing is said when it closes."""
    async with open_cluster(1) as (cluster, client):
        group = client.group("g", ["t"], assignment="server", group_instance_id="i")
        begun = []

        @group.on_partition
        async def work(p):
            p.commit(p.id)
            begun.append(p.id)
            if len(begun) == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

        await group.run(back_in=60)
        await group.close()
        (member,) = cluster.modern["g"].members.values()
        assert member.away_until is not None
        assert len(member.assigned) == 4
        last = cluster.seen("ConsumerGroupHeartbeat")[-1].request
        assert (last.member_epoch, last.back_in_ms) == (-2, 60_000)
        stored = {
            key.partition: one.value.offset for key, one in cluster.groups["g"].offsets.items()
        }
        assert stored == {0: 0, 1: 1, 2: 2, 3: 3}
        with pytest.raises(InvalidRequest):
            await client.group("g", ["t"]).run(back_in=1)


async def test_a_static_member_that_closes_is_back_where_it_was(open_cluster):
    """The new process has another id; a second one at a time waits, and then it is too many."""
    async with open_cluster(1) as (cluster, client):
        options = {"assignment": "server", "group_instance_id": "i", "session_timeout_ms": 1_000}
        other = Worker(client)
        static = client.group("g", ["t"], **options)
        while len((await static.next_assignment()).partitions) != 2:
            pass
        mine = static.assignment
        await static.close()
        again = client.group("g", ["t"], **options)
        back = await again.next_assignment()
        assert back.partitions == mine.partitions
        assert back.member_id != mine.member_id
        assert all(back.token(key) > mine.token(key) for key in mine.partitions)
        third = client.group("g", ["t"], **options)
        with pytest.raises(UnreleasedInstanceId):
            await third.next_assignment()
        await third.close()
        await again.close(leave=True)
        await settled(cluster, other)
        await other.stop()


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (Refuse(ErrorCode.FENCED_INSTANCE_ID, "no"), FencedInstanceId),
        (Refuse(ErrorCode.INVALID_REQUEST, "no"), InvalidRequest),
        (Refuse(ErrorCode.UNSUPPORTED_VERSION, "no"), UnsupportedVersion),
        (Abort(grpc.StatusCode.UNIMPLEMENTED, "no"), UnsupportedVersion),
    ],
)
async def test_what_joining_again_does_not_mend_is_raised(open_cluster, step, error):
    """With its message: a cluster that has no such groups yet, too."""
    async with open_cluster(1) as (cluster, client):
        cluster.script("ConsumerGroupHeartbeat", step)
        async with client.group("g", ["t"], assignment="server") as group:
            with pytest.raises(error, match="no"):
                await group.next_assignment()
            with pytest.raises(error, match="no"):
                await group.ready()


async def test_members_live_through_a_failover(open_cluster):
    """Nothing moves, and no token changes."""
    async with open_cluster(3) as (cluster, client):
        workers = [Worker(client), Worker(client)]
        await settled(cluster, *workers)
        fence = cluster.modern["g"].fence
        await cluster.kill(cluster.leader)
        for worker in workers:
            for p in worker.partitions.values():
                p.commit(3)
        await until(lambda: len(cluster.groups["g"].offsets) == 4)
        await settled(cluster, *workers)
        assert cluster.modern["g"].fence == fence
        assert [len(worker.started) for worker in workers[1:]] == [2]
        for worker in workers:
            await worker.stop()


async def test_a_late_call_does_not_bring_former_topics_back(open_cluster):
    """The test cluster tells by the member's count of what it says, as a coordinator does."""
    async with (
        open_cluster(1, topics={"t": 1, "u": 1}) as (cluster, client),
        client.group("g", ["t"], assignment="server") as group,
    ):
        await group.next_assignment()
        (member,) = cluster.modern["g"].members.values()
        assert member.subscription_seq == 1
        await group.subscribe(["u"])
        while (await group.next_assignment()).partitions != (muster.TopicPartition("u", 0),):
            pass
        assert (member.topics, member.subscription_seq) == (("u",), 2)
        for seq, says, reads in ((1, "t", "u"), (2, "t", "t"), (0, "u", "u"), (3, "t", "t")):
            beat = pb.ConsumerGroupHeartbeatRequest(member_epoch=1, subscription_seq=seq)
            beat.topics.names.append(says)
            cluster.modern["g"]._says(member, beat)
            assert member.topics == (reads,)
        assert member.subscription_seq == 3


async def test_a_join_that_comes_late_takes_nothing_from_a_member(open_cluster):
    """Each join has a number: what was taken before, or is older, changes nothing."""
    async with open_cluster(1) as (cluster, client):
        first = Worker(client)
        await settled(cluster, first)
        await first.group.away(back_in=30)
        await first.running
        first.run()
        await settled(cluster, first)
        join, away, again = (
            call.request
            for call in cluster.seen("ConsumerGroupHeartbeat")
            if call.request.member_epoch <= 0
        )
        assert (join.subscription_seq, away.subscription_seq, again.subscription_seq) == (1, 1, 2)
        (member,) = cluster.modern["g"].members.values()
        tokens, fenced = dict(member.assigned), ErrorCode.FENCED_MEMBER_EPOCH
        for late, code in ((join, fenced), (away, fenced), (again, 0)):
            assert cluster.modern["g"].heartbeat(late).status.code == code
        assert (member.assigned, member.away_until) == (tokens, None)
        await first.group.away(back_in=30)
        await first.running
        assert cluster.modern["g"].heartbeat(again).status.code == ErrorCode.FENCED_MEMBER_EPOCH
        assert member.away_until is not None


async def test_a_subscription_changes_and_topics_go(open_cluster):
    """It goes on with what it keeps; one call is open at a time."""
    async with open_cluster(1, topics={"t": 4, "u": 1}) as (cluster, client):
        async with client.group("g", ["t"], assignment="server") as group:
            mine = await group.next_assignment()
            assert mine.partitions == tuple(T)
            await group.subscribe(["t", "u"])
            u = muster.TopicPartition("u", 0)
            both = await group.next_assignment()
            assert both.partitions == (*T, u)
            await client.delete_topic("t")
            while (await group.next_assignment()).partitions != (u,):
                pass
            assert group.assignment.token(u) == both.token(u)
        assert cluster.most_open["ConsumerGroupHeartbeat"] == 1


async def test_both_protocols_use_one_program(open_cluster):
    """`ready`, `phase` and `token` are there in classic groups; `away` is not."""
    async with open_cluster(1) as (_, client), client.group("g", ["t"]) as group:
        mine = await group.next_assignment()
        await group.ready()
        assert mine.token(T[0]) == mine.fencing_token
        with pytest.raises(InvalidRequest, match="coordinator assigns"):
            await group.away(back_in=3)


@pytest.mark.parametrize(
    "options",
    [
        {"assignment": "nobody"},
        {"capacity": 2},
        {"assignment": "server", "assignor": ["range"]},
        {"assignment": "server", "user_data": b"x"},
        {"assignment": "server", "capacity": 0},
        {"assignment": "server", "capacity": 1000.001},
        {"assignment": "server", "capacity": float("inf")},
        {"assignment": "server", "capacity": float("nan")},
        {"assignment": "server", "topics": []},
    ],
)
async def test_arguments_that_cannot_be_are_refused_when_given(open_cluster, options):
    """Before anything is sent."""
    async with open_cluster(1) as (cluster, client):
        with pytest.raises(InvalidConfig):
            client.group("g", options.pop("topics", ["t"]), **options)
        assert not cluster.calls


async def test_a_member_whose_process_ends_without_a_word_is_removed(open_cluster):
    """After its session; the other one gets everything."""
    async with open_cluster(1, interval_ms=100) as (cluster, client):
        survivor = Worker(client)
        await settled(cluster, survivor)
        crashing = client.group("g", ["t"], assignment="server", session_timeout_ms=1_000)
        while len((await crashing.next_assignment()).partitions) != 2:
            pass
        crashing._stop_heartbeat()
        await settled(cluster, survivor)
        with contextlib.suppress(muster.MusterError):
            await crashing.close()
        await survivor.stop()


def test_the_kit_lists_describes_and_keeps_groups_whose_coordinator_assigns():
    """As a node does: every grant with its token; a group with members is not deleted."""

    async def seen():
        async with muster.testing.Cluster() as cluster, muster.Client(cluster.bootstrap) as client:
            await client.create_topic("t", 4)
            group = client.group("g", ["t"], assignment="server")
            held = await group.next_assignment()
            (listed,) = await client.list_groups()
            told = await client.describe_group("g")
            assert (listed.state, told.state, told.type) == ("Stable", "Stable", "consumer")
            (member,) = told.members
            assert {g.partition: g.fencing_token for g in member.grants} == held.fencing_tokens
            assert list((await client.delete_groups(["g"])).values()) != [None]
            await group.close()

    asyncio.run(seen())
