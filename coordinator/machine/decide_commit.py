"""OffsetCommit (gp-2.7): how far the members have read."""

from coordinator.machine.commands import OffsetCommit, PartitionCommit
from coordinator.machine.decision import (
    Decision,
    illegal_generation,
    refuse,
    unavailable,
)
from coordinator.machine.envelope import Envelope
from coordinator.machine.errors import Error
from coordinator.machine.events import OffsetCommitted, OffsetSuperseded
from coordinator.machine.identity import refuse_identity
from coordinator.machine.replies import Committed, PartitionResult
from coordinator.machine.state import Group, Phase


def decide_commit(group: Group | None, command: OffsetCommit, env: Envelope) -> Decision:
    """O4-O9: the group's checks, then each partition on its own.

    A commit of nothing never reaches the group's checks (gp-0.4). A simple commit is stored as
    nobody's, with `commit_seq` 0, because nothing vouches for its ids (sc-O13).
    """
    if not command.partitions:
        return Decision((), Committed(()))
    refused = _refuse(group, command)
    if refused is not None:
        return refused
    events: list[OffsetCommitted | OffsetSuperseded] = []
    results: list[PartitionResult] = []
    written: dict[tuple[str, int], OffsetCommitted] = {}
    for wanted in command.partitions:
        event, result = _commit(group, command, wanted, written, env)
        if isinstance(event, OffsetCommitted):
            written[wanted.topic, wanted.partition] = event
        if event is not None:
            events.append(event)
        results.append(result)
    return Decision(tuple(events), Committed(tuple(results)))


def _refuse(group: Group | None, command: OffsetCommit) -> Decision | None:
    """O4 and O5."""
    simple = command.generation < 0
    if group is None:
        if simple:
            return None
        return refuse(Error.GROUP_ID_NOT_FOUND, f"There is no group {command.group_id!r}.")
    if group.phase is Phase.DEAD:
        return unavailable()
    if simple and group.phase is Phase.EMPTY:
        return None
    stranger = refuse_identity(group, command.member_id, command.group_instance_id)
    if stranger is not None:
        return stranger
    if command.generation != group.generation:
        return illegal_generation(command.generation, group.generation)
    if group.phase is Phase.COMPLETING_REBALANCE:
        return refuse(Error.REBALANCE_IN_PROGRESS, "The new generation has no assignment yet.")
    return None


def _commit(
    group: Group | None,
    command: OffsetCommit,
    wanted: PartitionCommit,
    written: dict[tuple[str, int], OffsetCommitted],
    env: Envelope,
) -> tuple[OffsetCommitted | OffsetSuperseded | None, PartitionResult]:
    """O7-O9 for one partition; `written` is what this command already stores."""
    most = env.limits.offset_metadata_max_bytes
    if len(wanted.metadata.encode()) > most:
        message = f"An offset's metadata is at most {most} bytes."
        return None, _result(wanted, Error.OFFSET_METADATA_TOO_LARGE, message)
    simple = command.generation < 0
    member_id = "" if simple else command.member_id
    commit_seq = 0 if simple else command.commit_seq
    key = (wanted.topic, wanted.partition)
    kept = written.get(key) or (None if group is None else group.offsets.get(key))
    if commit_seq and kept is not None and kept.member_id == member_id:
        if commit_seq < kept.commit_seq:
            superseded = OffsetSuperseded(
                command.group_id, *key, wanted.offset, member_id, commit_seq, kept.offset
            )
            return superseded, _result(wanted, Error.NONE, "", superseded=True)
        if commit_seq == kept.commit_seq:
            if wanted.offset == kept.offset:
                return None, _result(wanted, Error.NONE, "")
            message = f"commit_seq {commit_seq} stored {kept.offset}; new content needs a new one."
            return None, _result(wanted, Error.INVALID_REQUEST, message)
    committed = OffsetCommitted(
        group_id=command.group_id,
        topic=wanted.topic,
        partition=wanted.partition,
        offset=wanted.offset,
        metadata=wanted.metadata,
        end_offset=wanted.end_offset,
        member_id=member_id,
        generation=command.generation,
        commit_seq=commit_seq,
        wall_ms=env.wall_ms,
    )
    return committed, _result(wanted, Error.NONE, "")


def _result(
    wanted: PartitionCommit, error: Error, message: str, *, superseded: bool = False
) -> PartitionResult:
    return PartitionResult(wanted.topic, wanted.partition, error, message, superseded)
