"""A node in one loop whose clock a script turns: the frontends' handlers over shards on fake logs.

Nothing here waits: the loop's own time is the script's clock, so a hold of a second is over when
the script says `pass 1000`. Ids without chance: `a-1` stands for client a with the nonce 1, and ids
that the coordinator drew are numbered d1, d2, ... in the order in which they were seen.
"""

import asyncio
import re
from dataclasses import replace

from musterd.coordinator.api.limits.cooperative_yield import LongReads
from musterd.coordinator.runtime.turn import Turn
from musterd.raft.contract import NodeId, Role
from tests.coordinator.local import LocalNode
from tests.machine.text import WALL_MS

PASSES = 12
"""Passes of the loop that any handler needs to get as far as it can."""

STEP_MS = 10

START_MS = 5_000_000


class ScriptedLoop(asyncio.SelectorEventLoop):
    """A loop whose time stands still until it is told."""

    now_ms = START_MS

    def time(self) -> float:
        """Seconds, as loops count."""
        return self.now_ms / 1_000


class HungUpError(Exception):
    """The transport's own refusal: an abort, with its words."""


class Peer:
    """The part of a gRPC context that handlers use."""

    def peer(self) -> str:
        """Who calls."""
        return "ipv4:10.0.0.1:1"

    def invocation_metadata(self):
        """What came with the call."""
        return ()

    async def abort(self, code, message):
        """End the call with the transport's status."""
        raise HungUpError(f"{code.name}: {message}")


class ScriptedNode(LocalNode):
    """Four shards without sockets; `await node.pass_ms(n)` turns the clock."""

    def __init__(self, loop: ScriptedLoop) -> None:
        super().__init__()
        self.loop = loop
        self.wall_jump_ms = 0
        # A read of many rests for no other calls: those of a script come one after the other.
        self.core = replace(self.core, one_long_read=LongReads())
        self.loop_round = 0
        self.reading = False
        """Reads are confirmed even while nothing commits."""
        services = self.services()
        self.groups, self.topics, self.admin = services.groups, services.topics, services.admin
        self.endpoints = {1: "10.0.0.1:7070", 2: "10.0.0.2:7070"}

    def wall_ms(self) -> int:
        """The script's, and what it jumped by."""
        return WALL_MS + self.loop.now_ms - START_MS + self.wall_jump_ms

    async def settle(self) -> None:
        """Let every handler get as far as it can, with a turn of the node in between."""
        for _ in range(3):
            await self._passes()
            self.turn()
        await self._passes()

    async def pass_ms(self, span_ms: int) -> None:
        """So much time, in turns of 10 ms."""
        end_ms = self.loop.now_ms + span_ms
        while self.loop.now_ms < end_ms:
            self.loop.now_ms += min(STEP_MS, end_ms - self.loop.now_ms)
            self.turn()
            await asyncio.sleep(0)
        await self.settle()

    def turn(self) -> None:
        """What the node does between two looks at its sockets."""
        self.loop_round += 1
        now_ms = self.loop.now_ms
        self.call_limits.disconnects.turn(now_ms)
        waited_rounds = self.heartbeats.untaken_calls.waited_rounds(self.loop_round)
        for shard, log in zip(self.shards, self.logs, strict=True):
            shard.turn(Turn(now_ms, 0, self.loop_round, waited_rounds=waited_rounds))
            if self.applying:
                log.run()
            elif self.reading:
                log.run(entries=0)
        self.heartbeats.turn(now_ms)
        self.core.watch.turn()

    async def _passes(self) -> None:
        for _ in range(PASSES):
            await asyncio.sleep(0)

    # ---- what happens to the cluster

    def elect(self, shard: int) -> None:
        """This node becomes the leader: what is in the log is applied, then its own no-op."""
        log = self.logs[shard]
        log.follow()
        log.lead()

    def load(self, shard: int) -> None:
        """It is elected, and has not applied its no-op."""
        log = self.logs[shard]
        log.follow()
        log.role, log.leader = Role.LEADER, NodeId(0)

    def depose(self, shard: int, leader: int | None) -> None:
        """Another node leads, or none is known."""
        self.logs[shard].follow(None if leader is None else NodeId(leader))


class Names:
    """Long ids as scripts write them, and back."""

    def __init__(self) -> None:
        self._drawn: dict[str, str] = {}

    def short(self, text: str) -> str:
        """Every nonce in a text: its number, or d1, d2, ... where it was drawn."""
        return re.sub(r"\b[0-9a-f]{32}\b", lambda found: self._name(found[0]), text)

    def long(self, member_id: str) -> str:
        """The member id that a script's name stands for; what is no such name stands as it is."""
        client, dash, number = member_id.rpartition("-")
        if dash and number.isdecimal():
            return f"{client}-{nonce(number)}"
        for drawn, name in self._drawn.items():
            if dash and name == number:
                return f"{client}-{drawn}"
        return member_id

    def _name(self, digits: str) -> str:
        if int(digits, 16) < 10_000:
            return str(int(digits, 16))
        return self._drawn.setdefault(digits, f"d{len(self._drawn) + 1}")


def nonce(number: str) -> str:
    """32 hex digits."""
    return f"{int(number):032x}"
