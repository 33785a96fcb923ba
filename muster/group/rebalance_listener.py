"""The user's callbacks for partitions that are assigned, revoked, or lost."""

from collections.abc import Awaitable

from muster.group.group import Group
from muster.types import Assignment


class RebalanceListener:
    """Override what you want to be told of, as a function or a coroutine; by default nothing is.

    The three are called one after the other, never at once, and the group waits for each of them
    (Kafka's ConsumerRebalanceListener; gp-6.9). What one raises closes the group, and is raised by
    `run` and `next_assignment`. They may commit, pause and seek through `group`; `group.close()` in
    one of them only begins to close.

    With an eager assignor `revoked` names everything before each round, and `assigned` everything
    after it. With a cooperative one `revoked` names what moves, if anything does, and `assigned`
    what is new after each round, which may be nothing.
    """

    def assigned(self, group: Group, assignment: Assignment) -> Awaitable[None] | None:  # noqa: ARG002
        """These partitions are new. Called before they are handed out and before their tasks start.

        Pause or seek here, and the tasks start paused, or elsewhere.
        """
        return None

    def revoked(self, group: Group, assignment: Assignment) -> Awaitable[None] | None:  # noqa: ARG002
        """These end in good order: their tasks have ended, and commits count until this returns."""
        return None

    def lost(self, group: Group, assignment: Assignment) -> Awaitable[None] | None:  # noqa: ARG002
        """This member was fenced: another one may own them already, and commits are refused."""
        return None


SILENT = RebalanceListener()
"""Tells nobody."""
