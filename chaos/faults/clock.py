"""Faults of clocks: the wall clock, by which nothing may expire, and sleep of a machine."""

import time
from random import Random
from typing import ClassVar

from musterd.chaos.faults.contract import FaultGroup, NodeFault, Sight, Watched, Whom, fault
from musterd.chaos.world.equipment.clock import HOUR_S, NodeClocks
from musterd.chaos.world.world import World

AHEAD_MIN = 0.3
"""Of what a clock has to be ahead at least."""
AHEAD_S_MIN = 1.0
"""Less is not judged."""


class _ClockFault(NodeFault, Watched):
    """Clocks of nodes that read those of this fault."""

    group = FaultGroup.CLOCK
    needs = frozenset({"clock"})

    def look(self, world: World) -> Sight:
        """The nodes themselves read these clocks."""
        clocks = world.equipped(NodeClocks)
        astray = [one for one in self.hit if not clocks.read_by(one, world.nodes[one].pid)]
        return not astray, f"nodes {astray} do not read the clocks that were set"


class _WallClock(_ClockFault):
    """The wall clocks of some nodes go wrong; heal sets them right, which is a jump as well.

    Facts after heal: `ahead_s`, by node, just before.
    """

    whom = Whom.SOME
    spares_members = True
    jump_s: ClassVar[int] = 0
    rate: ClassVar[float] = 1.0
    _since_s = 0.0

    def harm(self, world: World, node_id: int, rng: Random) -> str:
        self._since_s = time.monotonic()
        world.equipped(NodeClocks).set(node_id, self.jump_s, self.rate)
        return f"wall clock {self.jump_s:+d} s, {self.rate} times its speed"

    def mend(self, world: World, node_id: int) -> None:
        world.equipped(NodeClocks).set(node_id)

    def look(self, world: World) -> Sight:
        """And another process reads them as they are."""
        read, what = super().look(world)
        if not read:
            return read, what
        clocks = world.equipped(NodeClocks)
        ahead_s = {str(node_id): round(clocks.ahead_s(node_id), 3) for node_id in self.hit}
        self.facts["ahead_s"] = ahead_s
        wanted_s = self.jump_s + (self.rate - 1) * (time.monotonic() - self._since_s)
        real = abs(wanted_s) <= AHEAD_S_MIN or all(
            one / wanted_s >= AHEAD_MIN for one in ahead_s.values()
        )
        return real, f"the clocks were ahead by {list(ahead_s.values())} s"


@fault
class ClockForward(_WallClock):
    kind = "clock_forward"
    title = "the wall clocks of some nodes jump an hour forward, and back at heal"
    jump_s = HOUR_S


@fault
class ClockBack(_WallClock):
    kind = "clock_back"
    title = "the wall clocks of some nodes jump an hour back, and forward at heal"
    jump_s = -HOUR_S


@fault
class ClockSlow(_WallClock):
    kind = "clock_slow"
    title = "the wall clocks of some nodes run at half their speed"
    rate = 0.5


@fault
class ClockFast(_WallClock):
    kind = "clock_fast"
    title = "the wall clocks of some nodes run at three times their speed"
    rate = 3.0


@fault
class Suspend(_ClockFault):
    kind = "suspend"
    title = "the machine of the node that leads most slept for an hour: it gives up what it led"
    whom = Whom.LEADER

    def harm(self, world: World, node_id: int, rng: Random) -> str:
        """Let the clock that counts sleep jump; no such clock ever goes back.

        Facts: `terms` of the shards that it led and, after heal, `terms_after`, by shard.
        """
        terms, leaders = world.terms(), world.leaders()
        self._led = {one: terms[one] for one, leader in leaders.items() if leader == node_id}
        self.facts["terms"] = {str(shard): term for shard, term in self._led.items()}
        world.equipped(NodeClocks).sleep(node_id, HOUR_S)
        return "slept for an hour"

    def mend(self, world: World, node_id: int) -> None:
        """Nothing is to undo."""

    def look(self, world: World) -> Sight:
        """And each shard that it led is in a later term."""
        read, what = super().look(world)
        if not read:
            return read, what
        terms = world.terms()
        after = {shard: terms.get(shard, 0) for shard in self._led}
        self.facts["terms_after"] = {str(shard): term for shard, term in after.items()}
        left = [shard for shard, term in self._led.items() if after[shard] > term]
        what = f"{len(left)} of {len(self._led)} shards that it led are in a later term"
        return 0 < len(self._led) == len(left), what
