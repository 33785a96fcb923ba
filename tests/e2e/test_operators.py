"""What an operator does while groups run, on three real processes: topics grow, members go."""

import asyncio
import os
import signal

import pytest

import muster
from muster import TopicPartition
from muster.errors import InvalidConfig, UnknownMemberId
from tests.e2e.test_sdk import dev_cluster

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

GROUPS = 6


def parts(topic, count):
    """All partitions of a topic."""
    return {TopicPartition(topic, number) for number in range(count)}


async def owns(group, keys):
    """Wait until the one member of a group has just these; returns the assignment."""
    while True:
        assignment = group.assignment
        if assignment is not None and set(assignment.partitions) == keys:
            return assignment
        await group.next_assignment()


async def grow(folder):
    """Groups all over the shards; nobody of them does anything but be there."""
    async with dev_cluster(folder) as nodes, muster.Client(list(nodes)) as client:
        await client.create_topic("t", 2)
        groups = [client.group(f"g{n}", ["t"]) for n in range(GROUPS)]
        before = await asyncio.gather(*(owns(group, parts("t", 2)) for group in groups))
        await client.add_partitions("t", 5)
        grown = await asyncio.gather(*(owns(group, parts("t", 5)) for group in groups))
        for old, new in zip(before, grown, strict=True):
            assert new.generation == old.generation + 1
            assert new.member_id == old.member_id
        await client.create_topic("other", 3)  # nobody's business
        # A coordinator that dies with the news: the next one tells its groups.
        victim = client.coordinator("g0").endpoint
        await client.add_partitions("t", 7)
        os.kill(nodes[victim]["pid"], signal.SIGKILL)
        last = await asyncio.gather(*(owns(group, parts("t", 7)) for group in groups))
        for group, old, new in zip(groups, grown, last, strict=True):
            assert new.generation == old.generation + 1
            assert new.member_id == old.member_id
            await group.close()


def test_new_partitions_are_owned_without_a_members_doing(tmp_path):
    """One round for each change, in every shard, also where a coordinator is killed meanwhile."""
    asyncio.run(grow(tmp_path))


def agreed(*groups):
    """Whether all have an assignment, of one generation."""
    generations = {group.assignment and group.assignment.generation for group in groups}
    return len(generations) == 1 and None not in generations


async def kick_and_configure(folder):
    """Two members, one of them static."""
    async with dev_cluster(folder) as nodes, muster.Client(list(nodes)) as client:
        await client.create_topic("t", 4)
        first = client.group("g", ["t"])
        await owns(first, parts("t", 4))
        async with client.group("g", ["t"], group_instance_id="rack-2") as second:
            mine, theirs = await asyncio.gather(first.next_assignment(), second.next_assignment())
            told = await client.kick_members(
                "g", ["nobody"], instance_ids=["rack-2"], reason="bad disk"
            )
            assert told["rack-2"] is None
            assert isinstance(told["nobody"], UnknownMemberId)
            # It lives, so it is back under another id, and both share again.
            while not agreed(first, second) or second.assignment.member_id == theirs.member_id:
                await asyncio.sleep(0.01)
            shared = {*first.assignment.partitions, *second.assignment.partitions}
            assert shared == parts("t", 4)
            assert first.assignment.member_id == mine.member_id
        told = await client.alter_group_settings(
            "g",
            {"classic.max.size": 1, "consumer.colocate": "u,t", "consumer.weights": "u=2;t=1.50"},
        )
        assert told["consumer.colocate"].text == "t,u"
        assert told["consumer.weights"].text == "t=1.5;u=2"
        with pytest.raises(InvalidConfig):
            await client.alter_group_settings("g", {"classic.max.size": 0})
        os.kill(nodes[client.coordinator("g").endpoint]["pid"], signal.SIGKILL)
        settings = await client.group_settings("g")
        assert (settings["classic.max.size"].value, settings["classic.max.size"].default) == (
            1,
            2_000,
        )
        assert settings["classic.max.size"].text is None
        assert settings["consumer.colocate"].text == "t,u"
        assert settings["consumer.weights"].text == "t=1.5;u=2"
        removed = ["classic.max.size", "consumer.colocate", "consumer.weights"]
        after = await client.alter_group_settings("g", {}, removed=removed)
        assert not any(setting.overridden for setting in after.values())
        await first.close()


def test_a_kicked_member_comes_back_as_a_new_one_and_settings_survive_a_failover(tmp_path):
    """The SDK's admin calls against real nodes."""
    asyncio.run(kick_and_configure(tmp_path))
