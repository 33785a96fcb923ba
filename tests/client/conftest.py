"""Async tests without a plug-in, on the oldest and the newest versions alike."""

import asyncio
import inspect

import pytest

import muster
from muster.testing import Cluster

TEST_SECONDS_MAX = 60
OURS = ("muster:", "Task was destroyed", "Task exception was never retrieved")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run `async def` tests in a loop of their own, and let none leave a task behind."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(_run(pyfuncitem.obj(**arguments)))
    return True


async def _run(test):
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with asyncio.timeout(TEST_SECONDS_MAX):
        await test
    # gRPC's own poller says something about loops of earlier tests; what the SDK tells is ours.
    ours = [context for context in told if context["message"].startswith(OURS)]
    assert not ours, f"failures in the background: {ours}"
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        # Callbacks of tasks that have ended may still be due in this turn of the loop.
        await asyncio.wait(left, timeout=1)
    left = [task for task in asyncio.all_tasks() - {asyncio.current_task()} if not task.done()]
    assert not left, f"tasks left behind: {left}"


@pytest.fixture
def open_cluster():
    """A cluster, with topic t of 4 partitions, and a client of it, for `async with`."""

    class Opened:
        def __init__(self, nodes=1, *, client=None, **options):
            options.setdefault("topics", {"t": 4})
            self.cluster = Cluster(nodes, **options)
            self.options = client or {}

        async def __aenter__(self):
            await self.cluster.__aenter__()
            self.client = await muster.Client(self.cluster.bootstrap, **self.options).open()
            return self.cluster, self.client

        async def __aexit__(self, *details):
            await self.client.close()
            await self.cluster.__aexit__(*details)

    return Opened
