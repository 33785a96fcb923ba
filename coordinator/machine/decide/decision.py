"""`decide` returns a `Decision`; here are also the refusals that several commands share."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import GroupEvent
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.replies import Done, Parked, Refused, Reply


class Decision(NamedTuple):
    """Events to evolve in order, and the caller's answer as of before them.

    PARKED: an event of this decision or of a later one brings the answer (GenerationFormed to
    joins, AssignmentPublished or RebalanceStarted to syncs, MemberRemoved or MemberReplaced to
    both).
    """

    events: Sequence[GroupEvent]
    reply: Reply | Parked


NOTHING: Final = Decision((), Done(changed=False))
"""The command came too late: nothing is to be done any more."""


def refuse(error: Error, message: str) -> Decision:
    return Decision((), Refused(error, message))


def unavailable() -> Decision:
    """Return a dead group's answer to every call (gp-1.6)."""
    return refuse(Error.COORDINATOR_NOT_AVAILABLE, "The group was deleted; find its coordinator.")


def unknown_member(member_id: str) -> Decision:
    """The member is not (or no longer) in the group; it joins again with a new nonce."""
    return refuse(
        Error.UNKNOWN_MEMBER_ID, f"No member {quoted(member_id)} in this group; join again."
    )


def illegal_generation(asked: int, current: int) -> Decision:
    """The caller speaks for another generation than the current one; it joins again with its id."""
    return refuse(
        Error.ILLEGAL_GENERATION, f"The generation is {current}, not {asked}; join again."
    )
