"""Faults of the wall clock. Nothing may expire by them, and no round stall."""

from random import Random
from typing import ClassVar

from chaos.faults.contract import Fault, FaultError, Group, Injected, fault
from chaos.world.clock import HOUR_S, TRUE_TIME, FakeClock
from chaos.world.network import node_place
from chaos.world.world import World

JUMP_S_MIN = HOUR_S / 2


class _ClockFault(Fault):
    """The wall clocks of some nodes are set, and set right at heal, which is a jump as well."""

    group = Group.CLOCK
    needs = frozenset({"clock"})
    setting: ClassVar[str]
    """What is written to the clock's file."""

    def __init__(self) -> None:
        """Every clock is right."""
        self._hit: list[int] = []

    def inject(self, world: World, rng: Random) -> Injected:
        """Set the clocks of one node or more. Facts: `ahead_s`, by node, as a process reads it."""
        clock, running = world.equipped(FakeClock), world.running()
        self._hit = sorted(rng.sample(running, rng.randint(1, len(running))))
        for node_id in self._hit:
            clock.set(node_id, self.setting)
        ahead_s = {str(node_id): round(clock.ahead_s(node_id), 3) for node_id in self._hit}
        self._check(list(ahead_s.values()))
        targets = tuple(node_place(node_id) for node_id in self._hit)
        return Injected(targets, f"wall clock {self.setting}", facts={"ahead_s": ahead_s})

    def heal(self, world: World) -> None:
        """Set the clocks right."""
        while self._hit:
            world.equipped(FakeClock).set(self._hit[-1], TRUE_TIME)
            self._hit.pop()

    def _check(self, ahead_s: list[float]) -> None:
        """A jump that reached nobody is none."""
        if min(map(abs, ahead_s)) < JUMP_S_MIN:
            raise FaultError(f"{self.kind}: a wall clock was not moved: {ahead_s} s ahead")


@fault
class ClockForward(_ClockFault):
    """An hour forward."""

    kind = "clock_forward"
    title = "the wall clocks of some nodes jump an hour forward, and back at heal"
    setting = f"+{HOUR_S}"


@fault
class ClockBack(_ClockFault):
    """An hour back."""

    kind = "clock_back"
    title = "the wall clocks of some nodes jump an hour back, and forward at heal"
    setting = f"-{HOUR_S}"


class _ClockRate(_ClockFault):
    """A wall clock that runs at another rate, counted from the start of the node's process.

    So it also jumps, by a part of the time that the node has run.
    """

    def _check(self, ahead_s: list[float]) -> None:
        """A fresh process has no time to run ahead: what it reads says nothing here."""


@fault
class ClockSlow(_ClockRate):
    """Half as fast."""

    kind = "clock_slow"
    title = "the wall clocks of some nodes run at half their speed"
    setting = "+0 x0.5"


@fault
class ClockFast(_ClockRate):
    """Three times as fast."""

    kind = "clock_fast"
    title = "the wall clocks of some nodes run at three times their speed"
    setting = "+0 x3"
