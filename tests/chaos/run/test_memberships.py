"""Memberships that are given up and taken again."""

import asyncio
import threading
from types import SimpleNamespace

from musterd.chaos.workloads.memberships import Membership

PATIENCE_S = 10.0


def test_a_membership_in_a_thread_that_is_given_up_leaves_no_thread(monkeypatch):
    """Or a soak says now and then that the SDK leaks: all threads of the process are counted."""
    asyncio.run(_bounce(monkeypatch))


async def _bounce(monkeypatch):
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def poll(_: Membership, stopped: threading.Event) -> None:
        loop.call_soon_threadsafe(began.set)
        stopped.wait()

    monkeypatch.setattr(Membership, "_poll", poll)
    before = set(threading.enumerate())
    worker = SimpleNamespace(settings=None, spawn=asyncio.create_task)
    member = Membership(worker, "sync", None)
    for _ in range(6):
        member.take()
        await began.wait()
        began.clear()
        await member.give_up()
        assert not member.settled()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
    assert not set(threading.enumerate()) - before
