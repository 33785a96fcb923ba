"""An assignor of one's own: partition i of every topic goes where the state of task i is.

Each worker joins `orders` with `customers` by key, so partition 3 of both belongs in one process,
and that process keeps what it has learned of task 3 on its disk, as Kafka Streams does. Run several
of these:

    python docs/colocation.py 127.0.0.1:7070 state-1 &
    python docs/colocation.py 127.0.0.1:7070 state-2 &
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import muster


def co_locate(
    members: Sequence[muster.Subscriber], partition_counts: Mapping[str, int]
) -> dict[str, list[muster.TopicPartition]]:
    """Whole tasks, evenly; each to a member that has its state, where there is room with one.

    Of several that have it, to the one that has the state of the fewest tasks.

    `user_data` of a member lists the tasks that it has on disk: `b"0 3 7"`. All members subscribe
    to the same topics.
    """
    has = {m.member_id: {int(task) for task in m.user_data.split()} for m in members}
    tasks: dict[str, list[int]] = {member_id: [] for member_id in sorted(has)}
    count = max(partition_counts.values(), default=0)
    most = -(-count // len(members))  # rounded up

    left = []
    for task in range(count):
        with_state = [m for m in tasks if task in has[m] and len(tasks[m]) < most]
        if with_state:
            tasks[min(with_state, key=lambda m: (len(has[m]), len(tasks[m]), m))].append(task)
        else:
            left.append(task)
    for task in left:
        tasks[min(tasks, key=lambda m: (len(tasks[m]), m))].append(task)
    return {
        member_id: [
            muster.TopicPartition(topic, task)
            for task in mine
            for topic, partitions in partition_counts.items()
            if task < partitions
        ]
        for member_id, mine in tasks.items()
    }


async def main(addresses: str, state: Path) -> None:
    """Work on what this process is given, and remember it in the folder `state`."""
    state.mkdir(exist_ok=True)
    assignor = muster.FunctionAssignor("co-locate", co_locate, cooperative=True)

    def on_disk() -> bytes:
        return " ".join(sorted(path.name for path in state.iterdir())).encode()

    async with muster.Client(addresses) as client:
        for topic in ("orders", "customers"):
            await client.create_topic(topic, 4, exist_ok=True)
        async with client.group(
            "join", ["orders", "customers"], assignor=assignor, user_data=on_disk
        ) as group:

            @group.on_partition
            async def work(p: muster.Partition) -> None:
                (state / str(p.id)).touch()
                print(p.topic, p.id, flush=True)
                await asyncio.Event().wait()  # until it is taken away

            await group.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
