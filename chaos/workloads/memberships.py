"""Memberships of the kinds that `member` has not, each given up and taken again."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import muster
from muster import Client, compat
from musterd.chaos.workloads.base import Settings, Worker
from musterd.chaos.workloads.outcomes import name_of

WORK_EVERY_S = 1.0
VISIT_S = 60.0
TASKS = {f"task-{n}": {"n": n} for n in range(6)}


class MembershipSettings(Settings):
    """The settings that all kinds share; each is in the group that is called after its kind."""

    group: str
    """What the groups' names begin with."""
    topic: str
    kinds: tuple[str, ...]
    """Of `LIVES`."""
    session_ms: int


class Membership:
    """One membership: taken by `take`, given up by `give_up`."""

    def __init__(self, worker: Worker[MembershipSettings], kind: str, client: Client) -> None:
        """`client`: shared by the memberships of a process."""
        self._worker = worker
        self._settings = worker.settings
        self._kind = kind
        self._client = client
        self._offset = 0

    def take(self) -> None:
        self.settled: Callable[[], bool] = lambda: False
        self._life = self._worker.spawn(self._live())

    async def _live(self) -> None:
        """Raises RuntimeError where it ends before it is given up."""
        try:
            await LIVES[self._kind](self)
        finally:
            self.settled = lambda: False
        raise RuntimeError(f"the membership in {self._group} ended by itself")

    async def give_up(self) -> None:
        self.settled = lambda: False
        self._life.cancel()
        await asyncio.wait([self._life])

    @property
    def _group(self) -> str:
        return f"{self._settings.group}-{self._kind}"

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """Write down what is refused inside, as churn explains it; the member goes on."""
        try:
            yield
        except muster.MusterError as error:
            what = {"kind": self._kind, "outcome": "fail", "error": name_of(error)}
            self._worker.track.note("call", **what)

    # ---- the kinds

    async def work_on_partitions(self) -> None:
        """A task per partition; what it commits is buffered."""
        settings = self._settings
        group = self._client.group(
            self._group,
            [settings.topic],
            assignor="cooperative-sticky",
            session_timeout_ms=settings.session_ms,
        )

        @group.on_partition(grace_ms=1_000)
        async def work(partition: muster.Partition) -> None:
            offset = partition.committed or 0
            while not partition.revoking.is_set():
                if self._worker.at_work.is_set():
                    offset += 1
                    partition.commit(offset, end_offset=offset + 10)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(partition.revoking.wait(), WORK_EVERY_S)

        async with group:
            self.settled = lambda: group.state == "Stable"
            await group.run(handle_sigterm=False)

    async def poll_in_a_thread(self) -> None:
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
        settings = self._settings
        config = {
            "bootstrap.servers": ",".join(self._worker.brief.bootstrap),
            "group.id": self._group,
            "session.timeout.ms": settings.session_ms,
            "max.poll.interval.ms": 3 * settings.session_ms,
        }
        settled = False
        self.settled = lambda: settled
        with compat.Consumer(config) as consumer:
            consumer.subscribe([settings.topic])
            while not stopped.is_set():
                consumer.poll(WORK_EVERY_S)
                mine = consumer.assignment()
                settled = bool(mine)
                self._offset += 1
                works = mine and self._worker.at_work.is_set()
                for one in mine[self._offset % len(mine) :][:1] if works else ():
                    wanted = [compat.TopicPartition(one.topic, one.partition, self._offset)]
                    with self._refusals():
                        consumer.commit(offsets=wanted, asynchronous=False)
                stopped.wait(WORK_EVERY_S)

    async def elect(self) -> None:
        """Lead when elected, until it is given up; watch who leads."""
        name, session_ms = self._worker.brief.name, self._settings.session_ms
        async with (
            self._client.election(self._group, name, session_timeout_ms=session_ms) as election,
            asyncio.TaskGroup() as both,
        ):
            self.settled = lambda: election.leader is not None

            async def watch() -> None:
                async for _ in election.watch():
                    pass

            both.create_task(watch())
            async for term in election:
                await term.run(asyncio.sleep(3_600))

    async def share_tasks(self) -> None:
        """Named tasks, which the first that comes defines."""
        session_ms = self._settings.session_ms
        async with self._client.tasks(self._group, session_timeout_ms=session_ms) as tasks:
            self.settled = lambda: tasks.state == "Stable"

            @tasks.on_task
            async def work(task: muster.Task) -> None:
                done = task.committed or 0
                while True:
                    done += 1
                    task.commit(done)
                    await asyncio.sleep(WORK_EVERY_S)
                    await self._worker.at_work.wait()

            async def define() -> None:
                defined = False
                while not defined:
                    with self._refusals():
                        await tasks.put(TASKS)
                        defined = True
                    await asyncio.sleep(WORK_EVERY_S)

            async with asyncio.TaskGroup() as both:
                both.create_task(define())
                await tasks.run(handle_sigterm=False)

    async def visit(self) -> None:
        """A client of its own joins a group of a new name, which is deleted; others are read about.

        One visit for each time that the membership is taken.
        """
        self._offset += 1
        outcome = "refused_visits"
        with self._refusals():
            async with asyncio.timeout(VISIT_S):
                await self._visit_group(f"{self._group}-{self._offset}")
            outcome = "visits"
        self._worker.track.note("count", name=outcome)
        self.settled = lambda: True
        await asyncio.Event().wait()

    async def _visit_group(self, group_id: str) -> None:
        settings = self._settings
        async with (
            self._worker.client("visit") as client,
            client.group(
                group_id, [settings.topic], session_timeout_ms=settings.session_ms
            ) as group,
        ):
            assignment = await group.next_assignment()
            await group.commit(dict.fromkeys(assignment.partitions, 1))
        for error in (await self._client.delete_groups([group_id])).values():
            if error is not None:
                raise error
        other = f"{settings.group}-partitions"
        await self._client.rebalances(other)
        await self._client.committed(other)
        await self._client.group_settings(other)
        await self._client.topics()


LIVES = {
    "partitions": Membership.work_on_partitions,
    "sync": Membership.poll_in_a_thread,
    "election": Membership.elect,
    "tasks": Membership.share_tasks,
    "visit": Membership.visit,
}
"""What a membership of each kind does, until it is given up."""


class Memberships(Worker[MembershipSettings]):
    """One membership of each of some kinds."""

    async def start(self) -> None:
        self._client = self.client()
        await self._client.open()
        self._bouncing = asyncio.Lock()
        self._members = [Membership(self, kind, self._client) for kind in self.settings.kinds]
        for one in self._members:
            one.take()

    def settled(self) -> bool:
        return all(one.settled() for one in self._members)

    async def bounce(self) -> None:
        one = self.rng.choice(self._members)
        async with self._bouncing:
            if one.settled():
                await one.give_up()
                one.take()

    async def stop(self) -> None:
        await self.cancel()
        await self._client.close()
