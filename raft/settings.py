"""Every number of the consensus layer. Durations are whole milliseconds, sizes bytes.

The time-outs were measured together, so change them together
(docs/timeouts.md, Which must be longer).
"""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * 1024
SECOND_MS = 1000


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Limits and intervals of one node's replicas; the same object serves all shards."""

    # Elections and heartbeats.
    election_min_ms: int = 400
    election_max_ms: int = 700
    heartbeat_ms: int = 100
    quorum_ms: int = 400
    """A leader answers nothing when it sent what a majority answered longer ago. It steps down when
    no majority answered for so long, or none within so long for twice as long."""
    broken_quorum_ms: int = 100
    """A leader hears no quorum if control connections to a majority are broken for longer."""
    bystander_min_ms: int = 60
    bystander_max_ms: int = 110
    """After the connection to the leader broke its successor asks for votes at once: how soon the
    others do, and how long whoever would vote for another leaves it to that one."""
    pre_vote_retry_ms: int = 20
    """A pre-vote that was refused is repeated so soon, then after twice as long, and so on, up to
    an election timeout: the voter may not have noticed yet that the leader is gone."""
    first_election_ms: int = 450
    """After a start: how long the preferred leader waits; others wait an election timeout more."""

    # The log.
    log_disk_bytes: int = 64 * MIB
    log_trim_bytes: int = 4 * MIB
    log_memory_bytes: int = 1 * MIB
    log_memory_ms: int = 30_000
    """Entries stay in memory for so long, or twice as long."""
    export_lag_bytes: int = 16 * MIB
    """How much more a log may hold for an exporter that is behind: 96 MiB over six shards."""

    # Applying, and loading after a snapshot, in one turn. Calls are served between turns, and each
    # of them takes several.
    apply_ms: int = 10
    """All shards together: no entry and no slice is begun later. Shards that found no time left are
    the first in the next turn."""
    load_ms: int = 4
    """A turn loads for so long at most: a call takes several passes of the loop, and a node that
    has started loads in each of them until it has all."""
    apply_entries: int = 500
    """Entries of one shard that are applied in a turn."""

    # Proposals and reads that wait on one shard.
    waiting_entries: int = 4096
    waiting_bytes: int = 8 * MIB
    waiting_reads: int = 16384

    # Sending appends: per peer and shard, and per peer over all shards.
    window_messages: int = 2
    window_bytes: int = 256 * KIB
    message_bytes: int = 256 * KIB
    message_entries: int = 512
    peer_bytes: int = 8 * MIB
    control_bytes: int = 64 * KIB
    """A longer message takes the bulk connection."""
    resend_ms: int = 1000
    """What is unacknowledged for so long counts as lost."""

    # Snapshots.
    chunk_bytes: int = 192 * KIB
    chunk_window: int = 4
    chunk_resend_ms: int = 300
    snapshot_sends: int = 2
    """Snapshots that one node sends at the same time, over all shards."""
    snapshot_idle_ms: int = 10_000
    """A snapshot that makes no progress for so long is given up."""
    snapshot_log_bytes: int = 256 * MIB
    """How far the log may grow so that a follower finds it behind its snapshot."""

    # The node's turn.
    soft_ms: int = 100
    write_bytes: int = 512 * KIB
    """Soft data is written at this age or size; with hard data from half that age on."""
    mark_ms: int = 500
    epoch_ms: int = 100
    """How often a node tells all others what is on its disk, where that has risen."""
    lives_ms: int = 1000
    """How often the epochs that peers say are on their disks are noted (raft/lives.py)."""
    sync_stall_ms: int = 3000
    """A hard write that is unsynced for so long: the node leads nothing until it is synced."""
    sync_end_ms: int = 23_000
    """A hard write that is unsynced for so long: the process ends."""
    held_messages: int = 65_536
    frame_bytes: int = 1 * MIB
    """One frame is closed when it holds so much; its hard limit is codec.FRAME_BYTES_MAX."""
    timer_ms: int = 20
    """The timer comes when something is due, and so often at least."""
    step_ms: int = 100
    """Between two looks at the clock so much counts as another's silence at most, unless it was
    longer than an election: the node itself stood still (raft/driver.py)."""

    # Leadership.
    transfer_ms: int = 1000
    balance_ms: int = 5000
    balance_shards: int = 4
    balance_connected_ms: int = 10_000
    drain_retry_ms: int = 250
    admission_ms: int = 200
    """How often a leader looks whether a replaced node can be admitted."""
    introduce_ms: int = 250
    """How often a new store asks the nodes that have not said yet that they know it."""
    replaced_ms: int = 1_000
    """How often a new store, where a node comes in another store than before, has the others say
    hello again, which says who was replaced."""
