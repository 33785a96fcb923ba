"""Builds whose groups with an assigning coordinator lack a rule: grants, tokens, targets, news."""

from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from typing import Any

from musterd.chaos.mutants.build import Builds, gives
from musterd.coordinator.machine.commands import RoundTimer, StoreTarget
from musterd.coordinator.machine.decide import commit, dispatch
from musterd.coordinator.machine.decide.decision import Decision
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.modern import (
    classic_members,
    conversion,
    decide_heartbeat,
    decide_target,
    departures,
    evolve_modern,
    reconciler,
)
from musterd.coordinator.machine.modern.group import Consumer, ModernGroup, Tokens
from musterd.coordinator.machine.modern.reconciler import Reconciler
from musterd.coordinator.machine.records import group_records
from musterd.coordinator.machine.state import Group, modern_of
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
_downgraded = conversion.downgraded
_to_classic = departures.to_classic


def _forgets_tokens(group: Group) -> Group:
    return replace(_upgraded(group), fence=0)


BUILDS.add(
    "upgrade_forgets_tokens",
    "A group that becomes a modern one gives out the tokens of its classic members again.",
    (evolve_modern, "upgraded", _forgets_tokens),
)


def _starts_lower(group: Group, *rest: Any) -> Any:
    return _to_classic(replace(group, fence=0), *rest)


def _forgets_modern_tokens(group: Group, modern: ModernGroup, event: Any) -> Group:
    return replace(_downgraded(group, modern, event), fence=0)


BUILDS.add(
    "downgrade_forgets_tokens",
    "A group that becomes a classic one gives out the tokens of its modern members again.",
    *((module, "to_classic", _starts_lower) for module in (departures, classic_members)),
    *((one, "downgraded", _forgets_modern_tokens) for one in (evolve_modern, group_records)),
    (evolve_modern, "invariant", gives(None)),
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
    "late_release",
    "A heartbeat that was sent before the member was told of a grant releases it, coming late.",
    (decide_heartbeat, "is_known", gives(True)),
    (reconciler, "is_known", gives(True)),
)

_store_target = decide_target.decide_store_target


def _whichever_spec(group: Group | None, command: StoreTarget, env: Envelope) -> Decision:
    modern = modern_of(group)
    if modern is not None:
        command = replace(command, spec_version=modern.spec_version)
    return _store_target(group, command, env)


BUILDS.add(
    "stale_target_stored",
    "A plan is stored though what it was made from has changed since.",
    (dispatch, "decide_store_target", _whichever_spec),
)


class _Hasty(Reconciler):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.modern = copy(self.modern)
        self.modern.storing = 0


BUILDS.add(
    "half_target_granted",
    "Partitions are granted and revoked by a target of which a part is missing.",
    *((module, "Reconciler", _Hasty) for module in (decide_heartbeat, departures)),
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
