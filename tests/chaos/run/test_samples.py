"""What is read of a process is what it has."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from musterd.chaos.run.samples import SamplesError, look
from musterd.chaos.workloads.run_worker import live_tasks


def seen(pid):
    """Now, of a process that has a task."""
    return look(3.0, "node-0", "node", pid, tasks=1)


def test_handles_are_counted_by_kind(tmp_path):
    """A socket, a file of a store, one that is deleted, another one: each under its name."""
    (tmp_path / "db").mkdir()
    before = seen(os.getpid()).handles
    with (
        socket.socket(),
        (tmp_path / "db" / "000007.sst").open("w"),
        (tmp_path / "db" / "000008.sst").open("w") as gone,
        (tmp_path / "other").open("w"),
    ):
        Path(gone.name).unlink()
        after = seen(os.getpid()).handles
    assert {kind: after[kind] - before[kind] for kind in after} == {
        "socket": 1,
        "database": 1,
        "deleted": 1,
        "other": 1,
    }
    assert seen(os.getpid()).handles == before


def test_threads_and_memory_are_those_of_now():
    """A thread more is one more; 64 MiB that are used are resident.

    A process of its own is asked: here a thread of an earlier test may end in between.
    """
    code = (
        "import sys, threading\n"
        "print(flush=True); sys.stdin.readline()\n"
        "held = b'x' * (64 * 1024 * 1024)\n"
        "threading.Thread(target=sys.stdin.readline).start()\n"
        "print(len(held), flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        before = seen(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert int(process.stdout.readline()) == 64 * 1024 * 1024
        after = seen(process.pid)
        process.communicate(b"\n")
    assert (before.threads, after.threads, after.pool_threads) == (1, 2, 0)
    assert after.rss_kib - before.rss_kib > 60 * 1024
    assert after.cpu_s >= before.cpu_s


def test_tasks_of_all_loops_are_counted_until_they_end():
    """Of this loop and of one in a thread; one that has ended is not."""

    async def both():
        before = live_tasks()
        other = threading.Thread(target=lambda: asyncio.run(asyncio.wait_for(wait(), 30)))
        ended = threading.Event()
        here, started = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        async def wait():
            loop.call_soon_threadsafe(started.set)
            await asyncio.to_thread(ended.wait)

        mine = asyncio.create_task(here.wait())
        other.start()
        await started.wait()
        # The thread has the task of asyncio.run, which runs wait() itself or in one more.
        during = live_tasks()
        here.set()
        ended.set()
        await mine
        await asyncio.to_thread(other.join)
        return before, during, live_tasks()

    before, during, after = asyncio.run(both())
    assert during >= before + 2
    assert after == before


def test_a_process_that_is_gone_is_an_error_and_not_a_zero():
    """It says which process it was."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(SamplesError, match=str(process.pid)):
        seen(process.pid)
