"""Faults that nobody may suffer from: no leader may fall over them, or no session may end.

The scenarios that draw them say so (`steady`, `beat_share`), and their checks hold them to it.
"""

from collections.abc import Callable

from musterd.chaos.sim.engine.world import Injector

BLINK_S = (0.1, 0.28)
"""Shorter than the shortest election timeout, less a heartbeat's period."""

STALL_S = (0.3, 0.6)
"""So long that the leader hears no quorum when it goes on, and another may have been elected."""

STANDSTILL_S = (5.0, 30.0)


def kinds(faults: Injector) -> dict[str, Callable[[], bool]]:
    """By name, what does it; True where something was done."""
    away = _Away(faults)
    return {
        "follower_isolation": away.isolate,
        "follower_reconnect": away.reconnect,
        "leader_blinks": _LeaderStalls(faults, BLINK_S).stall,
        "leader_stalls": _LeaderStalls(faults, STALL_S).stall,
        "all_stand_still": lambda: _all_stand_still(faults),
    }


def _leader(faults: Injector) -> int | None:
    nodes = faults.world.nodes
    return next((n for n, node in enumerate(nodes) if node.alive and node.leads), None)


class _Away:
    """Cuts one follower off at a time, for longer than an election timeout, and lets it return."""

    def __init__(self, faults: Injector) -> None:
        self._faults = faults
        self._back_s = 0.0

    def isolate(self) -> bool:
        """Cut a follower off, in both directions, without anybody noticing the connection."""
        world, rng = self._faults.world, self._faults.rng
        leader, seconds = _leader(self._faults), 1.0 + rng.random()
        if leader is None or world.now < self._back_s:
            return False
        others = [n for n in range(len(world.nodes)) if n != leader]
        follower = rng.choice(others)
        self._back_s = world.now + seconds + 0.5
        for other in (leader, *others):
            if other != follower:
                world.net.block(follower, other, seconds)
                world.net.block(other, follower, seconds)
        return True

    def reconnect(self) -> bool:
        """Break a follower's connection to the leader alone; both go on hearing the third."""
        world, rng = self._faults.world, self._faults.rng
        leader, seconds = _leader(self._faults), 0.3 * rng.random()
        if leader is None or world.now < self._back_s:
            return False
        follower = rng.choice([n for n in range(len(world.nodes)) if n != leader])
        self._back_s = world.now + seconds + 0.5
        world.net.disconnect(leader, follower)
        world.schedule(seconds, world.net.connect, leader, follower)
        return True


class _LeaderStalls:
    """The leader's loop is stuck for a moment."""

    def __init__(self, faults: Injector, range_s: tuple[float, float]) -> None:
        self._faults, self._range_s = faults, range_s
        self._next_s = 0.0

    def stall(self) -> bool:
        """Not too soon after the last time: its followers must hear from it in between."""
        world = self._faults.world
        leader, (low, high) = _leader(self._faults), self._range_s
        if leader is None or world.now < self._next_s:
            return False
        until_s = world.now + low + (high - low) * self._faults.rng.random()
        world.nodes[leader].paused_until_s = until_s
        self._next_s = until_s + 0.2
        return True


def _all_stand_still(faults: Injector) -> bool:
    """SIGSTOP of all nodes at once, a suspended machine: they all go on at the same time."""
    low, high = STANDSTILL_S
    until_s = min(faults.world.now + low + (high - low) * faults.rng.random(), faults.until_s)
    if any(node.paused_until_s > faults.world.now for node in faults.world.nodes):
        return False  # what waits for the end of a pause does not learn that it ends earlier
    for node in faults.world.nodes:
        node.paused_until_s = until_s
    return True
