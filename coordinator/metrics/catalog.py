"""Every metric of a node in one place: name, type, labels, help. docs/metrics.md says the same.

Names follow Prometheus' practice (base units, `_total`); those of gRPC are go-grpc's and made in
metrics/grpc.py; those of the process are prometheus_client's. A member id is never a label.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Spec:
    """The kind, the labels and the help text of a metric."""

    kind: Kind
    labels: tuple[str, ...]
    help: str


def _counter(text: str, *labels: str) -> Spec:
    return Spec("counter", labels, text)


def _gauge(text: str, *labels: str) -> Spec:
    return Spec("gauge", labels, text)


def _histogram(text: str, *labels: str) -> Spec:
    return Spec("histogram", labels, text)


CATALOG: Final[Mapping[str, Spec]] = MappingProxyType(
    {
        # The node.
        "muster_build_info": _gauge("1; the node's version and id.", "version", "node"),
        "muster_config_durability_info": _gauge(
            "1; how writes reach the disk: always = fsync before every acknowledgement.", "sync"
        ),
        "muster_turn_lag_seconds": _histogram("How late a turn of the node's loop began."),
        "muster_asyncio_tasks": _gauge("Tasks of the node's loop that have not ended."),
        "muster_disk_free_bytes": _gauge("Free bytes on the data directory's file system."),
        # Consensus, per shard.
        "muster_raft_has_leader": _gauge(
            "1 where this node leads the shard with a quorum, or heard its leader just now.",
            "shard",
        ),
        "muster_raft_is_leader": _gauge("1 where this node leads the shard.", "shard"),
        "muster_raft_term": _gauge("The shard's Raft term as this node knows it.", "shard"),
        "muster_raft_leader_changes_total": _counter(
            "Leaders of later terms that this node has seen.", "shard"
        ),
        "muster_raft_elections_total": _counter(
            "Elections this node stood in, by result: won, lost.", "shard", "result"
        ),
        "muster_raft_proposals_total": _counter(
            "Entries this node proposed, by result: committed, failed (never appended), "
            "unknown (leadership was lost meanwhile).",
            "shard",
            "result",
        ),
        "muster_raft_proposals_pending": _gauge("Entries proposed and not decided.", "shard"),
        "muster_raft_commit_index": _gauge("Newest index known to be committed.", "shard"),
        "muster_raft_applied_index": _gauge("Newest index applied here.", "shard"),
        "muster_raft_snapshot_index": _gauge(
            "Index before which the log is cut: what is older is in the state alone.", "shard"
        ),
        "muster_raft_peer_match_lag_entries": _gauge(
            "Entries of the leader's log that a peer is not known to hold. On the leader.",
            "shard",
            "peer",
        ),
        "muster_raft_peer_active": _gauge(
            "1 where the control connection to a peer stands.", "peer"
        ),
        "muster_store_losses_total": _counter(
            "How often this node learnt that the store of a node forgot what it had synced.",
            "node",
        ),
        "muster_store_lost": _gauge(
            "1 where a node's store forgot something and a shard has yet to admit it.", "node"
        ),
        "muster_learner_shards": _gauge(
            "Shards in which a node does not count yet, as this node knows.", "node"
        ),
        "muster_node_reaches_itself": _gauge(
            "1 where a node reaches itself at the address that clients are told, 0 where not; "
            "nothing where this node does not know.",
            "node",
        ),
        "muster_raft_commit_duration_seconds": _histogram(
            "From proposing an entry to having applied it. On the leader.", "shard"
        ),
        "muster_node_level": _gauge(
            "The highest level that a node's build knows, as this node heard.", "node"
        ),
        "muster_access_open": _gauge(
            "1 while this node knows no rule: everybody whom its ports take may do everything but "
            "operators' calls."
        ),
        "muster_access_refused_total": _counter(
            "Calls, or items of calls, that the rules refused: of nobody, or without the right.",
            "why",
        ),
        "muster_jwt_checks_total": _counter(
            "JWTs that were looked at: verified, refused, or their key was awaited. One that was "
            "verified is remembered.",
            "result",
        ),
        "muster_jwt_keys": _gauge("Keys of the identity provider that this node has."),
        "muster_jwt_key_fetches_total": _counter(
            "Looks at the identity provider's keys: they were read, or that failed.", "result"
        ),
        "muster_active_level": _gauge("The cluster's level, as this node knows it."),
        "muster_shards_loading": _gauge(
            "Shards whose state this node has yet to load, after a start or a snapshot: it answers "
            "for none of their groups."
        ),
        "muster_shard_quarantined": _gauge(
            "1 where a majority of the nodes contradicts this replica: it serves nothing.", "shard"
        ),
        "muster_shard_quarantines_total": _counter(
            "How often a majority of the nodes contradicted this replica.", "shard"
        ),
        "muster_shard_digest_conflict": _gauge(
            "1 where replicas differ and no majority of the nodes agrees: nobody stops.", "shard"
        ),
        # Disk.
        "muster_wal_fsync_duration_seconds": _histogram("One fsync of the write-ahead log."),
        "muster_wal_unsynced_seconds": _gauge(
            "How long the oldest write that somebody waits for has not been synced; 0 where none "
            "is. It grows while an fsync hangs."
        ),
        "muster_apply_duration_seconds": _histogram("Applying one entry, persisting included."),
        "muster_disk_reserve_bytes": _gauge(
            "Free bytes below which the disk is low (disk_reserve_bytes)."
        ),
        "muster_disk_room": _gauge(
            "What the disk has room for: 0 enough, 1 low (nothing that grows the state), 2 none "
            "(no entry)."
        ),
        "muster_state_bytes": _gauge(
            "What the state of a shard weighs on this node: its records, and 256 bytes for each.",
            "shard",
        ),
        "muster_state_limit_bytes": _gauge(
            "How much state a group, a shard, this node may hold: growth is refused there.", "of"
        ),
        "muster_state_groups_near_limit": _gauge(
            "Groups that this node leads and that asked to grow at 80 % of their limit, 1,000 at "
            "most."
        ),
        "muster_growth_refused_total": _counter(
            "Commands refused because they would grow the state, by limit: group, shard, node, "
            "disk (the disks of a majority are low).",
            "limit",
        ),
        "muster_wal_bytes": _gauge("About how much the Raft logs of all shards hold on disk."),
        # The coordinator.
        "muster_coordinator_queue_duration_seconds": _histogram(
            "From a command's arrival at its shard to the entry that takes it."
        ),
        "muster_coordinator_queue_commands": _gauge(
            "Commands waiting or under way; 4,096 at most.", "shard"
        ),
        "muster_calls_active": _gauge("Calls being worked on, without parked and held ones."),
        "muster_calls_parked": _gauge("Joins and Syncs that wait for others; 10,000 at most."),
        "muster_heartbeats_held": _gauge("Heartbeat calls held open; 32,768 at most."),
        "muster_heartbeats_total": _counter("Heartbeat calls taken."),
        "muster_throttled_requests_total": _counter(
            "Requests refused because a limit was reached: active_calls (too many, or waiting too "
            "long), parked_calls, shard_queue, untaken_answers (the caller does not take its "
            "answers), request_bytes (of requests under way; large commits that waited for a "
            "second).",
            "limit",
        ),
        "muster_quota_throttled_total": _counter(
            "Calls that were told to wait because their principal or group was over a quota, by "
            "what they had used up: joins_per_s, commits_per_s, commit_bytes_per_s, groups_per_s; "
            "members: Joins of newcomers that were refused.",
            "key",
        ),
        "muster_quota_delays_total": _counter(
            "Of muster_quota_throttled_total the principals and groups that were told so last, by "
            "name: 10 at most, and who comes back begins at 1.",
            "entity",
            "name",
            "key",
        ),
        "muster_client_connections_ended_total": _counter(
            "Connections of clients that were ended because their host, or all hosts together, had "
            "too many."
        ),
        "muster_client_streams": _gauge("Streams of client processes that are open: Session."),
        "muster_client_frames_total": _counter(
            "Frames of clients' streams, by direction: in, out. Their requests count as calls do.",
            "direction",
        ),
        "muster_forwarded_calls_total": _counter(
            "Calls passed to other nodes (out), and taken from them (in): --forward.",
            "direction",
        ),
        "muster_forwarded_calls_open": _gauge(
            "Such calls that are not answered yet, by direction.",
            "direction",
        ),
        "muster_forward_unconnected_nodes": _gauge(
            "Other nodes to which a node that forwards has no connection for calls; 0 where it "
            "does not forward."
        ),
        "muster_leader_waits_refused_total": _counter(
            "Calls that were answered at once because 8,192 others wait until a leader is known."
        ),
        "muster_fenced_requests_total": _counter(
            "Requests refused because the caller is no member any more, or of another generation.",
            "api",
            "reason",
        ),
        "muster_audit_entries_waiting": _gauge(
            "Entries that this node has for the audit trail and shard 0 does not have; 1,000 at "
            "most."
        ),
        "muster_audit_entries_lost_total": _counter(
            "Entries for the audit trail that found no room, or that shard 0 did not take."
        ),
        "muster_backup_last_timestamp_seconds": _gauge(
            "When the last backup of the cluster was begun, as this node's copy of shard 0 says; "
            "nothing where none was noted."
        ),
        "muster_certificate_expiry_timestamp_seconds": _gauge(
            "When this node's certificate ends, by the port that shows it: clients, peers.", "port"
        ),
        "muster_topics": _gauge("Topics in this node's copy of the registry."),
        # Groups that this node coordinates.
        "muster_groups": _gauge(
            "Groups by state and type: classic, or consumer where the coordinator assigns.",
            "state",
            "type",
        ),
        "muster_metrics_groups_dropped": _gauge("Groups without series of their own."),
        "muster_group_members": _gauge("Members.", "group"),
        "muster_group_members_idle": _gauge("Members without a partition.", "group"),
        "muster_group_generation": _gauge("The group's generation.", "group"),
        "muster_group_rebalancing": _gauge("1 while a rebalance is under way.", "group"),
        "muster_group_partitions_unassigned": _gauge(
            "Partitions of subscribed topics that no member owns, and all of a group whose workers "
            "died. For (other) only the latter. What waits for a member that is away is not in it.",
            "group",
        ),
        "muster_group_partitions_unowned": _gauge(
            "Partitions of a modern group's topics that no member has a grant of, by reason: "
            "plan_due, not_released, grant_due, away, topic_due, over_limit.",
            "group",
            "reason",
        ),
        "muster_group_rebalances_total": _counter(
            "Rounds opened, and plans that became due, by what caused them.", "group", "trigger"
        ),
        "muster_group_rebalance_duration_seconds": _histogram(
            "From a round's opening to its assignment, or from when a plan became due until "
            "everybody holds what it gives, by what caused it.",
            "trigger",
        ),
        "muster_group_partitions_moved_total": _counter(
            "Partitions that a rebalance, or a plan, gave to another owner than before.", "group"
        ),
        "muster_plans_failed_total": _counter(
            "Plans of modern groups that ended in an error, by a defect: their groups keep their "
            "targets."
        ),
        "muster_group_member_expirations_total": _counter(
            "Members removed because their session timed out.", "group"
        ),
        "muster_group_partitions_claimed_total": _counter(
            "Partitions that a member of a modern group reported, in a heartbeat or under a stale "
            "token or epoch in a commit, while another one had the grant; 1,000 at most of one "
            "request.",
            "group",
        ),
        "muster_groups_removed_total": _counter(
            "Groups that are gone: deleted by somebody, or expired after the retention.", "ending"
        ),
        "muster_offsets_removed_total": _counter(
            "Committed offsets that are gone: deleted, expired after the retention, or of a topic "
            "that was deleted. Those that went with a group that was deleted are not in it.",
            "ending",
        ),
        "muster_offset_commits_total": _counter(
            "OffsetCommit calls answered, by result: ok, superseded, fenced, rejected, retriable.",
            "group",
            "result",
        ),
        "muster_offset_commit_duration_seconds": _histogram(
            "From an OffsetCommit's decoded request to its reply, where it was stored."
        ),
        "muster_group_last_commit_timestamp_seconds": _gauge(
            "When an offset of the topic was last stored.", "group", "topic"
        ),
        "muster_group_lag": _gauge(
            "Offsets between commits and ends, where members report ends.", "group", "topic"
        ),
    }
)

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


def counter(name: str) -> CounterMetricFamily:
    """An empty family of the catalog."""
    spec = CATALOG[name]
    return CounterMetricFamily(name, spec.help, labels=spec.labels)


def gauge(name: str) -> GaugeMetricFamily:
    """An empty family of the catalog."""
    spec = CATALOG[name]
    return GaugeMetricFamily(name, spec.help, labels=spec.labels)


def histogram(name: str) -> HistogramMetricFamily:
    """An empty family of the catalog."""
    spec = CATALOG[name]
    return HistogramMetricFamily(name, spec.help, labels=spec.labels)
