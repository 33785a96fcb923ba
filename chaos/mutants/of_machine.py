"""Builds whose protocol lacks a rule: what a command may do to a group."""

from dataclasses import replace
from importlib import import_module
from typing import Any

from musterd.chaos.mutants.build import Build
from musterd.coordinator.machine import shard_state
from musterd.coordinator.machine.commands import (
    AlterGroupConfig,
    CloseRound,
    DeleteGroup,
    JoinGroup,
    OffsetCommit,
    OffsetDelete,
)
from musterd.coordinator.machine.decide import commit, delete
from musterd.coordinator.machine.decide.decision import Decision
from musterd.coordinator.machine.decide.identity import refuse_identity
from musterd.coordinator.machine.decide.requests import joining_id
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.events import GenerationFormed, PendingRemoved
from musterd.coordinator.machine.evolve_history import last_round
from musterd.coordinator.machine.shard_state import ShardState
from musterd.coordinator.machine.state import Group, Member

_decide = import_module(
    "musterd.coordinator.machine.decide.dispatch"
)  # the package has a function of that name
_decide_offset_delete, _decide_timer = _decide.decide_offset_delete, _decide.decide_timer
_decide_join = _decide.decide_join
_decide_delete, _decide_config = _decide.decide_delete, _decide.decide_config
_refuse, _store_all = commit._refuse, commit._store_all
_evolve = import_module("musterd.coordinator.machine.evolve")
_note_generation = _evolve.note_generation


class Hasty(delete._Due):
    """Counts from the commit alone, also where the group had members until just now."""

    def __init__(self, group: Group, wall_ms: int, retention_ms: int) -> None:
        super().__init__(replace(group, emptied_wall_ms=0), wall_ms, retention_ms)


def _no_floor(_state: ShardState, _events: object) -> tuple[()]:
    """Without the floor: a group that comes back counts from 1."""
    return ()


def _say_deleted(group: Group | None, command: OffsetDelete) -> Decision:
    """Says that the offsets are gone, and leaves every other one where it is."""
    events, reply = _decide_offset_delete(group, command)
    return Decision(events[1::2], reply)


def _any_generation(group: Group | None, command: OffsetCommit) -> Decision | None:
    """Whoever is a member may commit, in whatever generation it believes to be."""
    if group is not None and command.generation >= 0:
        command = replace(command, generation=group.generation)
    return _refuse(group, command)


def _any_order(group: Group | None, command: OffsetCommit, *rest: Any) -> Any:
    """Ignores commit_seq: whatever comes last stands."""
    return _store_all(group, replace(command, commit_seq=0), *rest)


def _any_holder(group: Group, member_id: str, instance_id: str) -> Decision | None:
    """Who was replaced under its instance id may still commit."""
    if instance_id in group.instances:
        return None
    return refuse_identity(group, member_id, instance_id)


def _generation_again(group: Group, _member: Member) -> int:
    """The fencing token is the generation, whichever process of a static member is asked about."""
    return group.generation


def _kept_token(group: Group, _member: Member) -> int:
    """A process that replaces a static member has its token too."""
    return group.token or group.generation


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


def _another_member(group: Group | None, command: JoinGroup, env: Envelope) -> Decision:
    """A first Join that comes once more makes one more member."""
    known = group is not None and joining_id(command) in group.members
    if group is not None and known and not command.member_id and command.join_nonce:
        command = replace(command, join_nonce=f"{command.join_nonce[:-8]}{group.next_join_seq:08x}")
    decision: Decision = _decide_join(group, command, env)
    return decision


def _drop_unsorted(group: Group | None, command: DeleteGroup) -> Decision:
    """A deletion drops ids in the order in which this replica happens to keep them."""
    decision: Decision = _decide_delete(group, command)
    dropped = {e.member_id: e for e in decision.events if isinstance(e, PendingRemoved)}
    if group is None or not dropped:
        return decision
    rest = [event for event in decision.events if not isinstance(event, PendingRemoved)]
    return Decision((*(dropped[one] for one in group.pending), *rest), decision.reply)


def _miss_unsorted(group: Group, event: GenerationFormed) -> None:
    """A round notes the ids it missed in the order in which this replica happens to keep them."""
    _note_generation(group, event)
    current = last_round(group)
    if current is not None and not group.from_empty:
        named = [one for one in sorted(group.pending) if one in current.missing]
        missed = [current.missing.pop(one) for one in named]
        current.missing.update(zip(group.pending, missed, strict=False))


def _say_configured(group: Group | None, command: AlterGroupConfig, env: Envelope) -> Decision:
    """Says that a group's settings are altered, and leaves them."""
    return Decision((), _decide_config(group, command, env).reply)


def _backward(group: Group | None, command: OffsetCommit, *rest: Any) -> Any:
    """Lets commits that go forward only go back."""
    return _store_all(group, replace(command, forward_only=False), *rest)


BUILDS = (
    Build(
        "generation_fence",
        _any_generation.__doc__ or "",
        ((commit, "_refuse", _any_generation),),
    ),
    Build("commit_seq", _any_order.__doc__ or "", ((commit, "_store_all", _any_order),)),
    Build(
        "static_fence",
        _any_holder.__doc__ or "",
        ((commit, "refuse_identity", _any_holder),),
    ),
    Build(
        "generation_token",
        _generation_again.__doc__ or "",
        ((Group, "token_of", _generation_again),),
    ),
    Build("kept_token", _kept_token.__doc__ or "", ((Group, "token_of", _kept_token),)),
    Build(
        "generation_floor",
        _no_floor.__doc__ or "",
        ((shard_state, "_raise_floor_counted", _no_floor),),
    ),
    Build(
        "deletion", _say_deleted.__doc__ or "", ((_decide, "decide_offset_delete", _say_deleted),)
    ),
    Build(
        "unsorted_deletion",
        _drop_unsorted.__doc__ or "",
        ((_decide, "decide_delete", _drop_unsorted),),
    ),
    Build(
        "unsorted_history",
        _miss_unsorted.__doc__ or "",
        ((_evolve, "note_generation", _miss_unsorted),),
    ),
    Build(
        "silent_setting",
        _say_configured.__doc__ or "",
        ((_decide, "decide_config", _say_configured),),
    ),
    Build("forward_only", _backward.__doc__ or "", ((commit, "_store_all", _backward),)),
    Build("retention", Hasty.__doc__ or "", ((delete, "_Due", Hasty),)),
    Build("timer_generation", _any_timer.__doc__ or "", ((_decide, "decide_timer", _any_timer),)),
    Build(
        "join_dedupe", _another_member.__doc__ or "", ((_decide, "decide_join", _another_member),)
    ),
)
