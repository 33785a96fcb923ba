"""Faults of clocks: the wall clock, by which nothing may expire, and sleep of a machine."""

import time
from abc import abstractmethod
from random import Random
from typing import ClassVar

from musterd.chaos.faults.contract import (
    FaultError,
    Group,
    Injected,
    Sight,
    Watched,
    fault,
    some_of,
)
from musterd.chaos.world.equipment.clock import HOUR_S, NodeClocks
from musterd.chaos.world.world import World

JUMP_S_OFF_MAX = 60.0
"""A jump that is not found, but for so much, did not happen."""
DRIFT_MIN = 0.3
"""Of what a clock has to be ahead at another speed; on a busy machine it is set late."""
DRIFT_S_MIN = 1.0
"""Less is not judged."""


class _ClockFault(Watched):
    """The wall clocks of some nodes go wrong; heal sets them right, which is a jump as well."""

    group = Group.CLOCK
    needs = frozenset({"clock"})
    spares_members = True

    def choose(self, world: World, rng: Random) -> list[int]:
        running = world.running()
        self.hit = sorted(some_of(world, running, rng.randint(1, len(running)), rng))
        return self.hit

    def ahead_s(self, world: World) -> list[float]:
        """Seconds by which the clocks are ahead, as another process reads them. A fact, too."""
        clock = world.equipped(NodeClocks)
        ahead_s = {str(node_id): round(clock.ahead_s(node_id), 3) for node_id in self.hit}
        self.facts["ahead_s"] = ahead_s
        return list(ahead_s.values())

    def look(self, world: World) -> Sight:
        """The nodes themselves read these clocks, and another process reads them as they are."""
        clock = world.equipped(NodeClocks)
        astray = [one for one in self.hit if not clock.read_by(one, world.nodes[one].pid)]
        if astray:
            return False, f"nodes {astray} do not read the clocks that were set"
        ahead_s = self.ahead_s(world)
        return self.is_wrong(ahead_s), f"the clocks were ahead by {ahead_s} s"

    @abstractmethod
    def is_wrong(self, ahead_s: list[float]) -> bool:
        """Whether clocks that are so far ahead are as wrong as they should be."""

    def mend(self, world: World, node_id: int) -> None:
        world.equipped(NodeClocks).set(node_id)


class _ClockJump(_ClockFault):
    jump_s: ClassVar[int]

    def inject(self, world: World, rng: Random) -> Injected:
        """Set the clocks of one node or more. Facts: `ahead_s` by node. Raises FaultError."""
        clock = world.equipped(NodeClocks)
        for node_id in self.choose(world, rng):
            clock.set(node_id, ahead_s=self.jump_s)
        ahead_s = self.ahead_s(world)
        if not self.is_wrong(ahead_s):
            raise FaultError(f"{self.kind}: the clocks are ahead by {ahead_s} s")
        return self.injected(f"wall clock {self.jump_s:+d} s")

    def is_wrong(self, ahead_s: list[float]) -> bool:
        return all(abs(one - self.jump_s) <= JUMP_S_OFF_MAX for one in ahead_s)


@fault
class ClockForward(_ClockJump):
    kind = "clock_forward"
    title = "the wall clocks of some nodes jump an hour forward, and back at heal"
    jump_s = HOUR_S


@fault
class ClockBack(_ClockJump):
    kind = "clock_back"
    title = "the wall clocks of some nodes jump an hour back, and forward at heal"
    jump_s = -HOUR_S


class _ClockRate(_ClockFault):
    rate: ClassVar[float]
    _since_s = 0.0

    def inject(self, world: World, rng: Random) -> Injected:
        """Set the speed. Facts after heal: `ahead_s`, by node, just before."""
        self._since_s = time.monotonic()
        for node_id in self.choose(world, rng):
            world.equipped(NodeClocks).set(node_id, speed=self.rate)
        return self.injected(f"wall clock at {self.rate} times its speed")

    def is_wrong(self, ahead_s: list[float]) -> bool:
        wanted_s = (self.rate - 1) * (time.monotonic() - self._since_s)
        return abs(wanted_s) <= DRIFT_S_MIN or all(one / wanted_s >= DRIFT_MIN for one in ahead_s)


@fault
class ClockSlow(_ClockRate):
    kind = "clock_slow"
    title = "the wall clocks of some nodes run at half their speed"
    rate = 0.5


@fault
class ClockFast(_ClockRate):
    kind = "clock_fast"
    title = "the wall clocks of some nodes run at three times their speed"
    rate = 3.0


@fault
class Suspend(Watched):
    kind = "suspend"
    title = "the machine of the node that leads most slept for an hour: it gives up what it led"
    group = Group.CLOCK
    needs = frozenset({"clock"})

    def inject(self, world: World, rng: Random) -> Injected:
        """Let the clock that counts sleep jump; no such clock ever goes back.

        Facts: `node`, `terms` of the shards that it led and, after heal, `terms_after`, by shard.
        """
        node_id = world.leader()
        terms, leaders = world.terms(), world.leaders()
        self._led = {one: terms[one] for one, leader in leaders.items() if leader == node_id}
        self.facts |= {
            "node": node_id,
            "terms": {str(k): v for k, v in self._led.items()},
            "at_ns": time.monotonic_ns(),
        }
        self.hit = [node_id]
        world.equipped(NodeClocks).sleep(node_id, HOUR_S)
        return self.injected("slept for an hour")

    def mend(self, world: World, node_id: int) -> None:
        """Nothing is to undo."""

    def look(self, world: World) -> Sight:
        """The node reads that clock, and each shard that it led is in a later term."""
        (node_id,) = self.hit
        if not world.equipped(NodeClocks).read_by(node_id, world.nodes[node_id].pid):
            return False, f"node {node_id} does not read the clock that was set"
        terms = world.terms()
        after = {shard: terms.get(shard, 0) for shard in self._led}
        self.facts["terms_after"] = {str(shard): term for shard, term in after.items()}
        left = [shard for shard, term in self._led.items() if after[shard] > term]
        what = f"{len(left)} of {len(self._led)} shards that it led are in a later term"
        return 0 < len(self._led) == len(left), what
