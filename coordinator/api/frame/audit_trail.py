"""What a node has to record in the audit trail: gathered here, and handed to shard 0 each second.

A call is not held up by its entry. So an entry is lost where the node ends before shard 0 has it,
and where too many wait; the latter are counted. What is refused for want of a right is gathered,
and so are calls of those who need not be operators, that changed nothing, or of which there are too
many: a few entries of each, however many there are. They are made within a second, and seldomer
while such calls go on: once a minute in the end.
"""

import asyncio
import json
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Any, Final
from uuid import uuid4

from google.protobuf.message import Message

from musterd.coordinator.machine.commands import AuditEntry
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Configured, Done, Left, OffsetsDeleted, Refused
from musterd.coordinator.runtime.answers import Answer, Shed
from musterd.coordinator.runtime.calls import OnOutcome
from musterd.coordinator.runtime.timeouts import AUDIT_PAUSE_MS

MS: Final = 1_000
WAITING_MAX: Final = 1_000
"""Entries that wait for shard 0; more are lost, and counted."""
BATCH: Final = 16
"""Entries of one hand-over: 64 KiB at most."""
GATHERED_MAX: Final = 64
"""Distinct refusals that are named at once, and as many calls that changed nothing; the rest is
counted."""
GATHERED_ENTRIES_MAX: Final = 5
"""Entries that are made at once of refusals, and of calls that changed nothing: as many as it takes
to name GATHERED_MAX of them where names are ordinary. It is one while such calls go on."""
OWN_MAX: Final = 20
"""Calls of one caller and minute that changed something, and for which a right to a group or topic
is enough, that have entries of their own; further ones are gathered."""
ROUNDS_MAX: Final = 60
"""Hand-overs, one a second, for which refusals are gathered at most. The time for which they are
gathered doubles each time up to it."""
QUIET_ROUNDS: Final = 300
"""It halves after so many hand-overs without a refusal: whoever waits for that gets no more entries
than whoever goes on."""
GATHERED_BYTES_MAX: Final = 3_600
"""Bytes of what one of these entries names, as JSON."""
TEXT_MAX: Final = 256
"""Bytes of a principal, an address, a request id."""
PART_MAX: Final = 700
"""Bytes of what a call asked for, and of the values before and after it, as JSON; where that is too
much for an entry, PART_LEAST."""
PART_LEAST: Final = 300
DETAIL_MAX: Final = 3 * PART_MAX + 200
REFUSALS: Final = "refusals"
"""`method` of the entries of refusals."""
UNCHANGED: Final = "unchanged"
"""`method` of the entries of calls that changed nothing."""
CHANGES: Final = "changes"
"""`method` of the entries of calls that changed something, beyond OWN_MAX."""
ASKED_MAX: Final = 120
"""Bytes of the request of the first of several such calls, as JSON."""
OK: Final = "OK"
MIXED: Final = "MIXED"
CANCELLED: Final = "CANCELLED"
REQUEST_ID: Final = "x-request-id"
"""A caller's own name for a call, in its metadata."""

READS: Final = frozenset(
    {
        *("ListGroups", "DescribeGroups", "DescribeGroupConfigs", "DescribeRebalances"),
        *("DescribeCluster", "Verify", "Checkpoints", "ListTopics", "DescribeTopics"),
        *("DescribeAudit", "DescribeClientQuotas"),
        *("DescribeAcls", "TestAccess", "ListTokens"),
    }
)
"""RPCs of operators without an entry: they change nothing."""

_NO_ENTRY: Final = frozenset(
    {
        *("UNAUTHENTICATED", "RESOURCE_EXHAUSTED"),  # a flood would fill the trail
        *("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"),  # the call comes again, elsewhere
    }
)
"""Calls that changed nothing and were answered so are not even counted."""

NO_RIGHT: Final = "AUTHORIZATION_FAILED"
"""How the names of errors end that say that the caller has no right."""

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


class _OwnEntries:
    """How many entries of their own callers had in this minute, of calls that take no operator."""

    def __init__(self) -> None:
        self._of_each: Counter[str] = Counter()
        """By caller, WAITING_MAX of them."""
        self._rounds = 0

    def take(self, principal: str) -> bool:
        """Whether one more has an entry of its own; it is counted then."""
        had = self._of_each.get(principal, 0)
        if had >= OWN_MAX or (not had and len(self._of_each) >= WAITING_MAX):
            return False
        self._of_each[principal] = had + 1
        return True

    def passed(self) -> None:
        """One more second has passed."""
        self._rounds += 1
        if self._rounds >= ROUNDS_MAX:
            self._rounds = 0
            self._of_each.clear()


class _Gathered:
    """What is a few entries, and those seldom, however often it happens."""

    def __init__(self, method: str, result: str, name: str) -> None:
        """`name`: of the list in the entry's detail."""
        self.method, self.result = method, result
        self._name = name
        self._each: dict[tuple[str, ...], tuple[int, str]] = {}
        """How often each happened, and what the first one asked for, GATHERED_MAX of them. What
        each is begins with the caller and its host."""
        self._more = 0
        self._wait = 1
        """For how many hand-overs it is gathered, and how many there were since the last entry, or
        since this became less."""
        self._rounds = 0
        self._entries_max = GATHERED_ENTRIES_MAX

    def add(self, key: tuple[str, ...], asked: str = "") -> None:
        """Count one; `asked` is said of the first one alone."""
        count, first = self._each.get(key, (0, asked))
        self._each[key] = count + 1, first
        if len(self._each) > GATHERED_MAX:
            self._more += self._each.pop(self._surplus())[0]

    def _surplus(self) -> tuple[str, ...]:
        """The latest one of the host with most, of the caller with most: nobody hides another."""
        by_caller = Counter(key[0] for key in self._each)
        by_host = Counter(key[:2] for key in self._each)
        latest_first = reversed(self._each)
        return max(latest_first, key=lambda key: (by_caller[key[0]], by_host[key[:2]]))

    def _in_turn(self) -> list[tuple[str, ...]]:
        """First one of each caller's host, then the second ones, and so on."""
        seen: Counter[tuple[str, ...]] = Counter()
        places: list[tuple[int, int]] = []
        for key in self._each:
            places.append((seen[key[:2]], seen[key[:1]]))
            seen.update((key[:2], key[:1]))
        by_place = sorted(zip(places, self._each, strict=True), key=lambda one: one[0])
        return [key for _, key in by_place]

    def is_due(self) -> bool:
        """Whether entries are to be made, asked at each hand-over."""
        self._rounds += 1
        if self._each:
            if self._rounds < self._wait:
                return False
            self._entries_max = GATHERED_ENTRIES_MAX if self._wait == 1 else 1
            self._wait = min(2 * self._wait, ROUNDS_MAX)
        else:
            if self._rounds < QUIET_ROUNDS:
                return False
            self._wait = max(self._wait // 2, 1)
        self._rounds = 0
        return True

    def take(self) -> list[str]:
        """Make the details of the entries of all since the last time, so many at most.

        `calls` of an entry are those that it names and `more` that none does.
        """
        if not self._each:
            return []
        each = {key: self._each[key] for key in self._in_turn()}
        more = self._more
        self._each, self._more = {}, 0
        parts: list[list[list[str | int]]] = [[]]
        calls, size = [0], 0
        for key, (count, asked) in each.items():
            one: list[str | int] = [*key[:4], count, *filter(None, (asked,))]
            bytes_of_one = len(json.dumps([one]))  # with what parts it from the next one
            if parts[-1] and size + bytes_of_one > GATHERED_BYTES_MAX:
                if len(parts) == self._entries_max:
                    more += count
                    continue
                parts.append([])
                calls.append(0)
                size = 0
            if bytes_of_one > GATHERED_BYTES_MAX:
                more += count
                continue
            parts[-1].append(one)
            calls[-1] += count
            size += bytes_of_one
        unnamed = [0] * (len(parts) - 1) + [more]
        return [
            json.dumps({self._name: named, "more": left, "calls": count + left})
            for named, left, count in zip(parts, unnamed, calls, strict=True)
        ]


class AuditTrail:
    """The entries of one node that shard 0 does not have yet."""

    def __init__(self) -> None:
        """Nothing is gathered until `follow`."""
        self.lost_total = 0
        """Entries that found no room, or that shard 0 did not take."""
        self._waiting: deque[AuditEntry] = deque()
        self._refused = _Gathered(REFUSALS, "REFUSED", "refused")
        self._unchanged = _Gathered(UNCHANGED, "UNCHANGED", "unchanged")
        self._changed = _Gathered(CHANGES, "CHANGED", "changes")
        self._own = _OwnEntries()
        self._sent: tuple[int, int] | None = None
        """The batch that is under way: its number, and how many entries."""
        self._last_batch = 0
        self._handing_over = asyncio.Lock()
        self._node_id = 0
        self._wall_ms: Callable[[], int] | None = None
        self._is_on: Callable[[], bool] = bool
        self._recorded: Callable[[], int | None] = int

    def follow(
        self,
        node_id: int,
        wall_ms: Callable[[], int],
        is_on: Callable[[], bool],
        recorded: Callable[[], int | None],
    ) -> None:
        """From now on entries are gathered, while the cluster's level has a trail (`is_on`).

        `recorded`: the number of this node's last batch that shard 0 has; None while that is not
        known here.
        """
        self._node_id, self._wall_ms = node_id, wall_ms
        self._is_on, self._recorded = is_on, recorded

    @property
    def gathers(self) -> bool:
        """Whether entries are taken: not in the simulator, and not below their level."""
        return self._wall_ms is not None and self._is_on()

    def has_own(self, principal: str) -> bool:
        """Whether a call of the caller has an entry of its own; it is counted then.

        Asked of calls that changed something and take no operator.
        """
        return self._own.take(_cut(principal))

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
        """Count what was refused for want of a right: a call, or one item of a call."""
        if self.gathers:
            self._refused.add((_cut(principal), _host(peer), method, result))

    def changed(self, principal: str, peer: str, method: str, result: str, asked: str) -> None:
        """Count a call that changed something. `asked`: what it asked for, as JSON.

        Those that asked for something else are named apart.
        """
        if self.gathers:
            self._changed.add((_cut(principal), _host(peer), method, result, asked), asked)

    def unchanged(self, principal: str, peer: str, method: str, result: str, asked: str) -> None:
        """Count a call that changed nothing. `asked`: what it asked for, as JSON."""
        if self.gathers:
            self._unchanged.add((_cut(principal), _host(peer), method, result), asked)

    async def run(self, send: Send) -> None:
        """Hand over what waits, each second, for ever."""
        while True:
            await asyncio.sleep(AUDIT_PAUSE_MS / MS)
            await self.hand_over(send)

    async def hand_over(self, send: Send) -> None:
        """Hand over what waits: one second's, while more of what is gathered is to come."""
        self._own.passed()
        self._gather(each_due=True)
        await self._flush(send)

    async def flush(self, send: Send) -> None:
        """Hand over all that there is, as at the end."""
        self._gather(each_due=False)
        await self._flush(send)

    async def _flush(self, send: Send) -> None:
        """Hand over until shard 0 cannot be reached. One at a time does so."""
        async with self._handing_over:
            await self._send_all(send)

    async def _send_all(self, send: Send) -> None:
        while self._waiting:
            if self._sent is None:
                drawn = self._next_batch()
                if drawn is None:
                    return
                self._sent = (drawn, min(BATCH, len(self._waiting)))
            number, count = self._sent
            outcome = await send(number, tuple(islice(self._waiting, count)))
            if outcome is HandOver.AGAIN:
                return
            self._sent = None
            self.lost_total += count * (outcome is HandOver.LOST)
            for _ in range(count):
                self._waiting.popleft()

    def _next_batch(self) -> int | None:
        """Greater than all before, those of earlier processes of this node included.

        None while these are not known: one that is not greater would be taken for a repetition.
        """
        recorded = self._recorded()
        if recorded is None and not self._last_batch:
            return None
        now_ms = self._wall_ms() if self._wall_ms else 0
        self._last_batch = max(self._last_batch, recorded or 0, now_ms) + 1
        return self._last_batch

    def _gather(self, *, each_due: bool) -> None:
        """Make entries of what was gathered since the last time.

        `each_due`: of those whose time has come.
        """
        for gathered in (self._refused, self._unchanged, self._changed):
            if each_due and not gathered.is_due():
                continue
            for detail in gathered.take():
                self.note("", "", gathered.method, uuid4().hex, gathered.result, detail)


class CallRecord:
    """One call of an operator while it runs, for its entry.

    It is closed once the call has ended and it is known what became of all that it asked for.
    """

    def __init__(
        self, method: str, request: object, metadata: Mapping[str, Any], *, always: bool = False
    ) -> None:
        """`always`: the call has an entry of its own, whether it changed something or not."""
        self.method = method
        self._request = _said(request) if isinstance(request, Message) else {}
        given = metadata.get(REQUEST_ID, "")
        self._id = given if isinstance(given, str) and given else uuid4().hex
        self.before: object = None
        self.after: object = None
        """Or a function that says it, asked when the record is closed."""
        self._always, self._gathered = always, False
        self._changed = False
        self._asked = self._unknown = False
        """Whether a command was put, and whether the log was left without an answer to one."""
        self._open = 0
        self._close: Callable[[], None] | None = None

    def gather(self, request: Message) -> None:
        """The call has no entry of its own: it is gathered, as one that asked for this alone."""
        self._always, self._gathered = False, True
        self._request = _said(request)

    def asks(self) -> OnOutcome:
        """The call puts a command to a shard; returns whom to tell what became of it."""
        self._open += 1
        self._asked = True
        return self._told

    def _told(self, answer: Answer | None, offered: bool) -> None:  # an OnOutcome
        self._open -= 1
        changed = _changed(answer)
        if changed is None:
            changed = offered
            self._unknown = self._unknown or offered
        self._changed = self._changed or changed
        if self._close is not None and not self._open:
            self._close()

    def ended(self, trail: AuditTrail, principal: str, peer: str, result: str) -> None:
        """The call was answered so."""

        def close() -> None:
            self._enter(trail, principal, peer, result)

        if self._open:
            self._close = close
        else:
            close()

    def _enter(self, trail: AuditTrail, principal: str, peer: str, result: str) -> None:
        if not self._changed and (result in _NO_ENTRY or result.endswith(NO_RIGHT)):
            return  # the latter are counted where they are refused
        may_own = self._changed and not self._gathered
        if not self._always and not (may_own and trail.has_own(principal)):
            count = trail.changed if self._changed else trail.unchanged
            asked = str(shortened(json.dumps(self._request), ASKED_MAX))
            count(principal, peer, self.method, result, asked)
            return
        parts: dict[str, object] = {"request": self._request}
        left = result == CANCELLED and not self._asked  # what it did without a command goes on
        if self._changed or left or result in (OK, MIXED):
            after = self.after() if callable(self.after) else self.after
            parts |= {"before": self.before, "after": after}
            if self._unknown or (left and (self.before, after) != (None, None)):
                parts["outcome"] = "unknown"
        given = {name: part for name, part in parts.items() if part is not None}
        text = ""
        for most in (PART_MAX, PART_LEAST):
            text = json.dumps({name: shortened(part, most) for name, part in given.items()})
            if len(text) <= DETAIL_MAX:
                break
        trail.note(principal, peer, self.method, self._id, result, text)


def _changed(answer: Answer | None) -> bool | None:
    """Whether a command that was answered so changed something.

    None: that is not known, where it was on its way to the log.
    """
    match answer:
        case Done() | OffsetsDeleted() | Configured():
            return answer.changed
        case Left():
            return any(one.error is Error.NONE for one in answer.results)
        case Refused() | Shed():
            return False
        case _:
            return None


def shortened(value: object, most: int) -> object:
    """The value; as text that is cut where it takes more bytes."""
    text = json.dumps(value)
    return value if len(text) <= most else f"{text[:most]}..."


def listed(pairs: Iterable[tuple[str, object]], number: int) -> dict[str, object]:
    """The first few of so many named values, for an entry; "and" says how many more there are."""
    some: dict[str, object] = dict(islice(pairs, LISTED_MAX))
    if number > LISTED_MAX:
        some["and"] = f"{number - LISTED_MAX} more"
    return some


def _host(peer: str) -> str:
    return _cut(peer.rpartition(":")[0] or peer)


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
