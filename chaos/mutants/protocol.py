"""Builds whose protocol lacks a rule: what a command may do to a group."""

from dataclasses import replace
from importlib import import_module
from typing import Any

from musterd.chaos.mutants.build import Builds, gives
from musterd.coordinator.machine import shard_state
from musterd.coordinator.machine.commands import (
    AlterGroupConfig,
    Assignment,
    CloseRound,
    DeleteGroup,
    JoinGroup,
    OffsetCommit,
    OffsetDelete,
    RoundTimer,
    SyncGroup,
)
from musterd.coordinator.machine.decide import commit, delete, sync
from musterd.coordinator.machine.decide.decision import Decision
from musterd.coordinator.machine.decide.identity import refuse_identity
from musterd.coordinator.machine.decide.requests import joining_id
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.events import (
    AssignmentPublished,
    GenerationFormed,
    PendingRemoved,
    RebalanceStarted,
    Trigger,
)
from musterd.coordinator.machine.evolve_history import last_round
from musterd.coordinator.machine.state import Group, Member
from musterd.coordinator.runtime import leadership
from musterd.coordinator.runtime.sessions import MemberKey, Sessions

BUILDS = Builds()
# The packages have functions of these names.
_decide = import_module("musterd.coordinator.machine.decide.dispatch")
_evolve = import_module("musterd.coordinator.machine.evolve")
# Before any patch.
_decide_offset_delete, _decide_timer = _decide.decide_offset_delete, _decide.decide_timer
_decide_join = _decide.decide_join
_decide_delete, _decide_config = _decide.decide_delete, _decide.decide_config
_refuse, _store_all = commit._refuse, commit._store_all
_note_generation, _note_start = _evolve.note_generation, _evolve.note_start
_publish = sync._publish


@BUILDS.replaces("retention", delete)
class Hasty(delete._Due):
    """Counts from the commit alone, also where the group had members until just now."""

    def __init__(self, group: Group, wall_ms: int, retention_ms: int) -> None:
        super().__init__(replace(group, emptied_wall_ms=0), wall_ms, retention_ms)


@BUILDS.replaces("deletion", _decide, "decide_offset_delete")
def _say_deleted(group: Group | None, command: OffsetDelete) -> Decision:
    """Says that the offsets are gone, and leaves every other one where it is."""
    events, reply = _decide_offset_delete(group, command)
    return Decision(events[1::2], reply)


@BUILDS.replaces("generation_fence", commit, "_refuse")
def _any_generation(group: Group | None, command: OffsetCommit) -> Decision | None:
    """Whoever is a member may commit, in whatever generation it believes to be."""
    if group is not None and command.generation >= 0:
        command = replace(command, generation=group.generation)
    return _refuse(group, command)


@BUILDS.replaces("commit_seq", commit, "_store_all")
def _any_order(group: Group | None, command: OffsetCommit, *rest: Any) -> Any:
    """Ignores commit_seq: whatever comes last stands."""
    return _store_all(group, replace(command, commit_seq=0), *rest)


@BUILDS.replaces("static_fence", commit, "refuse_identity")
def _any_holder(group: Group, member_id: str, instance_id: str) -> Decision | None:
    """Who was replaced under its instance id may still commit."""
    if instance_id in group.instances:
        return None
    return refuse_identity(group, member_id, instance_id)


@BUILDS.replaces("generation_token", Group, "token_of")
def _generation_again(group: Group, _member: Member) -> int:
    """The fencing token is the generation, whichever process of a static member is asked about."""
    return group.generation


@BUILDS.replaces("kept_token", Group, "token_of")
def _kept_token(group: Group, _member: Member) -> int:
    """A process that replaces a static member has its token too."""
    return group.token or group.generation


@BUILDS.replaces("timer_generation", _decide, "decide_timer")
def _any_timer(group: Group | None, command: CloseRound, env: Envelope) -> Decision:
    """A timer that fires acts on whatever round is open by then."""
    if group is not None and group.timer is not None:
        time_ms = max(env.time_ms, group.deadline_ms)
        env = replace(env, time_ms=time_ms)
        command = replace(
            command, timer=group.timer, round=group.round, deadline_ms=group.deadline_ms
        )
    decision: Decision = _decide_timer(group, command, env)
    return decision


@BUILDS.replaces("join_dedupe", _decide, "decide_join")
def _another_member(group: Group | None, command: JoinGroup, env: Envelope) -> Decision:
    """A first Join that comes once more makes one more member."""
    known = group is not None and joining_id(command) in group.members
    if group is not None and known and not command.member_id and command.join_nonce:
        command = replace(command, join_nonce=f"{command.join_nonce[:-8]}{group.next_join_seq:08x}")
    decision: Decision = _decide_join(group, command, env)
    return decision


@BUILDS.replaces("unsorted_deletion", _decide, "decide_delete")
def _drop_unsorted(group: Group | None, command: DeleteGroup) -> Decision:
    """A deletion drops ids in the order in which this replica happens to keep them."""
    decision: Decision = _decide_delete(group, command)
    dropped = {e.member_id: e for e in decision.events if isinstance(e, PendingRemoved)}
    if group is None or not dropped:
        return decision
    rest = [event for event in decision.events if not isinstance(event, PendingRemoved)]
    return Decision((*(dropped[one] for one in group.pending), *rest), decision.reply)


@BUILDS.replaces("unsorted_history", _evolve, "note_generation")
def _miss_unsorted(group: Group, event: GenerationFormed) -> None:
    """A round notes the ids it missed in the order in which this replica happens to keep them."""
    _note_generation(group, event)
    current = last_round(group)
    if current is not None and not group.from_empty:
        named = [one for one in sorted(group.pending) if one in current.missing]
        missed = [current.missing.pop(one) for one in named]
        current.missing.update(zip(group.pending, missed, strict=False))


@BUILDS.replaces("silent_setting", _decide, "decide_config")
def _say_configured(group: Group | None, command: AlterGroupConfig, env: Envelope) -> Decision:
    """Says that a group's settings are altered, and leaves them."""
    return Decision((), _decide_config(group, command, env).reply)


@BUILDS.replaces("forward_only", commit, "_store_all")
def _backward(group: Group | None, command: OffsetCommit, *rest: Any) -> Any:
    """Lets commits that go forward only go back."""
    return _store_all(group, replace(command, forward_only=False), *rest)


@BUILDS.replaces("shared_assignment", sync, "_publish")
def _share_one(group: Group, command: SyncGroup, env: Envelope) -> AssignmentPublished:
    """Gives every member what the group leader has assigned to itself."""
    own = next((a.assignment for a in command.assignments if a.member_id == group.leader_id), b"")
    everybody = tuple(Assignment(member_id, own) for member_id in group.members)
    return _publish(group, replace(command, assignments=everybody), env)


@BUILDS.replaces("empty_assignment", sync, "_publish")
def _give_nothing(group: Group, command: SyncGroup, env: Envelope) -> AssignmentPublished:
    """Gives the members nothing in every second generation."""
    given = command.assignments if group.generation % 2 else ()
    return _publish(group, replace(command, assignments=given), env)


@BUILDS.replaces("endless", leadership)
class Endless(Sessions):
    """Ends no session, and closes no round that a member is missing from."""

    def sessions_due(self) -> list[MemberKey]:
        super().sessions_due()
        return []

    def rounds_due(self, *, many_joins: bool) -> list[CloseRound]:
        due = super().rounds_due(many_joins=many_joins)
        return [one for one in due if one.timer is RoundTimer.INITIAL_DELAY]


@BUILDS.replaces("unnoted_leave", _evolve, "note_start")
def _note_but_leaves(group: Group, event: RebalanceStarted) -> None:
    """Keeps no record of a round that begins because a member leaves."""
    _note_start(group, event)
    if event.trigger is Trigger.MEMBER_LEFT:
        group.rebalances.pop(event.round, None)


BUILDS.add(
    "generation_floor",
    "Without the floor: a group that comes back counts from 1.",
    (shard_state, "_raise_floor_counted", gives(())),
)
