"""Every world that is simulated, by name."""

from dataclasses import replace

from musterd.chaos.sim.actors.clients import LIMITS
from musterd.chaos.sim.actors.leader_kills import AFTER, BEFORE, COMMIT, HAND_OVER, preparing
from musterd.chaos.sim.scenario import (
    BY_SEED,
    FIRST_START_WEIGHTS,
    FORGETFUL_WEIGHTS,
    GROUPS_SETTINGS,
    MINIMA_PER_SEED,
    SETTINGS,
    WEIGHTS,
    ClientFaults,
    Minima,
    Scenario,
)
from musterd.chaos.sim.sdk_scenarios import (
    CALM,
    SCRIPTED,
    SDK,
    SDK_COOPERATIVE,
    SDK_EAGER,
    SDK_STATIC,
)
from musterd.raft.settings import RaftSettings

THREE_NODES, FIVE_NODES = (
    tuple(
        Scenario(f"{net}{nodes}", nodes=nodes, network=net, every=2)
        for net in ("fifo", "late", "udp")
    )
    for nodes in (3, 5)
)
FIFO3, _, UDP3 = THREE_NODES
ONE_NODE = Scenario(
    "fifo1",
    nodes=1,
    minima=Minima(
        MINIMA_PER_SEED,
        ("pause", "clock_rate", "crash_after_send", "drain", "write_stall", "crash", "slow_sync"),
    ),
)
LESS = Minima({"elections": 1, "commits": 80, "acked": 40, "reads": 20})
TWO_SHARDS = Scenario("late-two-shards", network="late", shards=2, every=5, minima=LESS)

SLOW_LOADS = Scenario(
    "slow-loads",
    shards=2,
    weights={**WEIGHTS, "crash": 40, "transfer": 10},
    settings=replace(SETTINGS, load_ms=0),
    slow_load_s=1.2,
    every=5,
    minima=Minima(
        {"elections": 1, "commits": 40, "acked": 20, "reads": 5},
        ("crash", "loads_slowly", "leads_unloaded", "takes_entries_unloaded"),
    ),
)
"""Nodes that start have no state for a while, one shard after the other, and take part in Raft."""

SPLIT_VOTES = Scenario(
    "split-votes",
    nodes=5,
    network="udp",
    settings=replace(
        SETTINGS, election_min_ms=310, election_max_ms=330, bystander_min_ms=2, bystander_max_ms=6
    ),
    weights={"crash": 40, "transfer": 5, "isolation": 2},
    pause_s=0.25,
    restart_s=0.05,
    latency_s=0.03,
    crash_after_vote=0.6,
    every=20,
    minima=Minima({**LESS.per_seed, "commits": 25}),
)
"""Split votes, late requests, voters that die with their vote on its way and are back at once.

Fewer entries are committed than elsewhere: whoever leads next loads its groups first.
"""

REPLACEMENTS = Scenario(
    "replacements",
    weights={**WEIGHTS, "replace_then_crash": 40, "replace": 40},
    every=5,
    minima=LESS,
)

REPLACED_AGAIN = Scenario(
    "replaced-again",
    weights={"replace_again": 1},
    chaos_s=16.0,
    pause_s=0.5,
    settings=replace(
        GROUPS_SETTINGS,
        window_bytes=400,
        message_bytes=200,
        control_bytes=300,
        log_disk_bytes=1_000_000,
        log_trim_bytes=1_000_000,
        snapshot_log_bytes=1_000_000,
    ),
    minima=Minima({"elections": 2.5, "crashes": 3, "acked": 200}, ("replace_again",)),
)
"""Nothing fails but disks, and a log that begins at the first entry tells of all that were lost."""

NEWCOMER_AWAY = Scenario(
    "newcomer-away",
    weights={"newcomer_away": 1},
    chaos_s=16.0,
    pause_s=0.5,
    minima=Minima(
        {"elections": 2.5, "crashes": 3, "acked": 200}, ("newcomer_away", "lost_meanwhile")
    ),
)
"""Nodes lose their disks one after the other, each new one down when the others admit it."""

FIRST_START = Scenario(
    "first-start",
    weights=FIRST_START_WEIGHTS,
    chaos_s=12.0,
    pause_s=0.3,
    late_start_s=4.0,
    every=5,
    minima=Minima(
        {"elections": 1, "crashes": 3, "commits": 40, "acked": 30, "reads": 5},
        ("wipe", "late_start", "begun_again", "crash", "isolation", "pause"),
    ),
)
"""One node is provisioned and not started until seconds later; others lose their disks."""

FORGETFUL = tuple(
    Scenario(
        f"forgetful{nodes}",
        nodes=nodes,
        weights=FORGETFUL_WEIGHTS,
        chaos_s=16.0,
        settings=replace(SETTINGS, lives_ms=20, log_disk_bytes=disk, snapshot_log_bytes=4 * disk),
        every=5,
        minima=Minima(
            {"elections": 3, "crashes": 3, "acked": 100},
            ("lost_tail", "older_copy", "forget_then_crash"),
        ),
    )
    for nodes, disk in ((3, 1_000_000), (5, SETTINGS.log_disk_bytes))
)
"""Disks lose the end of what they had synced, or all since an older copy of them."""

QUARANTINE = Scenario(
    "quarantine",
    weights={
        "states_differ": 30,
        "crash": 8,
        "crash_after_send": 4,
        "reconnect": 4,
        "isolation": 3,
        "pause": 3,
        "slow_sync": 3,
        "transfer": 8,
        "replace": 4,
    },
    chaos_s=20.0,
    compare_s=0.8,
    settings=replace(SETTINGS, log_disk_bytes=1_000_000, snapshot_log_bytes=4_000_000),
    every=5,
    minima=Minima(
        {"elections": 2, "crashes": 2, "acked": 100, "snapshots": 1},
        ("states_differ", "killed_in_quarantine", "crash", "replace"),
    ),
)
"""The states of one of three nodes, or two of five, come to differ, and disks are lost, as long as
a majority is right. All logs are long: a state is sent in place of a wrong one, and to who lags
behind a leader that was sent one."""

SDK_QUARANTINE = replace(
    SDK_COOPERATIVE,
    name="sdk-quarantine",
    weights={**QUARANTINE.weights, "client_cut": 4, "client_reset": 4, "client_pause": 4},
    compare_s=QUARANTINE.compare_s,
    settings=replace(GROUPS_SETTINGS, log_disk_bytes=1_000_000, snapshot_log_bytes=4_000_000),
    minima=Minima({"generations": 4, "acked": 40}, ("states_differ", "crash")),
)
"""The states of a minority come to differ while members work."""

LANES = Scenario(
    "lanes",
    weights={
        "dead_bulk": 10,
        "garbage": 5,
        "flipped_bit": 10,
        "crash": 5,
        "isolation": 3,
        "transfer": 3,
    },
    pause_s=0.25,
    every=5,
    minima=Minima(
        {"elections": 2, "acked": 80, "snapshots": 1},
        ("dead_bulk", "garbage", "flipped_bit", "crash"),
    ),
)
"""Bulk connections that carry nothing while control does, and peers that send what is no frame, or
one with a flipped bit."""

LOST_LINKS = Scenario(
    "lost-links",
    weights={"reconnect": 90, "pause": 5, "stall": 5},
    pause_s=0.1,
    every=5,
    minima=LESS,
)
"""A leader that both followers lose at once is deposed before it notices."""

UNBALANCED = replace(SETTINGS, balance_ms=10**9)
"""Nobody hands leadership over without a reason."""

RETURNING = Scenario(
    "returning-follower",
    weights={"follower_isolation": 1, "follower_reconnect": 1},
    pause_s=0.8,
    settings=UNBALANCED,
    steady=True,
    every=5,
    minima=Minima({"acked": 80}, ("follower_isolation", "follower_reconnect")),
)
"""One follower at a time is cut off for longer than an election timeout and comes back, or loses
its connection to the leader alone."""

HERDS = replace(
    SDK_EAGER,
    name="groups-herds",
    herds=True,
    minima=Minima({"generations": 8, "acked": 40, "waited_for": 0.3}),
)
"""First rounds are held open, and sessions stand still, again and again."""

REMOVALS = replace(
    SDK_STATIC,
    name="groups-removals",
    members=3,
    removals=True,
    chaos_s=14.0,
    life_s=3.0,
    weights={"crash": 6, "isolation": 4, "transfer": 2, "reconnect": 4},
    client_faults=ClientFaults(duplicate=0.0, late_duplicate=0.0),
    minima=Minima(
        {"acked": 40, "generations": 8, "deleted": 2, "expired": 0.3}
        | {"replaced": 1, "handed_out": 8, "atomic": 20},
        ("crash", "isolation"),
    ),
)
"""Groups that are empty for a while, are deleted or expire, and come back; several ids wait at once
that were handed out, while nodes start and load what is on disk."""

KILLS = replace(
    CALM,
    name="groups-kills",
    members=6,
    weights={},
    patience=4.0,
    kills=True,
    chaos_s=24.0,
    every=11,
    minima=Minima(
        {"acked": 200, "generations": 30, "crashes": 4},
        (preparing(1, 3), preparing(2, 3), BEFORE, AFTER, COMMIT),
    ),
)
"""Nothing fails but the leader, at a chosen point of a round."""

HAND_OVERS = replace(
    KILLS,
    name="groups-hand-overs",
    assignor="server",
    life_s=5.0,
    minima=replace(KILLS.minima, faults=HAND_OVER),
)
"""The same where the coordinator assigns, members leave and others come: it dies in each phase of a
hand-over, and amid the parts of a plan. Nobody who stays loses a partition by that."""

HUNG_DISKS = Scenario(
    "hung-disks",
    weights={"leader_sync_hangs": 8, "crash": 1, "transfer": 2, "reconnect": 2, "pause": 1},
    pause_s=2.5,
    chaos_s=40.0,
    every=5,
    minima=Minima(
        {"elections": 2, "acked": 300},
        ("leader_sync_hangs", "ended_with_hung_disk", "crash", "transfer"),
    ),
)
"""No sync of a leader ends, for up to a minute; often a voter goes down meanwhile."""

FULL_DISKS = Scenario(
    "full-disks",
    weights={"disks_full": 10, "crash": 2, "transfer": 2, "reconnect": 2, "isolation": 1},
    pause_s=1.0,
    chaos_s=20.0,
    every=5,
    minima=Minima({"elections": 1, "acked": 80}, ("disks_full", "crash", "transfer")),
)
"""Disks of a majority are low, or have no room for an entry, for seconds; leaders change, too."""

LARGE_COMMITS = replace(
    CALM,
    name="groups-large-commits",
    nodes=3,
    members=2,
    weights={},
    settings=replace(RaftSettings(), balance_ms=10**9),
    partition_s=20e-6,
    chaos_s=9.0,
    steady=True,
    every=11,
    minima=Minima({"acked": 60}, ("large_commit",)),
)
"""Nothing fails, but clients commit a thousand partitions at a time, and work takes time."""

STATE_FULL = replace(
    SDK_COOPERATIVE,
    name="groups-state-full",
    members=4,
    state_limits=LIMITS,
    weights={"crash": 4, "isolation": 2, "transfer": 3, "reconnect": 2},
    pause_s=0.8,
    may_end=(*SDK_COOPERATIVE.may_end, "PolicyViolation"),
    minima=Minima({"acked": 60}, ("state_full", "crash", "transfer")),
)
"""Clients fill the state up to its limits while leaders change."""

BLINKS = Scenario(
    "groups-blinks",
    members=6,
    chaos_s=20.0,
    settings=replace(GROUPS_SETTINGS, balance_ms=10**9),
    weights={"leader_blinks": 1},
    pause_s=0.5,
    beat_share=0.96,
    steady=True,
    every=5,
    minima=Minima({"beats": 50}, ("leader_blinks",)),
)
"""The leader's loop is stuck again and again, just when members that report late do so."""

STALLS = replace(
    BLINKS,
    name="groups-stalls",
    weights={"leader_stalls": 1},
    pause_s=0.9,
    steady=False,
    minima=Minima({"beats": 50}, ("leader_stalls",)),
)
"""The same for longer: what has waited for the leader is no sign that it still leads."""

STANDSTILL = Scenario(
    "groups-standstill",
    members=8,
    chaos_s=60.0,
    settings=GROUPS_SETTINGS,
    weights={"all_stand_still": 2, "transfer": 3, "reconnect": 3},
    pause_s=4.0,
    beat_share=0.3,
    every=5,
    minima=Minima({"beats": 50, "elections": 2}, ("all_stand_still", "transfer")),
)
"""All nodes are suspended at once for up to 30 s, and leadership goes from node to node."""

LEVELS = Scenario(
    "levels",
    shards=2,
    levels=True,
    weights={
        "upgrade": 30,
        "put_back": 10,
        "finalise": 14,
        "former_installed": 8,
        "crash": 8,
        "isolation": 4,
        "reconnect": 4,
        "transfer": 6,
        "pause": 3,
    },
    chaos_s=16.0,
    every=5,
    minima=Minima(
        {"elections": 2, "crashes": 3, "acked": 100},
        ("upgrade", "put_back", "finalised", "former_installed", "turned_away", "ended_at_level"),
    ),
)
"""Nodes get a build of a later level, the former one back, and the level is finalised meanwhile."""

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        *THREE_NODES,
        *FIVE_NODES,
        ONE_NODE,
        TWO_SHARDS,
        SLOW_LOADS,
        REPLACEMENTS,
        REPLACED_AGAIN,
        NEWCOMER_AWAY,
        *FORGETFUL,
        FIRST_START,
        QUARANTINE,
        SDK_QUARANTINE,
        SPLIT_VOTES,
        LANES,
        LOST_LINKS,
        RETURNING,
        HERDS,
        REMOVALS,
        KILLS,
        HAND_OVERS,
        HUNG_DISKS,
        FULL_DISKS,
        LARGE_COMMITS,
        STATE_FULL,
        BLINKS,
        STALLS,
        STANDSTILL,
        LEVELS,
        *SDK,
        *SCRIPTED,
    )
}
"""By name. Those that say no number of nodes have three on even seeds and five on odd ones."""


def named(name: str) -> Scenario:
    """`WORLD`, or `WORLD@3` and `WORLD@5` of a world whose size is the seed's.

    Raises KeyError where there is none.
    """
    world, _, nodes = name.partition("@")
    scenario = SCENARIOS[world]
    if name == world:
        return scenario
    if scenario.nodes != BY_SEED or nodes not in ("3", "5"):
        raise KeyError(name)
    return scenario.of_size(int(nodes))
