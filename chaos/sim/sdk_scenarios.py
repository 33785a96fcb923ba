"""Worlds in which members run the shipped SDK (sdk_members.py)."""

from dataclasses import replace

from musterd.chaos.sim.actors.scripts import SCRIPTS
from musterd.chaos.sim.scenario import (
    CLIENT_WEIGHTS,
    GROUPS_SETTINGS,
    NO_CLIENT_FAULTS,
    ClientFaults,
    Minima,
    Scenario,
)

NO_TOPIC = "UnknownTopicOrPartition"
"""Workers may be there before their topic is; after it was made it is no excuse."""

FENCED = "FencedInstanceId"
"""An old Join under an instance id that comes once more, late, takes its place: KIP-345."""

SDK_EAGER = Scenario(
    "sdk-eager",
    members=6,
    chaos_s=10.0,
    rest_s=14.0,
    settings=GROUPS_SETTINGS,
    pause_s=0.7,
    life_s=8.0,
    weights=CLIENT_WEIGHTS,
    every=5,
    minima=Minima(
        {"generations": 8, "acked": 40, "reads": 8},
        (
            *("client_duplicate", "client_late_duplicate", "client_reordering", "client_loss"),
            *("stream_broken", "stream_half_open"),
        ),
    ),
    may_end=(NO_TOPIC,),
)
SDK_COOPERATIVE = replace(SDK_EAGER, name="sdk-cooperative", assignor="cooperative-sticky")
SDK_STATIC = replace(SDK_COOPERATIVE, name="sdk-static", statics=True, may_end=(NO_TOPIC, FENCED))
OPERATED = {"altered": 4, "kicked": 0.5, "reset": 4, "grown": 1, "held_back": 5}
SDK_OPERATED = replace(
    SDK_COOPERATIVE,
    name="sdk-operated",
    operated=True,
    minima=replace(SDK_EAGER.minima, per_seed={**SDK_EAGER.minima.per_seed, **OPERATED}),
)
"""Somebody alters settings, kicks members, resets offsets and grows topics."""

SDK_DELETIONS = replace(
    SDK_COOPERATIVE,
    name="sdk-deletions",
    network="late",
    shards=2,
    members=4,
    deletes_topics=True,
    minima=Minima({"topics_deleted": 3, "topics_made_again": 2, "acked": 20}, ("topic_read",)),
)
"""Topics are deleted and made again."""

UNRELEASED = "UnreleasedInstanceId"
"""A newcomer waits for as long as a session for the process whose instance id it has; who is still
heard then stays (docs/modern.md)."""

SDK_MODERN = replace(
    SDK_COOPERATIVE,
    name="sdk-modern",
    assignor="server",
    minima=replace(SDK_EAGER.minima, faults=(*SDK_EAGER.minima.faults, "member_away")),
)
SDK_MODERN_STATIC = replace(
    SDK_MODERN, name="sdk-modern-static", statics=True, may_end=(NO_TOPIC, FENCED, UNRELEASED)
)
SDK_MODERN_OPERATED = replace(
    SDK_MODERN,
    name="sdk-modern-operated",
    operated=True,
    client_faults=ClientFaults(duplicate=0.0, late_duplicate=0.0),
    minima=replace(SDK_OPERATED.minima, faults=("member_away",)),
)
"""Groups whose coordinator assigns: members join, leave, die and go away; in the last one members
are kicked, and topics grow. A second copy of what the operator sent would undo a later setting."""

SDK_MODERN_DELETIONS = replace(
    SDK_DELETIONS,
    name="sdk-modern-deletions",
    assignor="server",
    minima=replace(
        SDK_DELETIONS.minima, faults=(*SDK_DELETIONS.minima.faults, "topic_grown", "member_away")
    ),
)
"""Topics that modern groups read are deleted and made again, and grow."""

SDK_CONVERSIONS = replace(
    SDK_MODERN_STATIC,
    name="sdk-conversions",
    assignor="cooperative-sticky",
    converts=True,
    chaos_s=20.0,
    life_s=5.0,
    client_faults=ClientFaults(duplicate=0.0, late_duplicate=0.0),
    minima=Minima(
        {"generations": 8, "acked": 40, "reads": 8, "upgraded": 1, "downgraded": 0.5},
        ("member_away", "client_loss", "stream_broken"),
    ),
)
"""Groups become modern ones and classic ones again, as their members' processes are restarted. A
second copy of a Join may count in a classic group (stale_joins.py)."""

SDK_UDP = replace(SDK_EAGER, name="sdk-udp", network="udp")
SDK_TWO_SHARDS = replace(
    SDK_COOPERATIVE,
    name="sdk-late",
    network="late",
    shards=2,
    members=8,
    weights={**CLIENT_WEIGHTS, "disks_full": 5, "leader_sync_hangs": 4},
)
"""Disks of a majority fill up, too, and a leader's hang."""

CALM = replace(
    SDK_COOPERATIVE,
    name="",
    members=4,
    life_s=0.0,
    patience=6.0,
    chaos_s=14.0,
    rest_s=24.0,
    client_faults=NO_CLIENT_FAULTS,
    may_end=(),
)
"""Nobody goes, and no message is lost."""

SCRIPTED = tuple(
    replace(
        scenario,
        every=21,
        minima=Minima({"acked": 100, "generations": 4}, (SCRIPTS[scenario.script][1],)),
    )
    for scenario in (
        replace(CALM, name="sdk-jam-leader", script="jam-leader"),
        replace(CALM, name="sdk-thaw-leader", script="thaw-leader", chaos_s=20.0),
        replace(CALM, name="sdk-suspend-leader", script="suspend-leader", chaos_s=20.0),
        replace(CALM, name="sdk-stop-all", script="stop-all", nodes=1, chaos_s=42.0),
        replace(CALM, name="sdk-stall-followers", script="stall-followers"),
        replace(CALM, name="sdk-reset-peers", script="reset-peers"),
        replace(CALM, name="sdk-break-heartbeats", script="break-heartbeats", members=16),
        replace(CALM, name="sdk-suspend-members", script="suspend-members", chaos_s=30.0),
    )
)
"""What must be in the schedule, whatever chance brings."""

MODERN = (
    *(SDK_MODERN, SDK_MODERN_STATIC, SDK_MODERN_OPERATED),
    *(SDK_MODERN_DELETIONS, SDK_CONVERSIONS),
)

SDK = (
    *(SDK_EAGER, SDK_COOPERATIVE, SDK_STATIC, SDK_UDP, SDK_TWO_SHARDS, SDK_OPERATED),
    *(SDK_DELETIONS, *MODERN),
)
