"""An assignor of the user's own runs beside the member's loop.

It may take as long as it likes, so it has a thread of its own and a limit: heartbeats
go on meanwhile, and a member whose assignor takes too long says so and joins again. Nobody can end
a thread, so the next round waits until the last one's has ended: a member has one at a time.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future

from muster import timeouts
from muster.errors import MusterError
from muster.group.actions import Assign, Assigned, AssignLate, Assignments, AssignRefused
from muster.group.membership import shared


class AssignorThread:
    """Runs one member's own assignor; one call at a time."""

    def __init__(self, rebalance_timeout_ms: int) -> None:
        """The limit is `timeouts.ASSIGNOR_MS`, or half of the rebalance timeout if that is less."""
        self._limit_ms = min(timeouts.ASSIGNOR_MS, rebalance_timeout_ms // 2)
        self._last: Future[Assignments] | None = None

    async def run(self, asked: Assign) -> Assigned | AssignRefused | AssignLate:
        """Run the assignor in a thread of its own, within the limit."""
        named = f"assignor {asked.assignor.name!r}"
        if self._last is not None and not self._last.done():
            return AssignLate(asked.call_id, f"{named} of a round before has not ended yet")
        self._last = _begin(
            lambda: shared(asked.assignor, asked.subscribers, asked.partition_counts)
        )
        try:
            shares = await asyncio.wait_for(asyncio.wrap_future(self._last), self._limit_ms / 1000)
        except TimeoutError:
            return AssignLate(asked.call_id, f"{named} took longer than {self._limit_ms} ms")
        except MusterError as error:
            return AssignRefused(asked.call_id, error)
        return Assigned(asked.call_id, shares)


def _begin(work: Callable[[], Assignments]) -> Future[Assignments]:
    """In a daemon thread: one that never ends holds up no process that wants to."""
    outcome: Future[Assignments] = Future()
    outcome.set_running_or_notify_cancel()  # who waits may give up, and the thread goes on
    context = contextvars.copy_context()

    def run() -> None:
        try:
            outcome.set_result(context.run(work))
        except BaseException as error:  # noqa: BLE001 - told to who waits, SystemExit as well
            outcome.set_exception(error)

    threading.Thread(target=run, name="muster assignor", daemon=True).start()
    return outcome
