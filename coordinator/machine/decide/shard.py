"""Shard-wide commands: topics, replaced nodes, checkpoints."""

from collections.abc import Mapping
from typing import Final, NamedTuple, assert_never

from musterd.coordinator.machine.commands import (
    AddPartitions,
    AlterAcls,
    AlterQuotas,
    BeginDrop,
    Checkpoint,
    CreateToken,
    CreateTopic,
    DeletedTopic,
    DeleteTopic,
    EndDrop,
    FinalizeLevel,
    ForgetDeletion,
    NodeLevel,
    NoteBackup,
    NoteLevels,
    RecordAudit,
    ReplaceNode,
    RevokeToken,
    SetTopicZones,
    ShardCommand,
    ShardLevel,
)
from musterd.coordinator.machine.decide.access import (
    decide_acls,
    decide_revocation,
    decide_token,
    evolve_access,
)
from musterd.coordinator.machine.decide.audit import decide_audit, evolve_audit
from musterd.coordinator.machine.decide.quotas import decide_quotas, evolve_quotas
from musterd.coordinator.machine.decide.requests import refuse_topic_name
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import (
    AclsAltered,
    AuditRecorded,
    BackupNoted,
    CheckpointTaken,
    DeletionForgotten,
    DropBegun,
    DropEnded,
    LevelRaised,
    LevelsNoted,
    NodeReplaced,
    PartitionsAdded,
    QuotasAltered,
    ShardEvent,
    TokenCreated,
    TokensRemoved,
    TopicCreated,
    TopicDeleted,
    TopicZonesSet,
)
from musterd.coordinator.machine.limits import Limits
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.records.digest import digest_bytes
from musterd.coordinator.machine.records.shard_records import ShardState
from musterd.coordinator.machine.replies import Done, Refused, Reply
from musterd.coordinator.machine.zones import normal_zones, wrong_zones
from musterd.invariant import invariant
from musterd.levels import LAST_UNNAMED, LEVEL

_NAME_CHARACTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
"""Characters of a topic's name, as in Kafka. What was made before rules 4 keeps its name."""


class ShardDecision(NamedTuple):
    """Like Decision, of a shard-wide command."""

    events: tuple[ShardEvent, ...]
    reply: Reply


def decide_shard(  # noqa: PLR0912 - one per command
    state: ShardState,
    command: ShardCommand,
    limits: Limits,
    level: int = LEVEL,
    wall_ms: int = 0,
) -> ShardDecision:
    """A topic's count only grows; a repeated command with the same content is a success (arch-3.6).

    `wall_ms` is the entry's.
    """
    match command:
        case CreateTopic():
            noted_ms = wall_ms if level >= 4 else 0  # noqa: PLR2004 - since when it is kept
            return _decide_create(state, command, limits, level, noted_ms)
        case DeleteTopic():
            return _decide_delete(state, command, level)
        case BeginDrop():
            return _decide_drop(state, command)
        case EndDrop():
            return _ended(state.dropping, command.topics, DropEnded)
        case ForgetDeletion():
            return _ended(state.topics_deleted, command.topics, DeletionForgotten)
        case AddPartitions():
            return _decide_add(state, command, limits, level)
        case SetTopicZones():
            return _decide_zones(state, command, limits)
        case ReplaceNode():
            return _decide_replace(state, command, limits)
        case FinalizeLevel():
            return _decide_finalize(state, command)
        case NoteLevels():
            return _decide_note(state, command, limits)
        case ShardLevel():
            return _decide_raise(state, command.level)
        case RecordAudit():
            recorded = decide_audit(state, command, limits)
            if isinstance(recorded, Refused):
                return ShardDecision((), recorded)
            return ShardDecision(() if recorded is None else (recorded,), Done())
        case Checkpoint():
            return ShardDecision((CheckpointTaken(digest_bytes(state.digest)),), Done())
        case AlterAcls():
            return ShardDecision(*decide_acls(state, command, limits))
        case CreateToken():
            return ShardDecision(*decide_token(state, command, limits, wall_ms))
        case NoteBackup():
            return _decide_backup(state, command, wall_ms)
        case RevokeToken():
            return ShardDecision(*decide_revocation(state, command))
        case AlterQuotas():
            return ShardDecision(*decide_quotas(state, command, limits))
        case _:
            assert_never(command)


def _refused(error: Error, message: str) -> ShardDecision:
    return ShardDecision((), Refused(error, message))


def _decide_create(
    state: ShardState, command: CreateTopic, limits: Limits, level: int, wall_ms: int
) -> ShardDecision:
    refused = refuse_topic_name(command.name, limits)
    if refused is not None:
        return ShardDecision((), refused)
    if not 0 < command.partitions <= limits.topic_max_partitions:
        return _refused(
            Error.INVALID_PARTITIONS, f"A topic has 1 to {limits.topic_max_partitions} partitions."
        )
    known = state.topics.get(command.name)
    refused = _refuse_zones(state, command.name, command.zones, limits)
    if refused is not None:
        return ShardDecision((), refused)
    zones = normal_zones(command.zones)
    if known == command.partitions:
        if zones and zones != state.topic_zones.get(command.name, ""):
            return _refused(
                Error.INVALID_REQUEST,
                f"Topic {quoted(command.name)} is there already, in other zones: set them.",
            )
        return ShardDecision((), Done(changed=False))
    if known is not None:
        return _refused(
            Error.INVALID_PARTITIONS,
            f"Topic {quoted(command.name)} has {known} partitions already.",
        )
    if level >= 4 and not is_topic_name(command.name):  # noqa: PLR2004 - since when
        return _refused(
            Error.INVALID_TOPIC_EXCEPTION,
            f"{quoted(command.name)} is no name of a topic: use the letters a to z and A to Z, "
            'digits, ".", "_" and "-", and not "." or ".." alone.',
        )
    if command.name in state.topics_deleted:
        return _refused(
            Error.COORDINATOR_LOAD_IN_PROGRESS,
            f"Topic {quoted(command.name)} was deleted, and a shard has yet to drop its offsets: "
            "repeat the request.",
        )
    if len(state.topics) + len(state.topics_deleted) >= limits.max_topics:
        return _refused(Error.INVALID_REQUEST, f"The cluster has its {limits.max_topics} topics.")
    version = _version_after(state, command.partitions, level)
    keeps = level >= 5 and state.deletions_version  # noqa: PLR2004 - since when it is kept
    creation_version = version if keeps else 0
    made = TopicCreated(command.name, command.partitions, version, wall_ms, creation_version, zones)
    return ShardDecision((made,), Done())


def _refuse_zones(state: ShardState, name: str, zones: str, limits: Limits) -> Refused | None:
    """Why these cannot be the zones of a topic's partitions, or None."""
    wrong = wrong_zones(zones, limits)
    size = sum(len(kept) for topic, kept in state.topic_zones.items() if topic != name)
    if not wrong and zones and size + len(zones) > limits.all_zones_max_bytes:
        wrong = f"The zones of all topics have at most {limits.all_zones_max_bytes} bytes."
    return Refused(Error.INVALID_REQUEST, wrong) if wrong else None


def _decide_zones(state: ShardState, command: SetTopicZones, limits: Limits) -> ShardDecision:
    if command.name not in state.topics:
        return _refused(
            Error.UNKNOWN_TOPIC_OR_PARTITION,
            f"There is no topic {quoted(command.name)}; create it.",
        )
    refused = _refuse_zones(state, command.name, command.zones, limits)
    if refused is not None:
        return ShardDecision((), refused)
    zones = normal_zones(command.zones)
    if zones == state.topic_zones.get(command.name, ""):
        return ShardDecision((), Done(changed=False))
    altered = TopicZonesSet(command.name, zones, state.topics_version + 1)
    return ShardDecision((altered,), Done())


def is_topic_name(name: str) -> bool:
    """True where a topic may be called so, but for its length."""
    return all(one in _NAME_CHARACTERS for one in name) and name not in (".", "..")


def _decide_delete(state: ShardState, command: DeleteTopic, level: int) -> ShardDecision:
    """A topic that is being deleted is a repetition; another one of its name is not meant."""
    meant, known = command.creation_version, state.creation_versions.get(command.name, 0)
    if command.name in state.topics:
        if level >= 5 and meant not in (None, known):  # noqa: PLR2004 - since when it counts
            return _refused(
                Error.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic {quoted(command.name)} is another one, which was made since.",
            )
        return ShardDecision((TopicDeleted(command.name, state.topics_version + 1),), Done())
    if command.name in state.topics_deleted:
        return ShardDecision((), Done(changed=False))
    return _refused(Error.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {quoted(command.name)}.")


def _decide_drop(state: ShardState, command: BeginDrop) -> ShardDecision:
    """Deletions in their order, each once and none left out; anything else changes nothing.

    A leader tells them again, and the log may take a later word without the one before it.
    """
    if not command.after_version <= state.dropped_version < command.deletions_version:
        return ShardDecision((), Done(changed=False))
    new = tuple(one for one in command.topics if one.topics_version > state.dropped_version)
    return ShardDecision((DropBegun(new, command.deletions_version),), Done())


def _ended(
    known: Mapping[str, int],
    topics: tuple[DeletedTopic, ...],
    event: type[DropEnded | DeletionForgotten],
) -> ShardDecision:
    """Those of `topics` whose deletion is still known, as this one and no later one."""
    ended = tuple(one for one in topics if known.get(one.name) == one.topics_version)
    return ShardDecision((event(ended),) if ended else (), Done(changed=bool(ended)))


def _decide_add(
    state: ShardState, command: AddPartitions, limits: Limits, level: int
) -> ShardDecision:
    known = state.topics.get(command.name)
    if known is None:
        return _refused(
            Error.UNKNOWN_TOPIC_OR_PARTITION,
            f"There is no topic {quoted(command.name)}; create it.",
        )
    if known == command.partitions:
        return ShardDecision((), Done(changed=False))
    if not known < command.partitions <= limits.topic_max_partitions:
        most = limits.topic_max_partitions
        return _refused(
            Error.INVALID_PARTITIONS,
            f"Topic {quoted(command.name)} has {known} partitions and grows to {most} at most.",
        )
    version = _version_after(state, command.partitions - known, level)
    return ShardDecision((PartitionsAdded(command.name, command.partitions, version),), Done())


def _version_after(state: ShardState, added: int, level: int) -> int:
    """Rules 1 kept no word of when a topic changed."""
    return state.topics_version + added if level >= 2 else 0  # noqa: PLR2004


def _decide_backup(state: ShardState, command: NoteBackup, wall_ms: int) -> ShardDecision:
    """The last one counts, and none that was begun after now, by the leader's clock."""
    if command.wall_ms < 0:
        return _refused(Error.INVALID_REQUEST, "A backup was begun after 1970.")
    begun_ms = min(command.wall_ms, wall_ms)
    if begun_ms <= state.backup_wall_ms:
        return ShardDecision((), Done(changed=False))
    return ShardDecision((BackupNoted(begun_ms),), Done())


def _decide_replace(state: ShardState, command: ReplaceNode, limits: Limits) -> ShardDecision:
    if not command.store_uuid or len(command.store_uuid.encode()) > limits.id_max_bytes:
        return _refused(Error.INVALID_REQUEST, "A replaced node needs the uuid of its new store.")
    if command.node_id < 0:
        return _refused(Error.INVALID_REQUEST, "A node id is at least 0.")
    if state.replaced_nodes.get(command.node_id) == command.store_uuid:
        return ShardDecision((), Done(changed=False))
    new = command.node_id not in state.replaced_nodes
    if new and len(state.replaced_nodes) >= limits.max_nodes:
        return _refused(Error.INVALID_REQUEST, f"At most {limits.max_nodes} nodes are replaced.")
    return ShardDecision((NodeReplaced(command.node_id, command.store_uuid),), Done())


def _decide_finalize(state: ShardState, command: FinalizeLevel) -> ShardDecision:
    """Every node has to know the level: by its word in the log, by the command where none is there.

    That is so below level 6, and after a restore. No cluster has an even number of nodes, so a
    command that is one short names too few.
    """
    if command.level <= (state.level or LAST_UNNAMED):
        return ShardDecision((), Done(changed=False))
    known = state.node_levels or dict(command.nodes)
    if not state.node_levels and _is_short(command.nodes):
        return _refused(Error.INVALID_REQUEST, "The level of each node of the cluster is needed.")
    behind = [str(node) for node, level in sorted(known.items()) if level < command.level]
    if behind:
        return _refused(
            Error.INVALID_REQUEST,
            f"Level {command.level} is not known by every node: node {', '.join(behind)} has an "
            "older release.",
        )
    noted = () if state.node_levels else (LevelsNoted(command.nodes),)
    return ShardDecision((*noted, LevelRaised(command.level)), Done())


def _decide_note(state: ShardState, command: NoteLevels, limits: Limits) -> ShardDecision:
    """What changes alone; nodes that nobody named at first are not noted.

    After a restore nothing is noted: then the first command has to name every node.
    """
    known = state.node_levels
    if len(command.nodes) > limits.max_nodes:
        return _refused(Error.INVALID_REQUEST, f"A cluster has at most {limits.max_nodes} nodes.")
    if not known and _is_short(command.nodes):
        return _refused(Error.INVALID_REQUEST, "The level of each node of the cluster is needed.")
    new = (
        command.nodes
        if not known
        else tuple(one for one in command.nodes if known.get(one.node_id, one.level) != one.level)
    )
    return ShardDecision((LevelsNoted(new),) if new else (), Done(changed=bool(new)))


def _is_short(nodes: tuple[NodeLevel, ...]) -> bool:
    """Whether these cannot be all nodes of a cluster."""
    return len(dict(nodes)) != len(nodes) or len(nodes) % 2 == 0


def _decide_raise(state: ShardState, level: int) -> ShardDecision:
    if level <= (state.level or LAST_UNNAMED):
        return ShardDecision((), Done(changed=False))
    return ShardDecision((LevelRaised(level),), Done())


def evolve_shard(  # noqa: PLR0912 - one per event
    state: ShardState, event: ShardEvent
) -> None:
    """Apply one shard-wide event; mutates `state`. CheckpointTaken changes nothing."""
    match event:
        case TopicCreated():
            invariant(event.name not in state.topics, "a topic is created once")
            invariant(event.name not in state.topics_deleted, "made while offsets of it remain")
            if event.wall_ms:
                state.topics_created[event.name] = event.wall_ms
            if event.creation_version:
                state.creation_versions[event.name] = event.creation_version
            if event.zones:
                state.topic_zones[event.name] = event.zones
            _set_topic(state, event)
        case PartitionsAdded():
            invariant(
                state.topics.get(event.name, event.partitions) < event.partitions,
                "topics only grow",
            )
            _set_topic(state, event)
        case TopicZonesSet():
            _set_zones(state, event)
        case TopicDeleted():
            _delete_topic(state, event)
        case DropBegun():
            invariant(event.deletions_version > state.dropped_version, "deletions come in order")
            state.dropping.update(event.topics)
            state.dropped_version = event.deletions_version
        case DropEnded() | DeletionForgotten():
            here = isinstance(event, DropEnded)
            _end(state.dropping if here else state.topics_deleted, event.topics)
        case NodeReplaced():
            state.replaced_nodes[event.node_id] = event.store_uuid
        case LevelsNoted():
            state.node_levels.update(event.nodes)
        case LevelRaised():
            invariant(event.level > state.level, "a shard's level never falls")
            state.level = event.level
        case AuditRecorded():
            evolve_audit(state, event)
        case CheckpointTaken():
            pass
        case BackupNoted():
            state.backup_wall_ms = event.wall_ms
        case AclsAltered() | TokenCreated() | TokensRemoved():
            evolve_access(state, event)
        case QuotasAltered():
            evolve_quotas(state, event)
        case _:
            assert_never(event)


def _set_topic(state: ShardState, event: TopicCreated | PartitionsAdded) -> None:
    state.topics_version += event.partitions - state.topics.get(event.name, 0)
    state.topics[event.name] = event.partitions
    if event.topics_version:
        invariant(event.topics_version == state.topics_version, "another registry's version")
        state.topics_changed[event.name] = event.topics_version


def _set_zones(state: ShardState, event: TopicZonesSet) -> None:
    """The version rises by one; no classic group has to know, so the topic counts as unchanged."""
    invariant(event.name in state.topics, "zones of a topic that there is")
    invariant(event.topics_version == state.topics_version + 1, "another registry's version")
    state.topics_counted_out += 1
    state.topics_version = event.topics_version
    if event.zones:
        state.topic_zones[event.name] = event.zones
    else:
        state.topic_zones.pop(event.name, None)


def _delete_topic(state: ShardState, event: TopicDeleted) -> None:
    """The version rises by one, though the partitions are no longer counted."""
    invariant(event.name in state.topics, "a topic is deleted once")
    invariant(event.topics_version == state.topics_version + 1, "another registry's version")
    state.topics_counted_out += state.topics.pop(event.name) + 1
    state.topics_changed.pop(event.name, None)
    state.topic_zones.pop(event.name, None)
    state.topics_created.pop(event.name, None)
    state.creation_versions.pop(event.name, None)
    state.topics_version = state.deletions_version = event.topics_version
    state.topics_deleted[event.name] = event.topics_version


def _end(known: dict[str, int], topics: tuple[DeletedTopic, ...]) -> None:
    for name, version in topics:
        invariant(known.get(name) == version, "a deletion ends once")
        del known[name]
