"""The seam between a `Group` and its membership: what a membership decides, without I/O."""

from collections.abc import Mapping
from typing import Protocol

from muster.group.actions import Action, Identity, Input
from muster.group.membership import State
from muster.types import Assignment, TopicPartition


class MemberMachine(Protocol):
    """One member of one group: `Membership`, or `ConsumerMembership` where the coordinator assigns.

    `handle` is the only way in; it never raises for an outcome.
    """

    @property
    def state(self) -> State:
        """See the head of membership.py."""

    @property
    def identity(self) -> Identity:
        """The member's id and its generation, or its epoch; -1 outside of a membership."""

    @property
    def assignment(self) -> Assignment | None:
        """The assignment that it was given last, until it is given up."""

    @property
    def held(self) -> Assignment | None:
        """The assignment that the user may work under; None once it is lost."""

    @property
    def held_since(self) -> Mapping[TopicPartition, int]:
        """The partitions that may be committed, each with the generation or token of its start.

        More than `held` names while partitions that move are being given up.
        """

    @property
    def is_settled(self) -> bool:
        """True where it is a member, gives nothing up, and no more is to come."""

    def keeps(self, under: Assignment, partition: TopicPartition) -> bool:
        """True where it has held the partition without a break since it had this assignment."""

    def committing(self, held: Assignment) -> Assignment:
        """Return this assignment with the generation that a commit says now."""

    def handle(self, given: Input) -> list[Action]:
        """Take one input, and return what the caller must do now, in order."""
