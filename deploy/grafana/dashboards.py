"""Makes cluster.json, the Grafana dashboard of a muster cluster. No dependency.

    python deploy/grafana/dashboards.py          writes it
    python deploy/grafana/dashboards.py --check  exits 1 where it is not what this file makes

Every panel has a unit and says what bad looks like. Metrics of gRPC and of the process lack the
prefix `muster_`; a query for one of them joins `muster_build_info`, so that it sees the nodes of
this cluster only.
"""  # noqa: INP001  # deploy/ is no package

import json
import sys
from dataclasses import dataclass
from pathlib import Path

OUTPUT = Path(__file__).with_name("cluster.json")
COLUMNS = 24

CLUSTER = 'cluster="$cluster", job="$job"'
NODE = f'{CLUSTER}, instance=~"$instance"'
GROUP = f'{NODE}, group=~"$group"'
RATE = "[$__rate_interval]"
MODERN = f'and on (group) muster_group_partitions_unowned{{{GROUP}, reason="away"}}'
"""Keeps a group's series only where its coordinator assigns: others have none of that name."""
NODES = f"* on (instance) group_left () max by (instance) (muster_build_info{{{NODE}}})"
"""Keeps a series only where it comes from a node of this cluster."""


@dataclass(frozen=True)
class Panel:
    """One panel. `queries` are (PromQL, legend)."""

    title: str
    description: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8
    height: int = 7


def quantiles(metric: str, labels: str, by: str = "") -> tuple[tuple[str, str], ...]:
    """p50 and p99 of a histogram, over all or per label."""
    extra = f", {by}" if by else ""
    legend = f" {{{{{by}}}}}" if by else ""
    buckets = f"sum by (le{extra}) (rate({metric}_bucket{{{labels}}}{RATE}))"
    return tuple(
        (f"histogram_quantile({q}, {buckets})", f"{name}{legend}")
        for q, name in ((0.5, "p50"), (0.99, "p99"))
    )


def stat(title: str, description: str, query: str, unit: str = "short") -> Panel:
    """One number."""
    return Panel(title, description, unit, ((query, title),), "stat", 4, 4)


OVERVIEW = (
    stat(
        "Shards without a leader",
        "Their groups can neither rebalance nor commit. Bad: anything but 0 for longer than a "
        "second.",
        f"count(max by (shard) (muster_raft_has_leader{{{CLUSTER}}}) == 0) or vector(0)",
    ),
    stat(
        "Nodes answering",
        "Nodes whose metrics were read. Bad: fewer than the cluster has.",
        f"count(muster_build_info{{{CLUSTER}}})",
    ),
    stat(
        "Replicas in quarantine",
        "Replicas that a majority of the nodes contradicts now, or did in the last hour. Bad: "
        "anything but 0.",
        f"sum(muster_shard_quarantined{{{CLUSTER}}}) "
        f"+ sum(increase(muster_shard_quarantines_total{{{CLUSTER}}}[1h]))",
    ),
    stat(
        "Stores that forgot",
        "Nodes whose disks forgot what they had synced in the last hour. Bad: anything but 0.",
        f"sum(max by (node) (increase(muster_store_losses_total{{{CLUSTER}}}[1h])))",
    ),
    stat(
        "Shards with learners",
        "Shards in which a node does not count yet. Bad: anything but 0 for longer than a minute.",
        f"sum(max by (node) (muster_learner_shards{{{CLUSTER}}}))",
    ),
    stat(
        "Nodes that do not reach themselves",
        "Nodes that do not answer at the address that clients are told. Bad: anything but 0.",
        f"count(min by (node) (muster_node_reaches_itself{{{CLUSTER}}}) == 0) or vector(0)",
    ),
    stat(
        "Groups",
        "Consumer groups of the cluster, each counted at its coordinator. Bad: a sudden fall.",
        f"sum(muster_groups{{{NODE}}})",
    ),
    stat(
        "Members",
        "Members of all groups. Bad: a sudden fall.",
        f"sum(muster_group_members{{{NODE}}})",
    ),
    stat(
        "Commits",
        "Offset commits stored per second. Bad: 0 while members work.",
        f'sum(rate(muster_offset_commits_total{{{NODE}, result="ok"}}{RATE}))',
        "ops",
    ),
)

TERM = (
    Panel(
        "Term of each shard",
        "It rises with every election. Bad: it climbs without a deployment or a lost node.",
        "short",
        ((f"max by (shard) (muster_raft_term{{{NODE}}})", "shard {{shard}}"),),
    ),
    Panel(
        "Leader changes",
        "New leaders per shard. Bad: changes without a deployment or a lost node.",
        "short",
        (
            (
                f"max by (shard) (increase(muster_raft_leader_changes_total{{{NODE}}}{RATE}))",
                "shard {{shard}}",
            ),
        ),
    ),
    Panel(
        "Elections",
        "Elections that a node stood in. Bad: lost ones again and again: nodes cannot hear each "
        "other, or stall.",
        "short",
        (
            (
                f"sum by (result) (increase(muster_raft_elections_total{{{NODE}}}{RATE}))",
                "{{result}}",
            ),
        ),
    ),
)

CONSENSUS = (
    Panel(
        "Shards led by each node",
        "Leadership is spread evenly while all nodes are well. Bad: one node leads nearly all.",
        "short",
        ((f"sum by (instance) (muster_raft_is_leader{{{NODE}}})", "{{instance}}"),),
    ),
    Panel(
        "Leader of each shard",
        "Who leads now. Bad: a shard is missing, or listed twice for more than a moment.",
        "short",
        ((f"max by (shard, instance) (muster_raft_is_leader{{{NODE}}}) == 1", "{{shard}}"),),
        "table",
    ),
    Panel(
        "Entries proposed",
        "Log entries by outcome; an entry carries the commands of one turn. Bad: failed or "
        "unknown for longer than a failover.",
        "ops",
        (
            (
                f"sum by (result) (rate(muster_raft_proposals_total{{{NODE}}}{RATE}))",
                "{{result}}",
            ),
        ),
    ),
    Panel(
        "Entries waiting",
        "Proposed and not decided. Bad: it rises and stays: the quorum or the disk is slow.",
        "short",
        ((f"sum by (instance) (muster_raft_proposals_pending{{{NODE}}})", "{{instance}}"),),
    ),
    Panel(
        "Commit duration",
        "From proposing an entry to having applied it, on the leader. Bad: p99 over 0.1 s.",
        "s",
        quantiles("muster_raft_commit_duration_seconds", NODE),
    ),
    Panel(
        "Follower lag",
        "Entries that the worst shard's follower lacks. Bad: it grows: the node is slow or cut "
        "off.",
        "short",
        ((f"max by (peer) (muster_raft_peer_match_lag_entries{{{NODE}}})", "node {{peer}}"),),
    ),
    Panel(
        "Connections between nodes",
        "1 where every node's control connection to the peer stands. Bad: 0.",
        "short",
        ((f"min by (peer) (muster_raft_peer_active{{{NODE}}})", "node {{peer}}"),),
    ),
    Panel(
        "Entries applied",
        "Per node, all shards. Bad: one node falls behind the others.",
        "ops",
        (
            (
                f"sum by (instance) (rate(muster_raft_applied_index{{{NODE}}}{RATE}))",
                "{{instance}}",
            ),
        ),
    ),
)

DURABILITY = (
    Panel(
        "Nodes that sync before they acknowledge",
        "Nodes that say so of themselves. Bad: fewer than the cluster has.",
        "short",
        ((f'count(muster_config_durability_info{{{NODE}, sync="always"}})', "nodes"),),
    ),
    Panel(
        "Fsync duration",
        "Nothing is acknowledged before it. Bad: p99 over 0.1 s; over 0.5 s an alert fires.",
        "s",
        quantiles("muster_wal_fsync_duration_seconds", NODE, "instance"),
    ),
    Panel(
        "Oldest write that is not synced",
        "It grows while an fsync hangs. Bad: 3 s: the node leaves its shards; at 23 s it ends.",
        "s",
        ((f"max by (instance) (muster_wal_unsynced_seconds{{{NODE}}})", "{{instance}}"),),
    ),
)

DISK = (
    Panel(
        "Apply duration",
        "Applying one entry. Bad: p99 over 10 ms: entries are large or groups are huge.",
        "s",
        quantiles("muster_apply_duration_seconds", NODE, "instance"),
    ),
    Panel(
        "Log on disk",
        "About what the Raft logs hold. Bad: over 64 MiB per shard: trimming waits for something.",
        "bytes",
        ((f"sum by (instance) (muster_wal_bytes{{{NODE}}})", "{{instance}}"),),
    ),
    Panel(
        "Disk free",
        "On the data directory's file system. Bad: it runs out: a full disk takes nothing more.",
        "bytes",
        ((f"min by (instance) (muster_disk_free_bytes{{{NODE}}})", "{{instance}}"),),
    ),
    Panel(
        "Entries kept in the log",
        "Of all shards, per node. Bad: it grows without end.",
        "short",
        (
            (
                (
                    f"sum by (instance) (muster_raft_commit_index{{{NODE}}} "
                    f"- muster_raft_snapshot_index{{{NODE}}})"
                ),
                "{{instance}}",
            ),
        ),
    ),
)

CALLS = (
    Panel(
        "Calls",
        "Calls begun per second, by method. Bad: FindCoordinator or JoinGroup far above normal: "
        "clients are looking for a coordinator.",
        "reqps",
        (
            (
                f"sum by (grpc_method) (rate(grpc_server_started_total{{{NODE}}}{RATE}) {NODES})",
                "{{grpc_method}}",
            ),
        ),
    ),
    Panel(
        "Calls that failed",
        "By gRPC code; refusals of the protocol are answers, not failures. Bad: DeadlineExceeded "
        "(answers come too late), ResourceExhausted (overload), Unknown (a bug).",
        "reqps",
        (
            (
                (
                    "sum by (grpc_method, grpc_code) (rate(grpc_server_handled_total"
                    f'{{{NODE}, grpc_code!~"OK|Canceled"}}{RATE}) {NODES}) or vector(0)'
                ),
                "{{grpc_method}} {{grpc_code}}",
            ),
        ),
    ),
    Panel(
        "Call duration p99",
        "Parked Joins and Syncs and held Heartbeats wait on purpose. Bad: OffsetCommit over 0.1 s.",
        "s",
        (
            (
                (
                    "histogram_quantile(0.99, sum by (le, grpc_method) "
                    f"(rate(grpc_server_handling_seconds_bucket{{{NODE}}}{RATE}) {NODES}))"
                ),
                "{{grpc_method}}",
            ),
        ),
    ),
    Panel(
        "Turn lag",
        "How late the loop's timer comes. Bad: p99 over 50 ms: the node is overloaded.",
        "s",
        quantiles("muster_turn_lag_seconds", NODE, "instance"),
    ),
    Panel(
        "Queue time",
        "From a command's arrival to the entry that takes it. Bad: p99 over 50 ms.",
        "s",
        quantiles("muster_coordinator_queue_duration_seconds", NODE),
    ),
    Panel(
        "Commands in the shards' queues",
        "Waiting or under way, per node. Bad: near 4,096 for a shard: requests are shed.",
        "short",
        ((f"sum by (instance) (muster_coordinator_queue_commands{{{NODE}}})", "{{instance}}"),),
    ),
    Panel(
        "Calls open",
        "Active, parked (at most 10,000 per node) and held (at most 32,768). Bad: near a limit.",
        "short",
        (
            (f"sum(muster_calls_active{{{NODE}}})", "active"),
            (f"sum(muster_calls_parked{{{NODE}}})", "parked"),
            (f"sum(muster_heartbeats_held{{{NODE}}})", "held heartbeats"),
        ),
    ),
    Panel(
        "Requests refused for overload",
        "By the limit that was reached. Bad: anything but 0.",
        "reqps",
        (
            (
                f"sum by (limit) (rate(muster_throttled_requests_total{{{NODE}}}{RATE}))",
                "{{limit}}",
            ),
        ),
    ),
    Panel(
        "Heartbeat calls",
        "One per client process every 2 s or less often. Bad: a sudden fall: clients are gone.",
        "reqps",
        ((f"sum by (instance) (rate(muster_heartbeats_total{{{NODE}}}{RATE}))", "{{instance}}"),),
    ),
    Panel(
        "CPU",
        "Cores in use; a node's loop uses at most one. Bad: near 1.",
        "short",
        (
            (
                f"sum by (instance) (rate(process_cpu_seconds_total{{{NODE}}}{RATE}) {NODES})",
                "{{instance}}",
            ),
        ),
    ),
    Panel(
        "Memory",
        "Resident memory. Bad: it grows while groups do not.",
        "bytes",
        (
            (
                f"sum by (instance) (process_resident_memory_bytes{{{NODE}}} {NODES})",
                "{{instance}}",
            ),
        ),
    ),
)

GROUPS = (
    Panel(
        "Groups by state",
        "Bad: many in PreparingRebalance or CompletingRebalance for long.",
        "short",
        ((f"sum by (state) (muster_groups{{{NODE}}})", "{{state}}"),),
    ),
    Panel(
        "Rebalances in the last hour, top 10",
        "Bad: more than 10: members come and go, or their sessions time out.",
        "short",
        (
            (
                (
                    "topk(10, sum by (group) "
                    f"(increase(muster_group_rebalances_total{{{GROUP}}}[1h])))"
                ),
                "{{group}}",
            ),
        ),
    ),
    Panel(
        "Rebalances by group, top 10",
        "When each group rebalanced. Bad: one group again and again while the others are calm.",
        "ops",
        (
            (
                (
                    "topk(10, sum by (group) "
                    f"(rate(muster_group_rebalances_total{{{GROUP}}}{RATE})))"
                ),
                "{{group}}",
            ),
        ),
    ),
    Panel(
        "Rebalances by trigger",
        "What opened the rounds. Bad: session_expiry or sync_timeout: members fall silent.",
        "ops",
        (
            (
                f"sum by (trigger) (rate(muster_group_rebalances_total{{{GROUP}}}{RATE}))",
                "{{trigger}}",
            ),
        ),
    ),
    Panel(
        "Rebalance duration",
        "From a round's opening to its assignment, or from when a plan became due until everybody "
        "holds what it gives. Bad: p99 near the rebalance timeout (60 s).",
        "s",
        quantiles("muster_group_rebalance_duration_seconds", NODE),
    ),
    Panel(
        "Partitions that moved",
        "Partitions that changed their owner. Bad: far more than members came or went.",
        "ops",
        (
            (
                f"sum by (group) (rate(muster_group_partitions_moved_total{{{GROUP}}}{RATE}))",
                "{{group}}",
            ),
        ),
    ),
    Panel(
        "Partitions nobody owns",
        "Of Stable and modern groups, and of those whose workers died. Bad: all but 0 for long.",
        "short",
        (
            (
                f"max by (group) (muster_group_partitions_unassigned{{{GROUP}}})",
                "{{group}}",
            ),
        ),
    ),
    Panel(
        "Members, top 10",
        "Bad: fewer than were started.",
        "short",
        ((f"topk(10, max by (group) (muster_group_members{{{GROUP}}}))", "{{group}}"),),
    ),
    Panel(
        "Idle members",
        "Members without a partition. Bad: many: there are more members than partitions.",
        "short",
        ((f"max by (group) (muster_group_members_idle{{{GROUP}}})", "{{group}}"),),
    ),
    Panel(
        "Sessions that timed out",
        "Members removed because nothing was heard of them. Bad: anything but a crash's.",
        "ops",
        (
            (
                f"sum by (group) (rate(muster_group_member_expirations_total{{{GROUP}}}{RATE}))",
                "{{group}}",
            ),
        ),
    ),
    Panel(
        "Generation",
        "A group's generation rises with every rebalance that forms one. Bad: it climbs steadily.",
        "short",
        ((f"max by (group) (muster_group_generation{{{GROUP}}})", "{{group}}"),),
    ),
    Panel(
        "Offset commits",
        "Calls by result. Bad: fenced or rejected; retriable outside a failover.",
        "ops",
        (
            (
                f"sum by (result) (rate(muster_offset_commits_total{{{GROUP}}}{RATE}))",
                "{{result}}",
            ),
        ),
    ),
    Panel(
        "Offset commit duration",
        "From the decoded request to the reply. Bad: p99 over 0.1 s.",
        "s",
        quantiles("muster_offset_commit_duration_seconds", NODE),
    ),
    Panel(
        "Fenced requests",
        "Members that are none any more, or of another generation. Bad: it goes on: a process "
        "does not notice that it lost its partitions.",
        "ops",
        (
            (
                f"sum by (api, reason) (rate(muster_fenced_requests_total{{{NODE}}}{RATE}))",
                "{{api}} {{reason}}",
            ),
        ),
    ),
    Panel(
        "Age of the last commit, top 10",
        "Seconds since a topic's offset was stored. Bad: it grows while there is work.",
        "s",
        (
            (
                (
                    "topk(10, time() - max by (group, topic) "
                    f"(muster_group_last_commit_timestamp_seconds{{{GROUP}}}))"
                ),
                "{{group}} {{topic}}",
            ),
        ),
    ),
    Panel(
        "Lag, top 10",
        "Only of groups whose members report the end with their commits. Bad: it grows.",
        "short",
        (
            (
                f"topk(10, max by (group, topic) (muster_group_lag{{{GROUP}}}))",
                "{{group}} {{topic}}",
            ),
        ),
    ),
    Panel(
        "Groups without series of their own",
        "Beyond 200 per node only the busiest are shown. Bad: your group is not among them.",
        "short",
        ((f"sum(muster_metrics_groups_dropped{{{NODE}}})", "groups"),),
    ),
)

MODERN_GROUPS = (
    Panel(
        "Modern groups by state",
        "Groups whose coordinator assigns. Bad: Assigning for longer than a few seconds: plans are "
        "not stored; Reconciling for longer than a minute: somebody does not release.",
        "short",
        ((f'sum by (state) (muster_groups{{{NODE}, type="consumer"}})', "{{state}}"),),
    ),
    Panel(
        "Modern groups whose plan is not carried out",
        "From a change on until everybody holds what its plan gives. Bad: one for long, above all "
        "beside not_released.",
        "short",
        ((f"(max by (group) (muster_group_rebalancing{{{GROUP}}}) {MODERN}) > 0", "{{group}}"),),
    ),
    Panel(
        "Partitions of modern groups nobody owns",
        "By reason. Bad: plan_due, grant_due, not_released or topic_due for longer than a minute; "
        "over_limit at all. What is away is no alarm: its member is to come back.",
        "short",
        (
            (
                f"max by (group, reason) (muster_group_partitions_unowned{{{GROUP}}}) > 0",
                "{{group}} {{reason}}",
            ),
        ),
    ),
    Panel(
        "Plans by trigger",
        "What changed, in modern groups. Bad: session_expiry: members fall silent, or release "
        "nothing in time.",
        "ops",
        (
            (
                (
                    "sum by (trigger) (sum by (group, trigger) "
                    f"(rate(muster_group_rebalances_total{{{GROUP}}}{RATE})) {MODERN})"
                ),
                "{{trigger}}",
            ),
        ),
    ),
    Panel(
        "Plans in the last hour, top 10",
        "Of modern groups. Bad: far more than members came or went: their sessions time out.",
        "short",
        (
            (
                (
                    "topk(10, sum by (group) "
                    f"(increase(muster_group_rebalances_total{{{GROUP}}}[1h])) {MODERN})"
                ),
                "{{group}}",
            ),
        ),
    ),
    Panel(
        "Partitions that plans moved",
        "To another owner, in modern groups. Bad: far more than came with members or went.",
        "ops",
        (
            (
                (
                    "sum by (group) "
                    f"(rate(muster_group_partitions_moved_total{{{GROUP}}}{RATE})) {MODERN}"
                ),
                "{{group}}",
            ),
        ),
    ),
    Panel(
        "Plans that failed",
        "In the last hour, by a defect in how partitions are assigned: a group keeps its target. "
        "Bad: anything but 0: see the node's log.",
        "short",
        (
            (
                f"sum by (instance) (increase(muster_plans_failed_total{{{NODE}}}[1h]))",
                "{{instance}}",
            ),
        ),
    ),
    Panel(
        "Partitions claimed by two",
        "What a member reported that another one has. Bad: anything above 0.",
        "short",
        (
            (
                f"sum by (group) (rate(muster_group_partitions_claimed_total{{{GROUP}}}{RATE}))",
                "{{group}}",
            ),
        ),
    ),
    Panel(
        "Members of modern groups, top 10",
        "Those that are away count. Bad: fewer than were started.",
        "short",
        ((f"topk(10, max by (group) (muster_group_members{{{GROUP}}}) {MODERN})", "{{group}}"),),
    ),
    Panel(
        "Epoch of modern groups, top 10",
        "It rises with every change that has a plan of its own. Bad: it climbs steadily.",
        "short",
        (
            (
                f"topk(10, max by (group) (muster_group_generation{{{GROUP}}}) {MODERN})",
                "{{group}}",
            ),
        ),
    ),
)

OPERATION = (
    Panel(
        "Shards that are loading",
        "Shards whose state a node has yet to load after its start. Bad: anything but 0 for longer "
        "than a minute.",
        "short",
        ((f"sum by (instance) (muster_shards_loading{{{NODE}}})", "{{instance}}"),),
    ),
    Panel(
        "Age of the last backup",
        "Since it was begun; nothing where none was ever noted. Bad: more than 26 hours: an alert "
        "fires.",
        "s",
        ((f"time() - max(muster_backup_last_timestamp_seconds{{{CLUSTER}}})", "age"),),
    ),
    Panel(
        "Calls over a quota",
        "Calls that were told to wait, by what their principal or group had used up; members: "
        "newcomers that were refused. Bad: it goes on: workers do more than they may.",
        "reqps",
        (
            (
                f"sum by (key) (rate(muster_quota_throttled_total{{{NODE}}}{RATE}))",
                "{{key}}",
            ),
        ),
    ),
    Panel(
        "Audit entries that wait",
        "Entries that a node has and shard 0 has not. Bad: near 1,000: more are lost.",
        "short",
        ((f"sum by (instance) (muster_audit_entries_waiting{{{NODE}}})", "{{instance}}"),),
    ),
    Panel(
        "Audit entries lost",
        "Entries that found no room, or that shard 0 did not take. Bad: anything but 0: calls of "
        "operators are not in the trail.",
        "short",
        (
            (
                f"sum by (instance) (increase(muster_audit_entries_lost_total{{{NODE}}}{RATE}))",
                "{{instance}}",
            ),
        ),
    ),
)

ACCESS = (
    Panel(
        "Calls that the rules refused",
        "Of nobody, or without the right. Bad: it rises after a change of rules or credentials: "
        "workers lost a right that they need.",
        "reqps",
        (
            (
                f"sum by (why) (rate(muster_access_refused_total{{{NODE}}}{RATE}))",
                "{{why}}",
            ),
        ),
    ),
    Panel(
        "JWTs looked at",
        "One that was verified is remembered. Bad: refused ones go on: a provider or a worker is "
        "set up wrong; awaited ones go on: their key is not in the provider's set.",
        "ops",
        (
            (
                f"sum by (result) (rate(muster_jwt_checks_total{{{NODE}}}{RATE})) or vector(0)",
                "{{result}}",
            ),
        ),
    ),
    Panel(
        "Keys of JWTs",
        "Of the identity provider, on the node that has fewest. Bad: 0 where JWTs are taken: each "
        "is refused.",
        "short",
        ((f"min(muster_jwt_keys{{{NODE}}}) or vector(0)", "keys"),),
    ),
    Panel(
        "Looks at the keys of JWTs that failed",
        "The keys of before stay. Bad: it goes on: an alert fires after half an hour.",
        "ops",
        (
            (
                (
                    "sum(rate(muster_jwt_key_fetches_total"
                    f'{{{NODE}, result="failed"}}{RATE})) or vector(0)'
                ),
                "failed",
            ),
        ),
    ),
    Panel(
        "Streams of clients",
        "One for each process that uses an SDK with streams, on each node that it calls. Bad: they "
        "fall while processes stay: their calls go out one by one, or they lost the node.",
        "short",
        ((f"sum by (instance) (muster_client_streams{{{NODE}}})", "{{instance}}"),),
    ),
    Panel(
        "Frames of clients' streams",
        "In: of requests. Out: of answers. Bad: as many as calls, while commits wait: each process "
        "makes one at a time.",
        "ops",
        (
            (
                f"sum by (direction) (rate(muster_client_frames_total{{{NODE}}}{RATE}))",
                "{{direction}}",
            ),
        ),
    ),
    Panel(
        "Calls passed to other nodes",
        "Of nodes that forward. Bad: many where clients reach all nodes: each costs twice the CPU.",
        "ops",
        (
            (
                (
                    "sum by (instance) "
                    f'(rate(muster_forwarded_calls_total{{{NODE}, direction="out"}}{RATE}))'
                ),
                "{{instance}}",
            ),
        ),
    ),
    Panel(
        "Passed calls that wait",
        "Not answered yet: Joins, Syncs and heartbeats wait long. Bad: close to 12,000 of a node.",
        "short",
        (
            (
                f'sum by (instance) (muster_forwarded_calls_open{{{NODE}, direction="out"}})',
                "{{instance}}",
            ),
        ),
    ),
    Panel(
        "Nodes without a way for calls",
        "Of a node that forwards: other nodes to which it has no connection for calls. Bad: "
        "anything but 0 while they are up: `muster doctor` says why.",
        "short",
        (
            (
                f"sum by (instance) (muster_forward_unconnected_nodes{{{NODE}}})",
                "{{instance}}",
            ),
        ),
    ),
    Panel(
        "Calls that did not wait for a leader",
        "Answered at once, to be repeated, since 8,192 others wait. Bad: anything but 0: a shard "
        "has no leader under a great load.",
        "ops",
        (
            (
                f"sum by (instance) (rate(muster_leader_waits_refused_total{{{NODE}}}{RATE}))",
                "{{instance}}",
            ),
        ),
    ),
    Panel(
        "Connections ended",
        "Of clients whose host, or all hosts together, had too many. Bad: anything but 0: clients "
        "leak connections, or many of them are behind one address (connections_per_host).",
        "ops",
        (
            (
                (
                    "sum by (instance) "
                    f"(rate(muster_client_connections_ended_total{{{NODE}}}{RATE}))"
                ),
                "{{instance}}",
            ),
        ),
    ),
)

ROWS = (
    ("Overview", OVERVIEW),
    ("Term", TERM),
    ("Consensus", CONSENSUS),
    ("Durability", DURABILITY),
    ("Disk", DISK),
    ("Calls", CALLS),
    ("Groups", GROUPS),
    ("Modern groups", MODERN_GROUPS),
    ("Backup, quotas and audit", OPERATION),
    ("Access and connections", ACCESS),
)


def dashboard() -> dict[str, object]:
    """The whole dashboard as Grafana imports it."""
    panels: list[dict[str, object]] = []
    y = 0
    for title, row in ROWS:
        panels.append(_row(len(panels) + 1, title, y))
        y += 1
        x = height = 0
        for panel in row:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            position = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            panels.append(_panel(len(panels) + 1, panel, position))
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return {
        "uid": "muster-cluster",
        "title": "muster / Cluster",
        "description": "Nodes, shards, calls and groups of one muster cluster.",
        "tags": ["muster"],
        "editable": True,
        "graphTooltip": 1,  # one crosshair for all panels
        "schemaVersion": 39,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _row(number: int, title: str, y: int) -> dict[str, object]:
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "panels": [],
        "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
    }


def _panel(number: int, panel: Panel, position: dict[str, int]) -> dict[str, object]:
    instant = panel.kind in {"stat", "table"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _source(),
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"tooltip": {"mode": "multi"}} if panel.kind == "timeseries" else {},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _source(),
                "expr": query,
                "legendFormat": legend,
                "instant": instant,
                "range": not instant,
                **({"format": "table"} if panel.kind == "table" else {}),
            }
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


def _source() -> dict[str, str]:
    return {"type": "prometheus", "uid": "${datasource}"}


def _variables() -> list[dict[str, object]]:
    return [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
        },
        _query("cluster", "Cluster", "label_values(muster_build_info, cluster)"),
        _query("job", "Job", 'label_values(muster_build_info{cluster="$cluster"}, job)'),
        _query(
            "instance",
            "Node",
            f"label_values(muster_build_info{{{CLUSTER}}}, instance)",
            several=True,
        ),
        _query(
            "group",
            "Group",
            f"label_values(muster_group_members{{{NODE}}}, group)",
            several=True,
        ),
    ]


def _query(name: str, label: str, query: str, *, several: bool = False) -> dict[str, object]:
    variable: dict[str, object] = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _source(),
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
    }
    if several:
        variable |= {"multi": True, "includeAll": True, "allValue": ".*"}
    return variable


def render() -> str:
    """The file's text."""
    return json.dumps(dashboard(), indent=2) + "\n"


def main() -> None:
    """Write the file, or compare."""
    if "--check" in sys.argv[1:]:
        if not OUTPUT.exists() or OUTPUT.read_text() != render():
            sys.exit(f"{OUTPUT} is stale: run python {Path(__file__).name}")
        return
    OUTPUT.write_text(render())


if __name__ == "__main__":
    main()
