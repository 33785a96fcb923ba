"""One node of a cluster, from its data directory to its ports; assembly.py has what it leads."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from random import Random
from typing import Final

import structlog

from muster.v1 import access_pb2, admin_pb2, group_pb2
from musterd.coordinator.api.forward.edge import Edge
from musterd.coordinator.api.forward.passed_calls import PassedCalls
from musterd.coordinator.api.frame.cluster_view import LogView, NodeView
from musterd.coordinator.api.frame.forwarding import ForwardedCounts
from musterd.coordinator.api.limits.call_acceptor import CallAcceptor, open_answers
from musterd.coordinator.api.limits.queue_probe import QueueProbe
from musterd.coordinator.api.limits.turn_rest import TurnPacing
from musterd.coordinator.api.rpcs.services import Services
from musterd.coordinator.api.server import Health, connections_max, listen, make_server
from musterd.coordinator.api.stream.client_stream import ClientStreams
from musterd.coordinator.host import (
    calm_collector,
    freeze_heap,
    give_memory_back,
    open_files_max,
)
from musterd.coordinator.metrics.http_page import MetricsPage
from musterd.coordinator.metrics.node import NodeMetrics, Sources
from musterd.coordinator.node.assembly import Integrity, open_node
from musterd.coordinator.node.audit_sender import AuditSender
from musterd.coordinator.node.certificates import Certificates, Loaded
from musterd.coordinator.node.config import ConfigError, Settings, is_loopback, split_address
from musterd.coordinator.node.event_log import EventLog
from musterd.coordinator.node.host_connections import HostConnections, bounds_of
from musterd.coordinator.node.jwt_keys import JwtKeys
from musterd.coordinator.node.process_end import ends_within
from musterd.coordinator.node.reach_probe import ReachProbe
from musterd.coordinator.node.restart_check import RestartCheck
from musterd.coordinator.node.room_watch import RoomWatch
from musterd.coordinator.runtime.coordinator_state import CoordinatorState
from musterd.coordinator.runtime.retention import Retention
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.timeouts import (
    CHECKPOINT_INTERVAL_MS,
    DEPOSED_HOLD_MS,
    DRAIN_MS_MAX,
    FORWARD_LOOK_MS,
    HOSTS_LOOK_MS,
    STOP_GRACE_MS,
    STORE_CLOSE_MS_MAX,
    TRIM_INTERVAL_MS,
)
from musterd.raft.contract import ClientReach, NodeId, ShardId
from musterd.raft.identity import Identity
from musterd.raft.peers import Loss
from musterd.raft.runner import LoopRunner
from musterd.raft.transport import PeerHub
from musterd.storage import export_cursor
from musterd.storage.rocks import RocksStore
from musterd.storage.store import HungStoreError, StoreError

log = structlog.get_logger()

VERSION: Final = version("muster-coordinator")
MS: Final = 1_000
READY_POLL_S: Final = 0.1
STILL_READY_POLL_S: Final = 0.5
DRAIN_POLL_S: Final = 0.01
EXPORT_POLL_S: Final = 5.0


class Node:
    """One running node: `start`, then `stop`. `failed` is set where it cannot go on."""

    def __init__(self, settings: Settings) -> None:
        """Open the store and read every log; call it on the loop that will run the node.

        Raises StoreError, CorruptStoreError, IdentityError, ConfigError where the peers are not
        those of the directory's node.
        """
        calm_collector()
        self.settings = settings
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[BaseException] = self._loop.create_future()
        self.metrics = NodeMetrics()
        self._store = RocksStore(settings.data_dir, self._post, time.monotonic, self._store_failed)
        try:
            self._assemble()
        except BaseException as error:
            try:
                self._store.close()
            except StoreError as later:
                error.add_note(str(later))
            raise

    def _assemble(self) -> None:
        settings, rng = self.settings, Random()  # noqa: S311  # jitter, no secret
        callers = settings.callers
        addresses = {node: split_address(at) for node, at in settings.peers.items()}
        self._hub = PeerHub(addresses, self._fail, rng)
        self.driver, self.assembly = open_node(
            self._store,
            self._hub,
            settings.endpoint,
            rng,
            self.metrics.machine,
            Retention(settings.offset_retention_ms),
            settings.state_limits,
            callers=callers,
            settings=settings.raft_settings,
            auto_finalize=settings.auto_finalize,
        )
        _check_peers(self.driver.identity, settings.peers)
        self.certificates = Certificates(settings, self.driver.identity)
        self.certificates.changed.append(self._use_certificates)
        self._hub.attach(self.driver, self.certificates.peers)
        self._jwt = callers.jwt
        self._jwt_keys = None
        if callers.jwt is not None:
            self._jwt_keys = JwtKeys(
                settings.jwt_keys,
                settings.jwt_keys_ca,
                callers.jwt,
                self.assembly.core.access.changed,
            )
        self._room = RoomWatch(
            settings.data_dir,
            settings.disk_reserve_bytes,
            self.driver,
            self.assembly.state_size,
        )
        self.driver.book.refusal_observers.append(_log_refusal)
        events = EventLog(self.assembly.shards, time.monotonic)
        self.driver.notice_observers.append(events.noticed)
        events.watch_shards()
        self._losses = {NodeId(node): 0 for node in self.driver.identity.nodes}
        self.driver.loss_observers.append(self._store_lost)
        pace = TurnPacing(self.assembly.core.admission)
        self._runner = LoopRunner(self.driver, self._fail, pace.rest_s)
        self._untaken = open_answers()
        self.driver.start()
        self._began_s: float | None = self._loop.time()
        """When it began to load its shards; None: all are."""
        freeze_heap()
        core = self.assembly.core
        self._integrity = Integrity(
            self.driver,
            self.assembly,
            self.certificates.channels,
            settings.admin_secret,
            in_the_clear=settings.insecure_admin_secret,
        )
        self._audit = AuditSender(
            core,
            self.driver.identity.node_id,
            self._integrity.peers.channel,
            self._integrity.peers.shown,
        )
        self._probe = QueueProbe(core.admission, settings.data_dir)
        interceptors = (self._probe, self.metrics.grpc)
        self._server = make_server(interceptors, reuse_port=settings.dev)
        self._acceptor = CallAcceptor(
            self._server,
            core.admission,
            self._untaken,
            self.assembly.call_limits.large,
            interceptors,
            self._task_ended,
        )
        self._streams = ClientStreams(self._acceptor, core.access)
        self._passed = PassedCalls(self._acceptor)
        self._hub.forward.coordinator = self._passed
        self._edge = Edge(core) if settings.forward else None
        if self._edge is not None:
            self._hub.forward.edge = core.forwarding.edge = self._edge
            core.statuses.hides = self._edge.names_itself
        self._attach_metrics()
        own_service = f"muster.node.{self.store_uuid.hex()}"
        self._health = Health(self._server, own_service)
        self._reach = ReachProbe(
            settings.endpoint,
            own_service,
            self.certificates.channels,
            self.certificates.own,
            self.driver.set_reach,
        )
        bounds = bounds_of(connections_max(open_files_max()), settings.connections_per_host)
        self._connections = HostConnections(split_address(settings.listen)[1], bounds)
        self._page: MetricsPage | None = None
        self._draining = self._closing = False
        self._tasks: list[asyncio.Task[None]] = []

    def _attach_metrics(self) -> None:
        core = self.assembly.core
        self.metrics.attach(
            Sources(
                node_id=NodeId(self.driver.identity.node_id),
                version=VERSION,
                data_dir=self.settings.data_dir,
                shards=self.assembly.shards,
                logs=[self.driver.replicas[s.number] for s in self.assembly.shards],
                connected=lambda: {
                    NodeId(peer): peer in self.driver.connected_nodes
                    for peer in self.driver.identity.peers
                },
                losses=lambda: self._losses,
                lost=lambda: {
                    NodeId(node): self._has_lost(node) for node in self.driver.identity.nodes
                },
                learner_shards=lambda: {
                    NodeId(node): self.driver.book.learner_shards(node)
                    for node in self.driver.identity.nodes
                },
                tasks=lambda: len(asyncio.all_tasks(self._loop)),
                reach=lambda: {
                    NodeId(node): self.driver.reach_of(node) for node in self.driver.identity.nodes
                },
                levels=self.driver.levels.nodes,
                unsynced_s=lambda: self.driver.unsynced_s,
                room=lambda: self.driver.room,
                reserve=self.settings.disk_reserve_bytes,
                state_size=self.assembly.state_size,
                quarantine=self._integrity.quarantine,
                access_refusals=lambda: (
                    core.access.denied_total,
                    core.access.unauthenticated_total,
                ),
                jwt=self._jwt,
                jwt_fetches=lambda: self._jwt_keys.counts if self._jwt_keys else (0, 0),
                topics=core.topics,
                heartbeats=core.heartbeats,
                admission=core.admission,
                call_limits=self.assembly.call_limits,
                quotas=core.quotas,
                untaken=self._untaken,
                connections_ended=lambda: self._connections.ended_total,
                audit=core.audit,
                certificates=lambda: self.certificates.loaded.valid_until,
                requests=lambda: (self._acceptor.requests, self._acceptor.heartbeats),
                streams=self._streams.totals,
                forwarded=self._forwarded,
                leader_waits_refused=lambda: core.watch.turned_away_total,
            )
        )
        self._store.sync_observers.append(self.metrics.timings.fsync.observe)
        self._runner.lag_observers.append(self.metrics.timings.turn_lag.observe)
        self._runner.lag_observers.append(self._timer_fired)

    def _timer_fired(self, late_s: float) -> None:
        self.assembly.turns.timer_fired(late_s)
        self._room.look(self._loop.time())
        if self._began_s is not None and not self.driver.loading.left:
            self._tell_loaded(self._loop.time() - self._began_s)
            self._began_s = None
        if self.driver.disk_is_lost:
            self._fail(self._hung_error())
        self.metrics.after_apply(self._loop.time())
        self._runner.wake()  # shards' time moves with these turns

    # ---- start

    async def start(self) -> None:
        """Listen on every port and run. Raises OSError where a port cannot be had."""
        try:
            await self._listen()
        except BaseException:
            await self._close()
            raise
        self._tasks = [
            asyncio.create_task(self._follow_readiness()),
            asyncio.create_task(self._compare_checkpoints()),
            asyncio.create_task(self._follow_exporter()),
            asyncio.create_task(self._audit.run()),
            asyncio.create_task(_trim()),
            asyncio.create_task(_bound_hosts(self._connections)),
            asyncio.create_task(self.certificates.follow()),
            asyncio.create_task(self._look_at_passed()),
        ]
        if self._jwt_keys is not None:
            self._tasks.append(asyncio.create_task(self._jwt_keys.follow()))
        if self.settings.reach_probe_ms:
            probing = self._reach.run(self.settings.reach_probe_ms / MS)
            self._tasks.append(asyncio.create_task(probing))
        for task in self._tasks:
            task.add_done_callback(self._follower_ended)
        log.info(
            "serving",
            node=self.driver.identity.node_id,
            cluster=self.driver.identity.cluster_id,
            version=VERSION,
            shards=self.driver.identity.shards,
            endpoint=self.settings.endpoint,
            ports={
                "clients": self.settings.listen,
                "peers": self.settings.peer_listen,
                "metrics": self.settings.metrics_listen,
            },
            config=self.settings.shown,
        )

    def _tell_loaded(self, seconds: float) -> None:
        log.info(
            "every shard is loaded",
            shards=len(self.assembly.shards),
            groups=sum(len(shard.state.groups) for shard in self.assembly.shards),
            seconds=round(seconds, 3),
        )
        self._tell_access()

    def _tell_access(self) -> None:
        """Say what is open, and what will not work once there are rules."""
        settings = self.settings
        ports = [settings.listen, settings.peer_listen, settings.metrics_listen]
        beyond = [port for port in ports if port and not is_loopback(port)]
        if self.assembly.core.access.is_open and beyond:
            log.warning("the cluster is open: it has no rules", ports=beyond)
        if settings.admin_secret_file is not None and not settings.hears_secret:
            log.warning("without TLS operators' calls are taken from this machine alone")
        if settings.peers and not self._is_known(settings):
            if settings.superusers:
                log.warning("nodes cannot know each other where there are rules")
            if settings.admin_secret_file is not None:
                log.warning("without TLS this node's audit entries reach no other node")

    def _is_known(self, settings: Settings) -> bool:
        """Whether other nodes can take this one's calls for a node's."""
        if self.certificates.shows_node:
            return True
        return settings.admin_secret_file is not None and settings.hears_secret

    async def _listen(self) -> None:
        settings, core = self.settings, self.assembly.core
        self._hub.deliver = self._streams.deliver = self._runner.deliver
        self._runner.start()
        services = Services(
            core, self, self._integrity.verifier, settings.operator_access, self._streams
        )
        services.add_to(self._acceptor)  # type: ignore[arg-type]  # to generated code, a server
        await self._passed.start()
        await self._hub.start(sockets=[_socket(settings.peer_listen, settings.dev)])
        if settings.dev:
            from grpc_reflection.v1alpha import reflection  # noqa: PLC0415  # in no other node

            names = [
                service.full_name
                for file in (group_pb2, admin_pb2, access_pb2)
                for service in file.DESCRIPTOR.services_by_name.values()
            ]
            reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), self._server)
        listen(self._server, settings.listen, self.certificates.server_credentials())
        self._probe.listen(self._server)
        await self._server.start()
        self._acceptor.start()
        self._probe.start(self._task_ended)
        await self._health.start()
        restart = RestartCheck(self.node_id, services.admin.own_view, self._integrity.peers)
        self._page = MetricsPage(
            self.metrics.families,
            {"/live": _live, "/ready": self._not_ready, "/safe-to-restart": restart.reason},
            settings.metrics_token,
        )
        if settings.metrics_listen:
            await self._page.start_on(_socket(settings.metrics_listen, settings.dev))

    # ---- stop

    async def stop(self) -> None:
        """Hand leadership over, tell callers where it went, close everything."""
        log.info("draining", led=len(self.driver.led()))
        self._draining = True
        await self._health.stop()
        self._streams.drain()
        await self._audit.stop()
        if self.driver.connected_nodes:
            self.driver.drain()
            await self._wait(lambda: not self.driver.led(), DRAIN_MS_MAX)
            await self._wait(
                lambda: not any(shard.has_deposed_calls for shard in self.assembly.shards),
                DEPOSED_HOLD_MS,
            )
        log.info("stopping", led=len(self.driver.led()))
        for shard in self.assembly.shards:
            shard.close()
        self.assembly.core.heartbeats.release()
        await self._close()

    async def _close(self) -> None:
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._probe.stop()
        if self._edge is not None:
            self._edge.close()
        self._streams.end()
        await self._server.stop(STOP_GRACE_MS / MS)
        await self._passed.stop()
        await self._acceptor.stop()
        await self._audit.end()
        if self._page is not None:
            await self._page.stop()
        await self._integrity.peers.close()
        self._integrity.verifier.cuts.close()
        self._runner.stop()
        await self._hub.close()
        patience_s = 0 if self.driver.disk_hangs else STORE_CLOSE_MS_MAX / MS
        with ends_within(patience_s, self._hung_error()):
            self._store.close()

    async def _wait(self, holds: Callable[[], bool], timeout_ms: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / MS):
                while not holds():  # noqa: ASYNC110  # the core has no events to wait on
                    await asyncio.sleep(DRAIN_POLL_S)

    # ---- what may end the node

    def _post(self, call: Callable[[], None]) -> None:
        """From the sync thread to the loop."""
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits for it
            self._loop.call_soon_threadsafe(self._run_posted, call)

    def _run_posted(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - asyncio would only log it
            self._fail(error)

    def _store_failed(self, error: StoreError) -> None:
        self._post(lambda: self._fail(error))

    def _store_lost(self, node: int, loss: Loss) -> None:
        """A store forgot what it had synced, or an operator accepted that (raft/lives.py)."""
        if loss.accepted:
            log.warning("the loss of a node's store was accepted", node=node)
            return
        self._losses[NodeId(node)] += 1
        log.error(
            "a node's store forgot what it had synced: it counts again when every other node "
            "has noted that and it holds the log",
            node=node,
        )

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_result(error)

    def _hung_error(self) -> HungStoreError:
        return HungStoreError(f"{self.settings.data_dir}: a sync does not end: the disk hangs")

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _follower_ended(self, task: asyncio.Task[None]) -> None:
        """A task that lasts as long as the node has ended: only `_close` may cancel it."""
        if task.cancelled() and not self._closing:
            self._fail(RuntimeError(f"a task of the node was cancelled: {task.get_coro()}"))
            return
        self._task_ended(task)

    # ---- while it runs

    async def _follow_readiness(self) -> None:
        awaited: list[int] = []
        while True:
            if awaited != self.driver.book.awaited:
                awaited = self.driver.book.awaited
                _log_awaited(awaited)
            ready = self._ready()
            await self._health.set_ready(ready=ready)
            await asyncio.sleep(STILL_READY_POLL_S if ready else READY_POLL_S)

    def _ready(self) -> bool:
        ready = not self.driver.disk_hangs
        ready = ready and all(self._is_ready(shard) for shard in self.assembly.shards)
        if self.settings.ready_needs_reach:
            ready = ready and self.driver.reach is ClientReach.OK
        return ready

    async def _not_ready(self) -> str:
        """For probes: "" while this node is ready. Strangers ask, so it names nothing."""
        return "" if self._ready() and not self._draining else "not ready"

    def _is_ready(self, shard: Shard) -> bool:
        """A leader is known; this replica has applied and loaded what it knows to be committed."""
        replica = shard.log
        if replica.leader is None or replica.applied_index < replica.commit_index:
            return False
        if replica.loading:
            return False
        leads = replica.leader == self.driver.identity.node_id
        return not leads or shard.coordinator_state is CoordinatorState.SERVING

    async def _compare_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_INTERVAL_MS / MS)
            await self._integrity.peers.refresh()
            self._integrity.quarantine.judge()

    def _forwarded(self) -> ForwardedCounts:
        edge, passed = self._edge, self._passed
        return ForwardedCounts(
            0 if edge is None else edge.passed_total,
            0 if edge is None else sum(edge.open.values()),
            passed.taken_total,
            sum(passed.open.values()),
            len(self.forward_refusals() or {}),
        )

    async def _look_at_passed(self) -> None:
        """Both sides of calls that are passed on look for signs of life."""
        while True:
            await asyncio.sleep(FORWARD_LOOK_MS / MS)
            self._passed.look()
            if self._edge is not None:
                self._edge.look()

    async def _follow_exporter(self) -> None:
        """The logs keep what an exporter has not read (docs/replay.md, The cursor)."""
        complained = ""
        while True:
            shards: Mapping[int, int] = {}
            try:
                cursor = export_cursor.read(self.settings.data_dir, time.time())
            except export_cursor.CursorError as error:
                if str(error) != complained:
                    complained = str(error)
                    log.warning("the exporter's cursor holds nothing", error=complained)
            else:
                identity = self.driver.identity
                if cursor and (cursor.cluster_id, cursor.node) == (
                    identity.cluster_id,
                    identity.node_id,
                ):
                    shards = cursor.shards
            for number, replica in self.driver.replicas.items():
                replica.journal.keep_for_exporter(shards.get(number))
            await asyncio.sleep(EXPORT_POLL_S)

    # ---- ClusterView, of api/frame/cluster_view.py

    @property
    def cluster_id(self) -> str:
        return self.driver.identity.cluster_id

    @property
    def node_id(self) -> int:
        return self.driver.identity.node_id

    @property
    def store_uuid(self) -> bytes:
        """The store that this node lives in."""
        return self.driver.identity.store_uuid

    def nodes(self) -> Sequence[NodeView]:
        """Every node of the cluster, by id."""
        return [self._view(node) for node in self.driver.identity.nodes]

    def refused(self) -> Sequence[NodeView]:
        """Stores refused at the peer port under the id of a node that is not connected."""
        return [
            NodeView(node, "", self.settings.peers.get(node, ""), store_uuid.hex(), False, "")
            for node, store_uuid in self.driver.book.refused_stores.items()
            if self.driver.book.store_uuid(node) != store_uuid
            and node not in self.driver.connected_nodes
        ]

    def awaited(self) -> Sequence[int]:
        """Nodes that this one waits for before it counts anywhere."""
        return self.driver.book.awaited

    def refusals(self) -> Mapping[str, str]:
        """Who was turned away at the peer port, or turned this node away, and why."""
        return self.driver.book.refusals

    def forward_refusals(self) -> Mapping[int, str] | None:
        """Nodes to which this one has no connection for calls, and why; None: it forwards none."""
        if self._edge is None:
            return None
        return self._edge.unconnected(self.driver.identity.peers)

    def log(self, shard: int) -> LogView:
        """Where a shard's log begins and ends here."""
        journal = self.driver.replicas[ShardId(shard)].journal
        return LogView(journal.first_index, journal.last_index)

    def _view(self, node: int) -> NodeView:
        own = node == self.node_id
        store_uuid = self.driver.book.store_uuid(node)
        learner_shards = self.driver.book.learner_shards(node)
        return NodeView(
            node_id=node,
            endpoint=self.assembly.core.directory.endpoint(NodeId(node)),
            peer_endpoint=self.settings.peer_listen if own else self.settings.peers[node],
            store_uuid=store_uuid.hex() if store_uuid else "",
            connected=own or node in self.driver.connected_nodes,
            version=VERSION if own else "",
            learner_shards=learner_shards,
            lost=self._has_lost(node),
            awaits=self._away(node) if learner_shards else (),
            reaches_itself=_REACHED[self.driver.reach_of(node)],
            level=self.driver.levels.nodes()[node],
        )

    def _use_certificates(self, loaded: Loaded) -> None:
        """Call other nodes, and this one, with what was read anew."""
        channels = None if loaded.clients is None else loaded.clients.channels
        self._integrity.peers.use(channels)
        self._reach.use(channels, self.certificates.own)

    def _has_lost(self, node: int) -> bool:
        """Whether a node's store forgot something and some shard has yet to admit it."""
        book = self.driver.book
        return book.loss(node) is not None and book.learner_shards(node) > 0

    def _away(self, but: int) -> list[int]:
        """Every node but one that is neither this one nor connected to it."""
        here = (but, self.node_id, *self.driver.connected_nodes)
        return [node for node in self.driver.identity.nodes if node not in here]

    async def accept_loss(self) -> bool:
        """Let this node's store count though it forgot something; see ClusterView."""
        if not self.driver.accept_loss():
            return False
        epoch = self._store.hard_epoch
        while self._store.synced_epoch < epoch:  # noqa: ASYNC110  # as long as the caller waits
            await asyncio.sleep(DRAIN_POLL_S)
        return True


_REACHED: Final = {ClientReach.UNKNOWN: None, ClientReach.OK: True, ClientReach.FAILS: False}


def _check_peers(own: Identity, given: dict[int, str]) -> None:
    """The directory says whose peers are wanted. Raises ConfigError."""
    missing = [node for node in own.peers if node not in given]
    unknown = [node for node in given if node not in own.peers]
    if not missing and not unknown:
        return
    wrong = (
        f"--peer names node {unknown[0]}"
        if unknown
        else f"--peer {missing[0]}=HOST:PORT is missing"
    )
    raise ConfigError(
        f"this is the data directory of node {own.node_id} of cluster {own.cluster_id!r}, whose "
        f"peers are {list(own.peers)}: {wrong}"
    )


def _log_refusal(who: str, reason: str) -> None:
    log.warning("peer refused", who=who, reason=reason)


def _log_awaited(awaited: list[int]) -> None:
    """The first start of a cluster takes all nodes, once (raft/store_introduction.py)."""
    if awaited:
        log.info("first start: waiting for nodes that must meet this one once", nodes=awaited)
    else:
        log.info("first start complete: every node knows this one")


async def _live() -> str:
    """The loop turns, or nobody would say so. No quorum is asked for."""
    return ""


async def _bound_hosts(connections: HostConnections) -> None:
    """End what one host, or all, have too many of, the connections of clients."""
    while True:
        await asyncio.sleep(HOSTS_LOOK_MS / MS)
        await asyncio.to_thread(connections.look)


async def _trim() -> None:
    while True:
        await asyncio.to_thread(give_memory_back)
        await asyncio.sleep(TRIM_INTERVAL_MS / MS)


def _socket(address: str, reuse_port: bool) -> socket.socket:
    """A bound socket. Raises OSError that names the address."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OSError(f"the port {address} cannot be had: {error}") from error
    bound.setblocking(False)
    return bound
