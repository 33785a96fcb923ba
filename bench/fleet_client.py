"""A client process of a fleet: one `Client` of the public SDK, a member per group.

Config: {"bootstrap": "...", "groups": [...], "name": str}. Verbs: `join` (all at once; answered
when it began), `status` (how many have an assignment and when the last one came, what failed),
`generations` (of each member: group, the newest generation, how often it was given or lost an
assignment), `counters` (the SDK's).
"""

import asyncio
import dataclasses
import logging
import time

from bench.loops_core import tune_gc
from bench.raw import TOPIC
from chaos import child
from muster.client import Client
from muster.consumer import Group
from muster.errors import MusterError
from muster.listener import RebalanceListener
from muster.types import Assignment


class FleetMember(RebalanceListener):
    """Joins, and takes every assignment there is."""

    def __init__(self, client: Client, group_id: str, session_timeout_ms: int) -> None:
        """Make the membership; `run` joins."""
        self.group_id = group_id
        self.generation: int | None = None
        self.stable_s = 0.0
        self.losses = 0
        self.error = ""
        self._group: Group = client.group(
            group_id, [TOPIC], session_timeout_ms=session_timeout_ms, listener=self
        )

    def revoked(self, group: Group, assignment: Assignment) -> None:  # noqa: ARG002 - the fact counts
        """It joins again: not stable meanwhile."""
        self.generation = None

    def lost(self, group: Group, assignment: Assignment) -> None:  # noqa: ARG002 - the fact counts
        """Counted."""
        self.losses += 1
        self.generation = None

    async def run(self) -> None:
        """Stay in the group until cancelled. What the SDK raises ends the member, and is told."""
        try:
            async with self._group as group:
                while True:
                    assignment = await group.next_assignment()
                    self.generation, self.stable_s = assignment.generation, time.monotonic()
        except MusterError as error:
            self.error = f"{type(error).__name__}: {error}"


async def _main() -> None:
    config = child.config()
    # Ten thousand members say more than a line each; what matters is counted.
    logging.getLogger("muster").setLevel(logging.ERROR)
    running: list[asyncio.Task[None]] = []
    async with Client(config["bootstrap"], client_id=config["name"]) as client:
        members = [
            FleetMember(client, group_id, config["session_timeout_ms"])
            for group_id in config["groups"]
        ]
        tune_gc()
        child.answer(ready=True)
        async for command in child.commands():
            match command["verb"]:
                case "join":
                    began_s = time.monotonic()
                    running = [asyncio.create_task(member.run()) for member in members]
                    child.answer(began_s=began_s)
                case "status":
                    child.answer(
                        stable=sum(one.generation is not None for one in members),
                        stable_s=max((one.stable_s for one in members), default=0.0),
                        failed=[one.error for one in members if one.error],
                    )
                case "generations":
                    child.answer(
                        generations=[[one.group_id, one.generation] for one in members],
                        losses=sum(one.losses for one in members),
                    )
                case "counters":
                    child.answer(counters=dataclasses.asdict(client.counters))
                case verb:
                    child.answer(error=f"unknown verb {verb}")
        await _end(running)


async def _end(running: list[asyncio.Task[None]]) -> None:
    """The process ends with its members in their groups: a fleet that goes measures nothing."""
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=1.0)


if __name__ == "__main__":
    asyncio.run(_main())
