"""Groups whose coordinator assigns on real servers: the scenarios of the kit, deploys, a kill."""

import asyncio
import contextlib
import os
import signal

import pytest

import muster
from tests.client.modern_scenarios import MODERN, Member, settled, topic
from tests.e2e.test_sdk import dev_cluster

pytestmark = pytest.mark.processes

WORKERS = 3
TOGETHER_S = 90


async def run_all(folder):
    """Side by side, each with a group and a topic of its own; by name what failed."""
    async with dev_cluster(folder) as nodes, muster.Client(",".join(nodes)) as client:
        work = {name: scenario(client, name) for name, scenario in MODERN.items()}
        work["rolling_restart"] = rolling_restart(nodes)
        async with asyncio.timeout(TOGETHER_S):
            outcomes = await asyncio.gather(*work.values(), return_exceptions=True)
        return {
            name: error for name, error in zip(work, outcomes, strict=True) if error is not None
        }


def test_every_scenario_on_servers_and_a_rolling_restart_that_moves_no_partition(tmp_path):
    """The same scenarios run on the kit: tests/client/test_scenarios.py."""
    failed = asyncio.run(run_all(tmp_path))
    if failed:
        raise ExceptionGroup(", ".join(failed), list(failed.values()))


class Process:
    """A worker's process as far as the cluster can tell: a client of its own, with one member."""

    def __init__(self, bootstrap, number):
        self.bootstrap, self.number = bootstrap, number

    async def start(self):
        self.client = await muster.Client(self.bootstrap).open()
        instance = f"worker-{self.number}"
        self.member = Member(self.client, "g", ["t"], group_instance_id=instance)
        return self

    async def deploy(self, back_in):
        """Away, the process ends, and the next one starts."""
        await self.member.group.away(back_in=back_in)
        await self.member.running
        await self.client.close()
        await self.start()

    async def end(self):
        await self.member.stop(leave=True)
        await self.client.close()


@contextlib.asynccontextmanager
async def workers(nodes):
    """Three processes, settled on six partitions; at the end they leave."""
    bootstrap = ",".join(nodes)
    async with muster.Client(bootstrap) as client:
        keys = await topic(client, "t")
        started = [await Process(bootstrap, number).start() for number in range(WORKERS)]
        await settled(keys, *(one.member for one in started))
        try:
            yield client, keys, started
        finally:
            await asyncio.gather(*(one.end() for one in started))


async def rolling_restart(nodes):
    """Each worker finds what it had under new tokens; the others are told nothing."""
    async with workers(nodes) as (client, keys, started):
        had = [one.member.tokens for one in started]
        for number, one in enumerate(started):
            others = [other.member for other in started if other is not one]
            told = [list(other.told) for other in others]
            for p in one.member.partitions.values():
                p.commit(100 + number)
            await one.deploy(back_in=30)
            await settled(keys, *(other.member for other in started))
            assert [other.told for other in others] == told
        for number, (one, before) in enumerate(zip(started, had, strict=True)):
            assert one.member.tokens.keys() == before.keys()
            assert all(one.member.tokens[key] > token for key, token in before.items())
            read = await client.committed("g", list(before))
            assert {read.offset(key) for key in before} == {100 + number}


async def killed_coordinator(folder):
    async with dev_cluster(folder) as nodes, workers(nodes) as (client, keys, started):
        tokens = [one.member.tokens for one in started]
        await client.committed("g")  # so that the coordinator is known
        victim = client.coordinator("g").endpoint
        os.kill(nodes[victim]["pid"], signal.SIGKILL)
        for one in started:
            mine = one.member.partitions
            result = await one.member.group.commit(dict.fromkeys(mine, 7))
            assert result.acknowledged == dict.fromkeys(mine, 7)
        await client.committed("g")
        assert client.coordinator("g").endpoint != victim
        assert [one.member.tokens for one in started] == tokens, "a failover moves nothing"
        last = started.pop()
        await last.end()
        await settled(keys, *(one.member for one in started))
        before = {key: token for held in tokens for key, token in held.items()}
        for one, kept in zip(started, tokens, strict=False):
            for key, token in one.member.tokens.items():
                assert token == kept[key] if key in kept else token > before[key]
            assert one.member.tokens.keys() > kept.keys()
        started.append(await Process(",".join(nodes), 9).start())
        await settled(keys, *(one.member for one in started))


@pytest.mark.faults
def test_members_go_on_when_their_coordinator_is_killed(tmp_path):
    """Kill -9: nothing moves and no token changes; then one leaves and another one comes."""
    asyncio.run(killed_coordinator(tmp_path))
