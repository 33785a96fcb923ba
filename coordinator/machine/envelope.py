"""Everything `decide` may know beside the group and the command (arch-3.1)."""

from dataclasses import dataclass

from musterd.coordinator.machine.limits import Limits

FORMAT = 1
"""The format in which entries are written."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """`time_ms` is shard time, `wall_ms` a person's; `generation_floor` is put in at apply.

    No group goes on below the floor with its generation or its fencing token; below `fence_floor`,
    which a restored cluster alone has, not with its token.

    `topics_version` is that of the topic registry as the proposer knew it, or as the shard does: no
    generation forms under an earlier one than that of a deletion that the shard was told of.
    `dropped_version` is the last such deletion's, put in at apply; 0 where there was none.

    `level` is the one in force where the command is applied (musterd/levels.py): a changed outcome
    stands behind `if env.level >= n`.
    """

    time_ms: int
    wall_ms: int
    level: int
    limits_version: int
    generation_floor: int
    limits: Limits
    topics_version: int = 0
    dropped_version: int = 0
    fence_floor: int = 0

    @property
    def noted_ms(self) -> int:
        """Shard time as events carry it; 0 at level 1, whose events say no times."""
        return self.time_ms if self.level >= 2 else 0  # noqa: PLR2004

    @property
    def noted_wall_ms(self) -> int:
        """A person's time as events carry it; 0 at level 1."""
        return self.wall_ms if self.level >= 2 else 0  # noqa: PLR2004
