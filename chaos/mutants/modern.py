"""Builds whose groups with an assigning coordinator lack a rule: grants, tokens, targets, news."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from musterd.chaos.mutants.build import Builds, gives
from musterd.coordinator.machine.commands import RoundTimer
from musterd.coordinator.machine.decide import commit, dispatch
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.modern import (
    conversion,
    decide_heartbeat,
    decide_target,
    evolve_modern,
    reconciler,
)
from musterd.coordinator.machine.modern.group import Consumer, Tokens
from musterd.coordinator.machine.modern.reconciler import Reconciler
from musterd.coordinator.machine.state import Group
from musterd.coordinator.runtime import leadership
from musterd.coordinator.runtime.planner import Planner
from musterd.coordinator.runtime.sessions import Sessions

BUILDS = Builds()


def _untaken(group: Group, token: int) -> None:
    """Any number will do."""
    group.fence = max(group.fence, token)


_rejoined = evolve_modern.rejoined


def _keeps_tokens(former: Consumer, event: Any) -> Consumer:
    after = _rejoined(former, event)
    after.renewed = former.renewed
    return after


BUILDS.add(
    "newcomer_keeps_tokens",
    "The process that comes back in a member's place has its partitions under the former tokens.",
    (evolve_modern, "rejoined", _keeps_tokens),
    (decide_heartbeat, "rejoined", _keeps_tokens),
)


_upgraded = conversion.upgraded


def _forgets_tokens(group: Group) -> Group:
    return replace(_upgraded(group), fence=0)


BUILDS.add(
    "upgrade_forgets_tokens",
    "A group that becomes a modern one gives out the tokens of its classic members again.",
    (evolve_modern, "upgraded", _forgets_tokens),
)


def _reused(group: Group, _: Envelope, taken: int = 0) -> int:
    return max(group.fence, taken, 1)


BUILDS.add(
    "grant_reuses_token",
    "A grant has the last token that the group took, whoever has it.",
    (reconciler, "next_token", _reused),
    (evolve_modern, "take_token", _untaken),
)

BUILDS.add(
    "stale_token_commits",
    "A commit under a token that is over is taken.",
    (commit, "_stale", gives({})),
)


class _Greedy(Reconciler):
    def _beyond_target(self, consumer: Consumer, most: int | None) -> Tokens:
        found = super()._beyond_target(consumer, most)
        for topic, partitions in found.items():
            self.free(topic, partitions)
        return found


BUILDS.add(
    "grants_unreleased",
    "A partition is granted to the next member as soon as its owner is told to release it.",
    (decide_heartbeat, "Reconciler", _Greedy),
    (decide_target, "Reconciler", _Greedy),
    (evolve_modern, "invariant", gives(None)),
)


BUILDS.add(
    "news_untold",
    "A held heartbeat does not tell that there are other grants.",
    (dispatch, "_heartbeat_of_consumer", gives(Error.NONE)),
)


class _Unarmed(Sessions):
    def _arm_all(self, groups: Iterable[Group]) -> None:
        super()._arm_all(groups)
        for group_id, firing in list(self._firing.items()):
            if firing.closing.timer is RoundTimer.AWAY:
                del self._firing[group_id]
                self._rounds.drop(group_id)


BUILDS.add(
    "away_forgotten",
    "A coordinator that takes over does not see when members that are away should be back.",
    (leadership, "Sessions", _Unarmed),
)

BUILDS.add(
    "plan_forgotten",
    "A coordinator that takes over looks at no group before something changes in it.",
    (Planner, "begin", gives(None)),
)
