"""Groups whose members change from classic to modern and back, one after the other, on servers."""

import asyncio

import pytest

import muster
from tests.client.modern_scenarios import topic
from tests.e2e.test_sdk import dev_cluster

pytestmark = pytest.mark.processes

PARTITIONS = 12
WORKERS = 4
SETTLED_S = 40
TOGETHER_S = 150
PACE_S = 0.01


class Ledger:
    """What all workers did: who works on a partition, under which token, and how far it is."""

    def __init__(self):
        self.working, self.tokens, self.done = {}, {}, {}
        self.moves = self.breaks = 0

    def begin(self, worker, p):
        assert p.key not in self.working, f"two work on {p.key}"
        former, token = self.tokens.get(p.key, (None, 0))
        assert p.fencing_token > token or former is worker, "a token of somebody else's past"
        done = self.done.get(p.key, 0)
        assert (p.position or 0) == done, f"a commit of {p.key} was lost"
        self.moves += former is not None and former is not worker
        self.breaks += former is worker
        self.working[p.key] = worker
        self.tokens[p.key] = (worker, p.fencing_token)

    def end(self, p):
        del self.working[p.key]


class Worker:
    """A worker's process as far as the cluster can tell: a client of its own, with one member."""

    def __init__(self, bootstrap, name, ledger, **options):
        self.ledger = ledger
        self.running = asyncio.create_task(self._run(bootstrap, name, options))

    async def _run(self, bootstrap, name, options):
        async with muster.Client(bootstrap) as client:
            self.group = client.group(name, [name], commit_interval_ms=1, **options)
            self.group.on_partition(self._work)
            await self.group.run(handle_sigterm=False)

    async def _work(self, p):
        self.ledger.begin(self, p)
        try:
            while not p.revoking.is_set():
                done = self.ledger.done.get(p.key, 0) + 1
                p.commit(done)
                self.ledger.done[p.key] = done
                await asyncio.sleep(PACE_S)
        finally:
            self.ledger.end(p)

    async def stop(self):
        self.group.stop(leave=True)
        await self.running


async def settled(client, name, kind, ledger, keys, workers):
    """Until the group is stable, and of this kind, and each partition is worked on."""
    try:
        async with asyncio.timeout(SETTLED_S):
            await _settled(client, name, kind, ledger, keys, workers)
    except TimeoutError:
        group = await client.describe_group(name)
        raise AssertionError(
            f"{name} is no settled {kind} group: {group} {ledger.working}"
        ) from None


async def _settled(client, name, kind, ledger, keys, workers):
    while True:
        await asyncio.sleep(PACE_S)
        for worker in workers:
            if worker.running.done():
                worker.running.result()
        try:
            group = await client.describe_group(name)
        except muster.GroupIdNotFound:  # nobody has joined yet
            continue
        if (group.state, group.type) == ("Stable", kind) and ledger.working.keys() == set(keys):
            loads = [list(ledger.working.values()).count(one) for one in workers]
            if max(loads) <= min(loads) + 1:
                return


async def rolled(nodes, name, assignor):
    """Classic members become modern ones and classic ones again, one after the other."""
    bootstrap, ledger = ",".join(nodes), Ledger()
    async with muster.Client(bootstrap) as client:
        keys = await topic(client, name, PARTITIONS)
        classic = {"assignor": assignor}
        workers = [Worker(bootstrap, name, ledger, **classic) for _ in range(WORKERS)]
        await settled(client, name, "classic", ledger, keys, workers)
        for options, kind in (({"assignment": "server"}, "consumer"), (classic, "classic")):
            for number in range(WORKERS):
                await workers[number].stop()
                workers[number] = Worker(bootstrap, name, ledger, **options)
                last = number == WORKERS - 1
                now = kind if last or kind == "consumer" else "consumer"
                await settled(client, name, now, ledger, keys, workers)
        await asyncio.gather(*(worker.stop() for worker in workers))
        committed = await client.committed(name, keys)
        assert {key: committed.offset(key) for key in keys} == ledger.done
        assert ledger.moves >= PARTITIONS
        if assignor == "cooperative-sticky":
            assert not ledger.breaks, "somebody stopped what it kept"


async def run_all(folder):
    async with dev_cluster(folder) as nodes, asyncio.timeout(TOGETHER_S):
        await asyncio.gather(
            rolled(nodes, "eager", "range"),
            rolled(nodes, "cooperative", "cooperative-sticky"),
        )


def test_a_rolling_restart_changes_the_protocol_and_back(tmp_path):
    """No partition has two owners, tokens rise, and no commit is lost, whichever assignor.

    With the cooperative one no partition is without an owner but while it goes to another member.
    """
    asyncio.run(run_all(tmp_path))
