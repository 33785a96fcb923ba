"""Builds without one safety measure of the SDK or of the coordinator's liveness, and their worlds.

As in mutants.py: every mutant is made here, the shipped code has no switches.
"""

from collections.abc import Callable, Iterable
from typing import Any

import coordinator.calls
import coordinator.liveness
import coordinator.shard
import muster.consumer
import muster.membership
from chaos.sim.mutants import Mutant
from chaos.sim.scenarios import SCRIPTED, SDK_COOPERATIVE, SDK_EAGER, STOP_ONE
from coordinator.breaks import BreakMeter
from coordinator.machine import decide_commit
from coordinator.machine.commands import OffsetCommit
from coordinator.machine.decision import Decision
from coordinator.machine.state import Group
from coordinator.shard_time import ShardTime
from muster.membership import Membership, State


class KeepsAll(Membership):
    """An eager member that joins again without giving anything up."""

    def _begin_round(self, reason: str) -> None:
        if self.state is State.STABLE:
            self._reason, self._wait_ms = reason, 0
            self._send_join()


class GivesAllUp(Membership):
    """A cooperative member that gives everything up in each round."""

    def _begin_round(self, reason: str) -> None:
        if self.state is State.STABLE:
            self._reason, self._wait_ms = reason, 0
            self._release(State.RELEASING)


def _nothing_withheld(_shares: object, _subscribers: object) -> frozenset[Any]:
    """The cooperative group leader gives away at once what others still work on."""
    return frozenset()


class NeverForgiving(BreakMeter):
    """Takes every broken call for a death, however many break at once."""

    def broke(self, forgive: Callable[[], None]) -> None:
        self.broken_total += 1


class Uncapped(ShardTime):
    """Shard time that runs while the node stands still."""

    def advance(self, clock_ms: int) -> int:
        if self._turn_ms is not None:
            self._now_ms += max(clock_ms - self._turn_ms, 0)
        self._turn_ms = clock_ms
        return self._now_ms


_refuse = decide_commit._refuse


def _any_member(group: Group | None, command: OffsetCommit) -> Decision | None:
    """Takes commits of members that it has removed."""
    if group is not None and command.member_id not in group.members and group.members:
        return None
    return _refuse(group, command)


_SCRIPTED = {scenario.script: scenario for scenario in SCRIPTED}

_UNCAPPED = (coordinator.shard, "ShardTime", Uncapped)

SDK_MUTANTS: Iterable[Mutant] = (
    Mutant("eager_keeps", SDK_EAGER, ((muster.consumer, "Membership", KeepsAll),)),
    Mutant(
        "cooperative_gives_all", SDK_COOPERATIVE, ((muster.consumer, "Membership", GivesAllUp),)
    ),
    Mutant("withheld", SDK_COOPERATIVE, ((muster.membership, "withheld", _nothing_withheld),)),
    Mutant("zombie_fence", SDK_EAGER, ((decide_commit, "_refuse", _any_member),)),
    Mutant(
        "mass_break",
        _SCRIPTED["break-heartbeats"],
        ((coordinator.calls, "BreakMeter", NeverForgiving),),
    ),
    Mutant("time_cap", STOP_ONE, (_UNCAPPED,)),
    Mutant(
        "expiry_round",
        STOP_ONE,
        (
            _UNCAPPED,
            (coordinator.liveness, "LAG_FORGIVEN_MS", 10**9),
            (coordinator.liveness, "ROUNDS_TO_PROVE", 0),
        ),
    ),
)
"""Sought as those of mutants.py are.

`expiry_round` takes away all three things of which each alone keeps a session through a stop: the
cap of shard time, the lag that is forgiven, and the rounds that prove a silence.
"""
