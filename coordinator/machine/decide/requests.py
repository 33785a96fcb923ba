"""Refuses requests that no state of a group could accept: their bounds follow from the limits.

`decide` refuses by `refuse_request` first, so no replica stores what is out of bounds. A frontend
asks the same in two steps: group id and counts of the wire's request, by a function each, before it
makes a command of it; then `refuse_fields` of the command.
"""

from collections.abc import Iterable
from dataclasses import replace

from musterd.coordinator.machine.commands import (
    AlterGroupConfig,
    ConsumerGroupHeartbeat,
    GroupCommand,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetDelete,
    PartitionCommit,
    SyncGroup,
)
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import Limits
from musterd.coordinator.machine.modern.refusals import refuse_heartbeat
from musterd.coordinator.machine.plain_partitions import topics_of
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.machine.state import metadata_bytes
from musterd.levels import LEVEL


def principal_of(command: JoinGroup, env: Envelope) -> str:
    """Return whose member the command makes; "" below level 6."""
    came_with = 6
    return command.principal if env.level >= came_with else ""


def joining_id(command: JoinGroup) -> str:
    """The id the command joins under.

    Its own; or `<client_id>-<join_nonce>` (gp-D2); or without a nonce one that the coordinator
    drew, which starts with the instance id of a static member (gp-1.1).
    """
    if command.member_id:
        return command.member_id
    if command.join_nonce:
        return f"{command.client_id}-{command.join_nonce}"
    return f"{command.group_instance_id or command.client_id}-{command.drawn_nonce}"


def refuse_request(command: GroupCommand, limits: Limits, level: int = LEVEL) -> Refused | None:
    """Why this request can never be accepted, or None."""
    configured = isinstance(command, AlterGroupConfig)
    refuse_group = refuse_configured_group if configured else refuse_group_id
    refused = refuse_group(command.group_id, limits)
    if refused is not None:
        return refused
    match command:
        case JoinGroup():
            refused = _refuse_joining(command, limits)
            if refused is None and level >= 2:  # noqa: PLR2004 - the version of this count
                refused = refuse_protocols(len(command.protocols), limits)
            return refused or _refuse_protocols(command, limits)
        case OffsetCommit():
            refused = refuse_commits(len(command.partitions), limits)
        case LeaveGroup():
            refused = refuse_leaving(len(command.members), limits)
        case OffsetDelete():
            refused = refuse_deletions(len(command.partitions), limits)
        case AlterGroupConfig():
            refused = refuse_settings(len(command.settings) + len(command.removed), limits)
        case ConsumerGroupHeartbeat():
            refused = refuse_topics(len(command.topics or ()), limits)
        case _:
            pass
    return refused or refuse_fields(command, limits, level)


def refuse_fields(command: GroupCommand, limits: Limits, level: int = LEVEL) -> Refused | None:
    """Return what is wrong with a request beside its group id and the lengths of its lists."""
    match command:
        case JoinGroup():
            return _refuse_joining(command, limits) or _refuse_protocols(command, limits)
        case SyncGroup():
            return _refuse_sync(command, limits)
        case OffsetCommit():
            return _refuse_commit(command, limits, level)
        case OffsetDelete():
            return _refuse_ids([topic for topic, _ in command.partitions], limits)
        case AlterGroupConfig():
            return _refuse_settings(command)
        case ConsumerGroupHeartbeat():
            return refuse_heartbeat(command, limits)
        case _:
            return None


def refuse_group_id(group_id: str, limits: Limits) -> Refused | None:
    """Why no group can have this id, or None."""
    size = len(group_id.encode())
    if 0 < size <= limits.id_max_bytes:
        return None
    message = f"A group id has 1 to {limits.id_max_bytes} bytes; this one has {size}."
    return Refused(Error.INVALID_GROUP_ID, message)


def refuse_configured_group(group_id: str, limits: Limits) -> Refused | None:
    """Why no group with this id can have settings, or None; with Kafka's error there (gp-2.14)."""
    refused = refuse_group_id(group_id, limits)
    return None if refused is None else replace(refused, error=Error.INVALID_REQUEST)


def refuse_topic_name(name: str, limits: Limits) -> Refused | None:
    """Why no topic can have this name, or None."""
    size = len(name.encode())
    if 0 < size <= limits.id_max_bytes:
        return None
    message = f"A topic's name has 1 to {limits.id_max_bytes} bytes; this one has {size}."
    return Refused(Error.INVALID_TOPIC_EXCEPTION, message)


def refuse_protocols(count: int, limits: Limits) -> Refused | None:
    """Why a Join cannot list so many protocols, or None."""
    return _refuse_count("The protocols that a member lists", count, limits.member_max_protocols)


def refuse_leaving(count: int, limits: Limits) -> Refused | None:
    """Why so many members cannot leave in one call, or None."""
    return _refuse_count("The members that leave in one call", count, limits.group_max_members)


def refuse_commits(count: int, limits: Limits) -> Refused | None:
    """Why one commit cannot have so many partitions, or None."""
    return _refuse_count("The partitions of one commit", count, limits.commit_max_partitions)


def refuse_settings(count: int, limits: Limits) -> Refused | None:
    """Why so many settings of a group cannot change at once, or None."""
    return _refuse_count(
        "The settings that change at once", count, limits.alter_config_max_settings
    )


def refuse_topics(count: int, limits: Limits) -> Refused | None:
    """Why a member of a modern group cannot name so many topics, or None."""
    return _refuse_count("The topics that a member names", count, limits.member_max_topics)


def refuse_deletions(count: int, limits: Limits) -> Refused | None:
    """Why so many offsets cannot be deleted in one call, or None."""
    most = limits.offset_delete_max_partitions
    return None if count <= most else _invalid(f"At most {most} offsets are deleted in one call.")


def _refuse_count(what: str, count: int, most: int) -> Refused | None:
    return None if count <= most else _invalid(f"{what} are at most {most}; this one has {count}.")


def _invalid(message: str) -> Refused:
    return Refused(Error.INVALID_REQUEST, message)


def _refuse_joining(command: JoinGroup, limits: Limits) -> Refused | None:
    low, high = limits.session_timeout_min_ms, limits.session_timeout_max_ms
    if not low <= command.session_timeout_ms <= high:
        return Refused(
            Error.INVALID_SESSION_TIMEOUT,
            f"A session timeout is {low} to {high} ms; this one is {command.session_timeout_ms}.",
        )
    if command.rebalance_timeout_ms < 1:
        return _invalid("A rebalance timeout is at least 1 ms.")
    if not (command.member_id or command.join_nonce or command.drawn_nonce):
        return _invalid("A first join needs a join_nonce: the member id is made of it.")
    if len(joining_id(command).encode()) > limits.id_max_bytes:
        return _invalid(f"A member id has at most {limits.id_max_bytes} bytes.")
    if len(command.group_instance_id.encode()) > limits.id_max_bytes:
        return _invalid(f"An instance id has at most {limits.id_max_bytes} bytes.")
    if len(command.client_host.encode()) > limits.id_max_bytes:
        return _invalid(f"A client host has at most {limits.id_max_bytes} bytes.")
    if len(command.client_id.encode()) > limits.id_max_bytes:
        return _invalid(f"A client id has at most {limits.id_max_bytes} bytes.")
    if len(command.protocol_type.encode()) > limits.id_max_bytes:
        return _invalid(f"A protocol type has at most {limits.id_max_bytes} bytes.")
    return None


def _refuse_protocols(command: JoinGroup, limits: Limits) -> Refused | None:
    if any(not protocol.name for protocol in command.protocols):
        return _invalid("A protocol needs a name.")
    weight = metadata_bytes(command.protocols, command.subscribed_topics)
    if weight > limits.member_metadata_max_bytes:
        most = limits.member_metadata_max_bytes
        return _invalid(f"A member's metadata is at most {most} bytes; this one's is {weight}.")
    return None


def _refuse_sync(command: SyncGroup, limits: Limits) -> Refused | None:
    sizes = [len(entry.assignment) for entry in command.assignments]
    most = limits.member_assignment_max_bytes
    if any(size > most for size in sizes):
        return _invalid(f"A member's assignment is at most {most} bytes; one has {max(sizes)}.")
    most = limits.assignments_max_bytes
    if sum(sizes) > most:
        return _invalid(f"An assignment vector is at most {most} bytes; this has {sum(sizes)}.")
    return None


def _refuse_commit(command: OffsetCommit, limits: Limits, level: int) -> Refused | None:
    if command.commit_seq < 0:
        return _invalid("A commit_seq is at least 0.")
    if command.tokens and len(command.tokens) != len(command.partitions):
        return _invalid("A commit has a fencing token for each of its partitions, or none.")
    if command.blob is not None:
        refused = _refuse_blob(command, command.blob, limits)
        if refused is not None:
            return refused
    partitions = command.partitions
    if command.atomic and len({(p.topic, p.partition): p for p in partitions}) != len(partitions):
        return _invalid("An atomic commit names each partition once.")
    refused = _refuse_ids(topics_of(command), limits)
    if refused is not None or level >= 4:  # noqa: PLR2004 - the version in which it changed
        return refused  # what is below 0 is refused where the partition is decided
    low = next(filter(None, map(below_0, partitions)), None)
    return None if low is None else _invalid(low)


def below_0(wanted: PartitionCommit) -> str | None:
    """Return what is wrong if a partition of a commit names a negative number, or None."""
    start = wanted.start_offset or 0
    if min(wanted.partition, wanted.offset, start) >= 0:
        return None
    at = wanted.offset if min(wanted.partition, wanted.offset) < 0 else start
    return f"Partition {wanted.partition} of {quoted(wanted.topic)} at offset {at}: below 0."


def _refuse_blob(command: OffsetCommit, blob: bytes, limits: Limits) -> Refused | None:
    if not command.atomic or not command.partitions:
        return _invalid("A blob goes with an atomic commit of at least one partition.")
    if len(blob) > limits.commit_blob_max_bytes:
        most = limits.commit_blob_max_bytes
        return _invalid(f"A blob has at most {most} bytes; this one has {len(blob)}.")
    return None


def _refuse_settings(command: AlterGroupConfig) -> Refused | None:
    names = [*(setting.name for setting in command.settings), *command.removed]
    if len(dict.fromkeys(names)) != len(names):
        return _invalid("A setting is named twice: set it or remove it, once.")
    return None


def _refuse_ids(topics: Iterable[str], limits: Limits) -> Refused | None:
    for topic in topics:
        if not 0 < len(topic.encode()) <= limits.id_max_bytes:
            return _invalid(f"A topic's name has 1 to {limits.id_max_bytes} bytes.")
    return None
