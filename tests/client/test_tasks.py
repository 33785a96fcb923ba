"""A defect in the background is told at once."""

import asyncio

from muster.net import background_tasks


async def test_what_a_background_task_raises_reaches_the_loops_handler():
    """With the exception; a cancelled task says nothing."""
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    async def fail():
        raise LookupError("x")

    failing = background_tasks.start(fail())
    quiet = background_tasks.start(asyncio.sleep(3600))
    quiet.cancel()
    await asyncio.wait([failing, quiet])
    await asyncio.sleep(0)
    assert [type(context["exception"]) for context in told] == [LookupError]
