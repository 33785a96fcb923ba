"""The queue of answers from the shards' turn to the handlers that wait for them.

One sync can release hundreds of answers. Given out in one pass of the loop they would make the next
turn late by tens of milliseconds (docs/adr/0001-one-loop.md), so each pass gives out a few.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

ANSWERS_PER_PASS: Final = 32

T = TypeVar("T")


class ReplyQueue:
    """The queue of answers of one node."""

    def __init__(self) -> None:
        self._answers: deque[tuple[asyncio.Future[Any], object]] = deque()
        self._scheduled = False

    def settle(self, future: asyncio.Future[T]) -> Callable[[T], None]:
        """How the core answers the handler that waits for `future`.

        The handler may be gone by then: nothing is said.
        """
        return partial(self._give, future)

    def _give(self, future: asyncio.Future[Any], answer: object) -> None:
        self._answers.append((future, answer))
        if not self._scheduled:
            self._scheduled = True
            future.get_loop().call_soon(self._hand_out)

    def _hand_out(self) -> None:
        answers = self._answers
        for _ in range(min(len(answers), ANSWERS_PER_PASS)):
            future, answer = answers.popleft()
            if not future.done():
                future.set_result(answer)
        self._scheduled = bool(answers)
        if answers:
            answers[0][0].get_loop().call_soon(self._hand_out)
