"""Scenarios of groups whose coordinator assigns, through the SDK alone: the same on the kit
(test_scenarios.py) and on servers (tests/e2e/test_modern_sdk.py).

Each has a group and a topic of its own, both named `name`.
"""

import asyncio
import itertools
import time

import pytest

import muster
from muster.errors import (
    GroupIdNotFound,
    IllegalGeneration,
    InvalidRegularExpression,
    UnsupportedAssignor,
)
from tests.client.listeners import Journal


class Member:
    """A member that runs one endless task per partition and writes down what happens to it."""

    def __init__(self, client, name, topics=None, **options):
        self.journal = Journal()
        self.partitions = {}
        self.started = []
        options = {
            "commit_interval_ms": 1,
            "listener": self.journal,
            "assignment": "server",
            **options,
        }
        topics = [name] if topics is None else topics
        self.group = client.group(name, topics, **options)
        self.group.on_partition(self._work)
        self.run()

    def run(self):
        self.running = asyncio.create_task(self.group.run(handle_sigterm=False))

    async def _work(self, p):
        assert p.key not in self.partitions
        self.started.append((p.key, p.fencing_token))
        self.partitions[p.key] = p
        try:
            await asyncio.Event().wait()
        finally:
            del self.partitions[p.key]

    @property
    def told(self):
        """What its listener was told of, without what named nothing."""
        return [(what, set(keys)) for what, _, keys in self.journal.told if keys]

    @property
    def tokens(self):
        return {key: p.fencing_token for key, p in self.partitions.items()}

    async def stop(self, **how):
        self.group.stop(**how)
        await self.running

    async def __aenter__(self):
        return self

    async def __aexit__(self, *details):
        await self.stop()


async def settled(keys, *members):
    """Until these members work on all of it between them, evenly, each partition once."""
    wanted = sorted(keys)
    while True:
        for member in members:
            if member.running.done():
                member.running.result()
        have = [sorted(member.partitions) for member in members]
        loads = [len(one) for one in have]
        whole = sorted(itertools.chain(*have))
        assert len(whole) == len(set(whole)), "two members work on one partition"
        if whole == wanted and max(loads) <= min(loads) + 1:
            for member in members:
                await member.group.ready()
            return
        await asyncio.sleep(0.001)


async def topic(client, name, partitions=6):
    await client.create_topic(name, partitions, exist_ok=True)
    return [muster.TopicPartition(name, i) for i in range(partitions)]


async def what_stays_never_stops(client, name):
    """A second and a third member, which leave again; only what moves has new tokens."""
    keys = await topic(client, name)
    async with Member(client, name) as first:
        await settled(keys, first)
        for members in (2, 3):
            before = first.tokens
            others = [Member(client, name) for _ in range(members - 1)]
            await settled(keys, first, *others)
            kept = first.tokens.items() & before.items()
            assert len(kept) == 6 // members
            moved = {k: t for other in others for k, t in other.tokens.items()}
            assert all(token > before[key] for key, token in moved.items())
            await asyncio.gather(*(other.stop() for other in others))
            await settled(keys, first)
            assert kept <= first.tokens.items()
        assert not [what for what, _ in first.told if what == "lost"]


async def work_is_committed_before_it_moves(client, name):
    """And the next owner goes on there; who had it before commits no more."""
    keys = await topic(client, name)
    async with Member(client, name, commit_interval_ms=3_600_000) as first:
        await settled(keys, first)
        former = first.group.assignment
        for p in first.partitions.values():
            p.commit(10 + p.id)
        async with Member(client, name) as second:
            await settled(keys, first, second)
            assert {p.committed - p.id for p in second.partitions.values()} == {10}
            moved = next(iter(second.partitions))
            with pytest.raises(IllegalGeneration):
                await first.group.commit({moved: 99}, assignment=former)
            await second.group.commit({moved: 20})
        assert (await client.committed(name)).offset(moved) == 20


async def who_is_away_keeps_its_partitions(client, name):
    """Nobody else is told anything; the tokens are new."""
    keys = await topic(client, name)
    async with Member(client, name) as first, Member(client, name) as second:
        await settled(keys, first, second)
        theirs, mine, tokens = list(second.told), set(first.partitions), first.tokens
        for p in first.partitions.values():
            p.commit(4)
        await first.group.away(back_in=60, reason="deploy")
        await first.running
        assert first.told[-1] == ("revoked", mine)
        assert {(await client.committed(name)).offset(key) for key in mine} == {4}
        first.run()
        await settled(keys, first, second)
        assert set(first.partitions) == mine
        assert all(token > tokens[key] for key, token in first.tokens.items())
        assert second.told == theirs


async def who_is_not_back_in_time_loses_its_partitions(client, name):
    """The others have them then."""
    keys = await topic(client, name)
    async with Member(client, name) as first, Member(client, name) as second:
        await settled(keys, first, second)
        await first.group.away(back_in=0.5)
        await first.running
        await settled(keys, second)


async def who_says_an_hour_is_away_for_ten_minutes(client, name):
    """As the group's setting says, by default."""
    keys = await topic(client, name, 1)
    async with Member(client, name) as first:
        await settled(keys, first)
        await first.group.away(back_in=3_600)
        await first.running
        (away,) = (await client.describe_group(name)).members
        assert away.away_until_wall_ms < (time.time() + 1_800) * 1000
        first.run()
        await settled(keys, first)


async def who_does_not_release_in_time_is_removed(client, name):
    """The others have what it had then; it is told that it lost that, and joins again."""
    keys = await topic(client, name, 2)
    goes_on = asyncio.Event()
    async with Member(client, name, rebalance_timeout_ms=500) as first:

        async def revoked(_group, _assignment):
            await goes_on.wait()

        first.journal.revoked = revoked
        await settled(keys, first)
        before = first.tokens
        async with Member(client, name) as second:
            try:
                while sorted(second.partitions) != keys:
                    await asyncio.sleep(0.001)
                assert all(token > before[key] for key, token in second.tokens.items())
            finally:
                goes_on.set()
            await settled(keys, first, second)
        assert "lost" in {what for what, _ in first.told}


async def static_members_are_back_where_they_were(client, name):
    """Closed and started again under another id; asked to leave it is gone."""
    keys = await topic(client, name)
    async with Member(client, name) as other:
        static = Member(client, name, group_instance_id="i")
        await settled(keys, static, other)
        mine, before, theirs = set(static.partitions), static.tokens, list(other.told)
        member_id = static.group.member_id
        await static.stop()
        again = Member(client, name, group_instance_id="i")
        await settled(keys, again, other)
        assert again.group.member_id != member_id
        assert set(again.partitions) == mine
        assert all(token > before[key] for key, token in again.tokens.items())
        assert other.told == theirs
        await again.stop(leave=True)
        await settled(keys, other)


async def who_is_ready_has_all_of_its_own(client, name):
    """At the start, while another one gives up partitions for it, and where there are none."""
    keys = await topic(client, name, 2)
    async with Member(client, name) as first:
        await first.group.ready()
        assert first.group.assignment.partitions == tuple(keys)
        assert set(first.partitions) == set(keys)
        async with Member(client, name) as second:
            await second.group.ready()
            assert len(second.partitions) == 1
            async with Member(client, name) as third:
                await third.group.ready()
                assert len(first.partitions) + len(second.partitions) + len(third.partitions) == 2


async def topics_that_grow_and_go(client, name):
    """What is there stays as it is."""
    keys = await topic(client, name, 4)
    more = f"{name}.more"
    await client.create_topic(more, 2)
    async with Member(client, name, [name, more]) as member:
        keys += [muster.TopicPartition(more, i) for i in range(2)]
        await settled(keys, member)
        before = member.tokens
        await client.add_partitions(name, 6)
        keys += [muster.TopicPartition(name, i) for i in (4, 5)]
        await settled(keys, member)
        assert before.items() <= member.tokens.items()
        before = member.tokens
        await client.delete_topic(more)
        await settled([key for key in keys if key.topic == name], member)
        assert member.tokens.items() <= before.items()


async def a_subscription_changes_while_it_works(client, name):
    """It goes on with what it keeps."""
    keys = await topic(client, name, 2)
    others = await topic(client, f"{name}.other", 2)
    async with Member(client, name) as member:
        await settled(keys, member)
        before = member.tokens
        await member.group.subscribe([name, f"{name}.other"])
        await settled([*keys, *others], member)
        assert before.items() <= member.tokens.items()
        await member.group.subscribe([f"{name}.other"])
        await settled(others, member)


async def a_pattern_gives_the_topics_it_matches_as_they_come_and_go(client, name):
    """Names and pattern of a member combine; the whole name has to match."""
    names = [f"{name}-{end}" for end in ("a", "b", "not", "c")]
    keys = {one: [muster.TopicPartition(one, p) for p in range(2)] for one in names}
    for one in names[:3]:
        await client.create_topic(one, 2)
    pattern = f"{name}-[a-m]"
    member = Member(client, name, [], pattern=pattern, rack="x")
    other = Member(client, name, [names[2]], pattern=pattern)
    async with member, other:
        await settled([*keys[names[0]], *keys[names[1]], *keys[names[2]]], member, other)
        assert {key.topic for key in member.partitions} <= {names[0], names[1]}
        described = (await client.describe_group(name)).members
        assert {one.pattern for one in described} == {pattern}
        assert sorted(one.rack for one in described) == ["", "x"]
        await client.create_topic(names[3], 2)
        await settled([key for one in names for key in keys[one]], member, other)
        await client.delete_topic(names[1])
        left = [*keys[names[0]], *keys[names[2]], *keys[names[3]]]
        await settled(left, member, other)
        await member.group.subscribe(pattern=f"{name}-a")
        await other.group.subscribe(pattern=f".*{name}-(c|not)")
        while sorted(member.partitions) != keys[names[0]] or len(other.partitions) != 4:
            await asyncio.sleep(0.001)
        assert {key.topic for key in other.partitions} == {names[2], names[3]}


async def range_gives_each_topic_in_runs(client, name):
    """Partitions of one number go to one member; most votes win."""
    names = [name, f"{name}.more"]
    for one in names:
        await topic(client, one, 3)

    async def share(member, *numbers):
        keys = [muster.TopicPartition(one, number) for one in names for number in numbers]
        while sorted(member.partitions) != keys:
            await asyncio.sleep(0.001)

    def static(instance_id, **options):
        return Member(client, name, names, group_instance_id=instance_id, **options)

    async with static("b", assignor="range") as second:
        await share(second, 0, 1, 2)
        async with static("a", assignor="range") as first:
            await share(first, 0, 1)
            await share(second, 2)
            assert (await client.describe_group(name)).protocol_name == "range"
            async with static("c", assignor="uniform") as third:
                await share(first, 0)
                await share(second, 1)
                await share(third, 2)
                await third.stop(leave=True)
            await share(first, 0, 1)
            await first.stop(leave=True)
        await share(second, 0, 1, 2)


async def weighted_gives_by_capacity(client, name):
    """Who has three times the capacity has three times as much; what it keeps does not stop."""
    keys = await topic(client, name, 8)

    async def loads(members, numbers):
        while [len(one.partitions) for one in members] != numbers:
            await asyncio.sleep(0.001)
        assert sorted(key for one in members for key in one.partitions) == keys

    async with Member(client, name, assignor="weighted", capacity=3) as large:
        await loads([large], [8])
        before = large.tokens
        async with Member(client, name, assignor="weighted") as small:
            await loads([large, small], [6, 2])
            assert large.tokens.items() <= before.items()
            assert (await client.describe_group(name)).protocol_name == "weighted"
            async with Member(client, name, assignor="weighted", capacity=4) as larger:
                await loads([large, small, larger], [3, 1, 4])
        await loads([large], [8])


async def a_pattern_that_does_not_compile(client, name):
    """It is refused for good, with what is wrong."""
    async with client.group(name, pattern="a(b", assignment="server") as group:
        with pytest.raises(InvalidRegularExpression):
            await group.next_assignment()


async def an_assignor_that_is_none(client, name):
    """It is refused for good."""
    await topic(client, name)
    async with client.group(name, [name], assignment="server", assignor="nope") as group:
        with pytest.raises(UnsupportedAssignor):
            await group.next_assignment()


async def eager_members_become_modern_ones_and_back(client, name):
    """Each gives everything up before it joins; who changes is another process."""
    await _change_and_back(client, name, "range")


async def cooperative_members_become_modern_ones_and_back(client, name):
    """Each works on while it joins."""
    await _change_and_back(client, name, "cooperative-sticky")


async def _change_and_back(client, name, assignor):
    """Classic members are replaced by modern ones one by one, and those by classic ones again.

    Nobody stops for it; nothing is worked on twice, and the tokens of each partition rise.
    """
    keys = await topic(client, name)
    seen = dict.fromkeys(keys, (0, None))

    async def settle(*members):
        await settled(keys, *members)
        for member in members:
            for key, token in member.tokens.items():
                before, owner = seen[key]
                assert token > before or (token, member) == (before, owner), "a token did not rise"
                seen[key] = token, member

    def classic():
        return Member(client, name, assignment="client", assignor=assignor)

    async def rounds(*members):
        """So many that the tokens of one kind are above those that the other would begin with."""
        for _ in range(3):
            extra = classic()
            await settle(*members, extra)
            await extra.stop()
            await settle(*members)

    first, second = classic(), classic()
    await settle(first, second)
    await rounds(first, second)
    third = Member(client, name)
    await settle(first, second, third)
    described = await client.describe_group(name)
    assert described.type == "consumer"
    kinds = {one.member_id: one.type for one in described.members}
    assert kinds.pop(third.group.member_id) == "consumer"
    assert [*kinds.values()] == ["classic", "classic"]
    at_first = third.tokens
    await first.stop()
    fourth = Member(client, name)
    await settle(second, third, fourth)
    await second.stop()
    await settle(third, fourth)
    fifth = classic()
    await settle(third, fourth, fifth)
    sixth = classic()
    await settle(third, fourth, fifth, sixth)
    assert all(fourth.tokens.get(key, token + 1) > token for key, token in at_first.items())
    await third.stop()
    await settle(fourth, fifth, sixth)
    await fourth.stop()
    await settle(fifth, sixth)
    assert (await client.describe_group(name)).type == "classic"
    last = next(one for one in await client.rebalances(name) if one.trigger == "member_left")
    assert (last.members_before, last.members_after) == (3, 2)
    newest = Member(client, name)
    await settle(fifth, sixth, newest)
    for member in (first, second, third, fourth, fifth, sixth, newest):
        await member.stop()
        assert "lost" not in {what for what, _ in member.told}


async def a_group_of_ones_own_assignor_takes_in_no_modern_member(client, name):
    """It is told why, and the group goes on."""
    keys = await topic(client, name)

    def all_to_one(members, _counts):
        (one,) = members
        return {one.member_id: list(keys)}

    own = muster.FunctionAssignor("my-own", all_to_one)
    async with client.group(name, [name], assignor=own) as group:
        held = await group.next_assignment()
        other = client.group(name, [name], assignment="server")
        with pytest.raises(GroupIdNotFound, match="my-own"):
            await other.next_assignment()
        await group.commit({keys[0]: 5}, assignment=held)


MODERN = {
    scenario.__name__: scenario
    for scenario in (
        what_stays_never_stops,
        work_is_committed_before_it_moves,
        who_is_away_keeps_its_partitions,
        who_is_not_back_in_time_loses_its_partitions,
        who_says_an_hour_is_away_for_ten_minutes,
        who_does_not_release_in_time_is_removed,
        static_members_are_back_where_they_were,
        who_is_ready_has_all_of_its_own,
        topics_that_grow_and_go,
        a_subscription_changes_while_it_works,
        a_pattern_gives_the_topics_it_matches_as_they_come_and_go,
        range_gives_each_topic_in_runs,
        weighted_gives_by_capacity,
        a_pattern_that_does_not_compile,
        an_assignor_that_is_none,
        eager_members_become_modern_ones_and_back,
        cooperative_members_become_modern_ones_and_back,
        a_group_of_ones_own_assignor_takes_in_no_modern_member,
    )
}
