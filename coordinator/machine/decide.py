"""`decide` reads the group and never changes it; one file per command family does the work."""

from dataclasses import replace
from typing import assert_never, cast

from coordinator.machine.commands import (
    AlterGroupConfig,
    CloseRound,
    DeleteGroup,
    ExpireMember,
    ExpireOffsets,
    GroupCommand,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetDelete,
    SyncGroup,
    TopicsChanged,
)
from coordinator.machine.configs import decide_config, own_limits
from coordinator.machine.decide_commit import decide_commit
from coordinator.machine.decide_departure import decide_expiry, decide_leave
from coordinator.machine.decide_join import decide_join
from coordinator.machine.decide_removal import (
    decide_delete,
    decide_offset_delete,
    decide_sweep,
)
from coordinator.machine.decide_sync import decide_sync
from coordinator.machine.decide_timer import decide_timer
from coordinator.machine.decide_topics import decide_topics
from coordinator.machine.decision import Decision
from coordinator.machine.envelope import Envelope
from coordinator.machine.errors import Error
from coordinator.machine.identity import identity_error
from coordinator.machine.replies import Refused
from coordinator.machine.requests import refuse_request
from coordinator.machine.state import Group, Phase


def decide(  # noqa: PLR0912 - one arm per command
    group: Group | None, command: GroupCommand, env: Envelope
) -> Decision:
    """The events that `command` causes and its caller's answer. `group` None: there is none yet."""
    cluster = env
    if group is not None and group.config:
        env = replace(env, limits=own_limits(group, env.limits))
    refused = refuse_request(command, env.limits, env.rules_version)
    if refused is not None:
        return Decision((), refused)
    match command:
        case OffsetCommit():
            return decide_commit(group, command, env)
        case JoinGroup():
            return decide_join(group, command, env)
        case SyncGroup():
            return decide_sync(group, command, env)
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
        case AlterGroupConfig():
            return decide_config(group, command, cluster)
        case _:
            assert_never(command)


def would_refuse(group: Group | None, command: GroupCommand, env: Envelope) -> Refused | None:
    """The refusal `command` would get from this state, without a log entry (architecture 5).

    None where it also removes whom it refuses (gp-J6): that belongs in the log.
    """
    decision = decide(group, command, env)
    refused = isinstance(decision.reply, Refused) and not decision.events
    return cast("Refused", decision.reply) if refused else None


def heartbeat(group: Group | None, member_id: str, generation: int, instance_id: str = "") -> Error:
    """What a heartbeat is told, from applied state alone (gp-2.4, H2-H6)."""
    if group is None:
        return Error.UNKNOWN_MEMBER_ID
    if group.phase is Phase.DEAD:
        return Error.COORDINATOR_NOT_AVAILABLE
    stranger = identity_error(group, member_id, instance_id)
    if stranger is not Error.NONE:
        return stranger
    if generation != group.generation:
        return Error.ILLEGAL_GENERATION
    if group.phase is Phase.PREPARING_REBALANCE:
        return Error.REBALANCE_IN_PROGRESS
    return Error.NONE
