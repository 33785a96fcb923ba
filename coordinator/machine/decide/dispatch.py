"""`decide` reads the group and never changes it; one file per command family does the work."""

from dataclasses import replace
from typing import assert_never, cast

from musterd.coordinator.machine.commands import (
    AlterGroupConfig,
    CloseRound,
    ConsumerGroupHeartbeat,
    DeleteGroup,
    DropOffsets,
    DropPart,
    ExpireMember,
    ExpireOffsets,
    GroupCommand,
    JoinGroup,
    LeaveGroup,
    NoteTopics,
    OffsetCommit,
    OffsetDelete,
    Reconcile,
    StoreTarget,
    SyncGroup,
    TopicsChanged,
)
from musterd.coordinator.machine.decide.commit import decide_again, decide_commit
from musterd.coordinator.machine.decide.config import decide_config, own_limits
from musterd.coordinator.machine.decide.decision import Decision
from musterd.coordinator.machine.decide.delete import (
    decide_delete,
    decide_drop,
    decide_offset_delete,
    decide_sweep,
)
from musterd.coordinator.machine.decide.identity import identity_error
from musterd.coordinator.machine.decide.join import decide_join
from musterd.coordinator.machine.decide.leave import decide_expiry, decide_leave
from musterd.coordinator.machine.decide.requests import refuse_request
from musterd.coordinator.machine.decide.sync import decide_sync
from musterd.coordinator.machine.decide.timer import decide_timer
from musterd.coordinator.machine.decide.topics import decide_topics
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import SpecChanged
from musterd.coordinator.machine.modern.decide_heartbeat import decide_consumer_heartbeat
from musterd.coordinator.machine.modern.decide_target import (
    decide_drop_part,
    decide_note_topics,
    decide_reconcile,
    decide_store_target,
)
from musterd.coordinator.machine.modern.departures import decide_departure
from musterd.coordinator.machine.modern.group import ModernGroup
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.machine.state import Group, Phase


def decide(  # noqa: PLR0912 - one arm per command
    group: Group | None, command: GroupCommand, env: Envelope
) -> Decision:
    """The events that `command` causes and its caller's answer. `group` None: there is none yet."""
    again = decide_again(group, command, env) if type(command) is OffsetCommit else None
    if again is not None:
        return again
    cluster = env
    if group is not None and group.config:
        env = replace(env, limits=own_limits(group, env.limits))
    refused = refuse_request(command, env.limits, env.level)
    if refused is not None:
        return Decision((), refused)
    match command:
        case OffsetCommit():
            return decide_commit(group, command, env)
        case JoinGroup():
            return decide_join(group, command, env)
        case SyncGroup():
            return decide_sync(group, command, env)
        case LeaveGroup() | ExpireMember() | CloseRound() if group is not None and group.modern:
            return decide_departure(group, group.modern, command, env)
        case LeaveGroup():
            return decide_leave(group, command, env)
        case ExpireMember():
            return decide_expiry(group, command, env)
        case CloseRound():
            return decide_timer(group, command, env)
        case DeleteGroup():
            return decide_delete(group, command)
        case OffsetDelete():
            return decide_offset_delete(group, command)
        case ExpireOffsets():
            return decide_sweep(group, command, env)
        case TopicsChanged():
            return decide_topics(group, command, env)
        case DropOffsets():
            return decide_drop(group, command)
        case AlterGroupConfig():
            return decide_config(group, command, cluster)
        case ConsumerGroupHeartbeat():
            return decide_consumer_heartbeat(group, command, env)
        case NoteTopics():
            return decide_note_topics(group, command, env)
        case StoreTarget():
            return decide_store_target(group, command, env)
        case DropPart():
            return decide_drop_part(group, command)
        case Reconcile():
            return decide_reconcile(group, env)
        case _:
            assert_never(command)


def would_refuse(group: Group | None, command: GroupCommand, env: Envelope) -> Refused | None:
    """The refusal `command` would get from this state, without a log entry (arch-5.1).

    None where it also removes whom it refuses (gp-J6): that belongs in the log.
    """
    decision = decide(group, command, env)
    refused = isinstance(decision.reply, Refused) and not decision.events
    return cast("Refused", decision.reply) if refused else None


def replans(group: Group | None, command: GroupCommand, env: Envelope) -> bool:
    """Whether `command`, from this state, changes what plans of a modern group are made from."""
    return any(isinstance(event, SpecChanged) for event in decide(group, command, env).events)


def heartbeat(group: Group | None, member_id: str, generation: int, instance_id: str = "") -> Error:
    """Return the answer to a heartbeat, from applied state alone (gp-2.4, gp-H2 to gp-H6).

    Of a member of a modern group `generation` is the version of its assignment that it knows.
    """
    if group is None:
        return Error.UNKNOWN_MEMBER_ID
    if group.phase is Phase.DEAD:
        return Error.COORDINATOR_NOT_AVAILABLE
    stranger = identity_error(group, member_id, instance_id)
    if stranger is not Error.NONE:
        return stranger
    if group.modern is not None:
        return _heartbeat_of_consumer(group.modern, member_id, generation)
    if generation not in (group.generation, group.former.get(member_id)):
        return Error.ILLEGAL_GENERATION
    if group.phase is Phase.PREPARING_REBALANCE:
        return Error.REBALANCE_IN_PROGRESS
    return Error.NONE


def _heartbeat_of_consumer(modern: ModernGroup, member_id: str, generation: int) -> Error:
    """REBALANCE_IN_PROGRESS: its epoch or its grants are others than it knows."""
    consumer = modern.members[member_id]
    if consumer.is_away:
        return Error.UNKNOWN_MEMBER_ID
    if consumer.is_classic:
        if generation == consumer.former_generation:
            return Error.REBALANCE_IN_PROGRESS
        if generation != consumer.generation:
            return Error.ILLEGAL_GENERATION
        version = consumer.given
    else:
        version = generation
    same = version == consumer.version
    return Error.NONE if same else Error.REBALANCE_IN_PROGRESS
