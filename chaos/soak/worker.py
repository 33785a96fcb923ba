"""A client process of the public SDK with a few memberships.

Config: {"bootstrap", "name", "memberships": [[group, kind, instance], ...]}. Verbs: `sample` (tasks
of all loops, commits, visits, refused commits by error, whether every member stands in its group),
`bounce` (`member`: leave and come back; answered at once). The answer to anything is an error where
a membership has ended by itself.
"""

import asyncio
import gc

import muster
from musterd.chaos import child
from musterd.chaos.soak.plan import Membership
from musterd.chaos.soak.soak_members import Member, Tally


def live_tasks() -> int:
    """Tasks that have not ended, of every loop of this process."""
    return sum(isinstance(one, asyncio.Task) and not one.done() for one in gc.get_objects())


def told(error: BaseException) -> str:
    """What went wrong; of a group of errors each."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(told(one) for one in error.exceptions)
    return f"{type(error).__name__}: {error}"


async def _main() -> None:
    config = child.config()
    tally = Tally()
    bounces: dict[int, asyncio.Task[None]] = {}
    async with muster.Client(config["bootstrap"], client_id=config["name"]) as client:
        members = [
            Member(client, config["bootstrap"], Membership(*one), tally)
            for one in config["memberships"]
        ]
        for member in members:
            member.start()
        child.answer(ready=True)
        async for command in child.commands():
            try:
                for number in [one for one, task in bounces.items() if task.done()]:
                    bounces.pop(number).result()
                settled = [
                    member.check() for number, member in enumerate(members) if number not in bounces
                ]
            except Exception as error:  # noqa: BLE001 - whatever it is, the run fails with it
                child.answer(error=f"a membership ended: {told(error)}")
                break
            if command["verb"] == "bounce":
                number = command["member"]
                if number not in bounces:
                    bounces[number] = asyncio.create_task(members[number].bounce())
            child.answer(
                tasks=live_tasks(),
                commits=client.counters.commits_acknowledged + tally.synchronous,
                visits=tally.visits,
                refused=tally.refused,
                settled=all(settled) and not bounces,
            )
        await asyncio.gather(*bounces.values(), return_exceptions=True)
        await asyncio.gather(*(member.stop() for member in members), return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_main())
