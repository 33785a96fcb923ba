"""Limits on answers that callers have not taken yet, of each connection and of the node.

An answer stays in memory until its caller's flow control lets it through; a caller that never reads
lets nothing through. So each is counted from its encoding until gRPC has written it. Reads of a
connection wait until it has taken most of its answers. A connection with too many bytes waiting is
refused further calls before they do anything, and answers of calls under way are dropped. An answer
that is not taken within UNTAKEN_MS_MAX is ended with its call. A node with too many bytes waiting
ends the oldest, which are those of callers that do not read; what little a connection has waiting
is kept in any case.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.runtime.timeouts import UNTAKEN_MS_MAX, UNTAKEN_ROOM_MS

MS: Final = 1_000
CONNECTION_BYTES_MAX: Final = LIMITS.untaken_connection_max_bytes
NODE_BYTES_MAX: Final = LIMITS.untaken_max_bytes
SPARED_BYTES_MAX: Final = 64 * 1_024
"""A connection has so many bytes waiting whatever others have: those who take their answers must
not suffer from those who do not."""
READ_ON_BYTES_MAX: Final = 256 * 1_024
"""A connection that has so many bytes waiting is answered no further read: it waits."""
ANSWER_BYTES: Final = 1_024
"""What an answer weighs beside its own bytes, so that empty ones count, too."""

Context = Any
"""A handler's, as grpc.aio has it."""


class UntakenAnswer:
    """One call's answer, from when it is encoded until it is taken."""

    __slots__ = ("context", "encoded", "made_s", "peer", "size")

    def __init__(self, encoded: bytes, peer: str, context: Context, made_s: float) -> None:
        self.encoded = encoded
        self.peer = peer
        self.context = context
        self.made_s = made_s
        self.size = ANSWER_BYTES + len(encoded)

    def handed_over(self) -> bytes:
        """The encoded answer, which gRPC has from now on."""
        encoded, self.encoded = self.encoded, b""
        return encoded


class UntakenAnswers:
    """The answers of one node that are not taken yet, the oldest first."""

    def __init__(self, clock_s: Callable[[], float], end: Callable[[Context], None]) -> None:
        """`end` ends the call of a handler's context (grpc_internals.py)."""
        self._clock_s = clock_s
        self._end = end
        self._open: OrderedDict[UntakenAnswer, None] = OrderedDict()
        self._by_peer: dict[str, int] = {}
        self._next_reads: dict[str, deque[asyncio.Future[bool]]] = {}
        self.bytes = 0
        self.refused_total = 0
        """Calls that were refused, or whose answer was dropped, because of those before."""
        self.ended_total = 0
        """Calls that were ended because nobody took their answer."""

    def __len__(self) -> int:
        return len(self._open)

    def refuses(self, peer: str) -> bool:
        """Whether this connection has to take answers before it may ask for more."""
        refused = self._by_peer.get(peer, 0) >= CONNECTION_BYTES_MAX
        self.refused_total += refused
        return refused

    def is_full(self, peer: str) -> bool:
        """Whether `refuses` would say so; nothing is counted."""
        return self._by_peer.get(peer, 0) >= CONNECTION_BYTES_MAX

    async def few(self, peer: str) -> bool:
        """Wait, before a long answer is made, until this connection has taken most before it.

        False where that was not taken in time.
        """
        while self._by_peer.get(peer, 0) >= READ_ON_BYTES_MAX:
            turn = asyncio.get_running_loop().create_future()
            turns = self._next_reads.setdefault(peer, deque())
            turns.append(turn)
            try:
                if not await turn:
                    return False
            except asyncio.CancelledError:
                turns.remove(turn)
                raise
        return True

    def keep(self, encoded: bytes, peer: str, context: Context) -> UntakenAnswer | None:
        """Count an answer until `let_go`; None where there is no room for it.

        The last one of a connection may exceed its maximum. The node's is exceeded by what
        connections are spared alone.
        """
        answer = UntakenAnswer(encoded, peer, context, self._clock_s())
        if not self._has_place(peer, answer.size):
            return None
        self._by_peer[peer] = self._by_peer.get(peer, 0) + answer.size
        self.bytes += answer.size
        self._open[answer] = None
        return answer

    def add(self, answer: UntakenAnswer, encoded_size: int) -> bool:
        """Count one more answer, of so many bytes, that is taken together with `answer`.

        False where there is no room for it, or nobody took `answer`: its call is ended.
        """
        size = ANSWER_BYTES + encoded_size
        if answer not in self._open or not self._has_place(answer.peer, size):
            return False
        answer.size += size
        self._by_peer[answer.peer] += size
        self.bytes += size
        return True

    def _has_place(self, peer: str, size: int) -> bool:
        if self.refuses(peer):
            return False
        has_place = (
            self.bytes + size <= NODE_BYTES_MAX
            or self._makes_room(size)
            or self._by_peer.get(peer, 0) + size <= SPARED_BYTES_MAX
        )
        self.refused_total += not has_place
        return has_place

    def let_go(self, answer: UntakenAnswer, *, taken: bool = True) -> bool:
        """Count it no more; False where it was counted no more already, as it was not taken."""
        if answer not in self._open:
            return False
        del self._open[answer]
        self.bytes -= answer.size
        self._by_peer[answer.peer] -= answer.size
        if self._by_peer[answer.peer] < READ_ON_BYTES_MAX:
            for turn in self._next_reads.pop(answer.peer, ()):
                if not turn.done():
                    turn.set_result(taken)
        if not self._by_peer[answer.peer]:
            del self._by_peer[answer.peer]
        return True

    def look(self) -> None:
        """End the calls whose answers were not taken for too long. To be called now and then."""
        self._end_older_than(UNTAKEN_MS_MAX, lambda: True)

    def _makes_room(self, size: int) -> bool:
        """The oldest go first, but none that may be on its way still."""
        self._end_older_than(UNTAKEN_ROOM_MS, lambda: self.bytes + size > NODE_BYTES_MAX)
        return self.bytes + size <= NODE_BYTES_MAX

    def _end_older_than(self, age_ms: int, wanted: Callable[[], bool]) -> None:
        limit_s = self._clock_s() - age_ms / MS
        while self._open and wanted():
            answer = next(iter(self._open))
            if answer.made_s > limit_s:
                return
            self.ended_total += 1
            self.let_go(answer, taken=False)
            self._end(answer.context)


ANSWER: Final[ContextVar[UntakenAnswer | None]] = ContextVar("answer", default=None)
"""What the running handler's call is answered with, once it is encoded."""
