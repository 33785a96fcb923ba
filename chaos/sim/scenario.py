"""The world of a simulation: its sizes, times and odds, by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from musterd.coordinator.runtime.state_limits import StateLimits
from musterd.raft.settings import RaftSettings

WEIGHTS = {
    "crash_after_send": 20,
    "crash": 8,
    "reconnect": 18,
    "stall": 16,
    "isolation": 10,
    "one_way_cut": 8,
    "clock_rate": 4,
    "transfer": 6,
    "slow_sync": 7,
    "pause": 5,
    "write_stall": 5,
    "bulk_reconnect": 6,
    "drain": 3,
    "replace": 2,
    "replace_then_crash": 3,
}
"""How often each fault is drawn, relative to the others."""

FIRST_START_WEIGHTS = {
    "crash_after_send": 10,
    "crash": 8,
    "reconnect": 10,
    "stall": 8,
    "isolation": 4,
    "one_way_cut": 4,
    "slow_sync": 6,
    "pause": 4,
    "wipe": 15,
}
"""Where one node is started late: disks are lost, and nobody says so at first."""


FORGETFUL_WEIGHTS = {
    "crash_after_send": 10,
    "crash": 10,
    "reconnect": 12,
    "stall": 8,
    "isolation": 8,
    "one_way_cut": 4,
    "transfer": 6,
    "pause": 4,
    "lost_tail": 20,
    "older_copy": 20,
    "forget_then_crash": 30,
}
"""Where disks forget what they had synced, one at a time."""

CLIENT_WEIGHTS = {
    **WEIGHTS,
    "client_cut": 8,
    "client_one_way": 8,
    "client_reset": 10,
    "client_pause": 10,
    "eio": 5,
    "disk_full": 3,
}
"""Where members are processes of their own: what happens between them and the nodes, too."""


@dataclass(frozen=True, slots=True)
class ClientFaults:
    """The likelihoods of faults of each message of a client."""

    loss: float = 0.004
    duplicate: float = 0.02
    late_duplicate: float = 0.02
    slow: float = 0.02
    """It takes up to half a second longer, and others overtake it."""
    stream_broken: float = 0.002
    """The stream of a frame ends; its connection stands."""
    stream_half_open: float = 0.001
    """Nothing of the stream arrives any more, that way, and its connection stands."""


CLIENT_FAULTS = ClientFaults()
NO_CLIENT_FAULTS = ClientFaults(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


SETTINGS = RaftSettings(
    log_disk_bytes=3200,
    log_trim_bytes=640,
    log_memory_bytes=1280,
    apply_entries=20,
    window_bytes=800,
    message_bytes=200,
    control_bytes=250,
    frame_bytes=1200,
    resend_ms=700,
    chunk_bytes=600,
    chunk_resend_ms=150,
    snapshot_log_bytes=12800,
    snapshot_idle_ms=3000,
    soft_ms=40,
    balance_ms=2500,
    balance_connected_ms=2000,
)
"""So small that seconds meet every limit: two or three entries a message, snapshots, trimming."""

GROUPS_SETTINGS = replace(
    SETTINGS,
    log_disk_bytes=8000,
    log_trim_bytes=1000,
    log_memory_bytes=3000,
    window_bytes=2000,
    message_bytes=600,
    control_bytes=700,
    frame_bytes=2000,
    snapshot_log_bytes=30000,
)
"""As small for entries of the coordinator, which are some hundred bytes long."""


BY_SEED = 0
"""As the number of nodes: three on an even seed, five on an odd one."""


@dataclass(frozen=True, slots=True)
class Minima:
    """The least that the runs of one scenario must do to prove anything."""

    per_seed: Mapping[str, float]
    """On average."""
    faults: tuple[str, ...] = ()
    """Each once at least, over all runs; asked for from ten seeds on."""


MINIMA_PER_SEED = {"elections": 2, "crashes": 1, "commits": 65, "acked": 80, "reads": 20}
"""Of a run with all kinds of faults. Fifty of `udp3` committed 48 to 149 entries each, on average
93, and ten of them 71 to 99."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A world to simulate. Times are virtual seconds."""

    name: str
    """`WORLD`, or `WORLD@N`: the runs of WORLD on N nodes, whatever the seed."""
    nodes: int = BY_SEED
    network: str = "fifo"
    shards: int = 1
    chaos_s: float = 8.0
    rest_s: float = 12.0
    settings: RaftSettings = SETTINGS
    weights: dict[str, int] = field(default_factory=lambda: dict(WEIGHTS))
    pause_s: float = 0.35
    """Mean time between two faults."""
    restart_s: float = 1.6
    """A node that went down is up again at the latest after so long."""
    latency_s: float = 0.004
    members: int = 0
    """So many members of consumer groups, on shards of the coordinator, each a process that runs
    the shipped SDK (sdk_members.py); 0: clients of plain_commands.py."""
    statics: bool = False
    """Half of the members are static: they come back under the same instance id."""
    patience: float = 1.0
    """So many times as long are the session and the rebalance timeout."""
    kills: bool = False
    """The leader is killed at chosen points of a round, or of a hand-over where the coordinator
    assigns; members die of nothing (leader_kills.py)."""
    removals: bool = False
    """Groups and offsets are deleted and expire (retention_checks.py); ids are asked for and never
    used (clients.py); commits are atomic and compare."""
    partition_s: float = 0.0
    """So long is a node's loop held up by each partition that an entry names; and clients commit
    many at a time (clients.py)."""
    state_limits: StateLimits | None = None
    """Of a node's state; clients fill it (clients.py). None: those that ship."""
    herds: bool = False
    """Joins come to each node as when a fleet starts, or in a herd, half of the time
    (coordinator_app.py)."""
    operated: bool = False
    """Settings are altered, members kicked, offsets reset, topics grown (sdk_operator.py), and
    workers commit forward only, too."""
    deletes_topics: bool = False
    """Topics are deleted and made again while commits to them are under way (clients.py)."""
    levels: bool = False
    """Nodes begin with the former build and get the later one, and back (faults/levels.py). False:
    see `is_levelled`."""
    may_end: tuple[str, ...] = ()
    """Errors that may end the work of a process that runs the SDK, by name; any other breaks a
    promise."""
    assignor: str = "range"
    """`server`: the coordinator assigns, and members go away, too."""
    converts: bool = False
    """Each new process is of one of both protocols, mostly that of its time (sdk_members.py)."""
    life_s: float = 0.0
    """Mean life of a process that runs the SDK, before it leaves or dies; 0: it stays."""
    client_faults: ClientFaults = CLIENT_FAULTS
    """What happens to the messages of clients."""
    script: str = ""
    """A schedule of scripts.py instead of faults by chance."""
    late_start_s: float = 0.0
    """One node is started for the first time so late at most; 0: all start at once."""
    slow_load_s: float = 0.0
    """A node that starts loads each shard for so long at most; 0: in no time. Takes a `load_ms` of
    0 in `settings`: the clock stands still in a turn (coordinator_app.py)."""
    crash_after_vote: float = 0.0
    """How likely it is that a node dies right after a vote left it."""

    compare_s: float = 0.0
    """So often nodes record checkpoints and compare them; 0: as the shipped leader records them,
    and nobody compares (differing_states.py)."""

    steady: bool = False
    """Nothing goes wrong that a leader may fall over: the first one leads until the end."""
    beat_share: float = 0.0
    """Members only send heartbeats, each when so much of its session is over, and none of them is
    ever lost (heartbeat_senders.py). 0: members that work."""

    every: int = 1
    """Where many scenarios are run, only each n-th seed of this one is.

    An even number would leave a scenario whose size is the seed's without five nodes.
    """
    minima: Minima = Minima(MINIMA_PER_SEED, tuple(WEIGHTS))

    @property
    def is_levelled(self) -> bool:
        """Whether the cluster is at a level that somebody sees to.

        Nobody does where the seeds were recorded before there were levels: there entries name
        their own. Where the coordinator assigns, and where leaders are killed amid rounds, it takes
        the level that a new cluster begins with.
        """
        return self.levels or self.is_modern or self.kills

    @property
    def is_modern(self) -> bool:
        """Whether the coordinator assigns, at least to some of the members."""
        return self.assignor == "server" or self.converts

    @property
    def lasting(self) -> bool:
        """Whether all members are alive and willing: none is removed but who leaves."""
        return bool(self.beat_share or self.kills or self.script not in ("", "suspend-members"))

    def nodes_of(self, seed: int) -> int:
        """How many nodes the run of this seed has."""
        return self.nodes or (5 if seed % 2 else 3)

    def of_size(self, nodes: int) -> "Scenario":
        """The same world on so many nodes: a seed whose run has as many anyway is the same run.

        Raises ValueError where the scenario is of one size.
        """
        if self.nodes != BY_SEED:
            raise ValueError(f"{self.name} always has {self.nodes} nodes")
        return replace(self, name=f"{self.name}@{nodes}", nodes=nodes)
