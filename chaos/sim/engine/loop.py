"""One process's asyncio loop on virtual time, so that shipped coroutines run as they are.

A loop belongs to one life of one process. Nothing of it runs once that life is over, and while the
process is stopped (SIGSTOP) it waits. Tasks and futures hash by the order in which they were made,
so that the sets asyncio keeps of them are walked in the same order in every run.
"""

import asyncio
import contextlib
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from typing import Any, Protocol

PASS_S = 5e-5
"""What a pass costs, so that no loop sees time stand still."""

Run = Callable[[Callable[[], None]], None]
"""Runs a pass of the loop as its process: now, when the process goes on, or never."""


class Scheduler(Protocol):
    """What a loop needs of the simulation."""

    def schedule(self, delay_s: float, run: Callable[..., None], *args: object) -> None: ...


class SimTask(asyncio.Task[Any]):
    """A task that hashes by its number."""

    def __init__(self, work: Coroutine[Any, Any, Any], loop: "ProcessLoop", **how: Any) -> None:
        self._serial = loop.serial()
        super().__init__(work, loop=loop, **how)

    def __hash__(self) -> int:
        return self._serial


class SimFuture(asyncio.Future[Any]):
    """A future that hashes by its number."""

    def __init__(self, loop: "ProcessLoop") -> None:
        self._serial = loop.serial()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._serial


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one life of one process.

    Args:
        world: the simulation's queue.
        clock: the process's monotonic seconds.
        run: how a pass is run.
        defect: told of what the shipped code itself calls a defect.
    """

    def __init__(
        self,
        world: Scheduler,
        clock: Callable[[], float],
        run: Run,
        defect: Callable[[BaseException], None],
    ) -> None:
        self._world, self._clock, self._run, self._defect = world, clock, run, defect
        self._ready: deque[asyncio.Handle] = deque()
        self._pass_wanted = False
        self._serial = 0
        self._tasks: dict[SimTask, None] = {}
        self.slept_s = 0.0
        """For how long the process's machine slept: its clock, and so its timers, stood still."""
        self.dead = False

    def serial(self) -> int:
        """The next number of a task or future."""
        self._serial += 1
        return self._serial

    def post(self, call: Callable[..., object], *args: object) -> None:
        """Have something from outside run in this process's next pass."""
        self.call_soon(call, *args)

    def unfinished(self) -> list[str]:
        return [getattr(task.get_coro(), "__qualname__", "") for task in self._tasks]

    def kill(self) -> None:
        """The process has died: nothing runs any more, not even a `finally`."""
        self.dead = True
        self._ready.clear()

    def bury(self) -> None:
        """After the run: close the coroutines that were left, so that nothing is collected later.

        What their `finally` clauses do or raise by then concerns nobody.
        """
        self.dead = True
        with self.running():
            while self._tasks:  # a `finally` may have begun another one
                task, _ = self._tasks.popitem()
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task.get_coro())

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Inside, it is the running loop, as for what it runs itself."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(before)

    # ---- asyncio.AbstractEventLoop, as far as the shipped code uses it

    def time(self) -> float:
        return self._clock() - self.slept_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._queue(handle)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._world.schedule(when - self.time(), self._ring, handle)
        return handle

    def _ring(self, handle: asyncio.TimerHandle) -> None:
        left_s = handle.when() - self.time() if self.slept_s else 0.0
        if left_s > PASS_S:  # the machine slept meanwhile
            self._world.schedule(left_s, self._ring, handle)
        else:
            self._queue(handle)

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], **how: Any
    ) -> asyncio.Task[Any]:
        """A task; it is kept until it is done."""
        task = SimTask(coro, self, **how)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        """Always, as far as a coroutine can tell."""
        return True

    def is_closed(self) -> bool:
        return self.dead

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled handles are dropped when their time comes."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A defect is a finding. What is told at collection is not: that time is no virtual one."""
        error = context.get("exception")
        told_when_collected = "never retrieved" in context["message"]
        if isinstance(error, BaseException) and not told_when_collected and not self.dead:
            self._defect(error)

    # ---- passes

    def _queue(self, handle: asyncio.Handle) -> None:
        if self.dead or handle.cancelled():
            return
        self._ready.append(handle)
        if not self._pass_wanted:
            self._pass_wanted = True
            self._world.schedule(PASS_S, self._run, self._pass)

    def _pass(self) -> None:
        """Run what was ready when the pass began, as asyncio's own loop does."""
        self._pass_wanted = False
        with self.running():
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                if self.dead:
                    return
        if self._ready and not self._pass_wanted:
            self._pass_wanted = True
            self._world.schedule(PASS_S, self._run, self._pass)

    def _done(self, task: asyncio.Future[Any]) -> None:
        assert isinstance(task, SimTask)
        self._tasks.pop(task, None)


def make_loop(
    world: Scheduler,
    clock: Callable[[], float],
    run: Run,
    defect: Callable[[BaseException], None],
) -> ProcessLoop:
    """See ProcessLoop. What it leaves abstract (sockets, threads, signals) no shipped code uses."""
    return ProcessLoop(world, clock, run, defect)  # type: ignore[abstract]


def _close(work: Any) -> None:
    with contextlib.suppress(Exception):  # see `bury`: a dead process's `finally`
        work.close()
