"""Limits on requests that have come: their bytes while their calls last, and their parsing.

gRPC keeps the bytes of a request until its call ends, even while the call is parked or its answer
is not taken. So they are counted for as long, and a connection or node that has too many is refused
further requests unparsed. To parse a request of empty entries takes about 50 ms and forty times its
bytes: small requests are parsed at once, others take turns, so many bytes in every other pass.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from musterd.coordinator.runtime.timeouts import COMMIT_WAIT_MS_MAX

MS: Final = 1_000

REQUEST_BYTES_MAX: Final = 1_536 * 1_024
"""The largest valid request fits: a heartbeat of 2,000 members with the longest ids takes 1.46 MiB.
Of empty entries so many bytes take 100 ms to parse, and 70 MiB."""

FRAME_REST_BYTES: Final = 16 * 1_024
"""Bytes of a stream's frame beside one request: 1,024 cancellations."""

CONNECTION_BYTES_MAX: Final = 8 * 1_024 * 1_024
"""Bytes of requests that one connection has under way: 8 KiB for each call that it may have at a
time."""

NODE_BYTES_MAX: Final = 64 * 1_024 * 1_024
"""Bytes of requests that a node has under way: 6 KiB for each of the 10,000 calls that may be
parked."""

SPARED_BYTES_MAX: Final = 128 * 1_024
"""A connection has so many bytes under way whatever others have: a Join of the largest member, and
its other calls."""

AT_ONCE_BYTES_MAX: Final = 4 * 1_024
"""A request of so many bytes is parsed at once, in 0.2 ms at most; larger ones wait for a turn."""

PASS_BYTES_MAX: Final = 128 * 1_024
"""Bytes of requests that have their turn in one pass of the loop; the last may exceed it. Larger
ones wait apart, and one of them has its turn beside those."""


COMMITS_PASS_BYTES_MAX: Final = 16 * 1_024
"""Bytes of commits that have their turn in one pass; they wait apart. 1,000 partitions, or a few
smaller commits."""


class Received:
    """One call's request, not parsed yet."""

    __slots__ = ("group_id", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.group_id = ""
        """What the metrics need of the request when its call ends."""

    async def parsed(self, request: Any) -> None:
        """Say that it has been parsed; waits until it may be handled."""

    def at_end(self, callback: Callable[[object], None]) -> None:
        """Have `callback` called when its answer is written, or cannot be: its task ends then."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a handler runs in a task")
        task.add_done_callback(callback)


class Requests:
    """Bytes of the requests that are under way."""

    def __init__(self) -> None:
        self._by_peer: Counter[str] = Counter()
        self.bytes = 0
        self.refused_total = 0

    def take(self, peer: str, size: int) -> bool:
        """Count a request until `let_go`, also where it is to be refused: then it returns False."""
        self._by_peer[peer] += size
        self.bytes += size
        own = self._by_peer[peer]
        spared = own <= SPARED_BYTES_MAX
        taken = own <= CONNECTION_BYTES_MAX and (spared or self.bytes <= NODE_BYTES_MAX)
        self.refused_total += not taken
        return taken

    def has_room(self, peer: str, size: int) -> bool:
        """Whether `take` would take so many bytes more. Nothing is counted."""
        own, node = self._by_peer[peer] + size, self.bytes + size
        return own <= SPARED_BYTES_MAX or (own <= CONNECTION_BYTES_MAX and node <= NODE_BYTES_MAX)

    def full(self, peer: str) -> bool:
        """Whether this connection is refused further requests, which then need not be read."""
        full = self._by_peer[peer] >= CONNECTION_BYTES_MAX
        self.refused_total += full
        return full

    def let_go(self, peer: str, size: int) -> None:
        """The call has ended. What is 0 is forgotten."""
        self.bytes -= size
        self._by_peer[peer] -= size
        if not self._by_peer[peer]:
            del self._by_peer[peer]


class ParseQueue:
    """Requests that wait until they may be parsed, each in order: medium ones, and large ones.

    Commits wait apart, and while the node holds enough large ones (large_commits.py), for
    COMMIT_WAIT_MS_MAX.
    """

    def __init__(self, commits_wait: Callable[[], bool] = lambda: False) -> None:
        """`commits_wait`: whether no commit may be parsed now; `look` is called when that ends."""
        self._loop = asyncio.get_running_loop()
        self._commits_wait = commits_wait
        self._commits: deque[_Turn] = deque()
        self._medium: deque[_Turn] = deque()
        self._large: deque[_Turn] = deque()
        self._scheduled = False

    async def turn(self, size: int, *, commit: bool = False) -> bool:
        """Wait until a request of so many bytes may be parsed; False: it has waited too long."""
        if size <= AT_ONCE_BYTES_MAX:
            return True
        turn = _Turn(size, self._loop.create_future(), self._loop.time())
        queue = self._medium if size <= PASS_BYTES_MAX else self._large
        (self._commits if commit else queue).append(turn)
        self.look()
        return await turn.come

    def look(self) -> None:
        """Go on, where something may be parsed. To be called now and then."""
        since_s = self._loop.time() - COMMIT_WAIT_MS_MAX / MS
        full = bool(self._commits) and self._commits_wait()
        while full and self._commits and self._commits[0].since_s < since_s:
            turn = self._commits.popleft()
            if not turn.come.done():
                turn.come.set_result(False)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        commits = self._commits and not self._commits_wait()
        self._scheduled = bool(self._medium or self._large or commits)
        if self._scheduled:
            self._loop.call_soon(self._loop.call_soon, self._next)

    def _next(self) -> None:
        """In every other pass, while any wait: what came meanwhile is served between two turns."""
        for queue in (self._medium, self._large):
            _give_turns(queue, PASS_BYTES_MAX)
        if not self._commits_wait():
            _give_turns(self._commits, COMMITS_PASS_BYTES_MAX)
        self._schedule()


class _Turn(NamedTuple):
    size: int
    come: asyncio.Future[bool]
    since_s: float


def _give_turns(queue: deque[_Turn], left: int) -> None:
    """To so many bytes of requests, the last of which may exceed it."""
    while queue and left > 0:
        turn = queue.popleft()
        if not turn.come.done():  # its call was not cancelled
            turn.come.set_result(True)
            left -= turn.size
