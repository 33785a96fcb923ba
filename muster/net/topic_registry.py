"""The registered topics, in a cache that all members of one client share.

A fleet that starts names the same topics a thousand times. Names that come up in the same turn of
the loop share one call, and whoever names a topic that is being asked about waits for that answer.
A topic that was found is not asked about again; if it is deleted, it has no partitions.
"""

import asyncio
from collections.abc import Collection

from muster.admin.topics import topic_errors
from muster.errors import MusterError
from muster.net import background_tasks
from muster.net.calls import Caller, client_closed

KNOWN_MAX = 10_000
"""Names that a client remembers: some 3 MiB. Beyond it begins anew."""

NAMES_MAX = 1_000
"""In one call."""

Answer = asyncio.Future[MusterError | None]


class TopicRegistry:
    """Looks topics up, each once."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._known: set[str] = set()
        self._asked: dict[str, Answer] = {}
        self._waiting: dict[str, Answer] = {}  # of those, the ones that no call has taken yet
        self._calls: set[asyncio.Task[None]] = set()

    async def require(self, names: Collection[str], timeout_ms: float) -> None:
        """Return once all of these are known to exist.

        Args:
            names: of topics.
            timeout_ms: all attempts of a call together, in milliseconds; where another member's
                call is under way, its own.

        Raises:
            UnknownTopicOrPartition: one of them does not exist, as far as the node asked knows.
            CoordinatorNotAvailable, RequestTimedOut: nobody answered in time.
            CallFailed: the client was closed meanwhile.
        """
        answers = [self._answer(name, timeout_ms) for name in names if name not in self._known]
        for answer in answers:
            error = await asyncio.shield(answer)
            if error is not None:
                raise error

    def _answer(self, name: str, timeout_ms: float) -> Answer:
        answer = self._asked.get(name)
        if answer is None:
            loop = asyncio.get_running_loop()
            if not self._waiting:
                loop.call_soon(self._send, timeout_ms)
            answer = self._asked[name] = self._waiting[name] = loop.create_future()
            if len(self._waiting) >= NAMES_MAX:
                self._send(timeout_ms)
        return answer

    def _send(self, timeout_ms: float) -> None:
        waiting, self._waiting = self._waiting, {}
        if waiting:
            call = background_tasks.start(self._ask(waiting, timeout_ms))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _ask(self, waiting: dict[str, Answer], timeout_ms: float) -> None:
        errors: dict[str, MusterError | None] = dict.fromkeys(waiting, client_closed())
        try:
            errors.update(await topic_errors(self._caller, waiting, timeout_ms))
        except MusterError as error:
            errors = dict.fromkeys(waiting, error)
        finally:
            for name, answer in waiting.items():
                del self._asked[name]
                if errors[name] is None:
                    self._learn(name)
                answer.set_result(errors[name])

    def forget(self, name: str) -> None:
        self._known.discard(name)

    def _learn(self, name: str) -> None:
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known.add(name)

    async def close(self) -> None:
        """Stop asking. What was about to be asked is not."""
        waiting, self._waiting = self._waiting, {}
        for name, answer in waiting.items():
            del self._asked[name]
            answer.set_result(client_closed())
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(list(self._calls))
