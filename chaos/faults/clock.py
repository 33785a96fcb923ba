"""Faults of clocks: the wall clock, by which nothing may expire, and sleep of a machine."""

import time
from abc import abstractmethod
from random import Random
from typing import ClassVar

from musterd.chaos.child import Child
from musterd.chaos.faults.choosing import some_of
from musterd.chaos.faults.contract import FaultError, Group, Injected, fault
from musterd.chaos.faults.watched import Sight, Watched
from musterd.chaos.world.equipment.clock import HOUR_S, TRUE_TIME, FakeClock
from musterd.chaos.world.equipment.sleep import SleepingClock
from musterd.chaos.world.world import World
from musterd.coordinator.node.loopback import node_place

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

    def __init__(self) -> None:
        """Every clock is right."""
        self._hit: list[int] = []
        self._facts: dict[str, object] = {}

    def _choose(self, world: World, rng: Random) -> list[int]:
        running = world.running()
        self._hit = sorted(some_of(world, running, rng.randint(1, len(running)), rng))
        return self._hit

    def _injected(self, detail: str) -> Injected:
        targets = tuple(node_place(one) for one in self._hit)
        return Injected(targets, detail, facts=self._facts)

    def _ahead(self, world: World) -> list[float]:
        """Seconds by which the clocks are ahead, as another process reads them. A fact, too."""
        clock = world.equipped(FakeClock)
        ahead_s = {str(node_id): round(clock.ahead_s(node_id), 3) for node_id in self._hit}
        self._facts["ahead_s"] = ahead_s
        return list(ahead_s.values())

    def _look(self, world: World) -> Sight:
        """The nodes themselves read these clocks, and another process reads them as they are."""
        clock = world.equipped(FakeClock)
        astray = [one for one in self._hit if not clock.read_by(one, world.nodes[one].pid)]
        if astray:
            return False, f"nodes {astray} do not read the clocks that were set"
        ahead_s = self._ahead(world)
        return self._is_wrong(ahead_s), f"the clocks were ahead by {ahead_s} s"

    @abstractmethod
    def _is_wrong(self, ahead_s: list[float]) -> bool:
        """Whether clocks that are so far ahead are as wrong as they should be."""

    def heal(self, world: World) -> None:
        """Set the clocks right."""
        if self._hit:
            self._watch(self._look, world)
        self._set_right(world)

    def _set_right(self, world: World) -> None:
        while self._hit:
            world.equipped(FakeClock).set(self._hit[-1], TRUE_TIME)
            self._hit.pop()


class _ClockJump(_ClockFault):
    """One jump."""

    jump_s: ClassVar[int]

    def inject(self, world: World, rng: Random) -> Injected:
        """Set the clocks of one node or more. Facts: `ahead_s` by node. Raises FaultError."""
        clock = world.equipped(FakeClock)
        for node_id in self._choose(world, rng):
            clock.set(node_id, f"{self.jump_s:+d}")
        ahead_s = self._ahead(world)
        if not self._is_wrong(ahead_s):
            raise FaultError(f"{self.kind}: the clocks are ahead by {ahead_s} s")
        return self._injected(f"wall clock {self.jump_s:+d} s")

    def _is_wrong(self, ahead_s: list[float]) -> bool:
        return all(abs(one - self.jump_s) <= JUMP_S_OFF_MAX for one in ahead_s)


@fault
class ClockForward(_ClockJump):
    """An hour forward."""

    kind = "clock_forward"
    title = "the wall clocks of some nodes jump an hour forward, and back at heal"
    jump_s = HOUR_S


@fault
class ClockBack(_ClockJump):
    """An hour back."""

    kind = "clock_back"
    title = "the wall clocks of some nodes jump an hour back, and forward at heal"
    jump_s = -HOUR_S


class _ClockRate(_ClockFault):
    """Clocks that run at another speed."""

    rate: ClassVar[float]

    def __init__(self) -> None:
        """Every clock is right."""
        super().__init__()
        self._drifting: Child | None = None
        self._since_s = 0.0

    def inject(self, world: World, rng: Random) -> Injected:
        """Set the speed. Facts after heal: `ahead_s`, by node, just before."""
        self._since_s = time.monotonic()
        self._drifting = world.equipped(FakeClock).drift(self._choose(world, rng), self.rate)
        return self._injected(f"wall clock at {self.rate} times its speed")

    def heal(self, world: World) -> None:
        """Set the clocks right, and stop moving them."""
        if self._hit:
            self._watch(self._look, world)
        if self._drifting is not None:
            self._drifting.close()
            self._drifting = None
        self._set_right(world)

    def _is_wrong(self, ahead_s: list[float]) -> bool:
        wanted_s = (self.rate - 1) * (time.monotonic() - self._since_s)
        return abs(wanted_s) <= DRIFT_S_MIN or all(one / wanted_s >= DRIFT_MIN for one in ahead_s)


@fault
class ClockSlow(_ClockRate):
    """Half as fast."""

    kind = "clock_slow"
    title = "the wall clocks of some nodes run at half their speed"
    rate = 0.5


@fault
class ClockFast(_ClockRate):
    """Three times as fast."""

    kind = "clock_fast"
    title = "the wall clocks of some nodes run at three times their speed"
    rate = 3.0


@fault
class Suspend(Watched):
    """A machine sleeps, and its monotonic clock stands still: who led there leads no more."""

    kind = "suspend"
    title = "the machine of the node that leads most slept for an hour: it gives up what it led"
    group = Group.CLOCK
    needs = frozenset({"sleep"})

    def __init__(self) -> None:
        """Nobody has slept."""
        self._node: int | None = None
        self._pid = 0
        self._facts: dict[str, object] = {}
        self._led: dict[int, int] = {}

    def inject(self, world: World, rng: Random) -> Injected:
        """Let the clock that counts sleep jump.

        Facts: `node`, `terms` of the shards that it led and, after heal, `terms_after`, by shard.
        """
        del rng
        node_id = world.leader()
        terms, leaders = world.terms(), world.leaders()
        self._led = {one: terms[one] for one, leader in leaders.items() if leader == node_id}
        self._facts |= {
            "node": node_id,
            "terms": {str(k): v for k, v in self._led.items()},
            "at_ns": time.monotonic_ns(),
        }
        self._node, self._pid = node_id, world.nodes[node_id].pid
        world.equipped(SleepingClock).sleep(self._pid, HOUR_S)
        return Injected((node_place(node_id),), "slept for an hour", facts=self._facts)

    def heal(self, world: World) -> None:
        """Look; nothing is to undo, since no clock that counts sleep ever goes back."""
        if self._node is not None:
            self._watch(self._look, world)
        self._node = None

    def _look(self, world: World) -> Sight:
        """The node reads that clock, and each shard that it led is in a later term."""
        if not world.equipped(SleepingClock).read_by(self._pid):
            return False, f"node {self._node} does not read the clock that was set"
        terms = world.terms()
        after = {shard: terms.get(shard, 0) for shard in self._led}
        self._facts["terms_after"] = {str(shard): term for shard, term in after.items()}
        left = [shard for shard, term in self._led.items() if after[shard] > term]
        what = f"{len(left)} of {len(self._led)} shards that it led are in a later term"
        return 0 < len(self._led) == len(left), what
