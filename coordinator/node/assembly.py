"""Puts the synchronous half of a node together: shards, their replicas, the turns."""

from collections.abc import Callable, Iterable, Mapping
from random import Random

import grpc

from musterd.coordinator.api.frame.authorizer import Authorizer
from musterd.coordinator.api.frame.coordination import Coordination
from musterd.coordinator.api.frame.identity import NO_CALLERS, Callers, Identities
from musterd.coordinator.api.frame.leader_watch import LeaderWatch
from musterd.coordinator.api.frame.reply_queue import ReplyQueue
from musterd.coordinator.api.frame.statuses import Statuses
from musterd.coordinator.api.limits.admission import Admission
from musterd.coordinator.api.limits.cooperative_yield import LongReads
from musterd.coordinator.api.limits.member_quota import MemberQuota
from musterd.coordinator.api.limits.quota_buckets import QuotaBuckets
from musterd.coordinator.host import freeze_loaded
from musterd.coordinator.integrity.frozen import Frozen
from musterd.coordinator.integrity.peer_checkpoints import PeerCheckpoints
from musterd.coordinator.integrity.quarantine import Quarantine
from musterd.coordinator.integrity.verify import Verifier
from musterd.coordinator.machine.events import (
    AclsAltered,
    NodeReplaced,
    TokenCreated,
    TokensRemoved,
)
from musterd.coordinator.machine.shard_state import CommandResult, Entry
from musterd.coordinator.node.wall_clock import WallClock
from musterd.coordinator.runtime.calls import NodeCallLimits
from musterd.coordinator.runtime.growth import StateSize
from musterd.coordinator.runtime.heartbeats import Heartbeats
from musterd.coordinator.runtime.node_context import NodeContext
from musterd.coordinator.runtime.retention import RETENTION, Retention
from musterd.coordinator.runtime.routing import Directory
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.state_limits import StateLimits
from musterd.coordinator.runtime.topic_registry import TopicRegistry
from musterd.coordinator.runtime.turn import Joins
from musterd.coordinator.runtime.turns import Turns
from musterd.levels import LEVEL
from musterd.raft.contract import NodeId, ShardId, StateMachine
from musterd.raft.driver import Driver, Link
from musterd.raft.identity import load_identity
from musterd.raft.journal import Journal
from musterd.raft.peers import Replacement
from musterd.raft.settings import RaftSettings
from musterd.storage.clock import steady_s
from musterd.storage.store import Store

CLOCK: Callable[[], float] = steady_s
"""The driver's: elections, quorums and sessions are measured by others as well, so sleep counts."""


class Assembly:
    """A node without its store, its clock and its sockets.

    It is put together here and nowhere else: a node, the simulator and the tests give it another
    clock, another log and other peers, and run the same parts.
    """

    def __init__(
        self,
        node_id: NodeId,
        endpoint: str,
        shards: int,
        *,
        wall_ms: Callable[[], int],
        wake: Callable[[], None],
        peers: Callable[[], Mapping[int, str]],
        retention: Retention = RETENTION,
        limits: StateLimits | None = None,
        admission: Admission | None = None,
        joins: Callable[[], Joins] | None = None,
        make_shard: Callable[[ShardId, NodeContext], Shard] = Shard,
        auto_finalize: bool = False,
        callers: Callers = NO_CALLERS,
    ) -> None:
        """`wall_ms`: milliseconds since 1970. `wake` asks the driver for a turn soon.

        `peers` gives the client endpoints of the other nodes. `limits`: of the node's state; None:
        those that ship. `joins` says how Joins come to the node; None: as `admission` counts them.
        `make_shard`: whoever looks on makes shards that tell. `callers`: how the node is set up to
        know who calls.
        """
        self._wake = wake
        self.node_levels: Callable[[], Mapping[int, int]] = dict
        """As in NodeContext; empty until a driver is attached that hears of levels."""
        self.call_limits = NodeCallLimits(callers.superusers)
        self.state_size = StateSize(limits)
        context = NodeContext(
            wall_ms,
            self._hurry,
            self.call_limits,
            self.state_size,
            retention,
            lambda: self.shards[0].state,
            lambda: self.shards[0].quarantined,
            lambda shard, group_id: heartbeats.group_moved(shard, group_id),  # noqa: PLW0108 - later
            lambda shard: heartbeats.shard_moved(shard),  # noqa: PLW0108 - there are none yet
            lambda: self.node_levels(),  # noqa: PLW0108 - set by attach
            lambda: auto_finalize,
            lambda topic, version: all(shard.has_dropped(topic, version) for shard in self.shards),
        )
        self.shards = tuple(make_shard(ShardId(number), context) for number in range(shards))
        heartbeats = Heartbeats(self.shards, self.call_limits.disconnects)
        directory = Directory(node_id, endpoint, peers)
        admission = admission or Admission()
        watch = LeaderWatch(self.shards)
        registry = self.shards[0]
        access = Authorizer(
            lambda: registry.state,
            lambda: registry.current,
            lambda: registry.quarantined,
            Identities(lambda: registry.state, wall_ms, callers),
        )
        _follow_rules(registry, access)
        buckets = QuotaBuckets(lambda: registry.state.quotas, CLOCK)
        self.core = Coordination(
            self.shards,
            heartbeats,
            TopicRegistry(
                lambda: registry.state,
                lambda: registry.current,
            ),
            directory,
            Statuses(directory),
            admission,
            watch,
            ReplyQueue(),
            buckets,
            MemberQuota(
                lambda: registry.state.quotas,
                lambda: [shard.state for shard in self.shards],
                buckets.count,
            ),
            LongReads(lambda: admission.admitted_total),
            access,
        )
        self.turns = Turns(
            self.shards,
            heartbeats,
            self.call_limits.disconnects,
            joins or admission.joins,
            watch.turn,
        )

    def _hurry(self, number: ShardId) -> None:
        self.turns.hurry(number)
        self._wake()

    def attach(self, driver: Driver, *, levels: bool = True) -> None:
        """Give the shards their replicas, and the driver its turns. Once, before it starts.

        `levels`: whether this node sees to the levels of the cluster and of its shards.
        """
        for shard in self.shards:
            shard.attach(driver.replicas[shard.number])
        driver.participants.append(self.turns)
        _follow_replacements(driver, self.shards[0])
        _follow_level(driver, self.shards)
        if levels:
            self.node_levels = driver.levels.nodes


def open_node(
    store: Store,
    link: Link,
    endpoint: str,
    rng: Random,
    wrap: Callable[[Shard], StateMachine] = lambda shard: shard,
    retention: Retention = RETENTION,
    limits: StateLimits | None = None,
    *,
    clock: Callable[[], float] | None = None,
    wall_ms: Callable[[], int] | None = None,
    settings: RaftSettings | None = None,
    joins: Callable[[], Joins] | None = None,
    make_shard: Callable[[ShardId, NodeContext], Shard] = Shard,
    make_journal: Callable[[Store, ShardId, RaftSettings], Journal] = Journal,
    levels: bool = True,
    auto_finalize: bool = False,
    callers: Callers = NO_CALLERS,
    level: int = LEVEL,
) -> tuple[Driver, Assembly]:
    """A node on `store`: its driver, which does not run yet, and what is attached to it.

    `wrap` may look on at the state machines. `clock` is the driver's, None: `CLOCK`; `wall_ms`,
    `joins` and `make_shard` are as in `Assembly`, None: those of this process; `make_journal` and
    `level` are as in `Driver`; `levels` as in `Assembly.attach`. Raises what `Driver` raises:
    CorruptStoreError, IdentityError.
    """
    identity = load_identity(store)
    assembly = Assembly(
        NodeId(identity.node_id),
        endpoint,
        identity.shards,
        wall_ms=wall_ms or WallClock().now_ms,
        wake=lambda: driver.wake(),  # noqa: PLW0108 - there is no driver yet
        peers=lambda: driver.book.endpoints,
        retention=retention,
        limits=limits,
        joins=joins,
        make_shard=make_shard,
        auto_finalize=auto_finalize,
        callers=callers._replace(cluster_id=identity.cluster_id),
    )
    driver = Driver(
        store,
        lambda number: wrap(assembly.shards[number]),
        link,
        clock or CLOCK,
        rng,
        settings,
        endpoint,
        make_journal,
        level,
    )
    assembly.attach(driver, levels=levels)
    for shard in assembly.shards:
        shard.subscribe_slices(freeze_loaded)
    return driver, assembly


class Integrity:
    """Compares this node's shards with those of the other nodes; see Quarantine.

    Made once the driver has started.
    """

    def __init__(
        self,
        driver: Driver,
        assembly: Assembly,
        credentials: grpc.ChannelCredentials | None = None,
        secret: bytes | None = None,
        *,
        in_the_clear: bool = False,
    ) -> None:
        """`credentials` and the operators' `secret` are for calls to other nodes' client ports.

        `in_the_clear`: the secret is shown over connections without TLS, too.
        """
        self._driver, self._shards = driver, assembly.shards
        identity = driver.identity
        self.peers = PeerCheckpoints(
            [NodeId(peer) for peer in identity.peers],
            assembly.core.directory,
            credentials,
            driver.book.store_uuid,
            secret,
            in_the_clear=in_the_clear,
        )
        self.verifier = Verifier(identity.node_id, self._shards, self, self.peers)
        self.quarantine = Quarantine(self._shards, self.verifier)

    def freeze(self, shard: int) -> Frozen | None:
        """Return what is stored of a shard now; None = ask again (verify.Disk).

        That is where the disk asks to wait, and while the shard is being loaded: its state in
        memory is not the stored one.
        """
        store, replica = self._driver.store, self._driver.replicas[ShardId(shard)]
        if replica.load_waits or replica.load_runs:
            return None
        store.write()
        if store.pending_bytes:
            return None
        return Frozen(replica.stored(), self._shards[shard].state.digest)


def _follow_replacements(driver: Driver, shard_0: Shard) -> None:
    """Allow the replacements that shard 0 applied or loaded at this node's peer port, too."""

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

    shard_0.subscribe(applied)
    shard_0.subscribe_reload(reloaded)


def _follow_level(driver: Driver, shards: Iterable[Shard]) -> None:
    """Whatever is below the level of any shard here is turned away from then on.

    Another shard than 0 is the first where this node's copy of shard 0 lags: that shard's leader
    had applied the finalisation. The level that it took on is the cluster's.
    """

    def follow(shard: Shard) -> None:
        def applied(*_: object) -> None:
            if shard.state.level > driver.levels.own.active:
                driver.raise_active_level(shard.state.level)

        shard.subscribe(applied)
        shard.subscribe_reload(applied)

    for shard in shards:
        follow(shard)


def _follow_rules(shard_0: Shard, access: Authorizer) -> None:
    """Ask the calls that wait once this node has applied other rules, or loaded them."""

    def applied(
        _shard: ShardId, _index: int, _entry: Entry, results: tuple[CommandResult, ...]
    ) -> None:
        for result in results:
            if isinstance(next(iter(result.events), None), _OF_ACCESS):
                access.changed()

    shard_0.subscribe(applied)
    shard_0.subscribe_reload(access.changed)


_OF_ACCESS = (AclsAltered, TokenCreated, TokensRemoved)
