"""Groups whose worker processes change from classic to modern and back, one after the other."""

import asyncio
import json
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

import muster
from musterd.coordinator.host import tied_command
from tests.client.modern_scenarios import topic
from tests.e2e.rolling_worker import Store
from tests.e2e.test_sdk import dev_cluster

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
PARTITIONS = 12
WORKERS = 3
SETTLED_S = 40
TOGETHER_S = 150
POLL_S = 0.02


class Rolling:
    """The worker processes of one group, and the store that all of them work into."""

    def __init__(self, client, bootstrap, name, folder):
        self.client, self.bootstrap, self.name = client, bootstrap, name
        self.path = folder / f"{name}.sqlite"
        self.log = folder / f"{name}.log"
        self.store = Store.create(self.path, PARTITIONS)
        self.workers = {}

    async def start(self, number, options):
        """Start a worker, or its next process, with these options of `Client.group`."""
        arguments = (self.bootstrap, self.name, str(self.path), f"w{number}", json.dumps(options))
        with self.log.open("ab") as log:
            self.workers[number] = await asyncio.create_subprocess_exec(
                *tied_command([sys.executable, "-m", "tests.e2e.rolling_worker", *arguments]),
                cwd=ROOT,
                stderr=log,
            )

    async def stop(self, number):
        """Tell its process to end; it ends in good order."""
        worker = self.workers.pop(number)
        worker.send_signal(signal.SIGTERM)
        assert await worker.wait() == 0, self.log.read_text()

    async def settled(self, kind):
        """Until the group is stable, of this kind, and its processes share all partitions."""
        try:
            async with asyncio.timeout(SETTLED_S):
                while not await self._is_settled(kind):
                    ended = [one for one in self.workers.values() if one.returncode is not None]
                    assert not ended, self.log.read_text()
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            group = await self.client.describe_group(self.name)
            raise AssertionError(
                f"{self.name} is no settled {kind} group: {group} {self.store.working()}"
            ) from None

    async def _is_settled(self, kind):
        owners = Counter(self.store.working().values())
        if owners.total() < PARTITIONS or set(owners.values()) != {PARTITIONS // WORKERS}:
            return False
        group = await self.client.describe_group(self.name)
        return (group.state, group.type, len(owners)) == ("Stable", kind, WORKERS)

    async def kill(self):
        """End what is left of them after a failure."""
        for worker in self.workers.values():
            if worker.returncode is None:
                worker.kill()
            await worker.wait()


async def rolled(nodes, folder, name, assignor):
    """Classic members become modern ones and classic ones again, one after the other."""
    bootstrap, classic = ",".join(nodes), {"assignor": assignor}
    steps = []
    async with muster.Client(bootstrap) as client:
        keys = await topic(client, name, PARTITIONS)
        rolling = Rolling(client, bootstrap, name, folder)
        try:
            for number in range(WORKERS):
                await rolling.start(number, classic)
            await rolling.settled("classic")
            for options, kind in (({"assignment": "server"}, "consumer"), (classic, "classic")):
                for number in range(WORKERS):
                    before = len(rolling.store.beginnings())
                    await rolling.stop(number)
                    await rolling.start(number, options)
                    last = number == WORKERS - 1
                    await rolling.settled(kind if last else "consumer")
                    steps.append(rolling.store.beginnings()[before:])
            for number in range(WORKERS):
                await rolling.stop(number)
        finally:
            await rolling.kill()
        committed = await client.committed(name, keys)
        assert {key.partition: committed.offset(key) for key in keys} == rolling.store.offsets()
        assert not rolling.store.working()
    moved = [[place for place, owner, former in begun if owner != former] for begun in steps]
    assert sum(map(len, moved)) >= PARTITIONS
    for places in moved:  # once when a process goes, and once when the next one comes
        assert max(Counter(places).values()) <= 2
    if assignor == "cooperative-sticky":
        assert sum(map(len, moved)) == sum(map(len, steps)), "somebody stopped what it kept"


async def run_all(folder):
    async with dev_cluster(folder) as nodes, asyncio.timeout(TOGETHER_S):
        await asyncio.gather(
            rolled(nodes, folder, "eager", "range"),
            rolled(nodes, folder, "cooperative", "cooperative-sticky"),
        )


def test_a_rolling_restart_of_worker_processes_changes_the_protocol_and_back(tmp_path):
    """No partition has two owners, tokens rise, and no commit is lost, whichever assignor.

    Nothing is processed twice, or under a token that is over. With the cooperative assignor no
    partition is without an owner but while it goes to another member, once for each process that
    goes or comes. What a worker or its store finds broken ends its process.
    """
    asyncio.run(run_all(tmp_path))
