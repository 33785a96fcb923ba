"""How scenarios print events, replies and groups."""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from enum import IntEnum

from muster.group.consumer_protocol import (
    NotOurMetadataError,
    decode_assignment,
    decode_subscription,
    is_awaited,
)
from muster.types import TopicPartition
from musterd.coordinator.machine.access import AclRule, Pattern, TokenScope
from musterd.coordinator.machine.commands import (
    Assignment,
    ConfigSetting,
    DeletedTopic,
    NodeLevel,
    PartitionSet,
    Protocol,
    RoundTimer,
    TargetChange,
    TopicCount,
)
from musterd.coordinator.machine.events import (
    CheckpointTaken,
    ConfigValue,
    ConsumerRejoined,
    Event,
    GroupEmptied,
    RebalanceStarted,
    Subscription,
)
from musterd.coordinator.machine.history import Rebalance, Who
from musterd.coordinator.machine.modern.decide_heartbeat import UNIT
from musterd.coordinator.machine.modern.group import Consumer, GrantPhase, ModernGroup
from musterd.coordinator.machine.plan import Why
from musterd.coordinator.machine.quotas import QuotaChange
from musterd.coordinator.machine.replies import (
    Committed,
    Configured,
    Done,
    Heard,
    IdGiven,
    Joined,
    Left,
    OffsetsDeleted,
    Refused,
    Synced,
)
from musterd.coordinator.machine.state import Group

WALL_MS = 1_800_000_000_000
"""Wall time at shard time 0."""


def put_value(value: object) -> str:  # noqa: C901, PLR0911, PLR0912
    """One field, short."""
    match value:
        case IntEnum():
            return value.name
        case bytes():
            return value.decode(errors="replace")
        case Protocol():
            return f"{value.name}:{_metadata(value.metadata)}"
        case ConfigSetting() | ConfigValue():
            return f"{value.name}:{value.value}"
        case NodeLevel():
            return f"{value.node_id}:{value.level}"
        case AclRule() | TokenScope():
            who = f"{value.principal}:" if isinstance(value, AclRule) else ""
            star = "*" * (value.pattern is Pattern.PREFIX)
            deny = ":deny" * getattr(value, "deny", False)
            return f"{who}{value.operation.name}:{value.resource.name}:{value.name}{star}{deny}"
        case QuotaChange():
            return f"{value.entity.name}:{value.name}:{value.key.name}={value.value}"
        case DeletedTopic():
            return f"{value.name}@{value.topics_version}"
        case Assignment():
            return (
                f"{value.member_id}:{_partitions(value.assignment) or put_value(value.assignment)}"
            )
        case TopicCount():
            zones = f"[{value.zones}]" if value.zones else ""
            return f"{value.topic}:{value.partitions}{zones}"
        case PartitionSet():
            return f"{value.topic}/{','.join(map(str, value.partitions))}"
        case TargetChange():
            rows = zip(value.partitions, value.owners, value.reasons, strict=True)
            return f"{value.topic}/" + ",".join(f"{p}:{o}:{WHYS[r]}" for p, o, r in rows)
        case Subscription():
            return put_said(value)
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


HISTORY = ("wall_ms", "client_id", "group_instance_id", "members_before")
"""What a round that opens says for its history alone."""


UNKNOWN_AS_0 = (
    "topics_version",
    "creation_version",
    "token",
    "fence",
    "with_assignment",
    "wall_ms",
)
"""What earlier rules did not have, or most scenarios have not."""


def put_said(said: Subscription) -> str:
    """What a member of a modern group says of itself, in so far as it is not as usual."""
    parts = [",".join(said.topics)]
    for name in ("pattern", "assignor", "zone"):
        parts += [f"{name}={getattr(said, name)}"] if getattr(said, name) else []
    if said.capacity != UNIT:
        parts.append(f"capacity={said.capacity}")
    parts += [f"seq={said.seq}"] if said.seq else []
    return "{" + " ".join(parts) + "}"


WHYS = [why.name for why in Why]


def put_event(event: Event) -> str:
    """The event's name and every field that is neither empty nor as usual."""
    parts = [type(event).__name__]
    if isinstance(event, CheckpointTaken):
        return parts[0]
    for name in getattr(event, "_fields", None) or [field.name for field in fields(event)]:
        value = getattr(event, name)
        if value in ("", (), None) or USUAL.get(name) == value:
            continue
        if name in UNKNOWN_AS_0 and not value:
            continue
        if name == "target_epoch" and not value and isinstance(event, ConsumerRejoined):
            continue
        if name == "time_ms" or (isinstance(event, RebalanceStarted) and name in HISTORY):
            continue  # `why` shows what became of it
        if name == "wall_ms":
            if isinstance(event, GroupEmptied):
                continue  # its command's; sweeps show that it is kept
            value -= WALL_MS
        parts.append(f"{name}={put_value(value)}")
    return " ".join(parts)


def put_reply(reply: object) -> str:  # noqa: C901, PLR0911
    """What the caller is told, without the sentence for people."""
    match reply:
        case Refused():
            return reply.error.name
        case Joined():
            members = " ".join(
                f"{m.member_id}{_at(m.instance_id)}:{m.metadata.decode(errors='backslashreplace')}"
                for m in reply.members
            )
            return (
                f"joined generation={reply.generation} {reply.protocol_type}/{reply.protocol_name} "
                f"leader={reply.leader_id} me={reply.member_id} members=[{members}]"
                + " skip" * reply.skip_assignment
                + _token(reply)
            )
        case Synced():
            return (
                f"synced generation={reply.generation} {reply.protocol_type}/{reply.protocol_name} "
                f"assignment={_assignment(reply.assignment)}" + _token(reply)
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
            return f"configured {put_value((*reply.values, *reply.texts)) or '-'}"
        case Heard():
            grants = " ".join(
                f"{g.topic}/{g.partition}@{g.token}" + "!" * (g.phase is GrantPhase.REVOKING)
                for g in reply.grants
            )
            return (
                f"heard {reply.member_id} epoch={reply.member_epoch} version={reply.version} "
                f"grants=[{grants}]"
                + (f" away until {reply.away_until_ms}" if reply.away_until_ms else "")
                + " left" * reply.left
            )
        case Done():
            return "done"
        case _:
            return "parked"


def _metadata(metadata: bytes) -> str:
    """As text; what the SDK said as what it keeps."""
    if metadata.isascii():
        return metadata.decode()
    return f"[{put_places(decode_subscription('', metadata).owned)}]"


def put_places(places: Iterable[TopicPartition]) -> str:
    return " ".join(f"{one.topic}/{one.partition}" for one in places)


def _assignment(assignment: bytes) -> str:
    return _partitions(assignment) or repr(assignment.decode())


def _partitions(assignment: bytes) -> str:
    """What the SDK reads in it; "" where a scenario has other bytes."""
    try:
        partitions, awaited = decode_assignment(assignment), is_awaited(assignment)
    except NotOurMetadataError:
        return ""
    return put_places(partitions) + " awaited" * awaited


def _token(reply: Joined | Synced) -> str:
    """Where it is another number than the generation."""
    return f" token={reply.token}" if reply.token != reply.generation else ""


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
        + (f" token={group.token} fence={group.fence}" if group.fence else "")
    )
    for member in group.members.values():
        words = [
            f"  {member.member_id}{_at(member.instance_id)}",
            ",".join(p.name for p in member.protocols),
        ]
        words += ["joined"] if group.has_joined(member) else []
        words += ["synced"] if group.has_synced(member) else []
        assignment = _partitions(member.assignment) or put_value(member.assignment)
        words += [f"assignment={assignment}"] if member.assignment else []
        words += [f"token={member.token}"] if member.token else []
        yield " ".join(words)
    if group.modern is not None:
        yield from put_modern(group.modern)
    for member_id, timeout_ms in group.pending.items():
        yield f"  {member_id} pending for {timeout_ms}"
    for (topic, partition), offset in group.offsets.items():
        yield (
            f"  {topic}/{partition}="
            + (f"{offset.start_offset}.." if offset.start_offset is not None else "")
            + f"{offset.offset}"
            + (f"@{offset.end_offset}" if offset.end_offset is not None else "")
            + (f"^{offset.leader_epoch}" if offset.leader_epoch is not None else "")
            + (f":{offset.metadata}" if offset.metadata else "")
            + f" by {offset.member_id or '-'} generation={offset.generation}"
            + f" seq={offset.commit_seq}"
        )
    for name, own in sorted(group.config.items()):
        yield f"  {name}={own}"
    for name, text in group.texts.items():
        yield f"  {name}={text}"
    if group.blob.blob:
        yield f"  blob={put_value(group.blob.blob)} by {group.blob.member_id or '-'}"


DEADLINES = {
    RoundTimer.REVOCATION: "",
    RoundTimer.JOIN: " joins",
    RoundTimer.SYNC: " syncs",
}
"""What a member has a deadline for, where it is something else than what it releases."""


def put_modern(modern: ModernGroup) -> Iterator[str]:
    """The members, and the target by member."""
    yield (
        f"  target epoch={modern.target_epoch} spec={modern.spec_version}"
        + (f" storing={modern.storing} part={modern.next_part}" if modern.storing else "")
        + (f" behind={','.join(map(str, sorted(modern.behind)))}" if modern.behind else "")
    )
    for topic, zones in sorted(modern.zones.items()):
        yield f"  zones of {topic} {zones}"
    for consumer in modern.members.values():
        yield "  " + _put_consumer(modern, consumer)


def _put_consumer(modern: ModernGroup, consumer: Consumer) -> str:
    grants = " ".join(
        f"{g.topic}/{g.partition}@{g.token}" + "!" * (g.phase is GrantPhase.REVOKING)
        for g in consumer.grants()
    )
    wanted = " ".join(
        f"{topic}/{partition}"
        for topic, partitions in sorted(modern.wanted.get(consumer.join_seq, {}).items())
        for partition in sorted(partitions)
    )
    return (
        f"{consumer.member_id}{_at(consumer.instance_id)} epoch={consumer.epoch}"
        f" version={consumer.version} [{grants}] target [{wanted}]"
        + (f" classic generation={consumer.generation}" if consumer.is_classic else "")
        + (
            f"{DEADLINES[consumer.timer]} until {consumer.deadline_ms}"
            if consumer.timer in DEADLINES
            else ""
        )
        + (f" away until {consumer.away_until_ms}" if consumer.away_until_ms else "")
    )


def put_rebalance(number: int, record: Rebalance) -> Iterator[str]:
    """One round of a group's history. Wall time counts as shard time does."""
    start = " initial" * record.initial
    yield (
        f"round {number}{start} at {record.started_ms} wall={record.started_wall_ms - WALL_MS}:"
        f" {record.trigger.name} {_who(record.culprit)}"
        + (f" reason={record.reason}" if record.reason else "")
    )
    leader = f" leader {_who(record.leader)}" if record.leader.member_id else ""
    yield (
        f"  {record.from_generation}->{record.generation} members"
        f" {record.members_before}->{record.members_after} joining={_ms(record.joining_ms)}"
        f" syncing={_ms(record.syncing_ms)}{leader}: {record.ended}"
    )
    if record.last_joined.member_id:
        yield f"  last to join {_who(record.last_joined)} after {record.last_join_ms}"
    if record.new_members:
        yield f"  {record.new_members} new: {' '.join(record.new_ids)}"
    if record.missing_members:
        yield f"  {record.missing_members} missing: " + " ".join(
            f"{_who(Who(member_id, one.client_id, one.instance_id))}"
            f":{one.cause.name if one.cause else 'ABSENT'}+{one.after_ms}"
            for member_id, one in record.missing.items()
        )
    if record.moves is not None and record.moves.count:
        why = [one.value for one in Why]
        counts = (f"{why[one]}: {n}" for one, n in sorted(record.moves.count.items()))
        yield f"  moves {', '.join(counts)}"
        for (former, owner, one), n in record.moves.flows.items():
            if not n:
                continue
            names = record.moves.called(former) or "-", record.moves.called(owner) or "-"
            yield f"    {n} {names[0]} -> {names[1]}: {why[one]}"


def _who(who: Who) -> str:
    return f"{who.member_id}({who.client_id}){_at(who.instance_id)}" if who.member_id else "-"


def _ms(duration_ms: int | None) -> str:
    return "-" if duration_ms is None else str(duration_ms)
