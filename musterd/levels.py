"""The levels of a cluster: what each build can read and do (docs/levels.md, docs/adr/0023).

A build knows all levels up to `LEVEL`. Whatever changes what an outcome, an entry, a record, a
snapshot or a frame may be stands behind the next one, so that builds of both levels run in one
cluster until an operator finalises the later one. This file is the whole list.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

LEVEL: Final = 6
"""The highest level that this build knows."""

LAST_UNNAMED: Final = 5
"""The level of builds that name none; a shard without a level of its own is at this one at most.

Up to here each entry says by which rules it is decided; above it the shard's level says so.
"""

LEVELS: Final[Mapping[int, tuple[str, ...]]] = MappingProxyType(
    {
        1: ("the first rules",),
        2: ("static members, times in events, the history of rounds",),
        3: ("one fencing token for each owner of a partition",),
        4: ("names of topics as in Kafka, and when a topic was made",),
        5: ("topics that are deleted and made again",),
        6: (
            "the level of each shard, and of the cluster, in the log: upgrades while it runs",
            "which level each node knows, in the log",
            "when the last backup was begun",
            "a floor of fencing tokens alone, in clusters that are restored from a backup",
            "rules of who may do what, and bearer tokens",
            "the audit trail",
            "quotas of principals and groups; who made each member one",
            "modern groups, in which the coordinator assigns",
        ),
    }
)
"""What each level brought, as lines for people."""


def level_in_force(shard_level: int, entry_level: int) -> int:
    """Return the level by which a command is decided.

    Args:
        shard_level: the one that the shard's state holds; 0 where it holds none.
        entry_level: the one that the entry names, which is what its proposer knew of the shard.
    """
    return shard_level or min(entry_level, LAST_UNNAMED)
