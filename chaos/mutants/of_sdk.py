"""Builds whose SDK lacks a rule, or whose coordinator does where only the SDK shows it."""

import math
from collections.abc import Callable
from typing import Any

import muster.group.group
import muster.group.membership
import musterd.coordinator.runtime.calls
from muster.group.membership import Membership, State
from muster.group.session import Session
from muster.net.nodes import Nodes
from musterd.chaos.mutants.build import Build
from musterd.coordinator.machine.commands import OffsetCommit
from musterd.coordinator.machine.decide import commit
from musterd.coordinator.machine.decide.decision import Decision
from musterd.coordinator.machine.state import Group
from musterd.coordinator.runtime.disconnect_detector import DisconnectDetector


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


def _one_channel(nodes: Nodes, endpoint: str) -> int:
    """All calls to a node go by one connection, which has 1,024 at a time."""
    nodes._patient.setdefault(endpoint, [0])[0] += 1
    return 0


def _nothing_withheld(_shares: object, _subscribers: object) -> frozenset[Any]:
    """The cooperative group leader gives away at once what others still work on."""
    return frozenset()


class NeverForgiving(DisconnectDetector):
    """Takes every broken call for a death, however many break at once."""

    def broke(self, forgive: Callable[[], None]) -> None:
        self.broken_total += 1


class Doubtless(Session):
    """Takes its session for alive however long its machine slept."""

    @property
    def in_doubt(self) -> bool:
        return False


class Roundless(Session):
    """Takes no round for one that ended without this member while its machine slept."""

    def round_end_s(self, part: float = 1.0) -> float:
        return math.inf


_refuse = commit._refuse  # before any patch


def _any_member(group: Group | None, command: OffsetCommit) -> Decision | None:
    """Takes commits of members that it has removed."""
    if group is not None and command.member_id not in group.members and group.members:
        return None
    return _refuse(group, command)


BUILDS = (
    Build("eager_keeps", KeepsAll.__doc__ or "", ((muster.group.group, "Membership", KeepsAll),)),
    Build(
        "cooperative_gives_all",
        GivesAllUp.__doc__ or "",
        ((muster.group.group, "Membership", GivesAllUp),),
    ),
    Build(
        "withheld",
        _nothing_withheld.__doc__ or "",
        ((muster.group.membership, "withheld", _nothing_withheld),),
    ),
    Build("doubtless", Doubtless.__doc__ or "", ((muster.group.group, "Session", Doubtless),)),
    Build("zombie_fence", _any_member.__doc__ or "", ((commit, "_refuse", _any_member),)),
    Build(
        "mass_break",
        NeverForgiving.__doc__ or "",
        ((musterd.coordinator.runtime.calls, "DisconnectDetector", NeverForgiving),),
    ),
)

UNIT_BUILDS = (
    Build(
        "one_channel",
        _one_channel.__doc__ or "",
        ((Nodes, "take_channel", _one_channel),),
    ),
    Build("roundless", Roundless.__doc__ or "", ((muster.group.group, "Session", Roundless),)),
)
"""What unit tests alone can see."""
