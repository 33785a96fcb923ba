"""What a node has to record in the audit trail: gathered here, and handed to shard 0 each second.

A call is not held up by its entry. So an entry is lost where the node ends before shard 0 has it,
and where too many wait; the latter are counted. What is refused for want of a right is gathered:
one entry a second, however many calls there are.
"""

import asyncio
import json
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Any, Final
from uuid import uuid4

from google.protobuf.message import Message

from musterd.coordinator.machine.commands import AuditEntry
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.runtime.timeouts import AUDIT_PAUSE_MS

MS: Final = 1_000
WAITING_MAX: Final = 1_000
"""Entries that wait for shard 0; more are lost, and counted."""
BATCH: Final = 16
"""Entries of one hand-over: 64 KiB at most."""
REFUSALS_MAX: Final = 64
"""Distinct refusals of one second that are named; the rest is counted."""
TEXT_MAX: Final = 256
"""Bytes of a principal, an address, a request id."""
PART_MAX: Final = 700
"""Bytes of what a call asked for, and of the values before and after it, as JSON; where that is too
much for an entry, PART_LEAST."""
PART_LEAST: Final = 300
DETAIL_MAX: Final = 3 * PART_MAX + 200
REFUSALS: Final = "refusals"
"""`method` of the entry of a second's refusals."""
OK: Final = "OK"
MIXED: Final = "MIXED"
REQUEST_ID: Final = "x-request-id"
"""A caller's own name for a call, in its metadata."""

READS: Final = frozenset(
    {
        *("ListGroups", "DescribeGroups", "DescribeGroupConfigs", "DescribeRebalances"),
        *("DescribeCluster", "Verify", "Checkpoints", "ListTopics", "DescribeTopics"),
        *("RecordAudit", "DescribeAudit", "DescribeClientQuotas"),
        *("DescribeAcls", "TestAccess", "ListTokens"),
    }
)
"""RPCs of operators without an entry: they change nothing, or would make an entry of each entry."""

_SECRETS: Final = frozenset({"secret", "token", "password", "private_key"})
"""Fields of requests that no entry says."""

LISTED_MAX: Final = 16
"""Elements of a list that an entry says."""


class HandOver(Enum):
    """What became of a hand-over."""

    DONE = "done"
    AGAIN = "again"
    LOST = "lost"


Send = Callable[[int, Sequence[AuditEntry]], Awaitable[HandOver]]
"""Hands a batch, by its number, to shard 0."""


class AuditTrail:
    """The entries of one node that shard 0 does not have yet."""

    def __init__(self) -> None:
        """Nothing is gathered until `follow`."""
        self.lost_total = 0
        """Entries that found no room, or that shard 0 did not take."""
        self._waiting: deque[AuditEntry] = deque()
        self._refused: Counter[tuple[str, str, str, str]] = Counter()
        self._refused_more = 0
        self._sent: tuple[int, int] | None = None
        """The batch that is under way: its number, and how many entries."""
        self._last_batch = 0
        self._handing_over = asyncio.Lock()
        self._node_id = 0
        self._wall_ms: Callable[[], int] | None = None
        self._is_on: Callable[[], bool] = bool
        self._recorded: Callable[[], int] = int

    def follow(
        self,
        node_id: int,
        wall_ms: Callable[[], int],
        is_on: Callable[[], bool],
        recorded: Callable[[], int],
    ) -> None:
        """From now on entries are gathered, while the cluster's level has a trail (`is_on`).

        `recorded`: the number of this node's last batch that shard 0 has, as far as is known here.
        """
        self._node_id, self._wall_ms = node_id, wall_ms
        self._is_on, self._recorded = is_on, recorded

    @property
    def gathers(self) -> bool:
        """Whether entries are taken: not in the simulator, and not below their level."""
        return self._wall_ms is not None and self._is_on()

    @property
    def waiting(self) -> int:
        """How many entries wait."""
        return len(self._waiting)

    def note(
        self, principal: str, peer: str, method: str, request_id: str, result: str, detail: str
    ) -> None:
        """Record one call."""
        if self._wall_ms is None or not self.gathers:
            return
        if len(self._waiting) >= WAITING_MAX:
            self.lost_total += 1
            return
        entry = AuditEntry(
            self._wall_ms(),
            self._node_id,
            _cut(principal),
            _cut(peer),
            _cut(method),
            _cut(request_id),
            _cut(result),
            detail,
        )
        self._waiting.append(entry)

    def refused(self, principal: str, peer: str, method: str, result: str) -> None:
        """Count a call that was refused for want of a right."""
        if not self.gathers:
            return
        host = peer.rpartition(":")[0] or peer
        key = (_cut(principal), _cut(host), method, result)
        if key in self._refused or len(self._refused) < REFUSALS_MAX:
            self._refused[key] += 1
        else:
            self._refused_more += 1

    async def run(self, send: Send) -> None:
        """Hand over what waits, each second, for ever."""
        while True:
            await asyncio.sleep(AUDIT_PAUSE_MS / MS)
            await self.flush(send)

    async def flush(self, send: Send) -> None:
        """Hand over what waits, until shard 0 cannot be reached. One at a time does so."""
        async with self._handing_over:
            await self._flush(send)

    async def _flush(self, send: Send) -> None:
        self._gather()
        while self._waiting:
            if self._sent is None:
                self._sent = (self._next_batch(), min(BATCH, len(self._waiting)))
            number, count = self._sent
            outcome = await send(number, tuple(islice(self._waiting, count)))
            if outcome is HandOver.AGAIN:
                return
            self._sent = None
            self.lost_total += count * (outcome is HandOver.LOST)
            for _ in range(count):
                self._waiting.popleft()

    def _next_batch(self) -> int:
        """Greater than all before, those of earlier processes of this node included."""
        now_ms = self._wall_ms() if self._wall_ms else 0
        self._last_batch = max(self._last_batch, self._recorded(), now_ms) + 1
        return self._last_batch

    def _gather(self) -> None:
        """Make one entry of the refusals since the last time."""
        if not self._refused:
            return
        each = [(*key, count) for key, count in self._refused.items()]
        more, self._refused_more = self._refused_more, 0
        self._refused = Counter()
        calls = sum(count for *_, count in each) + more
        named: list[tuple[str | int, ...]] = []
        size = 0
        for one in each:
            size += len(json.dumps(one))
            if size > 3 * PART_MAX:
                more += one[-1]
            else:
                named.append(one)
        detail = json.dumps({"refused": named, "more": more, "calls": calls})
        self.note("", "", REFUSALS, uuid4().hex, "REFUSED", detail)


class CallRecord:
    """One call of an operator while it runs, for its entry."""

    def __init__(self, method: str, request: object, metadata: Mapping[str, Any]) -> None:
        self.method = method
        self._request = _said(request) if isinstance(request, Message) else {}
        given = metadata.get(REQUEST_ID, "")
        self._id = given if isinstance(given, str) and given else uuid4().hex
        self.before: object = None
        self.after: object = None

    def ended(self, trail: AuditTrail, principal: str, peer: str, result: str) -> None:
        """The call was answered so."""
        parts = {"request": self._request, "before": self.before, "after": self.after}
        given = {name: part for name, part in parts.items() if part is not None}
        text = ""
        for most in (PART_MAX, PART_LEAST):
            text = json.dumps({name: shortened(part, most) for name, part in given.items()})
            if len(text) <= DETAIL_MAX:
                break
        trail.note(principal, peer, self.method, self._id, result, text)


def shortened(value: object, most: int) -> object:
    """The value; as text that is cut where it takes more bytes."""
    text = json.dumps(value)
    return value if len(text) <= most else f"{text[:most]}..."


def _cut(text: str) -> str:
    return text.encode()[:TEXT_MAX].decode(errors="ignore")


def _said(message: Message) -> dict[str, object]:
    """What a message has set, without secrets; of a list the first few elements."""
    found: dict[str, object] = {}
    for field, value in message.ListFields():
        if field.name in _SECRETS:
            found[field.name] = "..."
        elif field.is_repeated:
            some = [_plain(one) for one in islice(value, LISTED_MAX)]
            left = len(value) - len(some)
            found[field.name] = [*some, f"and {left} more"] if left else some
        else:
            found[field.name] = _plain(value)
    return found


def _plain(value: object) -> object:
    if isinstance(value, Message):
        return _said(value)
    return value.hex()[:TEXT_MAX] if isinstance(value, bytes) else value


ERRORS: Final = frozenset(int(one) for one in Error)


def result_of(response: object) -> str:
    """OK, or the name of the error in an answer's status; MIXED where its results differ."""
    results = getattr(response, "results", ())
    said = [getattr(one, "status", None) for one in (response, *results)]
    own, *others = [0 if status is None else int(status.code) for status in said]
    codes = {own} if own or not others else set(others)
    if len(codes) > 1:
        return MIXED
    (code,) = codes
    if not code:
        return OK
    return Error(code).name if code in ERRORS else str(code)
