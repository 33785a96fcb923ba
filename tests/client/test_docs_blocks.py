"""The Python blocks of docs/pause.md, election.md, tasks.md and compat.md, as they stand."""

import ast
import asyncio
import inspect
import os
import subprocess
import sys
from types import SimpleNamespace

import muster
from tests.docs.block_runners import record_run
from tests.docs.walkthrough import ROOT, blocks


def code(page: str, number: int) -> str:
    """A block of a page."""
    return [one.text for one in blocks(ROOT / "docs" / page) if one.kind == "python"][number]


async def execute(page, number, names):
    """Run a block where `await` is allowed."""
    text = code(page, number)
    compiled = compile(text, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    record_run(text)  # some are cancelled
    if inspect.isawaitable(result := eval(compiled, names)):
        await result


async def end(task):
    """What would go on for ever."""
    task.cancel()
    await asyncio.wait([task])


async def test_the_blocks_on_listeners_and_pauses(open_cluster):
    """The listener's group; a pause, its end, and a task that waits and commits."""

    async def source(partition_id, start):
        for offset in range(start or 0, 3):
            yield SimpleNamespace(offset=offset)

    async with open_cluster(1, topics={"orders": 4, "more": 1}) as (cluster, client):
        key = muster.TopicPartition("orders", 1)
        names = {"muster": muster, "client": client, "key": key, "source": source}
        await execute("pause.md", 0, names)
        group = names["group"]
        assert key in (await group.next_assignment()).partitions
        await execute("pause.md", 1, names)
        assert not group.paused
        running = asyncio.create_task(group.run())
        await group.subscribe(["orders", "more"])  # a round, after which the tasks begin
        await cluster.until(
            lambda: [x.value.offset for x in cluster.groups["billing"].offsets.values()] == [3] * 5
        )
        group.stop()
        await running


async def test_the_blocks_on_groups_whose_coordinator_assigns(open_cluster):
    """A worker, which then is away; and another way to name topics."""
    stored = []

    async def source(partition_id, start):
        for offset in range(start or 0, 3):
            yield SimpleNamespace(offset=offset)

    def store(item, token):
        stored.append((item.offset, token))

    async with open_cluster(1, topics={"orders": 4}) as (cluster, client):
        names = {"muster": muster, "client": client, "source": source, "store": store}
        worker = asyncio.create_task(execute("modern.md", 0, names))
        await cluster.until(
            lambda: (
                "billing" in cluster.groups
                and [x.value.offset for x in cluster.groups["billing"].offsets.values()] == [3] * 4
            )
        )
        (member,) = cluster.modern["billing"].members.values()
        assert {token for _, token in stored} == set(member.assigned.values())
        await execute("modern.md", 1, {**names})
        await execute("modern.md", 2, names)
        await worker
        assert member.away_until is not None


async def test_the_block_on_elections(open_cluster):
    """It is elected, and its work has the token."""
    tokens = asyncio.Queue()

    async def work(token):
        await tokens.put(token)

    async with open_cluster(1, topics={}) as (_, client):
        candidate = asyncio.create_task(execute("election.md", 0, {"client": client, "work": work}))
        assert await tokens.get() >= 1
        await end(candidate)


async def test_the_blocks_on_tasks(open_cluster):
    """A worker, and somebody who puts the task that it then works on."""
    visited = asyncio.Queue(1)

    async with open_cluster(1, topics={}) as (_, client):
        worker = asyncio.create_task(
            execute("tasks.md", 0, {"client": client, "visit": visited.put})
        )
        async with client.tasks("pollers") as tasks:
            await tasks.put({"weather": {"url": "https://example.org"}})
        assert await visited.get() == "https://example.org"
        await execute("tasks.md", 1, {"client": client})
        while await visited.get() != "https://example.com":
            pass
        async with client.tasks("pollers") as tasks:
            assert list(await tasks.definitions()) == ["news"]
        await end(worker)


async def test_the_block_without_asyncio(open_cluster):
    """In a process of its own, at this cluster's address; what it commits arrives."""
    text = code("compat.md", 0)
    addresses = "n1:7070,n2:7070"
    assert addresses in text
    async with open_cluster(1, topics={"orders": 4}) as (cluster, _):
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            text.replace(addresses, cluster.bootstrap),
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        try:
            await cluster.until(
                lambda: (
                    "billing" in cluster.groups
                    and [x.value.offset for x in cluster.groups["billing"].offsets.values()]
                    == [42] * 4
                )
            )
            record_run(text)
        finally:
            worker.kill()
            await worker.wait()
