"""Computes how much a command may add to the state, and refuses it if there is no room.

A command grows the state or it does not. What grows it is refused where a limit in bytes is reached
(of the group, the shard, the node), or where the disks of a majority are low. What does not grow it
passes: leaves, deletions, timers, heartbeats, fetches, commits over offsets that are there. What an
existing group needs to go on (a Sync, members that join again) may exceed the limits by a tenth, so
that a group at its limit can still rebalance; new members of a group that has offsets by half of
that (docs/adr/0018).

Sizes are those of coordinator/machine/records/sizes.py. What is proposed and not applied is counted
as reserved (proposer.py). So a shard exceeds its limit by no more than that tenth, plus what its
existing offsets gain from other members' ids and from larger numbers: 300 bytes each at most.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, assert_never

from musterd.coordinator.machine.commands import (
    JOIN_EPOCH,
    NO_OWNER,
    AddPartitions,
    AlterAcls,
    AlterGroupConfig,
    AlterQuotas,
    BeginDrop,
    Checkpoint,
    CloseRound,
    Command,
    ConsumerGroupHeartbeat,
    CreateToken,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    DropOffsets,
    DropPart,
    EndDrop,
    ExpireMember,
    ExpireOffsets,
    FinalizeLevel,
    ForgetDeletion,
    JoinGroup,
    LeaveGroup,
    NoteBackup,
    NoteLevels,
    NoteTopics,
    OffsetCommit,
    OffsetDelete,
    PartitionCommit,
    Reconcile,
    RecordAudit,
    ReplaceNode,
    RevokeToken,
    SetTopicZones,
    ShardLevel,
    StoreTarget,
    SyncGroup,
    TopicsChanged,
)
from musterd.coordinator.machine.decide.config import TEXTS
from musterd.coordinator.machine.decide.requests import joining_id
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.modern.group import Consumer
from musterd.coordinator.machine.plain_partitions import PlainPartitions
from musterd.coordinator.machine.records.sizes import RECORD_BYTES
from musterd.coordinator.machine.replies import Committed, PartitionResult, Refused
from musterd.coordinator.machine.shard_state import ShardState
from musterd.coordinator.machine.state import Group, Offset, metadata_bytes, modern_of
from musterd.coordinator.runtime.answers import Answer
from musterd.coordinator.runtime.state_limits import StateLimits
from musterd.raft.contract import Room

HEADER_BYTES: Final = RECORD_BYTES + 512
"""Bytes of a group without anything: phase, ids and names, numbers, and since when it is Empty."""

OFFSET_BYTES: Final = RECORD_BYTES + 80
"""Bytes of one offset's record besides its names: the numbers of its value."""

MEMBER_BYTES: Final = 3 * RECORD_BYTES + 256
"""Bytes of a member besides its names and metadata: its own record, its assignment's, a static
one's."""

ROUND_BYTES: Final = RECORD_BYTES + 1_024
"""Bytes of a round in the history, as they mostly are."""

OWNER_BYTES: Final = 10
"""Bytes of whoever shall own a partition, in the target of a modern group."""

GRANT_BYTES: Final = 24
"""Bytes of one partition in what a member of a modern group has: its number and its token."""

REPLACED_BYTES: Final = 24
"""Bytes of a partition's owner in the target in force, while another is stored in parts."""

NAME_BYTES: Final = 16
"""Bytes of a topic in a list of them, besides its name."""

SETTING_BYTES: Final = 64
TOPIC_BYTES: Final = 3 * (RECORD_BYTES + 16)
RULE_BYTES: Final = RECORD_BYTES + 64
TOKEN_BYTES: Final = RECORD_BYTES + 128
SCOPE_BYTES: Final = 32
QUOTA_BYTES: Final = RECORD_BYTES + 32

WARN_SHARE: Final = 0.8
"""The share of a limit from which on the node warns."""

RETURNS_SHARE: Final = 1.05
"""The share of a limit up to which new members are taken into a group that has offsets. Else the
workers of a fleet that was restarted could not come back once other groups took what theirs had
freed."""

GOES_ON_SHARE: Final = 1.1
"""The share of a limit up to which a group takes what it needs to go on: rounds, assignments."""

NEAR_UNTIL_SHARE: Final = 0.9
"""A group that was told of as near its limit is told of again only once it has been below this
share of the mark."""

NEAR_MAX: Final = 1_000
"""Groups near their limit that are counted."""


class Growth(NamedTuple):
    """The bytes that a command adds to the state at most; 0 where it does not grow the state."""

    size: int
    share: float = 1.0
    """How far it may reach, as a share of each limit."""

    @property
    def goes_on(self) -> bool:
        """Whether a group that is there needs it to go on."""
        return self.share >= GOES_ON_SHARE


NO_GROWTH: Final = Growth(0)


def growth_of(  # noqa: C901, PLR0911, PLR0912 - one per command that grows the state
    state: ShardState, command: Command, reserved: int = 0
) -> Growth:
    """Return what `command` would add to `state`.

    So many bytes are `reserved` already for commands of its group that are under way: of a fleet
    that joins a classic group at once the first one converts it for all.
    """
    match command:
        case OffsetCommit():
            size = _of_commit(state.groups.get(command.group_id), command)
            return Growth(size) if size else NO_GROWTH
        case JoinGroup():
            return _of_join(state.groups.get(command.group_id), command)
        case SyncGroup():
            return _of_sync(state.groups.get(command.group_id), command)
        case ConsumerGroupHeartbeat():
            return _of_consumer(state.groups.get(command.group_id), command, reserved)
        case NoteTopics():
            return _of_topics(state.groups.get(command.group_id), command)
        case StoreTarget():
            return _of_target(state.groups.get(command.group_id), command)
        case AlterGroupConfig():
            group = state.groups.get(command.group_id)
            known = group.config if group else {}
            added = sum(setting.name not in known for setting in command.settings)
            header = HEADER_BYTES if group is None and added else 0
            texts = sum(len(one.value) for one in command.settings if one.name in TEXTS)
            return Growth(header + added * (RECORD_BYTES + SETTING_BYTES) + texts)
        case CreateTopic():
            new = command.name not in state.topics
            zones = _zones_bytes(command) if command.zones else 0
            return Growth(new * (TOPIC_BYTES + 3 * len(command.name.encode()) + zones))
        case SetTopicZones():
            more = _zones_bytes(command) - len(state.topic_zones.get(command.name, ""))
            return Growth(more) if more > 0 else NO_GROWTH
        case AlterAcls():
            fresh = [rule for rule in command.added if rule not in state.rules]
            return Growth(sum(RULE_BYTES + len((r.principal + r.name).encode()) for r in fresh))
        case AlterQuotas():
            made = [one for one in command.changes if one.value and one.of not in state.quotas]
            return Growth(sum(QUOTA_BYTES + len(one.name.encode()) for one in made))
        case CreateToken():
            names = sum(SCOPE_BYTES + len(scope.name.encode()) for scope in command.scopes)
            return Growth(TOKEN_BYTES + len(command.principal.encode()) + names)
        case (
            LeaveGroup()
            | ExpireMember()
            | CloseRound()
            | DeleteGroup()
            | OffsetDelete()
            | ExpireOffsets()
            | TopicsChanged()
            | AddPartitions()
            | DeleteTopic()
            | BeginDrop()
            | DropOffsets()
            | EndDrop()
            | ForgetDeletion()
            | ReplaceNode()
            | FinalizeLevel()
            | NoteLevels()
            | ShardLevel()
            | RecordAudit()
            | Checkpoint()
            | RevokeToken()
            | NoteBackup()
            | DropPart()
            | Reconcile()
        ):
            return NO_GROWTH
        case _:
            assert_never(command)


def _of_commit(group: Group | None, command: OffsetCommit) -> int:
    size = 0
    if group is None:
        size += HEADER_BYTES
    stored = {} if group is None else group.offsets
    partitions = command.partitions
    if isinstance(partitions, PlainPartitions) and all(map(stored.__contains__, partitions.refs)):
        partitions = ()  # no longer than what is stored
    for one in partitions:
        kept = stored.get((one.topic, one.partition))
        if kept is None:
            names = (command.group_id, command.member_id, one.topic, one.metadata)
            size += OFFSET_BYTES + sum(len(name.encode()) for name in names)
        elif one.metadata:
            size += _longer(one.metadata, kept.metadata)
    if command.blob:
        kept_blob = group.blob.blob if group else b""
        record = 0 if kept_blob else RECORD_BYTES + 300
        size += record + max(0, len(command.blob) - len(kept_blob))
    return size


def _longer(new: str, old: str) -> int:
    return max(0, len(new.encode()) - len(old.encode()))


def _of_join(group: Group | None, command: JoinGroup) -> Growth:
    new = metadata_bytes(command.protocols, command.subscribed_topics)
    said = _said_before(group, command)
    if said is not None:
        more = new - said
        return Growth(ROUND_BYTES + max(0, more), GOES_ON_SHARE if more <= 0 else 1.0)
    names = 3 * len(joining_id(command).encode()) + len(command.group_instance_id.encode())
    hosts = len(command.client_id.encode()) + len(command.client_host.encode())
    hosts += len(command.principal.encode())
    keys = 3 * len(command.group_id.encode())
    header = HEADER_BYTES if group is None else 0
    size = header + ROUND_BYTES + MEMBER_BYTES + new + names + hosts + keys
    return Growth(size, RETURNS_SHARE if group is not None and group.offset_count else 1.0)


def _said_before(group: Group | None, command: JoinGroup) -> int | None:
    """Return the bytes that the member said before that joins again, or whose place one takes.

    None where there is no such member. A classic member of a modern group is told to join, as in
    a round.
    """
    if group is None:
        return None
    member_id = command.member_id or group.instances.get(command.group_instance_id, "")
    if group.modern is not None:
        consumer = group.modern.members.get(member_id)
        if consumer is None:
            return None
        return metadata_bytes(consumer.protocols, consumer.said.topics)
    member = group.members.get(member_id)
    return None if member is None else metadata_bytes(member.protocols, member.subscribed_topics)


def _of_sync(group: Group | None, command: SyncGroup) -> Growth:
    if group is None or not command.assignments:
        return NO_GROWTH
    held = sum(len(member.assignment) for member in group.members.values())
    more = sum(len(one.assignment) for one in command.assignments) - held
    return Growth(max(0, more), GOES_ON_SHARE)


def _of_consumer(group: Group | None, command: ConsumerGroupHeartbeat, reserved: int) -> Growth:
    """Whoever leaves, goes away, or says nothing new of itself adds nothing."""
    if command.member_epoch < JOIN_EPOCH:
        return NO_GROWTH
    texts = (command.pattern, command.zone, command.assignor)
    new = sum(len(text.encode()) for text in texts if text) + _names_bytes(command.topics or ())
    modern, member_id = modern_of(group), command.member_id
    if modern is not None:
        holder = group.instances.get(command.group_instance_id, "") if group else ""
        known = modern.members.get(member_id) or modern.members.get(holder)
        if known is not None:
            return _of_known_consumer(known, command, new)
    ids = (member_id, member_id, command.group_instance_id, command.group_instance_id)
    said = (*ids, command.client_id, command.client_host, command.principal)
    keys = 3 * len(command.group_id.encode())
    header = HEADER_BYTES if group is None else 0
    size = header + ROUND_BYTES + MEMBER_BYTES + new + _names_bytes(said) + keys
    if group is not None and modern is None:
        size += max(0, _of_conversion(group) - reserved)
    return Growth(size, RETURNS_SHARE if group is not None and group.offset_count else 1.0)


def _of_conversion(group: Group) -> int:
    """What a classic group grows by as a modern one.

    A partition takes a byte or more where it was assigned, and an owner and a grant then.
    """
    assigned = sum(len(member.assignment) for member in group.members.values())
    return assigned * (OWNER_BYTES + GRANT_BYTES)


def _of_known_consumer(known: Consumer, command: ConsumerGroupHeartbeat, new: int) -> Growth:
    said = known.said
    kept = (
        (command.pattern, said.pattern),
        (command.zone, said.zone),
        (command.assignor, said.assignor),
    )
    old = sum(len(before.encode()) for now, before in kept if now)
    old += _names_bytes(said.topics) if command.topics is not None else 0
    more = max(0, new - old)
    joins = ROUND_BYTES if command.member_epoch == JOIN_EPOCH else 0
    return Growth(joins + more, 1.0 if more else GOES_ON_SHARE)


def _zones_bytes(command: CreateTopic | SetTopicZones) -> int:
    return RECORD_BYTES + len(command.name.encode()) + len(command.zones.encode())


def _names_bytes(names: tuple[str, ...]) -> int:
    return sum(len(name.encode()) + NAME_BYTES for name in names)


def _of_topics(group: Group | None, command: NoteTopics) -> Growth:
    modern = modern_of(group)
    if modern is None:
        return NO_GROWTH
    size = 0
    for topic, partitions, zones in command.counts:
        known = modern.topics.get(topic)
        if zones:
            kept = len(modern.zones.get(topic, ""))
            size += max(0, RECORD_BYTES + _names_bytes((topic, zones)) - kept)
        if known is None and partitions:
            size += RECORD_BYTES + 2 * _names_bytes((topic,))
        size += OWNER_BYTES * max(0, partitions - (known or 0))
    for pattern, added, _ in command.patterns:
        if added and pattern not in modern.patterns:
            size += RECORD_BYTES + _names_bytes((pattern,))
        size += _names_bytes(added)
    return Growth(size, GOES_ON_SHARE) if size else NO_GROWTH


def _of_target(group: Group | None, command: StoreTarget) -> Growth:
    """The grants that follow from it, too: an owner that has none of the topic names it anew."""
    modern = modern_of(group)
    if modern is None:
        return NO_GROWTH
    size = 0
    for change in command.changes:
        before = modern.target.get(change.topic, [])
        given = {
            number: owner
            for number, owner in zip(change.partitions, change.owners, strict=False)
            if owner != NO_OWNER
        }
        free = sum(number >= len(before) or before[number] == NO_OWNER for number in given)
        named = [
            owner
            for owner in dict.fromkeys(given.values())
            if change.topic not in modern.wanted.get(owner, {})
        ]
        size += GRANT_BYTES * free + len(named) * _names_bytes((change.topic,))
        if not command.last:
            size += _names_bytes((change.topic,)) + REPLACED_BYTES * len(change.partitions)
    size += RECORD_BYTES * (not command.last)
    return Growth(size, GOES_ON_SHARE) if size else NO_GROWTH


class StateSize:
    """The node's state by shard: applied, and reserved by what its leaders have proposed."""

    def __init__(self, limits: StateLimits | None = None) -> None:
        self.limits = limits or StateLimits()
        self.shards: list[Callable[[], int]] = []
        """Applied and reserved bytes of each shard of the node."""
        self.groups: list[Callable[[str], int]] = []
        """Applied and reserved bytes of a group, asked of each shard of the node; 0 where it does
        not lead the group."""
        self.refused: dict[str, int] = dict.fromkeys(("group", "shard", "node", "disk"), 0)
        """How much growth was refused for each limit, in commands."""
        self._near: dict[str, bool] = {}
        """Groups that this node leads at 80 % of their limit, and whether that was told."""

    @property
    def near(self) -> int:
        """How many groups that this node leads have come to 80 % of their limit, 1,000 at most."""
        return len(self._near)

    def newly_near(self) -> list[str]:
        """Those of them that were not given before."""
        new = [group_id for group_id, told in self._near.items() if not told]
        self._near.update(dict.fromkeys(new, True))
        return new

    def forget_far(self) -> None:
        """Count no group that is well below its limit by now, or gone, or led elsewhere."""
        for group_id in list(self._near):
            used = max((size(group_id) for size in self.groups), default=0)
            if not warned(used, int(self.limits.group * NEAR_UNTIL_SHARE)):
                del self._near[group_id]

    @property
    def used(self) -> int:
        """Bytes that all shards of the node take, applied and reserved."""
        return sum(size() for size in self.shards)

    def refusal(self, growth: Growth, group: int, shard: int) -> Refused | None:
        """Why so much more has no place; `group` and `shard` are what they weigh by now."""
        limits = self.limits
        for what, used, most in (
            ("group", group, limits.group),
            ("shard", shard, limits.shard),
            ("node", self.used, limits.node),
        ):
            if used + growth.size > int(most * growth.share):
                self.refused[what] += 1
                return _at_limit(what, most)
        return None

    def note(self, group_id: str, used: int) -> None:
        """Note a group's size where the group is asked to grow."""
        if not warned(used, self.limits.group):
            self._near.pop(group_id, None)
        elif group_id in self._near or len(self._near) < NEAR_MAX:
            self._near.setdefault(group_id, False)


def _at_limit(what: str, most: int) -> Refused:
    return Refused(
        Error.POLICY_VIOLATION,
        f"The {what} holds its {most} bytes of state (state_{what}_max_bytes): nothing was stored. "
        "Delete groups or offsets that are not needed, or raise the limit on every node.",
    )


_LOW: Final = Refused(
    Error.KAFKA_STORAGE_ERROR,
    "The disks of the nodes are low: nothing that grows the state is taken until there is room "
    "(disk_reserve_bytes).",
)
_FULL: Final = Refused(
    Error.KAFKA_STORAGE_ERROR,
    "The disks of the nodes are full: nothing is taken until there is room (disk_reserve_bytes).",
)


def refuse_for_room(room: Room, growth: Growth) -> Refused | None:
    """Why the disks have no room for a command that adds so much."""
    if room is Room.NONE:
        return _FULL
    if room is Room.LOW and growth.size and not growth.goes_on:
        return _LOW
    return None


class Remainder(NamedTuple):
    """A commit without the partitions that would grow the state."""

    command: OffsetCommit
    refused: tuple[PartitionResult | None, ...]
    """None where the log will answer."""

    def merged(self, answer: Answer) -> Answer:
        """One result per partition of the request, in its order."""
        if not isinstance(answer, Committed):
            return answer
        rest = iter(answer.partitions)
        return Committed(tuple(next(rest) if one is None else one for one in self.refused))


def remainder(group: Group | None, command: Command, refusal: Refused) -> Remainder | None:
    """Return the part of a commit that does not grow the state; None: it is all or none.

    An atomic one is refused as a whole, and so is one with a blob that grows.
    """
    if not isinstance(command, OffsetCommit) or command.atomic or group is None:
        return None
    stored = group.offsets
    refused = tuple(_refused(stored, one, refusal) for one in command.partitions)
    kept = tuple(one for one, no in zip(command.partitions, refused, strict=True) if no is None)
    if not kept:
        return None
    tokens = tuple(
        token
        for token, no in zip(command.tokens, refused, strict=False)  # none, or one for each
        if no is None
    )
    rest = Remainder(replace(command, partitions=kept, tokens=tokens), refused)
    return None if _of_commit(group, rest.command) else rest


def _refused(
    stored: Mapping[tuple[str, int], Offset], one: PartitionCommit, refusal: Refused
) -> PartitionResult | None:
    kept = stored.get((one.topic, one.partition))
    if kept is not None and not _longer(one.metadata, kept.metadata):
        return None
    return PartitionResult(one.topic, one.partition, refusal.error, refusal.message, False)


def warned(used: int, most: int) -> bool:
    """Whether so much of a limit is used that somebody should know."""
    return used >= most * WARN_SHARE
