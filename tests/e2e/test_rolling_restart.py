"""Fifty worker processes are deployed anew, one after the other, while they work."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from muster import Client
from musterd.coordinator.node.launcher import Cluster
from musterd.demo.corpus import count_alone, read_corpus
from musterd.demo.events import Reading, Took
from musterd.demo.evidence import Evidence, WorkerEvents
from musterd.demo.ledger import CLAIM, NOBODY, Ledger
from musterd.demo.pace import PPM, Grid
from musterd.demo.plan import GROUP, SERVER, TOPIC
from musterd.demo.tokens import table_digest
from musterd.demo.watch import Watch
from musterd.demo.worker import WorkerSettings
from musterd.demo.worker_processes import WorkerProcesses

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.timeout(900)]

WORKERS = 50
PARTITIONS = 100
STARTS_AT_ONCE = 5
SETTLE_S = 240
ONE_S = 60


class Deployment:
    """The workers, the cluster they work with, and what they said."""

    def __init__(self, folder):
        source = folder / "input"
        source.mkdir()
        words = random.Random(7)
        for number in range(PARTITIONS):
            lines = (" ".join(f"word{words.randrange(300)}" for _ in range(8)) for _ in range(60))
            (source / f"{number:03d}.txt").write_text("\n".join(lines) + "\n")
        self.corpus = read_corpus(source, PARTITIONS, folder / "corpus")
        self.grid = Grid(self.corpus.lines, 30)
        self.evidence = Evidence(self.corpus.lines, (), WORKERS, by_partition=True)
        self.said = WorkerEvents(self.evidence)
        self.ledger = Ledger.create(folder / "results.sqlite", PARTITIONS)
        self.cluster = Cluster(folder / "cluster", nodes=3, shards=2)
        self.folder = folder

    async def start(self):
        """Everybody has an even share, and nothing moves any more."""
        self.cluster.start_all()
        await asyncio.to_thread(self.cluster.wait_ready)
        settings = WorkerSettings(
            name="",
            bootstrap=self.cluster.bootstrap,
            group_id=GROUP,
            topic=TOPIC,
            ledger=str(self.folder / "results.sqlite"),
            corpus=str(self.corpus.folder),
            lines=self.corpus.lines,
            batches=self.grid.batches,
            session_timeout_ms=60_000,
            assignment=SERVER,
        )
        self.workers = WorkerProcesses(
            settings,
            "deployed_worker:Deployed",
            self.folder,
            self.said.hear,
            self.evidence.trouble.append,
        )
        async with Client(self.cluster.bootstrap) as client:
            await client.create_topic(TOPIC, PARTITIONS)
            for number in range(WORKERS):
                await self.workers.start()
                await self.until(
                    lambda number=number: len(self.said.owned) > number - STARTS_AT_ONCE, ONE_S
                )
            watch = Watch({n.node_id: n.endpoint for n in self.cluster.nodes.values()})
            try:
                await self.until(self.all_work, SETTLE_S)
                while (view := await watch.group(GROUP, ONE_S)) is None or view.state != "Stable":
                    await asyncio.sleep(0.1)
                await self.until(self.all_work, SETTLE_S)
            finally:
                await watch.close()

    def all_work(self):
        shares = {len(share) for _, share in self.said.owned.values()}
        return shares == {PARTITIONS // WORKERS} and self.said.settled(WORKERS, PARTITIONS)

    async def deploy(self, name):
        """This process ends in good order, and the next one has what it had."""
        one = self.workers.started[name]
        one.killed = True  # its end is no trouble
        one.process.stdin.close()
        async with asyncio.timeout(ONE_S):
            assert await one.process.wait() == 0
            await asyncio.wait([one.listening])
        await self.workers.start(name)
        await self.until(self.all_work, ONE_S)

    async def until(self, holds, seconds):
        async with asyncio.timeout(seconds):
            while not holds():
                assert not self.evidence.trouble
                await asyncio.sleep(0.02)

    async def end(self):
        if hasattr(self, "workers"):
            await self.workers.end()
        self.cluster.close()
        self.ledger.close()


async def rolling(folder):
    """Deploy all, then count the rest; the evidence is whole at the end."""
    deployment = Deployment(folder)
    try:
        await deployment.start()
        began = len(deployment.ledger.notes())
        for number, name in enumerate(list(deployment.workers.started)):
            deployment.workers.pace(PPM * (number + 1) // (WORKERS + 1))
            await deployment.deploy(name)
        deployment.workers.pace(PPM)
        lines = dict(enumerate(deployment.corpus.lines))
        await deployment.until(lambda: deployment.said.acknowledged == lines, SETTLE_S)
        notes = deployment.ledger.notes()
        totals = deployment.ledger.totals()
        return deployment, notes[:began], notes[began:], totals
    finally:
        await deployment.end()


def test_fifty_workers_are_deployed_anew_and_nothing_moves_or_is_counted_twice(
    tmp_path, monkeypatch
):
    """By the ledger 0 partitions move, and 0 lines are processed twice."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    deployment, before, during, totals = asyncio.run(rolling(tmp_path))
    events = deployment.evidence.events
    worker = {event.member: name for name, event in events if isinstance(event, Took)}
    claims = [note for note in during if note.kind == CLAIM]
    moved = [note for note in claims if worker[note.member] != worker[note.former_member]]
    assert moved == []
    assert Counter(note.partition for note in claims) == dict.fromkeys(range(PARTITIONS), 1)
    assert all(note.token > note.former_token for note in claims)
    assert [note for note in during if not note.granted] == []
    assert all(note.former_member != NOBODY for note in claims)
    read = sum(event.end - event.first for _, event in events if isinstance(event, Reading))
    assert read - deployment.corpus.total == 0, "lines were processed twice"
    assert table_digest(totals) == table_digest(count_alone(deployment.corpus))
    assert [note for note in before if not note.granted] == []
