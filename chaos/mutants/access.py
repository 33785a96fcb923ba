"""Builds that let callers do what the rules do not allow."""

from musterd.chaos.mutants.build import Builds, gives
from musterd.coordinator.api.frame.authorizer import Authorizer
from musterd.coordinator.api.frame.handler import ActiveCall
from musterd.coordinator.machine import access
from musterd.coordinator.machine.access import Operation, Resource, RuleIndex
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.runtime import proposer
from musterd.coordinator.runtime.proposer import Pending

BUILDS = Builds()


@BUILDS.replaces("denials_ignored", access.RuleIndex, "mask")
def _allowed_alone(self: RuleIndex, principal: str, resource: Resource, name: str) -> int:
    """A rule that denies wins over every rule that allows."""
    found = 0
    for who in (principal, access.ANYBODY):
        patterns = self.by_principal.get((who, resource))
        if patterns is not None:
            found |= patterns.mask(name) & (2 << Operation.ADMIN) - 1
    return found


@BUILDS.replaces("items_unasked", ActiveCall, "denied_item")
def _one_alone(self: ActiveCall, name: str) -> Refused | None:
    """Each item of a batch is asked of the rules, not the one resource of other requests alone."""
    rule = self._rule
    if not rule.is_asked_at_once:
        return None
    return self.denied(rule.operation, rule.resource, name)


@BUILDS.replaces("commits_not_asked_again", proposer, "_is_denied")
def _never(_pending: Pending) -> bool:
    """A command that waited is asked of the rules again before it goes into the log."""
    return False


BUILDS.add(
    "empty_copy_is_no_rules",
    "A copy of the rules that was never current is not taken for a cluster without rules.",
    (Authorizer, "is_closed", property(gives(False))),
)
