"""Every wait of the SDK, in milliseconds. A deadline exceeds the server's longest hold by 1 s.

docs/timeouts.md lists them beside the server's; a test checks the inequalities.
"""

COMMIT_ATTEMPT_MS = 2_000
"""OffsetCommit, OffsetFetch, LeaveGroup: the server holds them for 1 s at most, while it loads."""

PARKED_ATTEMPT_MS = 55_000
"""JoinGroup, SyncGroup: the server lets go after 25 s, of a Join that syncs, too, after 50 s.
By more than 1 s: it is taken later where a herd comes."""

FIND_ATTEMPT_MS = 2_000
"""FindCoordinator: the server waits for a later term for 1 s at most."""

HEARTBEAT_MARGIN_MS = 2_000
"""A held heartbeat's deadline is the interval that the server dictates plus this."""

HEARTBEAT_INTERVAL_MS = 2_000
"""Until the server has said its own."""

HEARTBEAT_INTERVAL_MS_MIN = 50
HEARTBEAT_INTERVAL_MS_MAX = 60_000
"""What a server may dictate; outside of it the nearer bound counts."""

ADMIN_ATTEMPT_MS = 5_000
"""Topics: a change of the registry is committed before its answer. SUSPECT_MS holds here, too."""

FIND_GAP_MS = 50
FIND_GAP_MS_MAX = 1_000
"""Between two FindCoordinators to one node: groups that come up meanwhile share the next one. Twice
as long for each beyond two that the node has not answered yet, up to the longest."""

SUSPECT_MS = 300
"""An attempt that is unanswered for so long makes the SDK ask another node beside it, unless it is
one that the server may park: see PING_MS."""

TLS_PROBE_MS = 500
"""Where no connection can be had: a node may take so long for each step of a handshake that is only
looked at, to say what is wrong."""

TLS_PROBE_GAP_MS = 1_000
"""Between two such looks at one node, for as long as no connection has stood."""

TLS_FILES_LOOK_MS = 5_000
"""How often a client looks whether its certificate files have changed."""

PING_MS = 100
PING_MS_MAX = 150
"""A node where a call may be parked is asked whether it is alive, first after so long, then after
pauses that grow to the longest (muster/net/pings.py)."""

PING_SILENCE_MS = 300
"""A node that leaves this unanswered for so long is suspect."""

PING_SILENCE_MS_MAX = 1_000
"""A node that was slow before is suspect after so long."""

PING_REST_MS_MAX = 700
"""Such a node is left alone before it is asked again, for so long at most."""

STREAM_PING_MS = 2_000
"""A stream with open requests asks its node so often for a sign of life."""

STREAM_SILENCE_MS = 5_000
"""A stream whose node has said nothing for so long is ended, and its calls are made anew."""

STREAM_REST_MS = 5_000
"""A stream that carried no request for so long is ended: its node coordinates nothing of this
process any more. The next request opens another one."""

STREAM_EXPIRE_MS = 20
"""A stream's calls whose time is over are looked for no more often; they end so much later."""

STREAM_AGAIN_MS = 60_000
"""A node that refused a stream, since their connection has enough of them, is asked again so late:
until then the calls to it are made one by one."""

REQUEST_MS = 30_000
"""A call as the user sees it, all attempts together; `Client(request_timeout_ms=...)`."""

JOIN_REQUEST_MS = 120_000
"""A Join or Sync as the membership sees it; then it backs off and tries again."""

CONSUMER_HEARTBEAT_MS = 30_000
"""ConsumerGroupHeartbeat as the membership sees it; then it backs off and says everything anew."""

READY_LOOK_MS = 500
"""Who waits until a member is ready has it ask so often whether more is to come."""

START_MS = 60_000
"""A member that begins looks for its topics for so long in a cluster that cannot say; for longer
while a node is connected."""

ASSIGNOR_MS = 10_000
"""The group leader waits so long for an assignor of the user's own, and for half of its rebalance
timeout at most."""

LEAVE_REQUEST_MS = 3_000
"""Closing waits so long for the answer to Leave, at most."""

RECONNECT_FIRST_MS = 50
RECONNECT_MS_MAX = 500
KEEPALIVE_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000
"""The three are options of the channels (docs/timeouts.md)."""

HEARTBEAT_END_MS = 100
"""A client that is closed waits so long for a held call whose members have left, at most."""

CHANNEL_END_MS = 500
"""A channel that was closed has so long to say so; it takes less than 1 ms."""

COMMIT_INTERVAL_MS = 100
"""Buffered commits go out this often, at most."""

DELETION_POLL_MS = 100
"""Between two looks whether the offsets of a topic that was deleted are gone."""

TOPIC_WAIT_MS = 3_000
"""How long a topic or partition that a node does not know is looked for: its copy may lag."""

JOIN_SPREAD_MS = 50
JOIN_SPREAD_MS_MAX = 2_000
"""A Join waits up to this long before it goes to a new coordinator: no fleet arrives at once. The
longer, the more Joins this process has open."""

HEARTBEAT_GAP_MS = 20
HEARTBEAT_GAP_EACH_MS = 14
HEARTBEAT_GAP_MS_MAX = 700
"""Between the starts of two heartbeat calls: members that come together share one. Each call names
all members, so with many it is made less often, a third of the server's interval at most."""

LEASE_AFTER_BREAK_MS = 2_000
"""After a broken connection an elected leader leads so long, without a new acknowledgement."""

SYNC_MARGIN_MS = 1_000
"""The synchronous consumer waits so much longer than the call's own limit for its result."""

SYNC_EXIT_MS = 5_000
"""The end of a process waits so long for synchronous consumers that were not closed to leave."""
