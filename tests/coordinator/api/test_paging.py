"""Answers that may be longer than a message, or cost more than a turn may wait."""

import asyncio
import itertools
import time

import pytest

from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.api.frame import paging
from musterd.coordinator.api.limits import cooperative_yield
from musterd.coordinator.api.limits.cooperative_yield import (
    ENTRIES_AT_ONCE,
    KEYS_PER_ENTRY,
    LongReads,
    Slices,
)
from musterd.coordinator.api.rpcs import describe_groups, leave_batches
from musterd.coordinator.machine.commands import LeaveGroup, Protocol
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.state import Group, Member, Offset, Phase, recount
from tests.coordinator.api.test_describe_modern import described, join
from tests.coordinator.api.test_group_service import Passes, committing, joining, run, with_topic
from tests.coordinator.local import local_node, until

MIB = 1 << 20


def seated(node, group_id, members, metadata=b"m", topics=("orders",)):
    """Put a Stable group of so many members into a node's state."""
    group = Group(group_id, Phase.STABLE, "consumer", "range", 1, 1)
    for seq in range(members):
        one = _member(f"{group_id}-{seq}", seq, metadata, topics)
        group.members[one.member_id] = one
    group.next_join_seq = members
    group.leader_id = next(iter(group.members), "")
    group.tally = recount(group)
    node.core.shard_for(group_id).state.groups[group_id] = group
    return group


def _member(member_id, seq, metadata, topics):
    protocols = (Protocol("range", metadata),)
    return Member(member_id, "c", "h", 10_000, 60_000, protocols, topics, seq, 1, 1, b"a" * 100)


def stored(count):
    """Offsets of one topic, committed now; not in the order of their keys."""
    now_ms = int(time.time() * 1_000)
    numbers = [*range(1, count, 2), *range(0, count, 2)]
    return {("t", n): Offset(n, "", None, "", -1, 0, now_ms) for n in numbers}


async def everything(node, group_ids, **fields):
    """All groups with all members, page by page, and how many pages there were."""
    found, left, first, count = {}, list(group_ids), 0, 0
    while True:
        request = admin.DescribeGroupsRequest(group_ids=left, first_member=first, **fields)
        answer = await node.admin.DescribeGroups(request)
        assert answer.ByteSize() < 2 * MIB
        count += 1
        for group in answer.groups:
            found.setdefault(group.group_id, []).extend(m.member_id for m in group.members)
        if not answer.more:
            return found, count
        first = answer.groups[-1].next_member
        left = [g for g in dict.fromkeys(left) if g not in found]
        left = [answer.groups[-1].group_id, *left] if first else left


@run
async def test_a_group_is_described_once_however_often_it_is_named():
    """gp-2.12: each id is answered exactly once, in the order of the request."""
    async with local_node() as node:
        seated(node, "a", 2)
        asked = ["a", "nope", "a", "", "nope", ""]
        answer = await node.admin.DescribeGroups(admin.DescribeGroupsRequest(group_ids=asked))
        assert [group.group_id for group in answer.groups] == ["a", "nope", ""]
        assert not answer.more


@pytest.mark.parametrize("linearizable", [False, True])
def test_groups_of_more_than_a_message_are_described_page_by_page(linearizable):
    """Six groups of 1.4 MiB each, asked for at once: every member of every one, once."""

    @run
    async def test():
        async with local_node() as node:
            groups = {f"g{n}": seated(node, f"g{n}", 24, b"m" * 60_000) for n in range(6)}
            found, count = await everything(node, groups, linearizable=linearizable)
            assert found == {name: list(group.members) for name, group in groups.items()}
            assert count > len(groups)

    test()


@pytest.mark.parametrize(("groups", "members"), [(60, 20), (400, 1)])
def test_many_groups_are_described_page_by_page(monkeypatch, groups, members):
    """A page ends between two groups as well; the next begins with a whole one."""
    monkeypatch.setattr(describe_groups, "PAGE_BYTES", 5_000)

    @run
    async def test():
        async with local_node() as node:
            put = {f"g{n}": seated(node, f"g{n}", members) for n in range(groups)}
            found, count = await everything(node, put)
            assert found == {name: list(group.members) for name, group in put.items()}
            assert count > 10

    test()


@run
async def test_a_page_goes_on_where_the_last_one_ended_though_members_come_and_go():
    """Whoever was there before the first page and still is, is told once; the place may be gone."""
    async with local_node() as node:
        group = seated(node, "g", 30, b"m" * 60_000)
        names = list(group.members)
        first = await node.admin.DescribeGroups(admin.DescribeGroupsRequest(group_ids=["g"]))
        (page,) = first.groups
        told = [member.member_id for member in page.members]
        assert first.more
        assert page.next_member == len(told) < 30
        for gone in (names[3], names[len(told)], names[len(told) + 1]):
            del group.members[gone]
        found, _ = await everything_from(node, "g", page.next_member)
        assert told + found == names[: len(told)] + names[len(told) + 2 :]
        request = admin.DescribeGroupsRequest(group_ids=["g"], first_member=-1)
        refused = await node.admin.DescribeGroups(request)
        assert refused.groups[0].status.code == ErrorCode.INVALID_REQUEST


async def everything_from(node, group_id, first):
    """Members from a place on, and how many pages there were."""
    found, count = [], 0
    while first or not count:
        request = admin.DescribeGroupsRequest(group_ids=[group_id], first_member=first)
        (group,) = (await node.admin.DescribeGroups(request)).groups
        found += [member.member_id for member in group.members]
        first, count = group.next_member, count + 1
    return found, count


@run
async def test_a_description_is_of_one_moment_though_it_pauses():
    """What changes while a page is filled is not in it."""
    async with local_node() as node:
        group = seated(node, "g", 50)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cooperative_yield, "SLICE_ENTRIES", 5)
            patch.setattr(Slices, "pause", _then(Slices.pause, lambda: _move_on(group)))
            request = admin.DescribeGroupsRequest(group_ids=["g"])
            (told,) = (await node.admin.DescribeGroups(request)).groups
        assert group.generation == 2
        assert (told.generation, len(told.members)) == (1, 50)
        assert all(member.synced for member in told.members)
        assert {member.assignment for member in told.members} == {b"a" * 100}


def _move_on(group):
    group.generation = 2
    for member in group.members.values():
        member.assignment = b""


def _then(pause, act):
    async def both(self):
        act()
        await pause(self)

    return both


def pauses(patch):
    """Counts pauses, and what was done between them, from now on."""
    seen = []
    real_did, real_pause = Slices.did, Slices.pause

    async def did(self, entries):
        seen.append(entries)
        await real_did(self, entries)

    async def pause(self):
        seen.append(None)
        await real_pause(self)

    patch.setattr(Slices, "did", did)
    patch.setattr(Slices, "pause", pause)
    return seen


@run
async def test_no_read_goes_on_for_more_than_a_slice():
    """A thousand groups described, a hundred thousand offsets fetched: pauses in between."""
    async with local_node() as node:
        names = [f"g{n}" for n in range(1_000)]
        for name in names:
            seated(node, name, 3)
        group = Group("o", stored=stored(LIMITS.group_max_offsets))
        node.core.shard_for("o").state.groups["o"] = group
        calls = {
            "describe": (node.admin.DescribeGroups, admin.DescribeGroupsRequest(group_ids=names)),
            "fetch": (node.groups.OffsetFetch, pb.OffsetFetchRequest(group_id="o", all=True)),
            "list": (node.admin.ListGroups, admin.ListGroupsRequest()),
            "configs": (
                node.admin.DescribeGroupConfigs,
                admin.DescribeGroupConfigsRequest(group_ids=names),
            ),
        }
        least = {"describe": 10, "fetch": 17, "list": 2, "configs": 15}
        for name, (method, request) in calls.items():
            with pytest.MonkeyPatch.context() as patch:
                seen = pauses(patch)
                await method(request)
            assert seen.count(None) >= least[name] - 1, name
            since = 0
            for entries in seen:
                since = 0 if entries is None else since + entries
                assert since < cooperative_yield.SLICE_ENTRIES + 500, name


@run
async def test_of_all_calls_one_at_a_time_goes_on():
    """Two long reads at once hold up the loop no longer than one does."""
    running, most = 0, 0

    async def read(lock):
        nonlocal running, most
        async with Slices(lock) as one:
            for _ in range(5):
                await one.pause()
                running += 1
                most = max(most, running)
                await asyncio.sleep(0)
                running -= 1

    lock = LongReads()
    await asyncio.gather(*(read(lock) for _ in range(8)))
    assert most == 1
    assert not lock.locked()


def begin_together(patch, count):
    """So many calls go on in the same pass, in whichever they came."""
    came, all_came = [], asyncio.Event()

    async def enter(self):
        came.append(self)
        if len(came) >= count:
            all_came.set()
        await all_came.wait()
        return self

    patch.setattr(Slices, "__aenter__", enter)


@run
async def test_of_large_reads_one_at_most_is_worked_on_in_a_pass_of_the_loop():
    """One client asked 350 times for 1,000 groups: the loop stood for seconds."""
    names = [f"g{n}" for n in range(100)]
    fetched = [pb.OffsetFetchRequest.Group(group_id=name) for name in names]
    async with local_node() as node:
        for name in names:
            await node.topics.CreateTopic(admin.CreateTopicRequest(name=name, partitions=1))
        calls = {
            "describe": (node.admin.DescribeGroups, admin.DescribeGroupsRequest(group_ids=names)),
            "fetch": (node.groups.OffsetFetch, pb.OffsetFetchRequest(groups=fetched)),
            "configs": (
                node.admin.DescribeGroupConfigs,
                admin.DescribeGroupConfigsRequest(group_ids=names),
            ),
            "topics": (node.topics.DescribeTopics, admin.DescribeTopicsRequest(names=names)),
            "list": (node.topics.ListTopics, admin.ListTopicsRequest()),
        }
        for name, (method, request) in calls.items():
            with pytest.MonkeyPatch.context() as patch, Passes() as passes:
                at_work = at_work_in(patch, passes)
                begin_together(patch, 6)
                await asyncio.gather(*(method(request) for _ in range(6)))
            assert len({one for who in at_work.values() for one in who}) == 6, name
            assert max(map(len, at_work.values())) == 1, name


@run
async def test_long_reads_rest_between_two_slices_while_other_calls_come():
    """They took half of the loop, and everybody else's calls waited twice as long."""
    calls, rests, real = [0], [], asyncio.sleep

    async def sleep(delay_s):
        rests.append(delay_s)
        await real(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "sleep", sleep)
        patch.setattr(cooperative_yield, "READ_BUSY_MS", 1e-6)  # since the last slice, no longer
        async with Slices(LongReads(lambda: calls[0])) as one:
            for came in (True, False, True):
                calls[0] += came
                await one.pause()
    assert [rest > 0 for rest in rests[::2]] == [True, False, True]
    assert rests[1::2] == [0, 0, 0]  # with the place held: a pass of its own


@run
async def test_a_call_does_not_wait_for_reads_that_rest():
    """A commit of 60 partitions waited for half a second behind 40 reads, each at rest in turn."""
    lock = LongReads(itertools.count().__next__)

    async def read():
        async with Slices(lock) as one:
            await one.pause()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cooperative_yield, "READ_REST_MS", 600_000)
        reads = [asyncio.create_task(read()) for _ in range(8)]
        await until(lock._rests.locked)
        async with asyncio.timeout(10), Slices(lock) as call:
            await call.turn(ENTRIES_AT_ONCE + 1)
        for one in reads:
            one.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
    assert not lock.locked()
    assert not lock._rests.locked()


@run
async def test_what_is_asked_for_all_there_is_waits_for_its_turn_before_it_looks_at_it():
    """480 fetches of 100,000 offsets copied their keys before they waited: a pass of 400 ms."""
    async with local_node() as node:
        for number in range(ENTRIES_AT_ONCE + 1):
            seated(node, f"g{number}", 1)
        group = Group("o", stored=stored(ENTRIES_AT_ONCE * KEYS_PER_ENTRY))
        node.core.shard_for("o").state.groups["o"] = group
        last = pb.OffsetFetchRequest.Partition(topic="t", partition=len(group.offsets) - 3)
        turn = node.core.one_long_read
        for method, request in (
            (node.admin.ListGroups, admin.ListGroupsRequest()),
            (node.admin.ListGroups, admin.ListGroupsRequest(states=["Dead"])),
            (node.groups.OffsetFetch, pb.OffsetFetchRequest(group_id="o", all=True)),
            (node.groups.OffsetFetch, pb.OffsetFetchRequest(group_id="o", all=True, after=last)),
        ):
            with pytest.MonkeyPatch.context() as patch, Passes() as passes:
                at_work = at_work_in(patch, passes)
                async with turn:
                    asked = asyncio.gather(*(method(request) for _ in range(6)))
                    await until(lambda: len(turn._waiters or ()) == 6)
                    assert at_work == {}
                await asked
            assert len({one for who in at_work.values() for one in who}) == 6


@run
async def test_a_listing_tells_how_many_groups_it_looked_at_whichever_it_shows():
    """Shards of fewer than a thousand groups each: it paused in none of them."""
    async with local_node() as node:
        for number in range(1_000):
            seated(node, f"g{number}", 1)
        with pytest.MonkeyPatch.context() as patch:
            seen = pauses(patch)
            await node.admin.ListGroups(admin.ListGroupsRequest(states=["Dead"]))
        assert sum(filter(None, seen)) >= 1_000 // paging.GROUPS_PER_ENTRY - len(node.shards)


def at_work_in(patch, passes):
    """Whose slices did something in which pass, from now on."""
    seen, real = {}, Slices.did

    async def did(self, entries):
        seen.setdefault(passes.now, set()).add(self)
        await real(self, entries)

    patch.setattr(Slices, "did", did)
    return seen


@run
async def test_a_read_that_is_cancelled_lets_the_others_go_on():
    """The lock is given back."""
    lock, at_work = LongReads(), asyncio.Event()

    async def read():
        async with Slices(lock) as one:
            await one.pause()
            at_work.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(read())
    await at_work.wait()
    assert lock.locked()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not lock.locked()


@run
async def test_one_fetch_of_many_groups_looks_at_so_many_keys_and_no_more():
    """The groups behind are answered with `more`, and asked for again."""
    async with local_node() as node:
        offsets = stored(1_000)
        names = [f"o{n}" for n in range(10)]
        for name in names:
            node.core.shard_for(name).state.groups[name] = Group(name, stored=dict(offsets))
        last = pb.OffsetFetchRequest.Partition(topic="t", partition=999)
        answered, left = [], names
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(paging, "KEYS_MAX", 2_500)
            while left:
                query = pb.OffsetFetchRequest.Group
                asked = [query(group_id=name, all=True, after=last) for name in left]
                answer = await node.groups.OffsetFetch(pb.OffsetFetchRequest(groups=asked))
                done = [group.group_id for group in answer.groups if not group.more]
                assert done == left[:3]
                assert not any(group.partitions for group in answer.groups)
                answered, left = answered + done, left[len(done) :]
        assert answered == names


@run
async def test_offsets_that_go_while_a_page_is_chosen_end_no_fetch():
    """The page begins behind them, and is not empty while there is more."""
    async with local_node() as node:
        group = Group("o", stored=stored(100))
        node.core.shard_for("o").state.groups["o"] = group
        gone = list(range(10))

        def remove():
            for number in gone:
                group.offsets.pop(("t", number), None)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(paging, "PAGE_OFFSETS", 10)
            patch.setattr(paging, "SLICE_KEYS", 10)
            patch.setattr(cooperative_yield, "SLICE_ENTRIES", 1)
            patch.setattr(Slices, "looked_at", _then_of(Slices.looked_at, remove, group))
            answer = await node.groups.OffsetFetch(pb.OffsetFetchRequest(group_id="o", all=True))
        assert [p.offset for p in answer.partitions] == list(range(10, 20))
        assert answer.more


def _then_of(looked_at, act, group):
    """After the last keys were looked at, for the first time."""
    seen = 0

    async def both(self, keys):
        nonlocal seen
        seen += 1
        await looked_at(self, keys)
        if seen == len(group.offsets) // 10:
            act()

    return both


@run
async def test_commands_of_one_call_are_under_way_a_few_at_a_time():
    """A thousand deletions in one entry would hold up every replica."""
    async with local_node() as node:
        await with_topic(node)
        names = [f"g{n}" for n in range(130)]
        await asyncio.gather(*(node.groups.OffsetCommit(committing(1, group=n)) for n in names))
        most = 0
        for shard in node.shards:
            offer = shard.leadership.proposer.offer

            def counted(*args, offer=offer):
                nonlocal most
                shed = offer(*args)
                most = max(most, sum(s.leadership.proposer.commands for s in node.shards))
                return shed

            shard.leadership.proposer.offer = counted
        answer = await node.admin.DeleteGroups(admin.DeleteGroupsRequest(group_ids=names))
        assert [r.group_id for r in answer.results] == names
        assert {r.status.code for r in answer.results} == {ErrorCode.NONE}
        assert 1 < most <= 60  # 50, and what the shards themselves propose
        asked = admin.AlterGroupConfigsRequest()
        for name in names:
            one = asked.groups.add(group_id=name)
            one.settings.add(name="classic.max.size", value="7")
        most = 0
        altered = await node.admin.AlterGroupConfigs(asked)
        assert [r.group_id for r in altered.results] == names
        assert {r.status.code for r in altered.results} == {ErrorCode.NONE}
        assert 1 < most <= 60  # 50, and what the shards themselves propose


async def full(node, count):
    """A group of so many members, who wait for the group leader's assignment; their ids."""
    calls = [node.groups.JoinGroup(joining(f"m{n}")) for n in range(count)]
    joined = await asyncio.gather(*calls)
    assert {answer.generation for answer in joined} == {1}
    return [answer.member_id for answer in joined]


def commands_of(shard):
    """How many members each LeaveGroup names that this shard is asked from now on."""
    sizes, submit = [], shard.submit

    def watched(command, *more):
        sizes.append(len(command.members))
        return submit(command, *more)

    shard.submit = watched
    return sizes


@pytest.mark.parametrize("kicked", [False, True])
def test_many_members_leave_in_several_commands_and_one_round(monkeypatch, kicked):
    """gp-L5: each has its own outcome, in the order of the request; one round opens."""
    monkeypatch.setattr(leave_batches, "MEMBERS_TOGETHER", 3)

    @run
    async def test():
        async with local_node() as node:
            names = await full(node, 9)
            sizes = commands_of(node.core.shard_for("g"))
            wanted = [*names[1:5], "stranger", *names[5:8], names[1]]
            if kicked:
                members = [admin.KickMembersRequest.Member(member_id=m) for m in wanted]
                request = admin.KickMembersRequest(group_id="g", members=members, reason="why")
                answer = await node.admin.KickMembers(request)
            else:
                members = [pb.LeaveGroupRequest.Member(member_id=m, reason="why") for m in wanted]
                request = pb.LeaveGroupRequest(group_id="g", members=members)
                answer = await node.groups.LeaveGroup(request)
            told = [(r.member_id, ErrorCode.Name(r.status.code)) for r in answer.results]
            unknown = {4, 8}
            assert told == [
                (m, "UNKNOWN_MEMBER_ID" if place in unknown else "NONE")
                for place, m in enumerate(wanted)
            ]
            group = node.core.shard_for("g").state.groups["g"]
            assert set(group.members) == set(names) - set(wanted)
            assert (group.round, group.phase) == (2, Phase.PREPARING_REBALANCE)
            assert sizes == [3, 3, 3]

    test()


@run
async def test_members_that_have_many_partitions_leave_a_few_at_a_time():
    """Where the coordinator assigns: 2 of each, at most 5 in a command, but for whom has more."""
    async with local_node() as node:
        for shard in node.shards:
            shard.state.level = 6
        names = ["a", "b", "c", "d", "e"]
        for name in names:
            await join(node, name)
        await node.topics.CreateTopic(admin.CreateTopicRequest(name="a", partitions=10))
        await described(node, lambda held, _: [len(each) for each in held] == [2] * 5)
        sizes = commands_of(node.core.shard_for("g"))
        with pytest.MonkeyPatch.context() as patch:
            for most, wanted in ((5, ["a", "b", "stranger", "c"]), (1, ["d", "e"])):
                patch.setattr(leave_batches, "GRANTS_TOGETHER", most)
                members = [admin.KickMembersRequest.Member(member_id=one) for one in wanted]
                request = admin.KickMembersRequest(group_id="g", members=members)
                answer = await node.admin.KickMembers(request)
                assert [one.member_id for one in answer.results] == wanted
                assert [bool(r.status.code) for r in answer.results] == [
                    m not in names for m in wanted
                ]
        assert sizes == [3, 1, 1, 1]


@run
async def test_a_kick_is_measured_with_the_reason_as_it_is_cut():
    """600 members with a reason of 240 characters; one with a reason of 600,000."""
    async with local_node() as node:
        reason = "é" * 240
        members = [
            admin.KickMembersRequest.Member(member_id=f"m{n}".ljust(249, "x")) for n in range(600)
        ]
        seated(node, "g", 3)
        request = admin.KickMembersRequest(group_id="g", members=members, reason=reason)
        answer = await node.admin.KickMembers(request)
        assert answer.status.code == ErrorCode.NONE
        assert {r.status.code for r in answer.results} == {ErrorCode.UNKNOWN_MEMBER_ID}
        seats = list(node.core.shard_for("g").state.groups["g"].members)
        one = [admin.KickMembersRequest.Member(member_id=seats[0])]
        request = admin.KickMembersRequest(group_id="g", members=one, reason="r" * 600_000)
        answer = await node.admin.KickMembers(request)
        assert (answer.status.code, answer.results[0].status.code) == (0, 0)
        huge = [admin.KickMembersRequest.Member(member_id="x" * 600_000)]
        refused = await node.admin.KickMembers(admin.KickMembersRequest(group_id="g", members=huge))
        assert refused.status.code == ErrorCode.INVALID_REQUEST


@run
async def test_a_request_that_names_too_much_is_refused_before_it_is_looked_at():
    """Its answer, which repeats the names, would not fit a message."""
    async with local_node() as node:
        long = ["x" * 4_100] * 300
        keys = [pb.FindCoordinatorRequest.Key(group_id=one) for one in long]
        fetch = pb.OffsetFetchRequest()
        for number, one in enumerate(long):
            fetch.groups.add(group_id=f"{number}{one}")
        alter = admin.AlterGroupConfigsRequest()
        for number, one in enumerate(long):
            alter.groups.add(group_id=f"{number}{one}")
        calls = [
            (node.admin.DescribeGroups, admin.DescribeGroupsRequest(group_ids=long), "groups"),
            (
                node.admin.DescribeGroupConfigs,
                admin.DescribeGroupConfigsRequest(group_ids=long),
                "groups",
            ),
            (node.groups.FindCoordinator, pb.FindCoordinatorRequest(keys=keys), "results"),
            (node.admin.DeleteGroups, admin.DeleteGroupsRequest(group_ids=long), None),
            (node.admin.AlterGroupConfigs, alter, None),
            (node.groups.OffsetFetch, fetch, None),
            (node.admin.ListGroups, admin.ListGroupsRequest(states=["x" * (MIB + 1)]), None),
            (node.admin.ListGroups, admin.ListGroupsRequest(types=[""] * 101), None),
        ]
        for method, request, of in calls:
            answer = await method(request)
            status = answer.status if of is None else getattr(answer, of)[0].status
            assert status.code == ErrorCode.INVALID_REQUEST, request.DESCRIPTOR.name
            assert answer.ByteSize() < 1_000
        many = admin.AlterGroupConfigsRequest()
        group = many.groups.add(group_id="g")
        for _ in range(101):
            group.settings.add(name="n", value="1")
        answer = await node.admin.AlterGroupConfigs(many)
        assert answer.results[0].status.code == ErrorCode.INVALID_REQUEST
        assert "this one has 101" in answer.results[0].status.message  # counted before it is built


@run
async def test_members_that_have_gone_are_told_apart_from_nothing_was_done():
    """The queue is full after the first part: who is left may be named again."""
    async with local_node() as node:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(leave_batches, "MEMBERS_TOGETHER", 2)
            names = await full(node, 5)
            proposer = node.core.shard_for("g").leadership.proposer
            offer, taken = proposer.offer, []

            def once(command, *more):
                if not isinstance(command, LeaveGroup):
                    return offer(command, *more)
                if taken:
                    return "the shard's queue of commands"
                taken.append(command)
                return offer(command, *more)

            patch.setattr(proposer, "offer", once)
            members = [admin.KickMembersRequest.Member(member_id=m) for m in names[:4]]
            request = admin.KickMembersRequest(group_id="g", members=members)
            answer = await node.admin.KickMembers(request)
            assert answer.status.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert answer.status.retriable
            assert "after 2 members" in answer.status.message
            assert set(node.core.shard_for("g").state.groups["g"].members) == set(names[2:])


@run
async def test_a_fetch_goes_on_only_while_its_node_coordinates():
    """Leadership moves between two slices: the groups behind are not answered here."""
    async with local_node(shards=1) as node:
        for name in "abc":
            node.shards[0].state.groups[name] = Group(name, stored=stored(10))
        query = pb.OffsetFetchRequest.Group
        request = pb.OffsetFetchRequest(groups=[query(group_id=g, all=True) for g in "abc"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cooperative_yield, "SLICE_ENTRIES", 5)
            patch.setattr(Slices, "pause", _then(Slices.pause, _once(node.logs[0].follow)))
            answer = await node.groups.OffsetFetch(request)
        told = [(len(group.partitions), group.status.code) for group in answer.groups]
        elsewhere = (0, ErrorCode.NOT_COORDINATOR)
        assert told == [(10, ErrorCode.NONE), elsewhere, elsewhere]


def _once(act):
    left = [act]

    def do():
        if left:
            left.pop()()

    return do


@run
async def test_keys_of_one_shard_are_each_asked_with_the_term_they_name():
    """One that is satisfied is enough: nobody waits for the other."""
    async with local_node(shards=1) as node:
        key = pb.FindCoordinatorRequest.Key
        for terms in ((0, 99), (99, 0)):
            keys = [key(group_id=f"g{term}", known_term=term) for term in terms]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(node.core.watch, "_moved", None)  # would be called to wait
                found = await node.groups.FindCoordinator(pb.FindCoordinatorRequest(keys=keys))
            assert [result.pending for result in found.results] == [t == 99 for t in terms]
