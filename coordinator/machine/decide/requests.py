"""What is wrong with a request whatever the group's state: bounds that need the limits alone.

`decide` refuses by these first, so no replica stores what is out of bounds; a frontend may ask
before it proposes.
"""

from collections.abc import Iterable

from musterd.coordinator.machine.commands import (
    AlterGroupConfig,
    GroupCommand,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetDelete,
    SyncGroup,
)
from musterd.coordinator.machine.envelope import RULES_VERSION
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import Limits
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.machine.state import metadata_bytes


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


def refuse_request(
    command: GroupCommand, limits: Limits, rules_version: int = RULES_VERSION
) -> Refused | None:
    """Why this request can never be accepted, or None."""
    group_bytes = len(command.group_id.encode())
    if not 0 < group_bytes <= limits.id_max_bytes:
        altering = isinstance(command, AlterGroupConfig)  # Kafka's answer there (gp-2.14)
        return Refused(
            Error.INVALID_REQUEST if altering else Error.INVALID_GROUP_ID,
            f"A group id has 1 to {limits.id_max_bytes} bytes; this one has {group_bytes}.",
        )
    match command:
        case JoinGroup():
            return _refuse_join(command, limits, rules_version)
        case SyncGroup():
            return _refuse_sync(command, limits)
        case OffsetCommit():
            return _refuse_commit(command, limits)
        case LeaveGroup():
            return _refuse_leave(command, limits)
        case OffsetDelete():
            return _refuse_offset_delete(command, limits)
        case AlterGroupConfig():
            return _refuse_alter_config(command, limits)
        case _:
            return None


def _invalid(message: str) -> Refused:
    return Refused(Error.INVALID_REQUEST, message)


def _refuse_join(command: JoinGroup, limits: Limits, rules_version: int) -> Refused | None:
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
    listed, most = len(command.protocols), limits.member_max_protocols
    if rules_version >= 2 and listed > most:  # noqa: PLR2004 - the version in which this came
        return _invalid(
            f"The protocols that a member lists are at most {most}; this one has {listed}."
        )
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


def _refuse_leave(command: LeaveGroup, limits: Limits) -> Refused | None:
    if len(command.members) > limits.group_max_members:
        return _invalid(f"At most {limits.group_max_members} members leave in one call.")
    return None


def _refuse_commit(command: OffsetCommit, limits: Limits) -> Refused | None:
    if len(command.partitions) > limits.commit_max_partitions:
        return _invalid(f"A commit has at most {limits.commit_max_partitions} partitions.")
    if command.commit_seq < 0:
        return _invalid("A commit_seq is at least 0.")
    if command.blob is not None:
        refused = _refuse_blob(command, command.blob, limits)
        if refused is not None:
            return refused
    partitions = command.partitions
    if command.atomic and len({(p.topic, p.partition): p for p in partitions}) != len(partitions):
        return _invalid("An atomic commit names each partition once.")
    refused = _refuse_ids({p.topic: p for p in partitions}, limits)
    if refused is not None:
        return refused
    for topic, partition, offset, _, _, _, start_offset in partitions:
        if partition < 0 or offset < 0 or (start_offset is not None and start_offset < 0):
            at = offset if partition < 0 or offset < 0 else start_offset
            return _invalid(f"Partition {partition} of {quoted(topic)} at offset {at}: below 0.")
    return None


def _refuse_blob(command: OffsetCommit, blob: bytes, limits: Limits) -> Refused | None:
    if not command.atomic or not command.partitions:
        return _invalid("A blob goes with an atomic commit of at least one partition.")
    if len(blob) > limits.commit_blob_max_bytes:
        most = limits.commit_blob_max_bytes
        return _invalid(f"A blob has at most {most} bytes; this one has {len(blob)}.")
    return None


def _refuse_offset_delete(command: OffsetDelete, limits: Limits) -> Refused | None:
    most = limits.offset_delete_max_partitions
    if len(command.partitions) > most:
        return _invalid(f"At most {most} offsets are deleted in one call.")
    return _refuse_ids([topic for topic, _ in command.partitions], limits)


def _refuse_alter_config(command: AlterGroupConfig, limits: Limits) -> Refused | None:
    names = [*(setting.name for setting in command.settings), *command.removed]
    if len(names) > limits.alter_config_max_settings:
        return _invalid(f"At most {limits.alter_config_max_settings} settings change in one call.")
    if len(dict.fromkeys(names)) != len(names):
        return _invalid("A setting is named twice: set it or remove it, once.")
    return None


def _refuse_ids(topics: Iterable[str], limits: Limits) -> Refused | None:
    for topic in topics:
        if not 0 < len(topic.encode()) <= limits.id_max_bytes:
            return _invalid(f"A topic's name has 1 to {limits.id_max_bytes} bytes.")
    return None
