"""Members whose every call is known: single attempts at every node, also at those that are cut off.

What a node answers that nobody should ask (it is cut off, or deposed, or the generation is an old
one) is what inv-I6 and inv-I15 are about; the SDK asks the coordinator only. Nodes that are cut off
are called before the heal (`visit`).
"""

import asyncio
import itertools
import secrets
import time
from collections.abc import Collection
from typing import Any

from muster.errors import ErrorCode
from musterd.chaos.history import Key
from musterd.chaos.workloads.admin import answer_of
from musterd.chaos.workloads.base import Settings, Values, Worker
from musterd.chaos.workloads.raw import Identity, RawNodes

SESSION_MS, SHORT_SESSION_MS = 30_000, 6_000
"""The short one is of the group that is made anew."""
HOLD_EVERY_S = 1.0
"""Between two beats at the coordinator, which keep the membership."""
FORM_EVERY_S = 0.1
"""... until it has joined."""
FORMED_MIN = 2
"""So many generations each group has had when `start` returns, and the server was asked of each."""
DELETE_MS = 10_000
CALLS = ("commit", "read", "beat", "old_beat", "old_commit")
"""What a member asks of a node, in this order; `old_`: in the generation before its own."""
_RENEW = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)


class PulseSettings(Settings):
    """Its groups, one member in each."""

    groups: list[str]
    topic: str
    every_s: float = 0.25
    """Between two calls at one node. Each is two lines of the history, some 520 bytes, and every
    tenth is of two keys: three nodes make 25 MB an hour."""


class Pulse(Worker[PulseSettings]):
    """All of them. `Brief.nodes` are addresses that no fault cuts, where there are such."""

    async def start(self) -> None:
        settings = self.settings
        self._raw = self.raw()
        self._members = [
            RawMember(self, self._raw, Key(group, settings.topic, 0), SESSION_MS)
            for group in settings.groups
        ]
        for member, following in itertools.pairwise([*self._members, *self._members[:1]]):
            if member is not following:
                member.beside = (following.key,)
        for member in self._members:
            self.spawn(self._hold(member))
        formed = asyncio.gather(*(member.formed.wait() for member in self._members))
        either: list[asyncio.Future[Any]] = [formed, self.failed]
        # Whoever started this process bounds the wait.
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            formed.cancel()
            self.failed.result()
        for at in self._raw.endpoints:
            self.spawn(self._go_round(at))

    async def visit(self, nodes: Collection[int]) -> int:
        calls = [
            member.call(at, kind)
            for at, node in self._raw.nodes.items()
            if node in nodes
            for member in self._members
            for kind in CALLS
        ]
        await asyncio.gather(*calls)
        return len(calls)

    async def stop(self) -> None:
        await self.cancel()
        await asyncio.gather(*(member.leave() for member in self._members))
        await self._raw.aclose()

    async def _hold(self, member: "RawMember") -> None:
        """Join, and stay a member whatever happens."""
        while True:
            at = await self._raw.leader(member.group, self.rng.choice(self._raw.endpoints))
            if at:
                await member.keep(at)
            await self.pause(HOLD_EVERY_S if member.formed.is_set() else FORM_EVERY_S)

    async def _go_round(self, at: str) -> None:
        while True:
            for kind in CALLS:
                for member in self._members:
                    # A commit that the wrong node refuses may be in the log of one that led until
                    # now: its outcome is unknown. A few of those will do, see `visit`.
                    if not kind.endswith("commit") or at == member.at:
                        await member.call(at, kind)
                    await self.pause(self.settings.every_s)
                    await self.at_work.wait()


class RawMember:
    """The one member of a group."""

    def __init__(self, worker: Worker[Settings], raw: RawNodes, key: Key, session_ms: int) -> None:
        """It joins at the first `keep`. `key`: what it commits to."""
        self.group, self.key = key.group, key
        self.formed = asyncio.Event()
        """`FORMED_MIN` generations were formed, and the server told all members of each."""
        self.at = ""
        """Its coordinator, when it was last asked for."""
        self.beside: tuple[Key, ...] = ()
        """What is read with it where many groups are asked for."""
        self._raw, self._book = raw, worker.book
        self._values = Values(worker.brief.number)
        self._session_ms = session_ms
        self._nonce = secrets.token_hex(16)
        self._member_id = ""
        self._now: Identity | None = None
        self._before: Identity | None = None
        """Of the generation before: nobody may be taken for a member by it."""
        self._told: set[int] = set()

    async def call(self, at: str, kind: str) -> None:
        """Make one of `CALLS`; a heartbeat only where it has joined, an old one if twice."""
        held = self._before if kind.startswith("old") else self._now
        if kind == "read":
            await self._raw.read(at, self.key, self.beside)
        elif kind.endswith("commit") and (held is not None or kind == "commit"):
            await self._raw.commit(at, self.key, self._values.next(self.key), held)
        elif kind.endswith("beat") and held is not None:
            await self._raw.heartbeat(at, held)

    async def keep(self, at: str) -> None:
        """At the coordinator: be a member, and see that the server says so."""
        self.at = at
        held = self._now
        if held is None or await self._raw.heartbeat(at, held) in _RENEW:
            held = await self._join(at)
        if held is None:
            return
        if held.generation not in self._told:
            await self._ask(at)
        if self.formed.is_set() or held.generation not in self._told:
            return
        if len(self._told) < FORMED_MIN:
            await self._join(at)  # who leads its group opens a round by joining again
        else:
            self.formed.set()

    async def leave(self) -> bool:
        """Wherever the coordinator is; whether it was a member and is none any more."""
        if self._now is not None:
            for at in self._raw.endpoints:
                if await self._raw.leave(at, self._now):
                    return True
        return False

    async def _join(self, at: str) -> Identity | None:
        asked_ns = time.monotonic_ns()
        code, given, members = await self._raw.join(
            at, self.group, self._nonce, self._member_id, self._session_ms
        )
        if code == ErrorCode.UNKNOWN_MEMBER_ID:  # it was removed; the next try is as a new one
            self._nonce, self._member_id = secrets.token_hex(16), ""
            self._before, self._now = self._now or self._before, None
        if given is None:
            return None
        if self._now is not None and self._now.generation < given.generation:
            self._before = self._now
        self._member_id, self._now = given.member_id, given
        if members:
            self._book.formed(self.group, given.generation, members, self._book.client, asked_ns)
        return given

    async def _ask(self, at: str) -> None:
        """Ask a node for the group; the node asks a quorum first."""
        asked_ns = time.monotonic_ns()
        for told in await self._raw.groups(at, [self.group]):
            self._told.add(told[1])
            self._book.formed(*told, f"node-{self._raw.nodes[at]}", asked_ns)


class RecreatedSettings(Settings):
    """The group that it works on; it is its own."""

    group: str
    every_s: float = 1.0
    """Mean time between two members."""


class Recreated(Worker[RecreatedSettings]):
    """A group that is deleted whenever its one member has left, and made anew by the next member.

    Its generations go on where the deleted group's ended (inv-I3), so every one is written down. By
    single attempts: what fails is tried with the next.
    """

    async def start(self) -> None:
        self._raw = self.raw()
        self.spawn(self._work())

    async def stop(self) -> None:
        await self.cancel()
        await self._raw.aclose()

    async def _work(self) -> None:
        group = self.settings.group
        async with self.client(request_timeout_ms=DELETE_MS) as client:
            while True:
                await self.pause(self.settings.every_s)
                at = await self._raw.leader(group, self.rng.choice(self._raw.endpoints))
                member = RawMember(self, self._raw, Key(group, "", -1), SHORT_SESSION_MS)
                if at:
                    await member.keep(at)
                if await member.leave():
                    call = answer_of(client.delete_groups([group]), group)
                    name = "deleted_groups" if await self.book.tried(call) else "kept_groups"
                    self.track.note("count", name=name)
