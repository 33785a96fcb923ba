"""A worker as a process: `python -m musterd.chaos.workloads.run_worker BRIEF`, commands on stdin.

It answers `{"ready": true}` when it works, `{"calm": true}` to `calm`, `{"visited": CALLS}` to
`visit` (of `nodes`), how many tasks it has and whether its members are `settled` to `sample`,
nothing to `bounce`, `rest` and `work`, and `{"ended": true}` to `end`, after it has stopped.
When stdin is closed it stops, too. What a task of it raises ends it with `{"error": ...}`, code 1.
"""

import asyncio
import gc
import logging
import signal
import sys

from musterd.chaos import child
from musterd.chaos.workloads.admin import Admin
from musterd.chaos.workloads.base import Brief, Settings, Worker
from musterd.chaos.workloads.final import Cleaner, Final
from musterd.chaos.workloads.member import Members
from musterd.chaos.workloads.memberships import Memberships
from musterd.chaos.workloads.offsets import Probe, Simple
from musterd.chaos.workloads.pulse import Pulse, Recreated
from musterd.chaos.workloads.replay import Replay
from musterd.chaos.workloads.store import Stores
from musterd.chaos.workloads.watcher import Watcher

KINDS: dict[str, type[Worker[Settings]]] = {
    "admin": Admin,
    "cleaner": Cleaner,
    "final": Final,
    "members": Members,
    "memberships": Memberships,
    "probe": Probe,
    "pulse": Pulse,
    "recreated": Recreated,
    "replay": Replay,
    "simple": Simple,
    "stores": Stores,
    "watcher": Watcher,
}
"""Every kind of worker, by its name in a brief."""


def live_tasks() -> int:
    """Tasks that have not ended, of every loop of this process."""
    return sum(isinstance(one, asyncio.Task) and not one.done() for one in gc.get_objects())


async def serve(worker: Worker[Settings]) -> None:
    """Until `end`, or the end of stdin."""
    async for message in child.commands():
        match message["verb"]:
            case "calm":
                await worker.calm()
                child.answer(calm=True)
            case "visit":
                child.answer(visited=await worker.visit(message["nodes"]))
            case "rest":
                worker.at_work.clear()
            case "work":
                worker.at_work.set()
            case "bounce":
                worker.spawn(worker.bounce())
            case "sample":
                child.answer(tasks=live_tasks(), settled=worker.settled())
            case "end":
                await worker.stop()
                child.answer(ended=True)
                return
    await worker.stop()


async def run(brief: Brief) -> int:
    """Start the worker, serve it; the exit code."""
    worker = KINDS[brief.kind](brief)
    try:
        await worker.start()
        child.answer(ready=True)
        serving = asyncio.create_task(serve(worker))
        await asyncio.wait([serving, worker.failed], return_when=asyncio.FIRST_COMPLETED)
        if worker.failed.done():
            worker.failed.result()
        await serving
    except Exception as error:
        logging.getLogger("chaos").exception("%s failed", brief.name)
        child.answer(error=f"{type(error).__name__}: {error}")
        return 1
    finally:
        worker.close()
    return 0


def main() -> None:
    """Run the worker of the brief on the command line; exits with its code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the runner's business
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    sys.exit(asyncio.run(run(Brief.model_validate(child.config()))))


if __name__ == "__main__":
    main()
