"""Which simulated world each broken build is sought in; the builds are those of chaos/mutants.

The simulator must catch each, by a promise that is made for the missing rule, on a seed that the
shipped build passes, or it proves nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from musterd.chaos.mutants.build import Build
from musterd.chaos.mutants.builds import BUILDS
from musterd.chaos.sim.hunt.build_promises import PROMISES
from musterd.chaos.sim.scenario import Scenario
from musterd.chaos.sim.scenarios import (
    BLINKS,
    CHURN,
    DEAF,
    FIFO3,
    FIRST_START,
    FLIPPED_BITS,
    FORGETFUL,
    FULL_DISKS,
    HUNG_DISKS,
    KILLS,
    LARGE_COMMITS,
    LOST_LINKS,
    NEWCOMER_AWAY,
    REMOVALS,
    REPLACED_AGAIN,
    REPLACEMENTS,
    RETURNING,
    SLOW_DISKS,
    SPLIT_VOTES,
    STANDSTILL,
    STATE_FULL,
    STATICS,
    STRANGERS,
    UDP3,
)
from musterd.chaos.sim.sdk_scenarios import (
    SCRIPTED,
    SDK_COOPERATIVE,
    SDK_EAGER,
    SDK_OPERATED,
    SDK_STATIC,
    SDK_UDP,
    STOP_ONE,
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A build, the world in which it is sought, and the kinds of violations that catch it."""

    build: Build
    scenario: Scenario
    promises: tuple[str, ...]

    @property
    def name(self) -> str:
        """The build's."""
        return self.build.name

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Nodes that start inside run this build."""
        with self.build.installed():
            yield


_SCRIPTED = {scenario.script: scenario for scenario in SCRIPTED}

WORLDS = {
    "truncation_guard": UDP3,
    "snapshot_commit_cap": FIFO3,
    "majority": FIFO3,
    "pre_vote": RETURNING,
    "sticky_voters": RETURNING,
    "log_comparison": FIFO3,
    "admission": REPLACEMENTS,
    "losses": FORGETFUL[0],
    "last_start_only": FORGETFUL[0],
    "loss_noted_by_all": FORGETFUL[1],
    "loss_log_held": FORGETFUL[1],
    "forgotten_match": FORGETFUL[0],
    "introduction": FIRST_START.of_size(3),
    "newcomer_vote": NEWCOMER_AWAY,
    "replacement_order": REPLACED_AGAIN,
    "read_round": LOST_LINKS.of_size(3),
    "check_quorum": DEAF,
    "send_times": _SCRIPTED["thaw-leader"],
    "frame_checksum": FLIPPED_BITS,
    "sleepless_clock": _SCRIPTED["suspend-leader"],
    "no_fsync": FIFO3,
    "message_hold": FIFO3,
    "durable_cap": FIFO3,
    "vote_durability": SPLIT_VOTES,
    "applied_ahead": FIFO3,
    "half_snapshot": FIFO3,
    "hung_leader": HUNG_DISKS,
    "hung_voter": HUNG_DISKS,
    "taken_without_room": FULL_DISKS,
    "growth_unchecked": STATE_FULL,
    "work_uncounted": LARGE_COMMITS,
    "generation_fence": CHURN,
    "commit_seq": CHURN,
    "static_fence": STATICS.of_size(3),
    "generation_token": SDK_STATIC,
    "kept_token": SDK_STATIC,
    "generation_floor": REMOVALS,
    "deletion": REMOVALS.of_size(3),
    "retention": REMOVALS,
    "unsorted_deletion": STRANGERS,
    "unsorted_history": STRANGERS,
    "silent_setting": SDK_OPERATED,
    "forward_only": SDK_OPERATED,
    "timer_generation": SLOW_DISKS,
    "join_dedupe": CHURN,
    "ack_before_commit": CHURN,
    "parked_join": CHURN,
    "session_start": KILLS,
    "deposed_expiry": STANDSTILL,
    "shard_time_cap": STOP_ONE,
    "extra_round": BLINKS,
    "shard_time_restart": CHURN,
    "eager_keeps": SDK_EAGER,
    "cooperative_gives_all": SDK_COOPERATIVE,
    "withheld": SDK_COOPERATIVE,
    "zombie_fence": SDK_OPERATED,
    "read_of_many": SDK_UDP.of_size(3),
    "doubtless": _SCRIPTED["suspend-members"],
    "mass_break": _SCRIPTED["break-heartbeats"],
}
"""By build. With three nodes alone where only an odd seed is known, and it catches the build with
three (cold.json is older than runs of five on odd seeds)."""

MUTANTS = {
    name: Mutant(BUILDS[name], scenario, PROMISES[name]) for name, scenario in WORLDS.items()
}

KNOWN_SEEDS = {
    "admission": 6,
    "deletion": 15,
    "deposed_expiry": 6,
    "extra_round": 2,
    "forgotten_match": 44,
    "generation_fence": 0,
    "generation_floor": 0,
    "introduction": 1,
    "join_dedupe": 2,
    "losses": 3,
    "majority": 0,
    "no_fsync": 8,
    "read_of_many": 95,
    "read_round": 1,
    "retention": 0,
    "shard_time_cap": 4,
    "snapshot_commit_cap": 2,
    "static_fence": 7,
    "sticky_voters": 1,
    "unsorted_history": 2,
}
"""By build, the seed that is tried first; 0 for those that are not listed."""
