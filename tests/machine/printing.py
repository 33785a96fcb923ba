"""How scenarios print events, replies and groups."""

from collections.abc import Iterator
from dataclasses import fields
from enum import IntEnum

from coordinator.machine.commands import Assignment, Protocol
from coordinator.machine.events import CheckpointTaken, ConfigValue, Event, GroupEmptied
from coordinator.machine.replies import (
    Committed,
    Configured,
    Done,
    IdGiven,
    Joined,
    Left,
    OffsetsDeleted,
    Refused,
    Synced,
)
from coordinator.machine.state import Group

WALL_MS = 1_800_000_000_000
"""Wall time at shard time 0."""


def put_value(value: object) -> str:  # noqa: PLR0911
    """One field, short."""
    match value:
        case IntEnum():
            return value.name
        case bytes():
            return value.decode(errors="replace")
        case Protocol():
            return f"{value.name}:{put_value(value.metadata)}"
        case ConfigValue():
            return f"{value.name}:{value.value}"
        case Assignment():
            return f"{value.member_id}:{put_value(value.assignment)}"
        case tuple():
            return ",".join(map(put_value, value))
        case _:
            return str(value)


USUAL = {
    "group_id": "g",
    "client_host": "10.0.0.1",
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 60_000,
    "protocol_type": "consumer",
    "protocols": (Protocol("range", b"x"),),
    "subscribed_topics": ("t",),
}
"""What a scenario's commands say unless told otherwise; not printed."""


def put_event(event: Event) -> str:
    """The event's name and every field that is neither empty nor as usual."""
    parts = [type(event).__name__]
    if isinstance(event, CheckpointTaken):
        return parts[0]
    for field in fields(event):
        value = getattr(event, field.name)
        if value in ("", (), None) or USUAL.get(field.name) == value:
            continue
        if field.name == "topics_version" and not value:
            continue  # no topic is registered
        if field.name == "wall_ms":
            if isinstance(event, GroupEmptied):
                continue  # its command's; sweeps show that it is kept
            value -= WALL_MS
        parts.append(f"{field.name}={put_value(value)}")
    return " ".join(parts)


def put_reply(reply: object) -> str:  # noqa: PLR0911
    """What the caller is told, without the sentence for people."""
    match reply:
        case Refused():
            return reply.error.name
        case Joined():
            members = " ".join(
                f"{m.member_id}{_at(m.instance_id)}:{m.metadata.decode()}" for m in reply.members
            )
            return (
                f"joined generation={reply.generation} {reply.protocol_type}/{reply.protocol_name} "
                f"leader={reply.leader_id} me={reply.member_id} members=[{members}]"
                + " skip"
                * reply.skip_assignment
            )
        case Synced():
            return (
                f"synced generation={reply.generation} {reply.protocol_type}/{reply.protocol_name} "
                f"assignment={reply.assignment.decode()!r}"
            )
        case Left():
            return "left " + " ".join(
                f"{r.member_id or '-'}{_at(r.instance_id)}:{r.error.name}" for r in reply.results
            )
        case IdGiven():
            return f"MEMBER_ID_REQUIRED {reply.member_id}"
        case Committed():
            return "committed " + " ".join(
                f"{r.topic}/{r.partition}:{r.error.name}" + (":superseded" if r.superseded else "")
                for r in reply.partitions
            )
        case OffsetsDeleted():
            return "deleted " + " ".join(
                f"{r.topic}/{r.partition}:{r.error.name}" for r in reply.partitions
            )
        case Configured():
            return f"configured {put_value(reply.values) or '-'}"
        case Done():
            return "done"
        case _:
            return "parked"


def _at(instance_id: str) -> str:
    return f"@{instance_id}" if instance_id else ""


def put_group(group: Group) -> Iterator[str]:
    """The group as applied, members in join order."""
    timer = f" {group.timer.name}@{group.deadline_ms}" if group.timer else ""
    extra = f" remaining={group.remaining_ms}" if group.remaining_ms else ""
    yield (
        f"{group.phase} generation={group.generation} round={group.round}"
        f" leader={group.leader_id or '-'} {group.protocol_type or '-'}/"
        f"{group.protocol_name or '-'}{timer}{extra}{' newcomer' * group.new_member_added}"
    )
    for member in group.members.values():
        words = [
            f"  {member.member_id}{_at(member.instance_id)}",
            ",".join(p.name for p in member.protocols),
        ]
        words += ["joined"] if group.has_joined(member) else []
        words += ["synced"] if group.has_synced(member) else []
        words += [f"assignment={put_value(member.assignment)}"] if member.assignment else []
        yield " ".join(words)
    for member_id, timeout_ms in group.pending.items():
        yield f"  {member_id} pending for {timeout_ms}"
    for (topic, partition), offset in group.offsets.items():
        yield (
            f"  {topic}/{partition}="
            + (f"{offset.start_offset}.." if offset.start_offset is not None else "")
            + f"{offset.offset}"
            + (f"@{offset.end_offset}" if offset.end_offset is not None else "")
            + (f":{offset.metadata}" if offset.metadata else "")
            + f" by {offset.member_id or '-'} generation={offset.generation}"
            + f" seq={offset.commit_seq}"
        )
    for name, own in sorted(group.config.items()):
        yield f"  {name}={own}"
    if group.blob.blob:
        yield f"  blob={put_value(group.blob.blob)} by {group.blob.member_id or '-'}"
