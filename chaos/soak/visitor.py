"""A client process that makes groups and deletes them, and looks at those of others.

Config: {"bootstrap", "name", "looked_at": [group, ...]}. Verbs: `sample` (as a worker's), `visit`:
a client of its own joins a group of a new name, commits, leaves and is closed; the group is deleted
by the client that lives as long as the process, which then reads about one of the others' groups.
"""

import asyncio
import itertools

import muster
from musterd.chaos import child
from musterd.chaos.soak.plan import SESSION_MS, TOPIC
from musterd.chaos.soak.worker import live_tasks

VISIT_S = 60.0


class Visitor:
    """Keeps counts of what it did."""

    def __init__(self, client: muster.Client, bootstrap: str, looked_at: list[str]) -> None:
        self.visits = 0
        """Those that went well."""
        self._begun = 0
        self.refused: dict[str, int] = {}
        self._client = client
        self._bootstrap = bootstrap
        self._looked_at = itertools.cycle(looked_at)

    async def visit(self) -> None:
        """One visit; what is refused is counted, and the group deleted by a later one or never."""
        self._begun += 1
        try:
            async with asyncio.timeout(VISIT_S):
                await self._visit(f"visit-{self._begun}")
        except muster.MusterError as error:
            name = type(error).__name__
            self.refused[name] = self.refused.get(name, 0) + 1
        else:
            self.visits += 1

    async def _visit(self, group_id: str) -> None:
        async with (
            muster.Client(self._bootstrap, client_id="visit") as client,
            client.group(group_id, [TOPIC], session_timeout_ms=SESSION_MS) as group,
        ):
            assignment = await group.next_assignment()
            await group.commit(dict.fromkeys(assignment.partitions, 1))
        for error in (await self._client.delete_groups([group_id])).values():
            if error is not None:
                raise error
        other = next(self._looked_at)
        await self._client.rebalances(other)
        await self._client.committed(other)
        await self._client.group_settings(other)
        await self._client.topics()


async def _main() -> None:
    config = child.config()
    visits: set[asyncio.Task[None]] = set()
    async with muster.Client(config["bootstrap"], client_id=config["name"]) as client:
        visitor = Visitor(client, config["bootstrap"], config["looked_at"])
        child.answer(ready=True)
        async for command in child.commands():
            failed = [task.exception() for task in visits if task.done() and task.exception()]
            visits = {task for task in visits if not task.done()}
            if failed:
                child.answer(error=f"a visit failed: {failed[0]!r}")
                break
            if command["verb"] == "visit" and not visits:
                visits.add(asyncio.create_task(visitor.visit()))
            child.answer(
                tasks=live_tasks(),
                commits=visitor.visits,
                refused=visitor.refused,
                settled=not visits,
                counters={"visits": visitor.visits},
            )
        await asyncio.gather(*visits, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_main())
