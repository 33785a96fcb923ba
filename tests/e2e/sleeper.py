"""`python sleeper.py BOOTSTRAP TOPIC SESSION_MS`: a worker that tells what happens, one line each.

- `begins PARTITION`: a piece of work was handed out.
- `slept`: its clock says that its machine slept.
- `beats`: a heartbeat is sent.
"""

import asyncio
import sys

import muster.client
from muster.net import sleep_clock
from muster.net.nodes import Nodes

LOOK_S = 0.005
SLEPT_S = 1.0
"""What two clocks never differ by otherwise."""


def tell(line):
    """In the order in which the worker's own loop saw it."""
    sys.stdout.write(f"{line}\n")


async def main(bootstrap, topic, session_ms):
    """Until it is killed."""
    async with muster.Client(bootstrap) as client:
        group = client.group("g", [topic], session_timeout_ms=session_ms)
        group.on_partition(work)
        watching = asyncio.create_task(watch())
        await group.run()
        watching.cancel()


async def work(partition):
    """Ask before each piece, as docs/pause.py does."""
    done = partition.position or 0
    while True:
        await partition.resumed()
        tell(f"begins {partition.id}")
        done += 1
        partition.commit(done)
        await asyncio.sleep(LOOK_S)


async def watch():
    """Until its machine has slept."""
    before_s = sleep_clock.slept_s()
    while sleep_clock.slept_s() - before_s < SLEPT_S:
        await asyncio.sleep(LOOK_S)
    tell("slept")


class TellingNodes(Nodes):
    """Tells of each heartbeat."""

    def unary(self, endpoint, path, *arguments):
        if path.endswith("/Heartbeat"):
            tell("beats")
        return super().unary(endpoint, path, *arguments)


if __name__ == "__main__":
    muster.client.Nodes = TellingNodes
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
