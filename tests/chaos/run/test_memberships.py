"""Memberships that are given up and taken again."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from muster.errors import CoordinatorNotAvailable
from musterd.chaos.workloads.memberships import LIVES, Membership

PATIENCE_S = 10.0
SETTINGS = SimpleNamespace(group="g")


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
    worker = SimpleNamespace(settings=SETTINGS, spawn=asyncio.create_task)
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


@pytest.mark.parametrize("kind", LIVES)
def test_a_membership_that_ends_by_itself_fails_the_run(kind, monkeypatch):
    """It is settled no more."""

    async def live(member: Membership) -> None:
        member.settled = lambda: True

    async def ended() -> None:
        member = Membership(SimpleNamespace(settings=SETTINGS, spawn=tasks.append), kind, None)
        member.take()
        with pytest.raises(RuntimeError, match=f"the membership in g-{kind} ended by itself"):
            await tasks.pop()
        assert not member.settled()

    tasks = []
    monkeypatch.setitem(LIVES, kind, live)
    asyncio.run(ended())


@pytest.mark.parametrize("refused", [True, False])
def test_a_refused_visit_is_counted_apart(refused, monkeypatch):
    """Its membership goes on."""

    async def visit(_member: Membership, _group_id: str) -> None:
        if refused:
            raise CoordinatorNotAvailable("planted")

    async def visited() -> str:
        counted: asyncio.Queue[str] = asyncio.Queue()
        track = SimpleNamespace(
            note=lambda what, **fields: what == "count" and counted.put_nowait(fields["name"])
        )
        worker = SimpleNamespace(settings=SETTINGS, spawn=asyncio.create_task, track=track)
        member = Membership(worker, "visit", None)
        member.take()
        name = await asyncio.wait_for(counted.get(), PATIENCE_S)
        await member.give_up()
        return name

    monkeypatch.setattr(Membership, "_visit_group", visit)
    assert asyncio.run(visited()) == ("refused_visits" if refused else "visits")
