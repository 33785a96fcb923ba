"""A client process of a fleet: one `Client` of the public SDK, a member per group.

Config and verbs are those of `bench.member_client` (`join`, `leave`, `status`), so that a benchmark
can be run either way; and `counters`, the SDK's. `status` also says who failed for good, and where
the coordinator assigns how many partitions each member has.
"""

import asyncio
import dataclasses
import logging
import time

from bench.collector import tune_gc
from bench.raw import TOPIC
from muster.client import Assigning, Client
from muster.errors import MusterError
from muster.group.group import Group
from muster.group.rebalance_listener import RebalanceListener
from muster.types import Assignment
from musterd.chaos import child


class FleetMember(RebalanceListener):
    """Joins when it is started, and takes every assignment until it leaves."""

    def __init__(
        self, client: Client, group_id: str, session_timeout_ms: int, assignment: Assigning
    ) -> None:
        self.group_id = group_id
        self.share = 0
        """How many partitions it was given last."""
        self.generation: int | None = None
        self.stable_s = 0.0
        """When the latest assignment came, CLOCK_MONOTONIC seconds."""
        self.error = ""
        self.task: asyncio.Task[None] | None = None
        self._client = client
        self._session_timeout_ms = session_timeout_ms
        self._assignment: Assigning = assignment
        self._group: Group | None = None

    def revoked(self, group: Group, assignment: Assignment) -> None:  # noqa: ARG002 - the fact counts
        """Not stable until the next assignment."""
        self.generation = None

    def lost(self, group: Group, assignment: Assignment) -> None:  # noqa: ARG002 - the fact counts
        self.generation = None

    def start(self) -> None:
        self.task = asyncio.create_task(self._run())

    async def leave(self) -> None:
        """Leave; it may be started again."""
        group, task, self.task = self._group, self.task, None
        if group is None or task is None:
            raise RuntimeError(f"a member of {self.group_id} leaves that has not joined")
        await group.close()
        await task

    async def _run(self) -> None:
        """Run the member until it is ended; an error of the SDK ends it and is told."""
        self._group = group = self._client.group(
            self.group_id,
            [TOPIC],
            session_timeout_ms=self._session_timeout_ms,
            listener=self,
            assignment=self._assignment,
        )
        try:
            async with group:
                while True:
                    assignment = await group.next_assignment()
                    self.generation, self.stable_s = assignment.generation, time.monotonic()
                    self.share = len(assignment.partitions)
        except MusterError as error:
            self.generation = None
            if self.task is not None:
                self.error = f"{type(error).__name__}: {error}"


class FleetProcess:
    """The members of one process."""

    def __init__(self, client: Client, config: child.Message) -> None:
        """Take the groups of the config; `join` joins them."""
        self._client = client
        self._members = [
            FleetMember(
                client, group_id, config["session_timeout_ms"], config.get("assignment", "client")
            )
            for group_id in config["groups"]
        ]

    def join(self, count: int | None = None) -> child.Message:
        """So many that are outside begin to join, at once."""
        began_s = time.monotonic()
        for member in [one for one in self._members if one.task is None][:count]:
            member.start()
        return {"began_s": began_s}

    async def leave(self, count: int) -> child.Message:
        """So many leave at once."""
        leaving = [one for one in self._members if one.task is not None][-count:]
        began_s = time.monotonic()
        await asyncio.gather(*(member.leave() for member in leaving))
        return {"began_s": began_s}

    def status(self) -> child.Message:
        """Which generation each member inside is stable in; None while it is not."""
        inside = [one for one in self._members if one.task is not None]
        return {
            "generations": [[one.group_id, one.generation] for one in inside],
            "shares": [[one.group_id, one.share] for one in inside],
            "stable_s": max((one.stable_s for one in inside), default=0.0),
            "failed": [one.error for one in self._members if one.error],
        }

    async def end(self) -> None:
        """The process ends with its members in their groups: who measures is done."""
        running = [one.task for one in self._members if one.task is not None]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=1.0)


async def _main() -> None:
    config = child.config()
    # Ten thousand members say more than a line each; what matters is counted.
    logging.getLogger("muster").setLevel(logging.ERROR)
    async with Client(config["endpoints"], client_id=config["name"]) as client:
        process = FleetProcess(client, config)
        tune_gc()
        child.answer(ready=True)
        async for command in child.commands():
            match command["verb"]:
                case "join":
                    child.answer(**process.join(command.get("count")))
                case "leave":
                    child.answer(**await process.leave(command["count"]))
                case "status":
                    child.answer(**process.status())
                case "counters":
                    child.answer(counters=dataclasses.asdict(client.counters))
                case verb:
                    child.answer(error=f"unknown verb {verb}")
        await process.end()


if __name__ == "__main__":
    asyncio.run(_main())
