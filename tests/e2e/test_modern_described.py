"""What operators see of a modern group on a real cluster: list, describe, why, kick."""

import asyncio
import json
import sys

import pytest

import muster
from tests.client.modern_scenarios import Member, settled, topic
from tests.e2e.test_sdk import dev_cluster

pytestmark = pytest.mark.processes

TOGETHER_S = 90


async def command(nodes, *args):
    """What a command prints on standard output and standard error; it has to succeed."""
    bootstrap = f"--bootstrap={','.join(nodes)}"
    ran = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "muster.cli", *args, bootstrap),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await ran.communicate()
    assert ran.returncode == 0, err.decode()
    return out.decode(), err.decode()


async def described(nodes):
    """The group as JSON has it; its members by instance id."""
    out, _ = await command(nodes, "group", "describe", "g", "-o", "json")
    (group,) = json.loads(out)["groups"]
    return group, {one["group_instance_id"]: one for one in group["members"]}


def tokens_of(member):
    """Token by partition, of active grants."""
    return {
        (one["topic"], one["partition"]): one["fencing_token"]
        for one in member["assignment"]
        if one["phase"] == "active"
    }


def targets(members):
    """The partitions that the target gives each."""
    return [{(one["topic"], one["partition"]) for one in member["target"]} for member in members]


async def shown(folder):
    """Two members share the partitions, one is kicked and comes back, then goes away."""
    async with dev_cluster(folder) as nodes, muster.Client(",".join(nodes)) as client:
        keys = await topic(client, "g")
        one = Member(client, "g", group_instance_id="one")
        two = Member(client, "g", group_instance_id="two")
        await settled(keys, one, two)

        group, members = await described(nodes)
        assert (group["type"], group["state"]) == ("consumer", "Stable")
        assert group["protocol_name"] == "uniform"
        assert tokens_of(members["one"]) == one.tokens
        assert tokens_of(members["two"]) == two.tokens
        assert all(member["synced"] and member["epoch"] for member in members.values())
        assert targets(members.values()) == [one.tokens.keys(), two.tokens.keys()]
        table, _ = await command(nodes, "group", "describe", "g")
        assert ",".join(str(token) for _, token in sorted(one.tokens.items())) in table
        seen = await client.describe_group("g")
        told = {
            m.instance_id: {x.partition: x.fencing_token for x in m.grants} for m in seen.members
        }
        assert told == {"one": one.tokens, "two": two.tokens}
        assert [set(m.target) for m in seen.members] == [one.tokens.keys(), two.tokens.keys()]
        assert (seen.type, seen.state) == ("consumer", "Stable")
        assert seen.generation == seen.target_epoch == group["target_epoch"]

        out, _ = await command(nodes, "group", "list", "--type", "consumer", "-o", "json")
        (listed,) = json.loads(out)["groups"]
        assert (listed["state"], listed["members"]) == ("Stable", 2)
        out, _ = await command(nodes, "group", "list", "--state", "Stable", "-o", "json")
        assert [group["group_id"] for group in json.loads(out)["groups"]] == ["g"]
        out, _ = await command(nodes, "group", "list", "--type", "classic", "-o", "json")
        assert not json.loads(out)["groups"]
        out, _ = await command(nodes, "group", "why", "g", "-o", "json")
        plans = json.loads(out)["rebalances"]
        assert all(plan["planned"] for plan in plans)
        assert (plans[0]["result"], plans[0]["members_after"]) == ("stable", 2)
        assert sum(plan["moved_partitions"].get("new", 0) for plan in plans) == len(keys)
        assert {plan["trigger"] for plan in plans} <= {"member_joined", "topics_changed"}

        before = two.tokens
        await command(nodes, "member", "kick", "g", "--instance", "two", "--yes")
        while not two.tokens or two.tokens.items() & before.items():
            await asyncio.sleep(0.001)
        await settled(keys, one, two)
        plans = await client.rebalances("g")
        assert any(
            plan.trigger == "member_kicked" and plan.culprit and plan.culprit.name == "two"
            for plan in plans
        )

        kept = two.tokens
        await two.group.away(back_in=60)
        await two.running
        _, members = await described(nodes)
        assert members["two"]["away_until"]
        assert tokens_of(members["two"]) == kept
        assert not members["one"]["away_until"]
        await one.stop(leave=True)


def test_operators_see_state_members_and_tokens_of_a_modern_group(tmp_path):
    """As the members have them; a kicked one comes back, one that is away keeps what it has."""

    async def within():
        async with asyncio.timeout(TOGETHER_S):
            await shown(tmp_path)

    asyncio.run(within())
