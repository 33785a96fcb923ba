"""What is read of a process is what it has."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from musterd.chaos.soak import sampling
from musterd.chaos.soak.sampling import SampleError
from musterd.chaos.soak.worker import live_tasks


def test_handles_are_counted_by_kind(tmp_path):
    """A socket, a file of a store, one that is deleted, another one: each under its name."""
    (tmp_path / "db").mkdir()
    before = sampling.handles(os.getpid())
    with (
        socket.socket(),
        (tmp_path / "db" / "000007.sst").open("w"),
        (tmp_path / "db" / "000008.sst").open("w") as gone,
        (tmp_path / "other").open("w"),
    ):
        Path(gone.name).unlink()
        after = sampling.handles(os.getpid())
    assert {kind: after[kind] - before[kind] for kind in after} == {
        "socket": 1,
        "database": 1,
        "deleted": 1,
        "other": 1,
    }
    assert sampling.handles(os.getpid()) == before


def test_threads_and_memory_are_those_of_now():
    """A thread more is one more; 64 MiB that are used are resident and private.

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
        threads, _ = sampling.threads_and_cpu(process.pid)
        rss, _, private = sampling.memory_kib(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert int(process.stdout.readline()) == 64 * 1024 * 1024
        assert sampling.threads_and_cpu(process.pid)[0] == threads + 1 == 2
        after = sampling.memory_kib(process.pid)
        process.communicate(b"\n")
    assert after[0] - rss > 60 * 1024 < after[2] - private


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
    """Each reading says which process it was."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    for read in (sampling.memory_kib, sampling.handles, sampling.threads_and_cpu):
        with pytest.raises(SampleError, match=str(process.pid)):
            read(process.pid)


def test_a_page_that_does_not_answer_is_an_error():
    """Nobody listens: no number is made up."""
    with pytest.raises(SampleError, match=r"127\.0\.0\.1:1"):
        sampling.node_tasks("127.0.0.1:1")


def test_processes_of_a_run_are_found_by_their_mark_and_waited_for():
    """A child that lives is found, with its command; one that ends is waited for."""
    environment = {**os.environ, "MUSTER_SOAK_TEST": str(os.getpid())}
    marker = f"MUSTER_SOAK_TEST={os.getpid()}"
    code = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        process.stdout.readline()
        assert process.pid in sampling.marked(marker)
        assert "sys.stdin.read" in sampling.wait_gone(marker, 0.0)[process.pid]
        process.stdin.close()
        assert sampling.wait_gone(marker, 30.0) == {}
