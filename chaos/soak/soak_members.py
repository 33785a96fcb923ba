"""Memberships of every kind the SDK has, each of which can be given up and taken again."""

import asyncio
import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import muster
from muster import compat
from musterd.chaos.soak.plan import COMMIT_EVERY_S, SESSION_MS, TOPIC, VISITS, Membership, groups

LOOK_EVERY = 20
"""A member that polls reads its committed offsets after so many commits."""
VISIT_S = 60.0
TASKS = {f"task-{n}": {"n": n} for n in range(6)}


class Tally:
    """What the memberships of one process did."""

    def __init__(self) -> None:
        self.synchronous = 0
        """Acknowledged commits of `compat.Consumer`, which has a client of its own."""
        self.visits = 0
        """Those that went well."""
        self.refused: Counter[str] = Counter()
        """Names of errors that churn explains: the member goes on after them."""

    @contextlib.contextmanager
    def refusals(self) -> Iterator[None]:
        """Count what is refused inside. The client counts acknowledged commits."""
        try:
            yield
        except muster.MusterError as error:
            self.refused[type(error).__name__] += 1


class Member:
    """One membership: taken by `start`, given up and taken again by `bounce`."""

    def __init__(
        self, client: muster.Client, bootstrap: str, membership: Membership, tally: Tally
    ) -> None:
        """`client`: shared by the memberships of a process, as `tally`."""
        self._group, self._kind = membership.group, membership.kind
        self._instance = membership.instance
        self._client = client
        self._bootstrap = bootstrap
        self._tally = tally
        self._life: asyncio.Task[None] | None = None
        self._settled: Callable[[], bool] = lambda: False
        self._offset = 0
        self._looked_at = itertools.cycle([name for name, _ in groups()])

    def start(self) -> None:
        """Take it."""
        lives = {
            "partitions": self._work_on_partitions,
            "sync": self._synchronously,
            "election": self._elect,
            "tasks": self._share_tasks,
            VISITS: self._visit,
        }
        self._life = asyncio.create_task(lives.get(self._kind, self._commit)())

    async def stop(self) -> None:
        """Give it up. Raises what ended it before."""
        if self._life is not None:
            self._life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._life

    async def bounce(self) -> None:
        """Give it up, and take it again."""
        await self.stop()
        self.start()

    def check(self) -> bool:
        """Whether it stands in its group now. Raises what ended it."""
        if self._life is not None and self._life.done():
            self._life.result()
            raise RuntimeError(f"the membership of {self._group} ended")
        return self._settled()

    def _next(self) -> int:
        self._offset += 1
        return self._offset

    # ---- the kinds

    async def _commit(self) -> None:
        """Eager, cooperative, static: take one assignment after the other, commit in between."""
        assignor = "cooperative-sticky" if self._kind == "cooperative" else "range"
        async with (
            self._client.group(
                self._group,
                [TOPIC],
                assignor=assignor,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=3 * SESSION_MS,
                group_instance_id=self._instance,
            ) as group,
            asyncio.TaskGroup() as both,
        ):
            self._settled = lambda: group.state == "Stable"
            both.create_task(_follow(group))
            while True:
                await asyncio.sleep(COMMIT_EVERY_S)
                held, offset = group.assignment, self._next()
                if held is not None and held.partitions:
                    one = held.partitions[offset % len(held.partitions)]
                    with self._tally.refusals():
                        await group.commit({one: offset})
                if self._kind == "polling" and offset % LOOK_EVERY == 0:
                    with self._tally.refusals():
                        await group.committed()

    async def _work_on_partitions(self) -> None:
        """A task per partition; what it commits is buffered."""
        group = self._client.group(
            self._group, [TOPIC], assignor="cooperative-sticky", session_timeout_ms=SESSION_MS
        )

        @group.on_partition(grace_ms=1_000)
        async def work(partition: muster.Partition) -> None:
            offset = partition.committed or 0
            while not partition.revoking.is_set():
                offset += 1
                partition.commit(offset, end_offset=offset + 10)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(partition.revoking.wait(), 4 * COMMIT_EVERY_S)

        async with group:
            self._settled = lambda: group.state == "Stable"
            await group.run(handle_sigterm=False)

    async def _synchronously(self) -> None:
        """confluent-kafka's names, in a thread that ends with the membership.

        Threads of the loop's own pool stay, and it starts another where the last one is not quite
        back when it is asked again: the process would have grown by a thread, by chance.
        """
        stopped = threading.Event()
        pool = ThreadPoolExecutor(max_workers=1)
        work = asyncio.get_running_loop().run_in_executor(pool, self._poll, stopped)
        try:
            await asyncio.shield(work)
        finally:
            stopped.set()
            pool.shutdown(wait=False)
            await work

    def _poll(self, stopped: threading.Event) -> None:
        config = {
            "bootstrap.servers": self._bootstrap,
            "group.id": self._group,
            "session.timeout.ms": SESSION_MS,
            "max.poll.interval.ms": 3 * SESSION_MS,
        }
        settled = False
        self._settled = lambda: settled
        with compat.Consumer(config) as consumer:
            consumer.subscribe([TOPIC])
            while not stopped.is_set():
                consumer.poll(COMMIT_EVERY_S)
                mine = consumer.assignment()
                settled = bool(mine)
                offset = self._next()
                for one in mine[offset % len(mine) :][:1] if mine else ():
                    wanted = [compat.TopicPartition(one.topic, one.partition, offset)]
                    with self._tally.refusals():
                        consumer.commit(offsets=wanted, asynchronous=False)
                        self._tally.synchronous += 1
                stopped.wait(COMMIT_EVERY_S)

    async def _elect(self) -> None:
        """Lead when elected, and resign after a while; watch who leads."""
        async with (
            self._client.election(
                self._group, self._instance, session_timeout_ms=SESSION_MS
            ) as election,
            asyncio.TaskGroup() as both,
        ):
            self._settled = lambda: election.leader is not None

            async def watch() -> None:
                async for _ in election.watch():
                    pass

            both.create_task(watch())
            async for term in election:
                await term.run(asyncio.sleep(3_600))

    async def _share_tasks(self) -> None:
        """Named tasks, which the first that comes defines."""
        async with self._client.tasks(self._group, session_timeout_ms=SESSION_MS) as tasks:
            self._settled = lambda: tasks.state == "Stable"

            @tasks.on_task
            async def work(task: muster.Task) -> None:
                done = task.committed or 0
                while True:
                    done += 1
                    task.commit(done)
                    await asyncio.sleep(4 * COMMIT_EVERY_S)

            async with asyncio.TaskGroup() as both:
                both.create_task(self._define(tasks))
                await tasks.run(handle_sigterm=False)

    async def _define(self, tasks: muster.Tasks) -> None:
        while True:
            try:
                await tasks.put(TASKS)
            except muster.MusterError as error:
                self._tally.refused[type(error).__name__] += 1
                await asyncio.sleep(COMMIT_EVERY_S)
            else:
                return

    async def _visit(self) -> None:
        """Make one visit, then stay until the next one is asked for.

        What is refused is counted, and its group deleted by nobody.
        """
        self._settled = lambda: False
        with self._tally.refusals():
            async with asyncio.timeout(VISIT_S):
                await self._visit_group(f"visit-{self._next()}")
            self._tally.visits += 1
        self._settled = lambda: True
        await asyncio.Event().wait()

    async def _visit_group(self, group_id: str) -> None:
        """A client of its own joins a new group, which is deleted; others are read about."""
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


async def _follow(group: muster.Group) -> None:
    while True:
        await group.next_assignment()
