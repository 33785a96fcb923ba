"""Puts the synchronous half of a node together: shards, their replicas, the turns."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from musterd.coordinator.api.admission import Admission
from musterd.coordinator.api.cooperative_yield import LongReads
from musterd.coordinator.api.handler import Coordination
from musterd.coordinator.api.leader_watch import LeaderWatch
from musterd.coordinator.api.reply_queue import ReplyQueue
from musterd.coordinator.api.statuses import Statuses
from musterd.coordinator.host import freeze_loaded
from musterd.coordinator.machine.events import NodeReplaced
from musterd.coordinator.machine.shard_state import CommandResult, Entry
from musterd.coordinator.node.wall_clock import WallClock
from musterd.coordinator.runtime.calls import NodeCallLimits
from musterd.coordinator.runtime.growth import StateLimits, StateSize
from musterd.coordinator.runtime.heartbeats import Heartbeats
from musterd.coordinator.runtime.retention import RETENTION, Retention
from musterd.coordinator.runtime.routing import Directory
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.topic_registry import TopicRegistry
from musterd.coordinator.runtime.turns import Turns
from musterd.raft.contract import NodeId, ShardId, StateMachine
from musterd.raft.driver import Driver, Link
from musterd.raft.peers import Replacement
from musterd.storage.clock import steady_s
from musterd.storage.store import Store

CLOCK: Callable[[], float] = steady_s
"""The driver's: elections, quorums and sessions are measured by others as well, so sleep counts."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """A node without its sockets."""

    driver: Driver
    shards: tuple[Shard, ...]
    core: Coordination
    turns: Turns
    call_limits: NodeCallLimits
    state_size: StateSize


def assemble(
    store: Store,
    link: Link,
    endpoint: str,
    rng: Random,
    wrap: Callable[[StateMachine], StateMachine] = lambda machine: machine,
    retention: Retention = RETENTION,
    limits: StateLimits | None = None,
) -> Assembly:
    """Open `store` and build everything on it; `wrap` may measure the state machines.

    Raises what raft's `Driver` raises: CorruptStoreError, IdentityError.
    """
    call_limits = NodeCallLimits()
    state_size = StateSize(limits)
    shards: dict[ShardId, Shard] = {}
    wall = WallClock()

    def machine(number: ShardId) -> StateMachine:
        shards[number] = Shard(number, call_limits, wall.now_ms, wake, retention, state_size)
        return wrap(shards[number])

    def wake(number: ShardId) -> None:
        turns.hurry(number)
        driver.wake()

    driver = Driver(store, machine, link, CLOCK, rng)
    driver.client_endpoint = endpoint
    for number, shard in shards.items():
        shard.attach(driver.replicas[number])
    ordered = tuple(shards[number] for number in sorted(shards))
    heartbeats = Heartbeats(ordered, call_limits.breaks)
    for shard in ordered:
        shard.group_moved = heartbeats.group_moved
        shard.shard_moved = heartbeats.shard_moved
        shard.registry = lambda: ordered[0].state
        shard.on_reload.append(freeze_loaded)
    directory = Directory(NodeId(driver.identity.node_id), endpoint, lambda: driver.book.endpoints)
    watch, admission = LeaderWatch(ordered), Admission()
    core = Coordination(
        ordered,
        heartbeats,
        TopicRegistry(
            lambda: ordered[0].state.topics,
            lambda: ordered[0].state.topics_version,
            lambda: ordered[0].current,
        ),
        directory,
        Statuses(directory),
        admission,
        watch,
        ReplyQueue(),
        LongReads(lambda: admission.admitted_total),
    )
    turns = Turns(ordered, heartbeats, call_limits.breaks, watch.turn)
    driver.participants.append(turns)
    _follow_replacements(driver, ordered[0])
    return Assembly(driver, ordered, core, turns, call_limits, state_size)


def _follow_replacements(driver: Driver, shard_0: Shard) -> None:
    """What shard 0 applied or loaded of replaced nodes holds at this node's door too."""

    def allow(node_id: int, store_uuid: str, as_of: int) -> None:
        driver.allow_replacement(Replacement(node_id, bytes.fromhex(store_uuid), as_of))

    def applied(
        _shard: ShardId, index: int, _entry: Entry, results: tuple[CommandResult, ...]
    ) -> None:
        for result in results:
            for event in result.events:
                if isinstance(event, NodeReplaced):
                    allow(event.node_id, event.store_uuid, index)

    def reloaded() -> None:
        for node_id, store_uuid in shard_0.state.replaced_nodes.items():
            allow(node_id, store_uuid, shard_0.loaded_index)

    shard_0.observers.append(applied)
    shard_0.on_reload.append(reloaded)
