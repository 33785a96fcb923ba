"""A group as its user sees it: assignments, revoked apart from lost, commits, closing."""

import asyncio
import functools

import pytest

from muster import Client, OffsetAndMetadata, RebalanceListener, TopicPartition, timeouts
from muster.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    GroupClosed,
    GroupMaxSizeReached,
    IllegalGeneration,
    InvalidConfig,
    InvalidRequest,
    MusterError,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from muster.testing import Hang, Refuse
from muster.v1 import group_pb2
from tests.client.listeners import Calls, Journal

T = [TopicPartition("t", i) for i in range(4)]


async def test_members_share_the_partitions_and_take_over_what_is_left(open_cluster):
    """One has all; two have halves; the other leaves, and one has all again. Tokens only rise."""
    async with open_cluster(1) as (_, client):
        first = client.group("g", ["t"])
        alone = await first.next_assignment()
        async with client.group("g", ["t"]) as second:
            mine, theirs = await asyncio.gather(first.next_assignment(), second.next_assignment())
            assert sorted(mine.partitions + theirs.partitions) == T
            assert len(mine.partitions) == len(theirs.partitions) == 2
        again = await first.next_assignment()
        assert alone.partitions == again.partitions == tuple(T)
        tokens = [alone.fencing_token, mine.fencing_token, again.fencing_token]
        assert tokens == sorted(set(tokens))
        assert len({alone.member_id, mine.member_id, again.member_id}) == 1


async def test_revoked_in_good_order_is_not_lost(open_cluster):
    """A rebalance and a close revoke; commits in the listener still count."""
    async with open_cluster(1) as (cluster, client):

        async def revoked(group, assignment):
            await group.commit({assignment.partitions[0]: 10 + assignment.generation})
            journal.lines.append(("revoked", assignment.generation))

        journal = Journal(revoked=revoked)
        group = client.group("g", ["t"], listener=journal)
        await group.next_assignment()
        second = client.group("g", ["t"])
        await asyncio.gather(group.next_assignment(), second.next_assignment())
        assert cluster.groups["g"].offsets[T[0]].value.offset == 11
        await second.close()
        await group.next_assignment()
        await group.close()
        generations = [1, 2, 3]
        assert journal.lines == [
            (what, generation) for generation in generations for what in ("assigned", "revoked")
        ]


async def test_lost_is_told_apart_from_revoked_and_nothing_is_committed(open_cluster):
    """The session ended: lost, commits are refused, and the next membership is a new one."""
    async with open_cluster(1) as (cluster, client):
        refused = []

        async def lost(group, assignment):
            journal.lines.append(("lost", assignment.generation))
            with pytest.raises(IllegalGeneration) as caught:
                await group.commit({T[0]: 1}, assignment=assignment)
            refused.append(caught.value)

        journal = Journal(lost=lost)
        group = client.group("g", ["t"], listener=journal)
        first = await group.next_assignment()
        cluster.remove_member("g", first.member_id)
        second = await group.next_assignment()
        assert journal.lines == [("assigned", 1), ("lost", 1), ("assigned", second.generation)]
        assert second.member_id != first.member_id
        assert second.generation > first.generation
        assert not cluster.seen("OffsetCommit")
        assert len(refused) == 1


async def test_a_commit_that_is_fenced_raises_and_the_member_joins_again(open_cluster):
    """UNKNOWN_MEMBER_ID on a commit: raised, what was owned is lost, a new membership follows."""
    async with open_cluster(1, interval_ms=3_600_000) as (cluster, client):
        journal = Journal()
        group = client.group("g", ["t"], session_timeout_ms=3_000, listener=journal)
        first = await group.next_assignment()
        cluster.script("OffsetCommit", Refuse(ErrorCode.UNKNOWN_MEMBER_ID))
        with pytest.raises(UnknownMemberId):
            await group.commit({T[0]: 1})
        second = await group.next_assignment()
        assert second.member_id != first.member_id
        assert ("lost", 1) in journal.lines


async def test_a_commit_during_a_rebalance_makes_the_member_rejoin(open_cluster):
    """REBALANCE_IN_PROGRESS: raised as retriable; the partitions are revoked, not lost."""
    async with open_cluster(1, interval_ms=3_600_000) as (cluster, client):
        journal = Journal()
        group = client.group("g", ["t"], listener=journal)
        await group.next_assignment()
        cluster.script("OffsetCommit", Refuse(ErrorCode.REBALANCE_IN_PROGRESS))
        with pytest.raises(RebalanceInProgress) as caught:
            await group.commit({T[0]: 1})
        assert caught.value.retriable
        await group.next_assignment()
        assert ("revoked", 1) in journal.lines
        assert ("lost", 1) not in journal.lines


async def test_only_owned_partitions_are_committed(open_cluster):
    """What this member does not own, or owned under an older assignment, does not go out."""
    async with open_cluster(1) as (cluster, client):
        first, second = client.group("g", ["t"]), client.group("g", ["t"])
        old = await first.next_assignment()
        mine, theirs = await asyncio.gather(first.next_assignment(), second.next_assignment())
        with pytest.raises(IllegalGeneration, match=str(theirs.partitions[0])):
            await first.commit({theirs.partitions[0]: 1})
        with pytest.raises(IllegalGeneration, match="generation 1 is over"):
            await first.commit({mine.partitions[0]: 1}, assignment=old)
        assert not cluster.seen("OffsetCommit")
        await first.commit({mine.partitions[0]: 1}, assignment=mine)


async def test_one_commit_is_in_flight_and_numbers_rise(open_cluster):
    """Ten at once: they go out one after the other, each under the next commit_seq."""
    async with open_cluster(1) as (cluster, client):
        group = client.group("g", ["t"])
        await group.next_assignment()
        results = await asyncio.gather(*(group.commit({T[0]: i}) for i in range(10)))
        assert [r.commit_seq for r in results] == list(range(1, 11))
        assert [c.request.commit_seq for c in cluster.seen("OffsetCommit")] == list(range(1, 11))
        assert cluster.most_open["OffsetCommit"] == 1
        assert client.counters.commits_acknowledged == 10


async def test_superseded_is_no_acknowledgement(open_cluster):
    """The coordinator holds a newer commit of this member: said apart, per partition."""
    async with open_cluster(1) as (cluster, client):
        group = client.group("g", ["t"])
        await group.next_assignment()
        answer = group_pb2.OffsetCommitResponse()
        answer.partitions.add(topic="t", partition=0, superseded=True)
        answer.partitions.add(topic="t", partition=1)
        cluster.script("OffsetCommit", answer)
        result = await group.commit({T[0]: 5, T[1]: 6})
        assert result.superseded == {T[0]: 5}
        assert result.acknowledged == {T[1]: 6}


async def test_a_partition_without_an_answer_is_not_acknowledged(open_cluster):
    """A response that lacks a partition is an error, never a silent success."""
    async with open_cluster(1) as (cluster, client):
        group = client.group("g", ["t"])
        await group.next_assignment()
        cluster.script("OffsetCommit", group_pb2.OffsetCommitResponse())
        with pytest.raises(Exception, match="no answer for t-0"):
            await group.commit({T[0]: 5})


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_a_commit_that_waits_counts_under_the_assignment_of_its_call(open_cluster, assignor):
    """Its partition goes and comes back meanwhile: what the owner between stored is kept."""
    async with open_cluster(1) as (cluster, client):
        group = client.group("g", ["t"], assignor=assignor)
        await group.next_assignment()
        async with group._committer._lock:  # as while another commit is in flight
            waiting = asyncio.create_task(group.commit(dict.fromkeys(T, 5)))
            await asyncio.sleep(0)
            async with client.group("g", ["t"], assignor=assignor) as second:
                shares = [asyncio.create_task(_shared(one)) for one in (group, second)]
                _, theirs = await asyncio.gather(*shares)
                await second.commit({theirs.partitions[0]: 200})
            while len((await group.next_assignment()).partitions) < len(T):
                pass
        with pytest.raises(IllegalGeneration):
            await waiting
        assert cluster.groups["g"].offsets[theirs.partitions[0]].value.offset == 200


async def _shared(group):
    """The first assignment of half of the partitions."""
    while len((found := await group.next_assignment()).partitions) != len(T) // 2:
        pass
    return found


async def test_a_refused_partition_is_named_and_the_others_are_committed(open_cluster):
    """One of two has too much metadata: the error says which, and how many were taken."""
    async with open_cluster(1) as (cluster, client):
        group = client.group("g", ["t"])
        await group.next_assignment()
        answer = group_pb2.OffsetCommitResponse()
        answer.partitions.add(topic="t", partition=0)
        bad = answer.partitions.add(topic="t", partition=1)
        bad.status.code = ErrorCode.OFFSET_METADATA_TOO_LARGE
        cluster.script("OffsetCommit", answer)
        with pytest.raises(OffsetMetadataTooLarge, match=r"refused: t-1; committed: 1 of 2"):
            await group.commit({T[0]: 5, T[1]: OffsetAndMetadata(6, "x" * 5000)})


async def test_an_unknown_partition_is_tried_again_while_registries_catch_up(open_cluster):
    """UNKNOWN_TOPIC_OR_PARTITION once, then the answer: acknowledged, with the same bytes."""
    async with open_cluster(1) as (cluster, client):
        group = client.group("g", ["t"])
        await group.next_assignment()
        answer = group_pb2.OffsetCommitResponse()
        late = answer.partitions.add(topic="t", partition=0)
        late.status.code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        cluster.script("OffsetCommit", answer)
        assert (await group.commit({T[0]: 5})).acknowledged == {T[0]: 5}
        assert len({c.request.SerializeToString() for c in cluster.seen("OffsetCommit")}) == 1


@pytest.mark.parametrize("offsets", [{}, {T[0]: -1}])
async def test_a_commit_that_makes_no_sense_is_refused_here(open_cluster, offsets):
    """Nothing to commit, or a negative offset."""
    async with open_cluster(1) as (cluster, client):
        group = client.group("g", ["t"])
        await group.next_assignment()
        with pytest.raises(InvalidRequest):
            await group.commit(offsets)
        assert not cluster.seen("OffsetCommit")


async def test_the_user_reads_before_it_commits_under_a_later_coordinator(open_cluster):
    """on_coordinator_change runs before another commit goes out, retries of one in flight too."""
    async with open_cluster(3) as (cluster, client):
        read = []

        async def changed(change):
            read.append((change, await group.committed([T[0]])))
            assert not [c for c in cluster.seen("OffsetCommit") if c.node_id != 1]
            with pytest.raises(InvalidRequest, match="may read, not commit"):
                await group.commit({T[0]: 99})

        group = client.group("g", ["t"], on_coordinator_change=changed)
        await group.next_assignment()
        await group.commit({T[0]: 1})
        assert not read
        cluster.script("OffsetCommit", Hang())
        commit = asyncio.create_task(group.commit({T[0]: 2}))
        await cluster.until(lambda: len(cluster.seen("OffsetCommit")) == 2)
        await cluster.kill(1)
        assert (await commit).acknowledged == {T[0]: 2}
        ((change, committed),) = read
        assert (change.old.term, change.new.term) == (1, 2)
        assert committed.offset(T[0]) == 1
        assert committed.term == 2


async def test_committed_says_where_nothing_was_committed(open_cluster):
    """None for a partition without an offset; what is there comes with metadata and generation."""
    async with open_cluster(1) as (_, client), client.group("g", ["t"]) as group:
        await group.next_assignment()
        await group.commit({T[1]: OffsetAndMetadata(3, "note", end_offset=9, start_offset=2)})
        found = await group.committed([T[0], T[1]])
        assert found[T[0]] is None
        assert found.offset(T[0]) is None
        stored = found[T[1]]
        assert (stored.offset, stored.metadata) == (3, "note")
        assert (stored.start_offset, stored.end_offset) == (2, 9)
        assert stored.generation == 1
        assert set(await group.committed()) == {T[1]}


async def test_committed_follows_the_pages(open_cluster):
    """All of 1,100 offsets, and 1,200 named partitions, of which 100 have none: once each."""
    async with open_cluster(1, topics={"t": 1_200}) as (_, client):
        keys = [TopicPartition("t", i) for i in range(1_200)]
        await client.commit_offsets("g", {key: key.partition for key in keys[:1_000]})
        await client.commit_offsets("g", {key: key.partition for key in keys[1_000:1_100]})
        everything = await client.committed("g")
        assert {key: everything.offset(key) for key in everything} == {
            key: key.partition for key in keys[:1_100]
        }
        named = await client.committed("g", keys)
        assert set(named) == set(keys)
        assert [key.partition for key in keys if named[key] is None] == list(range(1_100, 1_200))
        assert dict(await client.committed("g", [])) == {}
        assert dict(await client.committed("nobody's")) == {}


async def test_a_partition_without_an_answer_is_not_taken_for_an_uncommitted_one(open_cluster):
    """Otherwise its owner would begin anew."""
    async with open_cluster(1) as (cluster, client):
        await client.commit_offsets("g", {T[0]: 1})
        one = group_pb2.OffsetFetchResponse.Partition(topic="t", partition=0, offset=1)
        cluster.script("OffsetFetch", group_pb2.OffsetFetchResponse(partitions=[one], term=1))
        with pytest.raises(MusterError, match="no answer for t-1"):
            await client.committed("g", T[:2])
        cluster.script("OffsetFetch", group_pb2.OffsetFetchResponse(more=True, term=1))
        with pytest.raises(MusterError, match="gives none"):
            await client.committed("g")


async def test_a_topic_that_does_not_exist_is_said_before_joining(open_cluster):
    """An idle member would be the alternative."""
    async with open_cluster(1) as (cluster, client):
        group = client.group("g", ["missing"])
        with pytest.raises(UnknownTopicOrPartition, match="missing"):
            await group.next_assignment()
        assert not cluster.seen("JoinGroup")


async def test_a_topic_that_comes_late_is_waited_for(open_cluster):
    """A registry copy may lag behind the create_topic that was acknowledged elsewhere."""
    async with open_cluster(1) as (cluster, client):
        group = client.group("g", ["late"])
        joining = asyncio.create_task(group.next_assignment())
        await cluster.until(lambda: bool(cluster.seen("DescribeTopics")))
        cluster.topics["late"] = 1
        assert (await joining).partitions == (TopicPartition("late", 0),)


async def test_a_topic_that_was_there_is_not_looked_for_again(open_cluster):
    """It was deleted: the group's other partitions do not wait for it, in no later round either."""
    async with open_cluster(1, topics={"t": 1, "gone": 1}) as (cluster, client):
        async with client.group("g", ["t", "gone"]) as group:
            assert len((await group.next_assignment()).partitions) == 2
            await client.delete_topic("gone")
            assert (await group.next_assignment()).partitions == (T[0],)
            await client.add_partitions("t", 2)
            assert (await group.next_assignment()).partitions == (T[0], T[1])
        assert len(cluster.seen("JoinGroup")) == 3


async def test_a_cluster_that_cannot_say_whether_a_topic_exists_is_waited_for(open_cluster):
    """A fleet that starts while nodes are away joins when they are back, as its Joins would."""
    options = {"request_timeout_ms": 200}
    async with open_cluster(1, client=options) as (cluster, client):
        cluster.script("DescribeTopics", Hang(), Hang())
        async with client.group("g", ["t"]) as group:
            assert (await group.next_assignment()).partitions == tuple(T)
        assert len(cluster.seen("DescribeTopics")) >= 3


async def test_a_cluster_that_is_not_there_is_not_waited_for_for_ever(open_cluster, monkeypatch):
    """A wrong address is said, after as long as a Join waits.

    By which error depends on whether an attempt to connect was open when the time was up.
    """
    monkeypatch.setattr(timeouts, "START_MS", 300)
    options = {"request_timeout_ms": 200}
    async with open_cluster(1, client=options) as (cluster, client):
        await cluster.kill(1)
        group = client.group("g", ["t"])
        with pytest.raises((CoordinatorNotAvailable, RequestTimedOut), match=cluster.bootstrap):
            await group.next_assignment()


async def test_a_fatal_refusal_is_raised_and_closing_still_works(open_cluster):
    """GROUP_MAX_SIZE_REACHED: by next_assignment, each time it is asked."""
    async with open_cluster(1) as (cluster, client):
        async with client.group("g", ["t"]) as group:
            cluster.script("JoinGroup", Refuse(ErrorCode.GROUP_MAX_SIZE_REACHED, "full"))
            for _ in range(2):
                with pytest.raises(GroupMaxSizeReached, match="full"):
                    await group.next_assignment()
        assert group.state == "Left"


class Works:
    """A handler in each of the forms that one may have."""

    def __call__(self, p): ...

    def method(self, p): ...

    async def coroutine(self, more, p): ...


class Coroutine:
    """A handler that is an object."""

    async def __call__(self, p): ...


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (Works().method, "method"),
        (lambda _: Works().coroutine(1, 2), "<lambda>"),
        (functools.partial(Works.method, Works()), "method"),
        (functools.partial(functools.partial(Works()), 1), "Works"),
        (Works(), "Works"),
        (Works, "Works"),
        (functools.partial(Works().coroutine, 1), None),
        (Coroutine(), None),
        (functools.partial(Coroutine(), 1), None),
    ],
)
async def test_a_synchronous_handler_is_refused_when_it_is_given(open_cluster, given, name):
    """It would hold up the loop, heartbeats included, and fail at its first partition."""
    async with open_cluster(1) as (_, client):
        tasks = client.tasks("g")
        for decorate in (client.group("g", ["t"]).on_partition, tasks.on_task):
            if name is None:
                assert decorate(given) is given
                continue
            with pytest.raises(InvalidRequest, match=f"{name!r} is no coroutine function"):
                decorate(given)


@pytest.mark.parametrize("what", ["assigned", "revoked", "lost"])
async def test_what_a_listener_raises_closes_the_group_and_is_raised(open_cluster, what):
    """The user's error is the user's to see; the member leaves."""
    async with open_cluster(1) as (cluster, client):

        def fail(_group, _assignment):
            raise LookupError(what)

        group = client.group("g", ["t"], listener=Calls(**{what: fail}))
        if what != "assigned":
            first = await group.next_assignment()
            if what == "lost":
                cluster.remove_member("g", first.member_id)
            else:
                other = client.group("g", ["t"])
                asyncio.get_running_loop().call_soon(
                    lambda: joins.append(asyncio.ensure_future(other.next_assignment()))
                )
        joins = []
        with pytest.raises(LookupError, match=what):
            await group.next_assignment()
        await group.close()
        members = list(cluster.groups["g"].members)
        assert group.member_id not in members
        for join in joins:
            await join


class Broken(RebalanceListener):
    """A listener that fails."""

    async def assigned(self, group, assignment):
        """Two lines, the second one is not told."""
        raise LookupError("no table\npassword=x")


def fails(shares, topics):
    """An assignor of one's own that fails."""
    raise LookupError("no table\npassword=x")


async def by_a_task(client):
    """The coroutine of a partition."""
    group = client.group("g", ["t"])

    @group.on_partition
    async def work(p):
        raise LookupError("no table\npassword=x")

    await group.run()


async def by_a_listener(client):
    """It is told of an assignment."""
    async with client.group("g", ["t"], listener=Broken()) as group:
        await group.next_assignment()


async def by_the_caller(client):
    """The block that uses the group."""
    async with client.group("g", ["t"]) as group:
        await group.next_assignment()
        raise LookupError("no table\npassword=x")


async def by_an_assignor(client):
    """The group leader's."""
    async with client.group("g", ["t"], assignor=fails) as group:
        await group.next_assignment()


@pytest.mark.parametrize("end", [by_a_task, by_a_listener, by_the_caller, by_an_assignor])
async def test_a_member_that_ends_on_an_error_leaves_with_it(open_cluster, end):
    """What the others' next round names as its reason: the class, the first line, no more."""
    async with open_cluster(1) as (cluster, client):
        with pytest.raises((LookupError, MusterError)):
            await end(client)
        (leave,) = cluster.seen("LeaveGroup")
        reason = leave.request.members[0].reason
        assert "LookupError: no table" in reason
        assert "password" not in reason


async def test_the_reason_to_stop_is_the_first_one(open_cluster):
    """Closing afterwards, as `run` does, does not cover it up."""
    async with open_cluster(1) as (cluster, client):
        async with client.group("g", ["t"]) as group:
            await group.next_assignment()
            group.stop("scaled in")
        (leave,) = cluster.seen("LeaveGroup")
        assert leave.request.members[0].reason == "scaled in"


async def test_close_leaves_and_ends_what_waits(open_cluster):
    """Leave with its reason reaches the coordinator; a waiting next_assignment gets GroupClosed."""
    async with open_cluster(1) as (cluster, client):
        group = client.group("g", ["t"])
        await group.next_assignment()
        waiting = asyncio.create_task(group.next_assignment())
        await asyncio.sleep(0)
        await group.close()
        with pytest.raises(GroupClosed):
            await waiting
        with pytest.raises(GroupClosed):
            await group.commit({T[0]: 1})
        (leave,) = cluster.seen("LeaveGroup")
        assert leave.request.members[0].reason == "closed by the application"
        assert not cluster.groups["g"].members
        await group.close()


async def test_close_while_joining_leaves_no_ghost(open_cluster):
    """The first Join is parked: closing takes the member out under the id it will have."""
    async with open_cluster(1, initial_delay_ms=3_600_000) as (cluster, client):
        group = client.group("g", ["t"])
        joining = asyncio.create_task(group.next_assignment())
        await cluster.until(lambda: cluster.open_calls["JoinGroup"] == 1)
        await group.close()
        with pytest.raises(GroupClosed):
            await joining
        assert not cluster.groups["g"].members
        await cluster.until(lambda: cluster.open_calls["JoinGroup"] == 0)


async def test_close_without_a_cluster_ends(open_cluster):
    """Nobody answers Leave: closing gives up on it."""
    async with open_cluster(1) as (cluster, client):
        group = client.group("g", ["t"])
        await group.next_assignment()
        await cluster.kill(1)
        await group.close()
        assert group.state == "Left"


async def test_close_in_a_listener_does_not_wait_for_itself(open_cluster):
    """It begins to close, and closing is complete soon after."""
    async with open_cluster(1) as (cluster, client):

        async def enough(group, _assignment):
            await group.close()

        group = client.group("g", ["t"], listener=Calls(assigned=enough))
        with pytest.raises(GroupClosed):
            await group.next_assignment()
        await group.close()
        assert not cluster.groups["g"].members


async def test_an_open_round_survives_the_coordinator(open_cluster):
    """The Join is parked when the leader dies: the retry elsewhere is the same member."""
    async with open_cluster(3) as (cluster, client):
        blocker = client.group("g", ["t"], listener=Calls(revoked=lambda *_: stay.wait()))
        stay = asyncio.Event()
        await blocker.next_assignment()
        group = client.group("g", ["t"])
        joining = asyncio.create_task(group.next_assignment())
        await cluster.until(lambda: len(cluster.groups["g"].members) == 2)
        await cluster.kill(cluster.leader)
        await cluster.until(
            lambda: any(c.node_id == cluster.leader for c in cluster.seen("JoinGroup"))
        )
        stay.set()
        await asyncio.gather(joining, blocker.next_assignment())
        assert len(cluster.groups["g"].members) == 2
        assert cluster.groups["g"].generation == 2


async def test_a_long_round_is_parked_again(open_cluster):
    """The server lets Join and Sync go after its longest park: the member parks again."""
    async with open_cluster(1, longest_park_ms=50) as (cluster, client):
        stay = asyncio.Event()
        blocker = client.group("g", ["t"], listener=Calls(revoked=lambda *_: stay.wait()))
        await blocker.next_assignment()
        group = client.group("g", ["t"])
        joining = asyncio.create_task(group.next_assignment())
        await cluster.until(lambda: len(cluster.seen("JoinGroup")) >= 4)
        stay.set()
        await asyncio.gather(joining, blocker.next_assignment())
        nonces = {c.request.join_nonce for c in cluster.seen("JoinGroup")}
        assert len(nonces) == 2


async def test_a_crashed_member_is_replaced_after_its_session(open_cluster):
    """No Leave, no heartbeat: its partitions go to the one that lives."""
    async with open_cluster(1, interval_ms=100) as (_, client):
        survivor = client.group("g", ["t"])
        await survivor.next_assignment()
        crashing = client.group("g", ["t"], session_timeout_ms=3_000)
        await asyncio.gather(survivor.next_assignment(), crashing.next_assignment())
        crashing._stop_heartbeat()
        assert (await survivor.next_assignment()).partitions == tuple(T)


async def test_simple_commits_are_for_groups_without_members(open_cluster):
    """Generation -1 is taken while nobody is in the group, and refused while somebody is."""
    async with open_cluster(1) as (_, client):
        result = await client.commit_offsets("g", {T[0]: 4})
        assert result.acknowledged == {T[0]: 4}
        assert (await client.committed("g", [T[0]])).offset(T[0]) == 4
        async with client.group("g", ["t"]) as group:
            await group.next_assignment()
            with pytest.raises(UnknownMemberId):
                await client.commit_offsets("g", {T[0]: 5})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", ["t"], {}), "group_id"),
        (("g" * 250, ["t"], {}), "250 bytes"),
        (("g", [], {}), "topics"),
        (("g", "t", {}), "topics"),
        (("g", ["t"], {"assignor": "nope"}), "no assignor 'nope'"),
        (("g", ["t"], {"assignor": []}), "at least one"),
        (("g", ["t"], {"assignor": ["range", "range"]}), "twice"),
        (("g", ["t"], {"session_timeout_ms": 0}), "session_timeout_ms is 0 ms"),
        (("g", ["t"], {"rebalance_timeout_ms": 2**31}), "rebalance_timeout_ms is 2147483648 ms"),
        (("g", ["t"], {"commit_interval_ms": -5}), "commit_interval_ms is -5 ms"),
    ],
)
async def test_arguments_that_cannot_be_are_refused_when_given(open_cluster, arguments, message):
    """With a clear word, before anything is sent."""
    group_id, topics, options = arguments
    async with open_cluster(1) as (cluster, client):
        with pytest.raises(InvalidConfig, match=message):
            client.group(group_id, topics, **options)
        assert not cluster.calls


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client_id": ""}, "client_id has 0 bytes; 1 to 216 are possible"),
        ({"client_id": "c" * 217}, "client_id has 217 bytes"),
        ({"request_timeout_ms": 0}, "request_timeout_ms is 0 ms"),
        ({"request_timeout_ms": 2**31}, "request_timeout_ms is 2147483648 ms"),
    ],
)
def test_a_clients_arguments_that_cannot_be_are_refused_when_it_is_made(options, message):
    """With the bounds."""
    with pytest.raises(InvalidConfig, match=message):
        Client("127.0.0.1:1", **options)


async def test_values_at_their_bounds_join_and_those_beyond_are_refused_everywhere(open_cluster):
    """The longest client id makes a member id that is possible; tasks and handlers are checked."""
    at_bounds = {"client_id": "c" * 216, "request_timeout_ms": 2**31 - 1}
    async with open_cluster(1, client=at_bounds) as (_, client):
        options = {"rebalance_timeout_ms": 2**31 - 1, "commit_interval_ms": 2**31 - 1}
        group = client.group("g", ["t"], **options)
        assert len((await group.next_assignment()).member_id) == 249
        with pytest.raises(InvalidConfig, match="grace_ms"):
            group.on_partition(grace_ms=-1)
        for wrong in ({"rebalance_timeout_ms": 0}, {"commit_interval_ms": -1}):
            with pytest.raises(InvalidConfig, match=next(iter(wrong))):
                client.tasks("tasks", **wrong)
