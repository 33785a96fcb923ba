"""Every wait of the server that is not a member's own: who waits, for what, how long.

The table with its reasons is docs/timeouts.md; a test compares that table and its inequalities
with this file. All values are integer milliseconds.
"""

from typing import Final

from musterd.coordinator.machine.limits import LIMITS

LOADING_HOLD_MS: Final = 1_000
"""Calls that meet a new leader before its no-op is applied wait this long (gp-2.0.2)."""

FIND_COORDINATOR_HOLD_MS: Final = 1_000
"""FindCoordinator waits this long for a leader of a later term (gp-2.1)."""

PARK_MS_MAX: Final = LIMITS.park_max_ms
"""The longest park of a Join or Sync; then REBALANCE_IN_PROGRESS with park_again (gp-2.16). A Join
that waits for its assignment, too, is parked twice."""

HEARTBEAT_INTERVAL_MS: Final = LIMITS.heartbeat_interval_ms
"""How long a heartbeat is held, unless a session in the call is shorter than three of these."""

DISCONNECT_GRACE_MS: Final = LIMITS.disconnect_grace_ms
"""What a member keeps of its session when its only call breaks off (arch-3.5)."""

FIRING_RETRY_MS: Final = 500
"""A proposed timer firing that had no effect is proposed again after this (gp-4.1)."""

JOINS_HOLD_MS: Final = 20_000
"""While Joins come as when a fleet starts, a group that forms waits so much longer than its initial
delay for members that may be among them."""

JOINS_LOOK_MS: Final = 100
"""So often it is looked whether they still come."""

FIRST_HEARTBEAT_MS: Final = 20_000
"""A member whose group's first round was held so has so much longer than its session until it is
heard for the first time: its answer may lie unread as long as its Join did."""

JOINS_FOLLOW_MS: Final = 250
"""A first round that was held waits so long for a member to follow the last one, and once more
where one came since the machine prolonged the round."""

MANY_JOINS_MS: Final = 500
"""Joins of many groups came within it (coordinator/api/limits/admission.py)."""

HERD_MS: Final = 1_000
"""So recently more came than the node takes at once: it is a herd, and nobody's session runs, as a
member's Join may be among those that wait unread."""

JOINS_MS_MAX: Final = 60_000
"""Many Joins or a herd count for so long in all. Time without gives it back, so that whoever goes
on for longer holds up rounds, and stops sessions, for half of the time at most."""

SHARD_TIME_STEP_MS_MAX: Final = 100
"""Shard time advances by at most this much in one turn (arch-3.1)."""

ASSIGNMENT_INTERVAL_MS: Final = 100
"""A plan of a modern group that is due sooner after the one before waits so long; the first after
quiet waits for nothing. It doubles while changes keep coming (planner.py) ..."""

ASSIGNMENT_INTERVAL_MS_MAX: Final = 1_000
"""... up to this."""

ASSIGNMENT_QUIET_MS: Final = 200
"""Where no other plan was due for so long after one began, the next waits for nothing; one that
waits begins once the group has not changed for so long."""

PLAN_AGAIN_MS: Final = 60_000
"""A plan that failed, by a defect, is made again so late, or when what it is made from changes."""

UNOWNED_LOOK_MS: Final = 1_000
"""After a modern group changed, its coordinator looks for partitions without an owner so late:
what moves meanwhile is nobody's for a moment only."""

UNOWNED_TOLD_MS: Final = 10_000
"""A partition that is nobody's for longer is logged, with its group."""

UNOWNED_LINES_MS: Final = 60_000
"""The time in which a shard logs a bounded number of groups that have such partitions."""

CHANGES_HELD_MS_MAX: Final = 3_000
"""Where a plan has been due for ASSIGNMENT_INTERVAL_MS_MAX, what would change the group again waits
until a plan is stored, and no longer than this (held_changes.py)."""

LEVEL_PAUSE_MS: Final = 1_000
"""Between two commands about levels of one shard (level_keeper.py)."""

DROP_PAUSE_MS: Final = 50
"""Between two looks at the groups of a shard while offsets of a topic that was deleted go."""

LAG_FORGIVEN_MS: Final = 200
"""A turn that is later than this extends every session by its lag (arch-3.1)."""

BREAK_WINDOW_MS: Final = 1_000
"""Held calls that break within this window are counted together."""

REQUEST_MS_MAX: Final = 500
"""A call whose request has not come by then gives its place among the active calls to others."""

UNTAKEN_MS_MAX: Final = 10_000
"""A call whose answer its caller has not taken by then is ended."""

UNTAKEN_ROOM_MS: Final = 1_000
"""A node that has too many bytes of answers waiting ends those that have waited for so long."""

FORWARD_LOOK_MS: Final = 1_000
"""A node that forwards asks the others so often for a sign of life; both sides count such looks."""

FORWARD_ANSWER_MS: Final = 5_000
"""A coordinator that gave none for so long is lost to the edge: the calls there are UNAVAILABLE."""

FORWARD_SILENT_MS: Final = 8_000
"""An edge that said nothing for so long is gone: members behind it keep their whole session."""

FORWARD_MOVED_MS: Final = 500
"""After NOT_COORDINATOR an edge waits so long for other news before it passes the call on again."""

FORWARD_PART_MS: Final = 1_000
"""A heartbeat for several coordinators waits so long for the last of them."""

UNTAKEN_LOOK_MS: Final = 500
"""How often the answers that nobody takes, the commits that wait, and silent streams are looked
at."""

STREAM_SILENT_MS: Final = 8_000
"""A stream whose client waits for answers, and has sent nothing for so long, is ended: clients send
a ping every 2 s."""

COMMIT_WAIT_MS_MAX: Final = 1_000
"""A large commit waits so long to be parsed while the node holds enough of them."""

READ_REST_MS: Final = 10
"""Between two slices of long reads, while other calls come (api/limits/cooperative_yield.py)."""

READ_BUSY_MS: Final = 50
"""A call came so recently."""

PROBE_INTERVAL_MS: Final = 20
"""A busy node measures so often how long a call waits to be taken (api/limits/queue_probe.py)."""

PROBE_FRAMED_MS: Final = 200
"""A node that is busy with commits in frames alone measures it so often."""

PROBE_ANSWER_MS: Final = 5_000
"""A probe that is not taken by then is given up, and the next one sent."""

WAIT_MS_MAX: Final = 250
"""While calls wait longer than that to be taken, new ones are refused."""

REST_MS_MAX: Final = 5
"""Under load the next turn waits so long while calls are taken in (api/limits/turn_rest.py)."""

LARGE_WAITING_MS: Final = 500
"""A shard that was told to wait with a large command keeps its turn for so long, unless it asks
again (coordinator/runtime/large_commits.py)."""

LARGE_STALLED_MS: Final = 2_000
"""Large commands of a shard that moved none for so long keep nothing from other shards."""

DEPOSED_HOLD_MS: Final = 200
"""After a demotion, parked calls wait this long for the new leader's name to put into their
answer."""

CHECKPOINT_INTERVAL_MS: Final = 10_000
"""How often a leader proposes a Checkpoint for a shard that has moved (arch-3.9)."""

CHECKPOINT_ON_DEMAND_MS: Final = 1_000
"""Verify waits this long for fresh checkpoints of the shards that its node leads."""

SWEEP_INTERVAL_MS: Final = 600_000
"""How often a leader looks for offsets and groups that retention takes (gp-4.5)."""

TRIM_INTERVAL_MS: Final = 60_000
"""How often a node returns free memory to the system (coordinator/host.py)."""

CUT_IDLE_MS: Final = 60_000
"""A cut that no backup reads from for so long ends (coordinator/integrity/backup_cuts.py)."""

TRANSFER_HOLD_MS: Final = 2_000
"""TransferLeader waits this long for the other node to lead."""

DRAIN_MS_MAX: Final = 3_000
"""SIGTERM: leadership is handed over within this, or the node stops without it."""

STOP_GRACE_MS: Final = 1_000
"""SIGTERM: calls that are still open after the drain get this long before they are cut."""

STORE_CLOSE_MS_MAX: Final = 8_000
"""SIGTERM: the store's last sync gets this long before the process ends without it; none where a
sync has hung before."""

AUDIT_PAUSE_MS: Final = 1_000
"""How often a node hands what is to be audited to shard 0."""

AUDIT_CALL_MS: Final = 2_000
"""Deadline of one node's hand-over of entries to the leader of shard 0."""

AUDIT_STOP_MS: Final = 500
"""SIGTERM: what waits to be audited gets this long to reach shard 0."""

CERTIFICATES_LOOK_MS: Final = 5_000
"""How often a node looks whether the files of its certificates have changed."""

JWT_KEYS_LOOK_MS: Final = 300_000
"""How often a node fetches the identity provider's keys from their URL (node/jwt_keys.py)."""

JWT_KEYS_GAP_MS: Final = 10_000
"""After a fetch, or a look at their file, before the next one: tokens of unknown keys, and
failures, cause no more."""

JWT_KEYS_FETCH_MS: Final = 5_000
"""One fetch of them, from the look-up of its name on."""

HOSTS_LOOK_MS: Final = 500
"""How often a node looks whether one host has too many connections of clients."""

CREDENTIALS_LOOK_MS: Final = 1_000
"""How often calls that wait are looked at, whether what they were let in by has ended."""

PEER_CHECKPOINT_CALL_MS: Final = 2_000
"""Deadline of one node's question to another about its checkpoints."""

FORMER_CHANNEL_MS: Final = 5_000
"""How long a channel to another node stays open after a change of certificates, for its calls."""

RESTART_CHECK_CALL_MS: Final = 1_000
"""Deadline of one node's question to another whether its own restart would stop a shard."""

REACH_PROBE_MS: Final = 5_000
"""How often a node looks whether clients reach it at its advertised address."""

REACH_PROBE_CALL_MS: Final = 3_000
"""How long it waits there for a connection."""

REACH_PROBE_AGAIN_MS: Final = 1_000
"""After a look that failed it looks again so soon."""
