"""Tasks that last as long as a node: none ends without a word."""

import asyncio
from types import SimpleNamespace

import pytest

from musterd.coordinator.node.node import Node


async def forever():
    """A task of a node."""
    await asyncio.Event().wait()


async def fails():
    """One that ends with an error."""
    raise OSError("gone")


@pytest.mark.parametrize(
    ("task_of", "is_closing", "ends"),
    [(forever, False, True), (forever, True, False), (fails, False, True)],
)
def test_a_task_that_ends_while_the_node_runs_ends_the_node(task_of, is_closing, ends):
    """Also one that is cancelled, as gRPC does with calls of a channel that is closed."""
    errors = []
    node = SimpleNamespace(_closing=is_closing, _fail=errors.append)
    node._task_ended = lambda task: Node._task_ended(node, task)

    async def scenario():
        task = asyncio.create_task(task_of())
        task.add_done_callback(lambda one: Node._follower_ended(node, one))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert len(errors) == ends
    if ends and task_of is forever:
        assert "was cancelled" in str(errors[0])
