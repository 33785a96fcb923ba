"""A client process of the public SDK: a member per group, each with one commit always in flight.

Config: {"bootstrap": "...", "groups": [...], "name": str}, and with TLS "tls": the files of `Tls`.
Verbs: `status` (generation, rebalances and losses per group), `commits` (what was acknowledged
since the last `commits`: per group the times a commit was handed to the SDK and acknowledged, and
the term that answered), `rest` and `go` (members stay, and commit nothing in between).
"""

import asyncio
import time

from bench.collector import tune_gc
from bench.raw import TOPIC
from muster.client import Client
from muster.errors import MusterError
from muster.group.group import Group
from muster.group.rebalance_listener import RebalanceListener
from muster.net.tls import Tls
from muster.types import Assignment, TopicPartition
from musterd.chaos import child


class Committer(RebalanceListener):
    """Commits 1, 2, 3, ... to every partition it owns, without a pause."""

    def __init__(self, client: Client, group_id: str) -> None:
        """Make the membership; `run` joins."""
        self.group_id = group_id
        self.generation: int | None = None
        self.assignments = 0
        self.losses = 0
        self.errors: list[str] = []
        self.commits: list[tuple[float, float, int]] = []
        self.going = asyncio.Event()
        self.going.set()
        self._group: Group = client.group(group_id, [TOPIC], listener=self)

    def lost(self, group: Group, assignment: Assignment) -> None:  # noqa: ARG002 - the fact counts
        self.losses += 1

    async def run(self) -> None:
        """Commit until cancelled. What the SDK raises is kept: a failover must not raise."""
        offset = 0
        async with self._group as group:
            while True:
                assignment = await group.next_assignment()
                self.generation = assignment.generation
                self.assignments += 1
                partition: TopicPartition = assignment.partitions[0]
                while True:
                    await self.going.wait()
                    offset += 1
                    before_s = time.monotonic()
                    try:
                        result = await group.commit({partition: offset})
                    except MusterError as error:
                        self.errors.append(f"{type(error).__name__}: {error}")
                        break
                    if result.acknowledged:
                        self.commits.append((before_s, time.monotonic(), result.term))


async def _main() -> None:
    config = child.config()
    tls = Tls(**config["tls"]) if "tls" in config else None
    async with Client(config["bootstrap"], client_id=config["name"], tls=tls) as client:
        committers = [Committer(client, group_id) for group_id in config["groups"]]
        tasks = [asyncio.create_task(committer.run()) for committer in committers]
        tune_gc()
        child.answer(ready=True)
        async for command in child.commands():
            failed = [repr(task.exception()) for task in tasks if task.done()]
            if failed:
                child.answer(error=f"a member ended: {failed[0]}")
                break
            if command["verb"] == "status":
                child.answer(
                    groups={
                        one.group_id: {
                            "generation": one.generation,
                            "assignments": one.assignments,
                            "lost": one.losses,
                            "errors": one.errors,
                        }
                        for one in committers
                    }
                )
            elif command["verb"] in ("rest", "go"):
                for one in committers:
                    (one.going.set if command["verb"] == "go" else one.going.clear)()
                child.answer(done=True)
            else:
                child.answer(commits={one.group_id: one.commits for one in committers})
                for one in committers:
                    one.commits = []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_main())
