"""Builds whose missing rule the members of a group see: hunted as real processes alone."""

from dataclasses import replace
from importlib import import_module

import musterd.coordinator.runtime.shard
from musterd.chaos.mutants.build import Build
from musterd.coordinator.machine.commands import Assignment, CloseRound, RoundTimer, SyncGroup
from musterd.coordinator.machine.decide import sync
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.events import AssignmentPublished, RebalanceStarted, Trigger
from musterd.coordinator.machine.state import Group
from musterd.coordinator.runtime.sessions import MemberKey, Sessions

_evolve = import_module(
    "musterd.coordinator.machine.evolve"
)  # the package has a function of that name
_publish, _note_start = sync._publish, _evolve.note_start


def _share_one(group: Group, command: SyncGroup, env: Envelope) -> AssignmentPublished:
    """Gives every member what the group leader has assigned to itself."""
    own = next((a.assignment for a in command.assignments if a.member_id == group.leader_id), b"")
    everybody = tuple(Assignment(member_id, own) for member_id in group.members)
    return _publish(group, replace(command, assignments=everybody), env)


def _give_nothing(group: Group, command: SyncGroup, env: Envelope) -> AssignmentPublished:
    """Gives the members nothing in every second generation."""
    given = command.assignments if group.generation % 2 else ()
    return _publish(group, replace(command, assignments=given), env)


class Endless(Sessions):
    """Ends no session, and closes no round that a member is missing from."""

    def sessions_due(self) -> list[MemberKey]:
        super().sessions_due()
        return []

    def rounds_due(self, *, many_joins: bool) -> list[CloseRound]:
        due = super().rounds_due(many_joins=many_joins)
        return [one for one in due if one.timer is RoundTimer.INITIAL_DELAY]


def _note_but_leaves(group: Group, event: RebalanceStarted) -> None:
    """Keeps no record of a round that begins because a member leaves."""
    _note_start(group, event)
    if event.trigger is Trigger.MEMBER_LEFT:
        group.rebalances.pop(event.round, None)


BUILDS = (
    Build(
        "shared_assignment",
        _share_one.__doc__ or "",
        ((sync, "_publish", _share_one),),
    ),
    Build(
        "empty_assignment",
        _give_nothing.__doc__ or "",
        ((sync, "_publish", _give_nothing),),
    ),
    Build(
        "endless",
        Endless.__doc__ or "",
        ((musterd.coordinator.runtime.shard, "Sessions", Endless),),
    ),
    Build(
        "unnoted_leave",
        _note_but_leaves.__doc__ or "",
        ((_evolve, "note_start", _note_but_leaves),),
    ),
)
