"""Builds whose upgrades lack a rule."""

from collections.abc import Mapping
from typing import Any

from musterd.chaos.mutants.build import Builds, gives
from musterd.coordinator.machine import shard_state
from musterd.coordinator.machine.records.group_records import LEVEL_KEY
from musterd.coordinator.runtime import level_keeper, proposer
from musterd.coordinator.runtime.level_keeper import LevelKeeper
from musterd.levels import LEVEL
from musterd.raft.peer_levels import Levels, PeerLevels

BUILDS = Builds()
BUILDS.add_all(
    (
        "level_not_asked",
        "Talks to peers whatever their builds know.",
        Levels,
        "refusal",
        gives(None),
    ),
    (
        "level_not_followed",
        "Leaves shards at the level that they have, whatever the cluster's is.",
        LevelKeeper,
        "_of_shard",
        gives(None),
    ),
    (
        "level_of_the_leader",
        "Writes entries of the level that the leader's build knows, whatever the shard's is.",
        proposer,
        "LAST_UNNAMED",
        LEVEL,
    ),
    (
        "level_word_kept",
        "Finalises on the word of a peer that is away, and comes back with another build.",
        PeerLevels,
        "lost",
        gives(None),
    ),
)


@BUILDS.replaces("level_by_majority", level_keeper, "lacking")
def _lacked_by_many(known: Mapping[int, int], level: int) -> list[int]:
    """Finalises a level that a majority of the nodes know."""
    lacking = [node for node, highest in known.items() if highest < level]
    return lacking if 2 * len(lacking) >= len(known) else []


_touched: Any = shard_state._touched


@BUILDS.replaces("level_not_recorded", shard_state, "_touched")
def _touched_but_levels(event: Any) -> tuple[bytes, ...]:
    """Keeps a shard's level in memory alone."""
    return tuple(key for key in _touched(event) if key != LEVEL_KEY)
