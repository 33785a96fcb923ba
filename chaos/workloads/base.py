"""The base of every worker process: its brief, a history, a track, and watched tasks."""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Coroutine
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

import pydantic

from muster import Client, timeouts
from muster.net.tls import Tls
from musterd.chaos.workloads.operation_log import OperationLog
from musterd.chaos.workloads.raw import RawNodes
from musterd.chaos.workloads.track import Track

CLIENTS = 1 << 16
"""Client numbers in one run; the lowest bits of every offset say who committed it."""
NUMBERS = 16
"""So many of them has each start of a process."""


class Brief(pydantic.BaseModel):
    """The command line of a worker process, as JSON."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: str
    """Of the process, unique in a run: the client's name in the history."""
    kind: str
    """Which worker (`run_worker.KINDS`)."""
    number: int = pydantic.Field(ge=0, lt=CLIENTS)
    """The first of `NUMBERS` that are its own, new with each start of a process."""
    bootstrap: list[str]
    nodes: dict[str, int]
    """Node ids by client address."""
    seed: int
    history: Path
    track: Path
    streams: bool = True
    """Whether its clients have a stream to each node; else they keep to unary calls."""
    secure: bool = False
    """Whether nodes are reached by TLS, with the files that `MUSTER_TLS_*` name in its environment;
    the cluster of a run's own is plain, whatever stands there."""
    settings: dict[str, Any] = {}
    """Of that kind."""


class Settings(pydantic.BaseModel):
    """A kind's settings; each kind adds its own."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


_S_co = TypeVar("_S_co", bound=Settings, covariant=True)


class Worker(ABC, Generic[_S_co]):
    """One process's work, by settings of the class that its own class names as parameter.

    A task of it that fails ends the process with an error.
    """

    def __init__(self, brief: Brief) -> None:
        """Open history and track; runs inside the event loop."""
        self.brief = brief
        [base] = type(self).__orig_bases__  # type: ignore[attr-defined]
        self.settings: _S_co = get_args(base)[0].model_validate(brief.settings)
        self.rng = random.Random(f"{brief.seed} {brief.name}")
        self.book = OperationLog(brief.history, brief.name)
        self.track = Track(brief.track)
        self.tls = Tls.from_environment() if brief.secure else None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.at_work = asyncio.Event()
        """Not set: it keeps its memberships, and begins no call that it need not make."""
        self.at_work.set()
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def start(self) -> None:
        """Begin; returns when it works, or has begun to try."""

    async def calm(self) -> None:
        """From now on let groups be: nobody joins, leaves or is slow on purpose. Bounded."""

    async def visit(self, nodes: Collection[int]) -> int:
        """Call these nodes now, whatever they answer; how many calls were made. Bounded."""
        return 0

    async def bounce(self) -> None:
        """Give a membership up and take it again, where it has one."""

    def settled(self) -> bool:
        """Whether each of its members stands in its group now."""
        return True

    async def stop(self) -> None:
        """End in good order; bounded. By default its tasks are cancelled."""
        await self.cancel()

    def client(self, client_id: str = "", request_timeout_ms: int = timeouts.REQUEST_MS) -> Client:
        """The SDK, for the cluster of the brief; `client_id`: "" = the process's name."""
        return Client(
            self.brief.bootstrap,
            client_id=client_id or self.brief.name,
            tls=self.tls,
            request_timeout_ms=request_timeout_ms,
            streams=self.brief.streams,
        )

    def raw(self) -> RawNodes:
        """Every node of the brief by itself. Nothing is connected yet."""
        return RawNodes(self.brief.nodes, self.book, self.tls)

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run this beside; what it raises ends the process."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def cancel(self) -> None:
        """Cancel what was spawned, and wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def close(self) -> None:
        self.book.close()
        self.track.close()

    async def pause(self, mean_s: float) -> None:
        """Wait for a while that is drawn anew each time, from half to one and a half of this."""
        await asyncio.sleep(mean_s * self.rng.uniform(0.5, 1.5))

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not self.failed.done():
            self.failed.set_exception(task.exception() or RuntimeError("a task failed"))


class Values:
    """Offsets that one client commits: rising per partition, and no other client's.

    An offset is a block number times `CLIENTS` plus the client's number. A block is above the one
    that was read and above all that this client ever used there, so nothing is committed twice.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._used: dict[object, int] = {}

    def next(self, key: object, seen: int = -1) -> int:
        """The next one for this key; `seen`: the highest offset known there, -1 = none."""
        block = max(self._used.get(key, 0), max(seen, 0) // CLIENTS) + 1
        self._used[key] = block
        return block * CLIENTS + self._number
