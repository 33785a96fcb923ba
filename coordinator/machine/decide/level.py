"""Commands of a later level are refused: a shard below it has builds that could not read them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from musterd.coordinator.machine.commands import (
    AlterAcls,
    AlterQuotas,
    Command,
    ConsumerGroupHeartbeat,
    CreateToken,
    CreateTopic,
    DropPart,
    NoteBackup,
    NoteLevels,
    NoteTopics,
    Reconcile,
    RecordAudit,
    RevokeToken,
    SetTopicZones,
    StoreTarget,
)
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Refused
from musterd.levels import LAST_UNNAMED

LEVEL_OF: Final[Mapping[type, int]] = MappingProxyType(
    {
        NoteLevels: 6,
        RecordAudit: 6,
        AlterAcls: 6,
        CreateToken: 6,
        RevokeToken: 6,
        NoteBackup: 6,
        AlterQuotas: 6,
        SetTopicZones: 6,
        ConsumerGroupHeartbeat: 6,
        NoteTopics: 6,
        StoreTarget: 6,
        DropPart: 6,
        Reconcile: 6,
    }
)
"""The level from which on a shard takes a command; what is not in it was always taken.

FinalizeLevel and ShardLevel are what makes the level, so they stand behind none.
"""

LEVEL_OF_ZONES: Final = LEVEL_OF[SetTopicZones]
"""The level from which on CreateTopic may have zones."""


def refuse_command(level: int, command: Command) -> Refused | None:
    """Why a shard at `level` does not take the command, or None."""
    needed = LEVEL_OF.get(type(command))
    if isinstance(command, CreateTopic) and command.zones:
        needed = LEVEL_OF_ZONES
    return None if needed is None else refuse_below(level, needed)


def refuse_below(level: int, needed: int) -> Refused | None:
    """Why what came with level `needed` is not there at `level`, or None.

    `level` is a shard's, as its state holds it: 0 below level 6.
    """
    if needed <= (level or LAST_UNNAMED) or needed <= LAST_UNNAMED:
        return None
    return Refused(
        Error.UNSUPPORTED_VERSION,
        f"This needs level {needed}, and the cluster is at {level or LAST_UNNAMED}: once every "
        "node has a release that knows it, run `muster cluster upgrade --finalize`.",
    )
