"""Kafka's type and state of a group, as lists and descriptions name them."""

from typing import Final

from musterd.coordinator.machine.state import Group

CLASSIC: Final = "classic"
"""The type of a group without members, too: also of one that has offsets alone."""

CONSUMER: Final = "consumer"
"""The type of a modern group, which has members."""

ASSIGNING: Final = "Assigning"
"""A plan is due, or stored in part."""

RECONCILING: Final = "Reconciling"
"""The target is in force; a member that is not away still has to release or to be granted."""


def type_of(group: Group) -> str:
    """Return the group's type, in small letters."""
    return CLASSIC if group.modern is None else CONSUMER


def state_of(group: Group) -> str:
    """Return the name of the group's state; that of a modern group follows from the rest (gp-1.7).

    A group is Stable only if every member that is not away holds what the target gives it.
    """
    modern = group.modern
    if modern is None:
        return group.phase.value
    if group.generation > modern.target_epoch or modern.storing:
        return ASSIGNING
    return "Stable" if modern.is_carried_out else RECONCILING
