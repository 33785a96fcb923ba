"""A worker that is told to pause, resume and go back while it works.

    python docs/pause.py 127.0.0.1:7070

It reads one offset after the other from each partition that it owns. On its standard input it takes
lines like `pause 1`, `resume 1` and `seek 1 40`; where it is not the owner it says so.
"""

import asyncio
import sys

import muster

TOPIC, PARTITIONS = "readings", 4


class Watch(muster.RebalanceListener):
    """Says what comes and goes."""

    def assigned(self, group: muster.Group, assignment: muster.Assignment) -> None:
        """Before their tasks start: `group.pause` and `group.seek` here count for them."""
        say(group, "assigned", assignment)

    def revoked(self, group: muster.Group, assignment: muster.Assignment) -> None:
        """Their tasks have ended and what they committed is durable; one may still commit."""
        say(group, "revoked", assignment)

    def lost(self, group: muster.Group, assignment: muster.Assignment) -> None:
        """Somebody else may own them already: commit nothing, and undo what is half done."""
        say(group, "lost", assignment)


def say(group: muster.Group, what: str, assignment: muster.Assignment) -> None:
    """One line."""
    print(group.group_id, what, *(key.partition for key in assignment.partitions), flush=True)


async def take_orders(group: muster.Group) -> None:
    """Do what the lines say, until there are no more; then end in good order."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    while line := (await lines.readline()).decode().split():
        what, key = line[0], muster.TopicPartition(TOPIC, int(line[1]))
        try:
            if what == "pause":
                group.pause([key])
            elif what == "resume":
                group.resume([key])
            else:
                group.seek(key, int(line[2]))
        except muster.MusterError as error:
            print("cannot", what, key.partition, type(error).__name__, flush=True)
        else:
            print("done", *line, flush=True)
    group.stop()


async def main(addresses: str) -> None:
    """Work until the input ends."""
    async with muster.Client(addresses) as client:
        await client.create_topic(TOPIC, PARTITIONS, exist_ok=True)
        group = client.group("meters", [TOPIC], assignor="cooperative-sticky", listener=Watch())

        @group.on_partition
        async def work(p: muster.Partition) -> None:
            offset = p.position or 0  # what was sought, else what was committed
            while True:
                await p.resumed()  # waits while the partition is paused
                print("read", p.id, offset, flush=True)
                offset += 1
                p.commit(offset)
                await asyncio.sleep(0.01)

        orders = asyncio.create_task(take_orders(group))
        await group.run()
        await orders


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
