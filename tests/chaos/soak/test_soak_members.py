"""Memberships that are given up and taken again."""

import asyncio
import threading

from musterd.chaos.soak.plan import Membership
from musterd.chaos.soak.soak_members import Member, Tally

PATIENCE_S = 10.0


def test_a_membership_in_a_thread_that_is_given_up_leaves_no_thread(monkeypatch):
    """Or a soak says now and then that the SDK leaks: all threads of the process are counted."""
    asyncio.run(_bounce(monkeypatch))


async def _bounce(monkeypatch):
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def poll(_: Member, stopped: threading.Event) -> None:
        loop.call_soon_threadsafe(began.set)
        stopped.wait()

    monkeypatch.setattr(Member, "_poll", poll)
    before = set(threading.enumerate())
    member = Member(None, "", Membership("soak-sync-0", "sync", ""), Tally())
    member.start()
    for _ in range(5):
        await began.wait()
        began.clear()
        await member.bounce()
    await began.wait()
    await member.stop()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
    assert not set(threading.enumerate()) - before
