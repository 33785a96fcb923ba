"""Why a group rebalanced, on a real cluster: told by SDK and CLI, also by the next leader."""

import asyncio
import json
import os
import signal
import sys

import pytest

import muster
from muster.errors import GroupIdNotFound
from tests.e2e.test_sdk import dev_cluster

pytestmark = pytest.mark.processes


async def why(bootstrap, *args):
    """`muster group why`: its exit code and what it printed."""
    ran = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "muster.cli", "group", "why", *args, f"--bootstrap={bootstrap}"),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(ran.communicate(), 30)
    return ran.returncode, out.decode()


async def told_before_and_after(folder):
    """Two members, one of them leaves; then the coordinator is killed."""
    async with dev_cluster(folder) as nodes:
        bootstrap = ",".join(nodes)
        async with (
            muster.Client(bootstrap, client_id="stays") as client,
            muster.Client(bootstrap, client_id="goes") as other,
        ):
            await client.create_topic("t", 4)
            with pytest.raises(GroupIdNotFound):
                await client.rebalances("g")
            group = client.group("g", ["t"])
            await group.next_assignment()
            beside = other.group("g", ["t"])
            await beside.next_assignment()
            await group.next_assignment()
            await beside.close()
            alone = await group.next_assignment()
            assert len(alone.partitions) == 4
            rounds = await client.rebalances("g")
            assert {one.ended for one in rounds} <= {"stable", "superseded"}
            left, joined, first = rounds[0], rounds[-2], rounds[-1]
            assert (left.trigger, left.culprit.client_id) == ("member_left", "goes")
            assert (left.members_before, left.members_after) == (2, 1)
            assert left.generation == alone.generation
            assert (joined.trigger, joined.culprit.client_id) == ("member_joined", "goes")
            assert (joined.members_before, joined.members_after) == (1, 2)
            assert (first.initial, first.culprit.client_id) == (True, "stays")
            assert first.joining_ms >= 500
            assert await client.rebalances("g", 1) == rounds[:1]

            os.kill(nodes[client.coordinator("g").endpoint]["pid"], signal.SIGKILL)
            again = await client.rebalances("g")
            assert again[-len(rounds) :] == rounds
            code, out = await why(bootstrap, "g", "-n", "32", "-o", "json")
            assert code == 0
            shown = json.loads(out)["rebalances"][-len(rounds) :]
            assert [one["why"] for one in shown] == [one.sentence for one in rounds]
            assert (await why(bootstrap, "nope"))[0] == 3
            await group.close()


def test_the_next_leader_tells_the_same_history(tmp_path):
    """Issue 4: cause, culprit, members, times: of replicated state, the same on every replica."""
    asyncio.run(told_before_and_after(tmp_path))
