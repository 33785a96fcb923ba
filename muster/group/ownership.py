"""Checks whether a member may still work on a partition, by the assignment that it holds."""

from collections.abc import Collection, Iterable

from muster.errors import IllegalGeneration, RebalanceInProgress
from muster.group.member_machine import MemberMachine
from muster.group.membership import State
from muster.group.offsets import Offsets
from muster.types import Assignment, TopicPartition


def owned(machine: MemberMachine, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return these partitions, if all of them are held.

    Raises:
        IllegalGeneration: one of them is not.
    """
    wanted = list(partitions)
    for partition in wanted:
        if partition not in machine.held_since:
            raise IllegalGeneration(f"{partition} is not owned by this member now")
    return wanted


def current(machine: MemberMachine) -> Assignment:
    """Return the assignment that work is done under now.

    Raises:
        RebalanceInProgress: there is none now.
    """
    under = machine.held or machine.assignment
    if under is None:
        raise RebalanceInProgress("this member has no assignment now")
    return under


def committable(
    machine: MemberMachine,
    under: Assignment,
    offsets: Offsets,
    partitions: Collection[TopicPartition] | None = None,
) -> Assignment:
    """Return the assignment to commit under, for work that was done under this one.

    `partitions` are those that the work may be for, where it is not all that was held.

    Raises:
        IllegalGeneration: that one is over, for one of the partitions at least.
        RebalanceInProgress: the round is about to bring another one.
    """
    held = machine.held
    if held is None or under.member_id != held.member_id:
        raise IllegalGeneration(f"the assignment of generation {under.generation} is over")
    mine = machine.held_since.keys() if partitions is None else frozenset(partitions)
    for partition in offsets:
        if partition not in mine:
            raise IllegalGeneration(
                f"{partition} is not in the assignment of generation {under.generation}"
            )
        if not machine.keeps(under, partition):
            raise IllegalGeneration(
                f"the assignment of generation {under.generation} is over for {partition}"
            )
    if machine.state is State.SYNCING:
        raise RebalanceInProgress("a round is about to end; commit under the next assignment")
    return machine.committing(held)


def was_kept(machine: MemberMachine, sent_under: Assignment, offsets: Offsets) -> bool:
    """Return whether these partitions were kept since a commit of them was sent."""
    held = bool(machine.held_since)
    return held and all(machine.keeps(sent_under, partition) for partition in offsets)
