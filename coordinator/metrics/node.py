"""A node's metrics: reads plain counters at scrape time and makes the page's families.

`raft` and `storage` know no Prometheus; this module looks at them. Nothing is kept per scrape. The
page can be made in slices: wherever much is read, None is yielded, so that the loop may turn.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from typing import Final

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import HistogramMetricFamily, Metric

from musterd.coordinator.api.frame.audit_trail import AuditTrail
from musterd.coordinator.api.frame.forwarding import ForwardedCounts
from musterd.coordinator.api.frame.jwt_verifier import JwtVerifier
from musterd.coordinator.api.limits.admission import Admission
from musterd.coordinator.api.limits.quota_buckets import KEY_NAMES, QuotaBuckets
from musterd.coordinator.api.limits.requests_under_way import Requests
from musterd.coordinator.api.limits.untaken_answers import UntakenAnswers
from musterd.coordinator.api.stream.client_stream import StreamTotals
from musterd.coordinator.integrity.quarantine import Quarantine
from musterd.coordinator.machine.events import Trigger
from musterd.coordinator.machine.modern.unowned import WhyUnowned
from musterd.coordinator.machine.state import Group
from musterd.coordinator.metrics.api import ApiMeter
from musterd.coordinator.metrics.catalog import counter, gauge, histogram
from musterd.coordinator.metrics.groups import (
    COMMIT_RESULTS,
    GROUPS_MAX,
    OTHER,
    STATES,
    GroupCounts,
    GroupMeter,
    TopicOffsets,
    abandoned,
    add_offsets,
    is_rebalancing,
    ownership,
    type_and_state,
    workers_died,
)
from musterd.coordinator.metrics.grpc import GrpcMetrics
from musterd.coordinator.metrics.histogram import Histogram
from musterd.coordinator.metrics.raft import (
    LeaderWatcher,
    MeasuredLog,
    MeasuredMachine,
    MeasuredProposals,
)
from musterd.coordinator.runtime.calls import NodeCallLimits
from musterd.coordinator.runtime.growth import StateSize
from musterd.coordinator.runtime.heartbeats import Heartbeats
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.topic_registry import TopicRegistry
from musterd.levels import LAST_UNNAMED
from musterd.raft.contract import ClientReach, NodeId, Role, Room, StateMachine

GROUPS_PER_SLICE: Final = 500
LOOK_S: Final = 0.05
"""How often the replicas are looked at, for elections and leaders."""
OFFSETS_PER_SLICE: Final = 5_000
"""Offsets looked at between two turns of the loop: 1 to 2 ms."""
TOPICS_PER_GROUP_MAX: Final = 20
"""Topics of one group with series of their own; the rest is left out."""

Pages = Iterator[Metric | None]


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts of a node from which its metrics are read."""

    node_id: NodeId
    version: str
    data_dir: Path
    shards: Sequence[Shard]
    logs: Sequence[MeasuredLog]
    connected: Callable[[], Mapping[NodeId, bool]]
    """Peer -> whether its control connection stands."""
    losses: Callable[[], Mapping[NodeId, int]]
    """Node -> how often it became known since the start that its store forgot something."""
    lost: Callable[[], Mapping[NodeId, bool]]
    """Nodes whose stores forgot something and that some shard has yet to admit."""
    learner_shards: Callable[[], Mapping[NodeId, int]]
    """Node -> in how many shards it does not count yet."""
    reach: Callable[[], Mapping[NodeId, ClientReach]]
    """Node -> whether it reaches itself at its clients' address."""
    tasks: Callable[[], int]
    """Tasks of the node's loop that have not ended."""
    levels: Callable[[], Mapping[int, int]]
    """Node -> the highest level that its build knows; 0: it was not heard."""
    unsynced_s: Callable[[], float]
    """Age of the oldest hard write that is not synced."""
    quarantine: Quarantine
    access_refusals: Callable[[], tuple[int, int]]
    """How many calls, or items of calls, the rules denied, and how many callers were nobody."""
    jwt: JwtVerifier | None
    """What knows JWTs; None: none are taken."""
    jwt_fetches: Callable[[], tuple[int, int]]
    """How many looks at the keys went well, and how many failed."""
    topics: TopicRegistry
    heartbeats: Heartbeats
    admission: Admission
    call_limits: NodeCallLimits
    quotas: QuotaBuckets
    untaken: UntakenAnswers
    connections_ended: Callable[[], int]
    """How many connections of clients were ended since a host, or all, had too many."""
    audit: AuditTrail
    certificates: Callable[[], Mapping[str, float]]
    """Port -> seconds since 1970 at which the certificate that it shows ends."""
    requests: Callable[[], Iterable[Requests]]
    """The bytes of those that are under way."""
    streams: StreamTotals
    forwarded: Callable[[], ForwardedCounts]
    leader_waits_refused: Callable[[], int]
    """How many calls did not wait for a leader, since too many did."""
    room: Callable[[], Room]
    """What the node's disk has room for."""
    reserve: int
    """Free bytes of the disk below which it is low."""
    state_size: StateSize


@dataclass(slots=True)
class Timings:
    """Histograms that the hot path fills."""

    fsync: Histogram = field(default_factory=Histogram)
    apply: Histogram = field(default_factory=Histogram)
    queue: Histogram = field(default_factory=Histogram)
    turn_lag: Histogram = field(default_factory=Histogram)


class NodeMetrics:
    """All metrics of one node; a `Participant` of raft/driver.py.

    Construct it early: `machine` wraps the shards that the driver gets, `grpc` is an interceptor
    of the server. `attach` comes when the node's parts stand. The node lets its store fill
    `timings.fsync` and its timer `timings.turn_lag`.
    """

    def __init__(
        self,
        groups_max: int = GROUPS_MAX,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.grpc = GrpcMetrics(clock_s)
        self.timings = Timings()
        self._clock_s = clock_s
        self._groups_max = groups_max
        self._process = ProcessCollector(registry=None)
        self._sources: Sources | None = None

    def machine(self, machine: StateMachine) -> StateMachine:
        """The state machine, with its `apply` timed."""
        return MeasuredMachine(machine, self.timings.apply, self._clock_s)

    def attach(self, sources: Sources) -> None:
        """Begin to measure the node's parts. Once, after every shard has its log."""
        self._sources = sources
        self._next_look_s = 0.0
        self.groups = GroupMeter(sources.shards, self._clock_s, self._groups_max)
        self.api = ApiMeter(self.groups)
        self.watcher = LeaderWatcher(sources.logs)
        self.proposals = [MeasuredProposals(self._clock_s) for _ in sources.shards]
        self.grpc.replied.append(self.api.replied)
        for shard, proposals in zip(sources.shards, self.proposals, strict=True):
            shard.subscribe(self.groups.applied)
            shard.subscribe_claims(self.groups.claimed)
            shard.measure(proposals.around, self._clock_s, self.timings.queue.observe)

    def before_tick(self, now: float) -> None:
        """Nothing to do for a `Participant` that measures only."""

    def after_apply(self, now: float) -> None:
        """Look at the replicas, some twenty times a second. `now` is monotonic, in seconds."""
        if now >= self._next_look_s:
            self._next_look_s = now + LOOK_S
            self.watcher.turn()

    def families(self) -> Pages:
        """The page. None: let the loop turn."""
        sources = self._sources
        if sources is None:
            return
        yield from self._node(sources)
        yield from self._raft(sources)
        yield from self._coordinator(sources)
        yield from self._all_groups(sources)
        yield from self._own_groups(sources)
        yield from self.grpc.families()
        yield from self._process.collect()

    # ---- node, disk, consensus

    def _node(self, sources: Sources) -> Pages:
        info = gauge("muster_build_info")
        info.add_metric([sources.version, str(sources.node_id)], 1)
        durability = gauge("muster_config_durability_info")
        durability.add_metric(["always"], 1)
        tasks = gauge("muster_asyncio_tasks")
        tasks.add_metric([], sources.tasks())
        free = gauge("muster_disk_free_bytes")
        free.add_metric([], shutil.disk_usage(sources.data_dir).free)
        reserve = gauge("muster_disk_reserve_bytes")
        reserve.add_metric([], sources.reserve)
        room = gauge("muster_disk_room")
        room.add_metric([], sources.room())
        log_bytes = gauge("muster_wal_bytes")
        log_bytes.add_metric([], sum(log.journal.disk_bytes for log in sources.logs))
        yield from (info, durability, tasks, free, reserve, room, log_bytes)
        yield _timed("muster_turn_lag_seconds", self.timings.turn_lag)
        yield _timed("muster_wal_fsync_duration_seconds", self.timings.fsync)
        unsynced = gauge("muster_wal_unsynced_seconds")
        unsynced.add_metric([], sources.unsynced_s())
        yield unsynced
        yield _timed("muster_apply_duration_seconds", self.timings.apply)

    def _raft(self, sources: Sources) -> Pages:
        logs = [(str(log.shard), log) for log in sources.logs]
        gauges: tuple[tuple[str, Callable[[MeasuredLog], float]], ...] = (
            ("muster_raft_has_leader", lambda log: log.leader_heard),
            ("muster_raft_is_leader", lambda log: log.role is Role.LEADER),
            ("muster_raft_term", lambda log: log.term),
            ("muster_raft_commit_index", lambda log: log.commit_index),
            ("muster_raft_applied_index", lambda log: log.applied_index),
            ("muster_raft_snapshot_index", lambda log: log.journal.first_index - 1),
        )
        for name, read in gauges:
            family = gauge(name)
            for label, log in logs:
                family.add_metric([label], read(log))
            yield family
        yield from self._elections()
        yield from self._proposals()
        behind = gauge("muster_raft_peer_match_lag_entries")
        for label, log in logs:
            for peer, match_index in log.matches().items():
                behind.add_metric([label, str(peer)], max(0, log.journal.last_index - match_index))
        active = gauge("muster_raft_peer_active")
        for peer, connected in sources.connected().items():
            active.add_metric([str(peer)], connected)
        yield from self._nodes(sources)
        loading = gauge("muster_shards_loading")
        loading.add_metric([], sum(not shard.has_state for shard in sources.shards))
        quarantined = gauge("muster_shard_quarantined")
        quarantines = counter("muster_shard_quarantines_total")
        conflicts = gauge("muster_shard_digest_conflict")
        for shard in sources.shards:
            quarantined.add_metric([str(shard.number)], shard.quarantined)
            begun = sources.quarantine.begun_total[shard.number]
            quarantines.add_metric([str(shard.number)], begun)
            differs = shard.number in sources.quarantine.conflicts
            conflicts.add_metric([str(shard.number)], differs)
        yield from (behind, active, loading, quarantined, quarantines, conflicts)

    def _nodes(self, sources: Sources) -> Pages:
        losses = counter("muster_store_losses_total")
        for node, times in sources.losses().items():
            losses.add_metric([str(node)], times)
        lost = gauge("muster_store_lost")
        for node, has_lost in sources.lost().items():
            lost.add_metric([str(node)], has_lost)
        learners = gauge("muster_learner_shards")
        for node, shards in sources.learner_shards().items():
            learners.add_metric([str(node)], shards)
        reaches = gauge("muster_node_reaches_itself")
        for node, reach in sources.reach().items():
            if reach is not ClientReach.UNKNOWN:
                reaches.add_metric([str(node)], reach is ClientReach.OK)
        levels = gauge("muster_node_level")
        for heard, level in sources.levels().items():
            if level:
                levels.add_metric([str(heard)], level)
        active = gauge("muster_active_level")
        is_open, refused = gauge("muster_access_open"), counter("muster_access_refused_total")
        if sources.shards[0].has_state:
            active.add_metric([], sources.shards[0].state.level or LAST_UNNAMED)
            is_open.add_metric([], not sources.shards[0].state.rules)
        denied, unauthenticated = sources.access_refusals()
        refused.add_metric(["denied"], denied)
        refused.add_metric(["unauthenticated"], unauthenticated)
        yield from (losses, lost, learners, reaches, levels, active, is_open, refused)
        yield from self._jwt(sources)

    @staticmethod
    def _jwt(sources: Sources) -> Pages:
        checks, keys = counter("muster_jwt_checks_total"), gauge("muster_jwt_keys")
        fetches = counter("muster_jwt_key_fetches_total")
        known = sources.jwt
        if known is not None:
            checks.add_metric(["verified"], known.verified_total)
            checks.add_metric(["refused"], known.refused_total)
            checks.add_metric(["awaited"], known.awaited_total)
            keys.add_metric([], len(known.keys))
            read, failed = sources.jwt_fetches()
            fetches.add_metric(["read"], read)
            fetches.add_metric(["failed"], failed)
        yield from (checks, keys, fetches)

    def _elections(self) -> Pages:
        changes = counter("muster_raft_leader_changes_total")
        elections = counter("muster_raft_elections_total")
        for number, seen in self.watcher.seen.items():
            changes.add_metric([str(number)], seen.changes)
            elections.add_metric([str(number), "won"], seen.won)
            elections.add_metric([str(number), "lost"], seen.lost)
        yield from (changes, elections)

    def _proposals(self) -> Pages:
        results = counter("muster_raft_proposals_total")
        pending = gauge("muster_raft_proposals_pending")
        seconds = histogram("muster_raft_commit_duration_seconds")
        for number, proposals in enumerate(self.proposals):
            for result, count in proposals.results.items():
                results.add_metric([str(number), result], count)
            pending.add_metric([str(number)], proposals.pending)
            seconds.add_metric(
                [str(number)], proposals.seconds.cumulative(), proposals.seconds.total
            )
        yield from (results, pending, seconds)

    # ---- the coordinator

    def _state(self, sources: Sources) -> Pages:
        size = sources.state_size
        held = gauge("muster_state_bytes")
        for shard in sources.shards:
            held.add_metric([str(shard.number)], shard.state.bytes)
        most = gauge("muster_state_limit_bytes")
        for what, limit in (
            ("group", size.limits.group),
            ("shard", size.limits.shard),
            ("node", size.limits.node),
        ):
            most.add_metric([what], limit)
        near = gauge("muster_state_groups_near_limit")
        near.add_metric([], size.near)
        refused = counter("muster_growth_refused_total")
        for reason, count in size.refused.items():
            refused.add_metric([reason], count)
        plans = counter("muster_plans_failed_total")
        plans.add_metric([], sources.call_limits.planning.failed_total)
        yield from (held, most, near, refused, plans)

    def _coordinator(self, sources: Sources) -> Pages:
        for name, value in (
            ("muster_calls_active", sources.admission.active),
            ("muster_calls_parked", sources.call_limits.parked.used),
            ("muster_heartbeats_held", sources.heartbeats.held),
            ("muster_audit_entries_waiting", sources.audit.waiting),
            ("muster_topics", len(sources.topics.all())),
        ):
            family = gauge(name)
            family.add_metric([], value)
            yield family
        queue = gauge("muster_coordinator_queue_commands")
        for shard in sources.shards:
            waiting = shard.leadership.proposer.commands if shard.leadership else 0
            queue.add_metric([str(shard.number)], waiting)
        yield from self._state(sources)
        backup = gauge("muster_backup_last_timestamp_seconds")
        if begun_ms := sources.shards[0].state.backup_wall_ms:
            backup.add_metric([], begun_ms / 1_000)
        yield backup
        ends = gauge("muster_certificate_expiry_timestamp_seconds")
        for port, until_s in sources.certificates().items():
            ends.add_metric([port], until_s)
        yield ends
        beats = counter("muster_heartbeats_total")
        beats.add_metric([], sources.heartbeats.heard_total)
        throttled = counter("muster_throttled_requests_total")
        throttled.add_metric(["active_calls"], sources.admission.refused_total)
        throttled.add_metric(["parked_calls"], sources.call_limits.parked.refused_total)
        waiting = sources.untaken.refused_total + sources.untaken.ended_total
        throttled.add_metric(["untaken_answers"], waiting)
        unparsed = sum(requests.refused_total for requests in sources.requests())
        throttled.add_metric(["request_bytes"], unparsed)
        shed = sum(shard.queue_meter.shed_total for shard in sources.shards)
        throttled.add_metric(["shard_queue"], shed)
        lost = counter("muster_audit_entries_lost_total")
        lost.add_metric([], sources.audit.lost_total)
        over = counter("muster_quota_throttled_total")
        for key, count in sources.quotas.throttled_total.items():
            over.add_metric([KEY_NAMES[key]], count)
        delays = counter("muster_quota_delays_total")
        for of, count in sources.quotas.delayed.items():
            delays.add_metric([of.entity.name.lower(), of.name, KEY_NAMES[of.key]], count)
        ended = counter("muster_client_connections_ended_total")
        ended.add_metric([], sources.connections_ended())
        streams = sources.streams
        open_now = gauge("muster_client_streams")
        open_now.add_metric([], streams.open)
        frames = counter("muster_client_frames_total")
        frames.add_metric(["in"], streams.frames_in)
        frames.add_metric(["out"], streams.frames_out)
        yield from _forwarded(sources.forwarded(), sources.leader_waits_refused())
        fenced = counter("muster_fenced_requests_total")
        for (api, reason), count in self.api.fenced.items():
            fenced.add_metric([api, reason], count)
        yield from (queue, beats, throttled, lost, over, delays, ended, open_now, frames, fenced)
        yield _timed("muster_coordinator_queue_duration_seconds", self.timings.queue)
        yield _timed("muster_offset_commit_duration_seconds", self.api.commit_seconds)
        durations = histogram("muster_group_rebalance_duration_seconds")
        for trigger, seconds in self.groups.durations.items():
            durations.add_metric([_label(trigger)], seconds.cumulative(), seconds.total)
        yield durations

    # ---- groups

    def _all_groups(self, sources: Sources) -> Pages:
        self.groups.choose()
        yield None
        states = dict.fromkeys(STATES, 0)
        topics = sources.topics.all()
        total = others = unowned = 0
        for total, group in enumerate(self.groups.led(), start=1):
            states[type_and_state(group)] += 1
            if group.group_id not in self.groups.own:
                others += group.member_count
                if workers_died(group):
                    unowned += abandoned(group, {}, topics)
                    yield None
            if total % GROUPS_PER_SLICE == 0:
                yield None
        groups = gauge("muster_groups")
        for (kind, state), count in states.items():
            groups.add_metric([state, kind], count)
        dropped = gauge("muster_metrics_groups_dropped")
        dropped.add_metric([], max(0, total - self._groups_max))
        self._other_members, self._other_unowned = others, unowned
        yield from (groups, dropped)

    def _own_groups(self, sources: Sources) -> Pages:
        page = _GroupPage()
        topics = sources.topics.all()
        for group_id, counts in list(self.groups.own.items()):
            page.counters(group_id, counts)
            group = self.groups.find(group_id)
            if group is not None:
                page.gauges(group, counts, topics, self.groups.unowned(group_id))
                yield None
                yield from page.offsets(group)
        page.counters(OTHER, self.groups.other)
        page.members.add_metric([OTHER], self._other_members)
        page.unassigned.add_metric([OTHER], self._other_unowned)
        yield from page.families()
        for name, removed in (
            ("muster_groups_removed_total", self.groups.groups_removed),
            ("muster_offsets_removed_total", self.groups.offsets_removed),
        ):
            family = counter(name)
            for ending, count in removed.items():
                family.add_metric([ending.name.lower()], count)
            yield family


class _GroupPage:
    """The families that have one sample or more per group."""

    def __init__(self) -> None:
        self.members = gauge("muster_group_members")
        self.idle = gauge("muster_group_members_idle")
        self.generation = gauge("muster_group_generation")
        self.rebalancing = gauge("muster_group_rebalancing")
        self.unassigned = gauge("muster_group_partitions_unassigned")
        self.unowned = gauge("muster_group_partitions_unowned")
        self.rebalances = counter("muster_group_rebalances_total")
        self.moved = counter("muster_group_partitions_moved_total")
        self.expirations = counter("muster_group_member_expirations_total")
        self.claimed = counter("muster_group_partitions_claimed_total")
        self.commits = counter("muster_offset_commits_total")
        self.last_commit = gauge("muster_group_last_commit_timestamp_seconds")
        self.lag = gauge("muster_group_lag")

    def families(self) -> Iterable[Metric]:
        return vars(self).values()

    def counters(self, group_id: str, counts: GroupCounts) -> None:
        """Add the counters of a group, or of all others."""
        for trigger in Trigger:
            self.rebalances.add_metric([group_id, _label(trigger)], counts.rebalances[trigger])
        for result in COMMIT_RESULTS:
            self.commits.add_metric([group_id, result], counts.commits[result])
        self.moved.add_metric([group_id], counts.partitions_moved)
        self.expirations.add_metric([group_id], counts.expirations)
        self.claimed.add_metric([group_id], counts.partitions_claimed)

    def gauges(
        self,
        group: Group,
        counts: GroupCounts,
        topics: Mapping[str, int],
        unowned: Mapping[WhyUnowned, int],
    ) -> None:
        """How a group stands now."""
        name = [group.group_id]
        self.members.add_metric(name, group.member_count)
        self.generation.add_metric(name, group.generation)
        self.rebalancing.add_metric(name, is_rebalancing(group))
        owned = ownership(group, counts, topics, unowned)
        if owned is not None:
            if owned.idle_members is not None:
                self.idle.add_metric(name, owned.idle_members)
            self.unassigned.add_metric(name, owned.unassigned)
        if group.modern is not None:
            for why in WhyUnowned:
                self.unowned.add_metric([*name, why.value], unowned.get(why, 0))

    def offsets(self, group: Group) -> Pages:
        """Newest commit and lag by topic."""
        stored = iter(list(group.offsets.items()))
        by_topic: dict[str, TopicOffsets] = {}
        while some := list(islice(stored, OFFSETS_PER_SLICE)):
            add_offsets(by_topic, some)
            yield None
        for topic in nsmallest(TOPICS_PER_GROUP_MAX, by_topic):
            offsets = by_topic[topic]
            labels = [group.group_id, topic]
            self.last_commit.add_metric(labels, offsets.last_commit_ms / 1000)
            if offsets.lag is not None:
                self.lag.add_metric(labels, offsets.lag)


def _timed(name: str, measured: Histogram) -> HistogramMetricFamily:
    family = histogram(name)
    family.add_metric([], measured.cumulative(), measured.total)
    return family


def _label(trigger: Trigger) -> str:
    return trigger.name.lower()


def _forwarded(counts: ForwardedCounts, waits_refused: int) -> Iterator[Metric]:
    """Calls that are passed on, by direction."""
    passed, waiting = counter("muster_forwarded_calls_total"), gauge("muster_forwarded_calls_open")
    passed.add_metric(["out"], counts.out_total)
    passed.add_metric(["in"], counts.in_total)
    waiting.add_metric(["out"], counts.out_open)
    waiting.add_metric(["in"], counts.in_open)
    unconnected = gauge("muster_forward_unconnected_nodes")
    unconnected.add_metric([], counts.unconnected)
    refused = counter("muster_leader_waits_refused_total")
    refused.add_metric([], waits_refused)
    yield from (passed, waiting, unconnected, refused)
