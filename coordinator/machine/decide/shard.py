"""Shard-wide commands: topics, replaced nodes, checkpoints."""

from typing import NamedTuple, assert_never

from musterd.coordinator.machine.commands import (
    AddPartitions,
    Checkpoint,
    CreateTopic,
    ReplaceNode,
    ShardCommand,
)
from musterd.coordinator.machine.decide.requests import refuse_topic_name
from musterd.coordinator.machine.envelope import RULES_VERSION
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import (
    CheckpointTaken,
    NodeReplaced,
    PartitionsAdded,
    ShardEvent,
    TopicCreated,
)
from musterd.coordinator.machine.limits import Limits
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.records.digest import digest_bytes
from musterd.coordinator.machine.records.shard_records import ShardState
from musterd.coordinator.machine.replies import Done, Refused, Reply
from musterd.invariant import invariant


class ShardDecision(NamedTuple):
    """Like Decision, of a shard-wide command."""

    events: tuple[ShardEvent, ...]
    reply: Reply


def decide_shard(
    state: ShardState, command: ShardCommand, limits: Limits, rules_version: int = RULES_VERSION
) -> ShardDecision:
    """Topics only grow; a repeated command with the same content is a success (arch-3.6)."""
    match command:
        case CreateTopic():
            return _decide_create(state, command, limits, rules_version)
        case AddPartitions():
            return _decide_add(state, command, limits, rules_version)
        case ReplaceNode():
            return _decide_replace(state, command, limits)
        case Checkpoint():
            return ShardDecision((CheckpointTaken(digest_bytes(state.digest)),), Done())
        case _:
            assert_never(command)


def _refused(error: Error, message: str) -> ShardDecision:
    return ShardDecision((), Refused(error, message))


def _decide_create(
    state: ShardState, command: CreateTopic, limits: Limits, rules_version: int
) -> ShardDecision:
    refused = refuse_topic_name(command.name, limits)
    if refused is not None:
        return ShardDecision((), refused)
    if not 0 < command.partitions <= limits.topic_max_partitions:
        return _refused(
            Error.INVALID_PARTITIONS, f"A topic has 1 to {limits.topic_max_partitions} partitions."
        )
    known = state.topics.get(command.name)
    if known == command.partitions:
        return ShardDecision((), Done(changed=False))
    if known is not None:
        return _refused(
            Error.INVALID_PARTITIONS,
            f"Topic {quoted(command.name)} has {known} partitions already.",
        )
    if len(state.topics) >= limits.max_topics:
        return _refused(Error.INVALID_REQUEST, f"The cluster has its {limits.max_topics} topics.")
    version = _version_after(state, command.partitions, rules_version)
    return ShardDecision((TopicCreated(command.name, command.partitions, version),), Done())


def _decide_add(
    state: ShardState, command: AddPartitions, limits: Limits, rules_version: int
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
    version = _version_after(state, command.partitions - known, rules_version)
    return ShardDecision((PartitionsAdded(command.name, command.partitions, version),), Done())


def _version_after(state: ShardState, added: int, rules_version: int) -> int:
    """Rules 1 kept no word of when a topic changed."""
    return state.topics_version + added if rules_version >= 2 else 0  # noqa: PLR2004


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


def evolve_shard(state: ShardState, event: ShardEvent) -> None:
    """Apply one shard-wide event; mutates `state`. CheckpointTaken changes nothing."""
    match event:
        case TopicCreated():
            invariant(event.name not in state.topics, "a topic is created once")
            _set_topic(state, event)
        case PartitionsAdded():
            invariant(
                state.topics.get(event.name, event.partitions) < event.partitions,
                "topics only grow",
            )
            _set_topic(state, event)
        case NodeReplaced():
            state.replaced_nodes[event.node_id] = event.store_uuid
        case CheckpointTaken():
            pass
        case _:
            assert_never(event)


def _set_topic(state: ShardState, event: TopicCreated | PartitionsAdded) -> None:
    state.topics_version += event.partitions - state.topics.get(event.name, 0)
    state.topics[event.name] = event.partitions
    if event.topics_version:
        invariant(event.topics_version == state.topics_version, "another registry's version")
        state.topics_changed[event.name] = event.topics_version
