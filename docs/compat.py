"""A worker without asyncio, with confluent-kafka's names.

    python docs/compat.py 127.0.0.1:7070 &
    python docs/compat.py 127.0.0.1:7070 &

It reads the numbers below 50 from each partition that it owns; SIGTERM ends it in good order.
"""

import signal
import sys
import threading
import time

from muster.compat import OFFSET_INVALID, Consumer, TopicPartition

LAST = 50


def main(addresses: str) -> None:
    """Work until SIGTERM."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    done: dict[TopicPartition, int] = {}  # where each partition is

    def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for one in consumer.position(partitions):
            done[one] = 0 if one.offset == OFFSET_INVALID else one.offset
            print("assigned", one.partition, "from", done[one], flush=True)

    def on_revoke(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        commit(consumer, partitions)  # still counts, and is durable when this returns

    def on_lost(_: Consumer, partitions: list[TopicPartition]) -> None:
        print("lost", *(one.partition for one in partitions), flush=True)

    def commit(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        offsets = [TopicPartition(p.topic, p.partition, done[p]) for p in partitions if done[p]]
        if offsets:
            consumer.commit(offsets=offsets, asynchronous=False)

    config = {
        "bootstrap.servers": addresses,
        "group.id": "sums",
        "partition.assignment.strategy": "cooperative-sticky",
    }
    with Consumer(config) as consumer:
        consumer.subscribe(["numbers"], on_assign, on_revoke, on_lost)
        is_busy = False
        while not stopped.is_set():
            consumer.poll(0 if is_busy else 0.5)  # callbacks run in here, and nowhere else
            is_busy = False
            for one in consumer.assignment():
                if done[one] < LAST:
                    is_busy = True
                    done[one] += 1
                    print("read", one.partition, done[one] - 1, consumer.fencing_token, flush=True)
            time.sleep(0.01)  # the work


if __name__ == "__main__":
    main(sys.argv[1])
