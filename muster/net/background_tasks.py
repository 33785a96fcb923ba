"""Background tasks whose failure is told at once, and not when the task is collected."""

import asyncio
from collections.abc import Coroutine
from typing import Any


def start(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """A task; what it raises goes to the loop's exception handler. Keep what this returns."""
    task = asyncio.create_task(work)
    task.add_done_callback(_tell)
    return task


def _tell(task: "asyncio.Task[None]") -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        message = f"muster: background task {task.get_name()} failed; this is a defect"
        context = {"message": message, "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)
