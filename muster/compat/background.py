"""The thread with an event loop in which all synchronous consumers of a process live.

It starts with the first consumer that is used and ends with the last one that is closed. It is a
daemon, and when the interpreter ends it is stopped before gRPC is: a process ends although a
consumer was not closed. It does not survive a fork, as gRPC does not.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from muster import timeouts
from muster.errors import InvalidRequest, RequestTimedOut

HEARING_S = 0.1
"""A wait is interrupted within this, whoever took the signal."""

log = logging.getLogger("muster")

T = TypeVar("T")
Abandon = Callable[[], Coroutine[Any, Any, None]]


class _Running:
    """One life of the thread."""

    def __init__(self) -> None:
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self.thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name="muster", daemon=True
        )
        self.thread.start()
        ready.result()

    async def _serve(self, ready: "concurrent.futures.Future[None]") -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        ready.set_result(None)
        await self._stop.wait()

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self._stop.set)


class Background:
    """The thread, while anybody needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._users: dict[object, Abandon] = {}
        self._is_lost = False  # this is the child of a fork
        self._is_registered = False

    def enter(self, user: object, abandon: Abandon) -> None:
        """Start it, or keep it, for this user until it leaves.

        Args:
            user: whatever `leave` is called with.
            abandon: end the user's business, without its help.

        Raises:
            InvalidRequest: this process is a fork of one in which it runs.
        """
        with self._lock:
            if self._is_lost:
                raise InvalidRequest(
                    "this process is a fork of one that used a muster consumer",
                    hint="start processes with spawn, or make the first consumer after the fork",
                )
            if not self._is_registered:
                self._is_registered = True
                atexit.register(self._exit)
                os.register_at_fork(after_in_child=self._forked)
            if self._running is None:
                self._running = _Running()
            self._users[user] = abandon

    def leave(self, user: object) -> None:
        """It is not needed by this user any more; a second time this does nothing."""
        with self._lock:
            running = self._running
            if self._users.pop(user, None) is None or self._users or running is None:
                return
            self._running = None
        running.stop()
        if threading.current_thread() is not running.thread:
            running.thread.join()

    def submit(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Start it there.

        Raises:
            InvalidRequest: the thread is gone, as it is after a fork.
        """
        running = self._running
        if running is None:
            work.close()
            raise InvalidRequest("this consumer's thread is gone", hint="make it after the fork")
        return asyncio.run_coroutine_threadsafe(work, running.loop)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run it there and wait. Where the wait ends early, the work is cancelled.

        Raises:
            RequestTimedOut: it took longer.
        """
        future = self.submit(work)
        end_s = time.monotonic() + timeout_s
        try:
            # In pieces: one of gRPC's threads may take the signal of Ctrl-C, and wakes nobody.
            while not future.done() and (left_s := end_s - time.monotonic()) > 0:
                concurrent.futures.wait([future], min(left_s, HEARING_S))
            return future.result(0)
        except concurrent.futures.TimeoutError:
            raise RequestTimedOut(f"no result within {timeout_s:g} s") from None
        finally:
            future.cancel()

    def soon(self, work: Callable[[], object]) -> None:
        """Call it there, without waiting; nothing happens where the thread is gone."""
        running = self._running
        if running is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                running.loop.call_soon_threadsafe(work)

    def _exit(self) -> None:
        """Abandon the consumers that are still open when the interpreter ends."""
        running = self._running
        if running is None:
            return
        log.warning("%d muster consumers were not closed", len(self._users))
        work = [abandon() for abandon in self._users.values()]
        everything = asyncio.run_coroutine_threadsafe(_all(work), running.loop)
        concurrent.futures.wait([everything], timeouts.SYNC_EXIT_MS / 1000)
        self._running = None
        running.stop()
        running.thread.join(timeouts.SYNC_EXIT_MS / 1000)

    def _forked(self) -> None:
        self._is_lost = self._is_lost or self._running is not None
        self._running = None
        self._users.clear()
        self._lock = threading.Lock()


async def _all(work: list[Coroutine[Any, Any, None]]) -> None:
    for error in await asyncio.gather(*work, return_exceptions=True):
        if error is not None:
            log.warning("while the process ended: %s", error)


BACKGROUND = Background()
"""The background of this process."""
