"""All equipment that this machine can have, with one equipment process for all of it."""

from collections.abc import Mapping
from typing import Final

from musterd.chaos.world.equipment.client import EquipmentClient
from musterd.chaos.world.equipment.clock import NodeClocks
from musterd.chaos.world.equipment.disk import SIZE_MB, LoopDisks
from musterd.chaos.world.equipment.limits import Limits
from musterd.coordinator.node.launcher import Equipment

GROUP_BYTES_MAX: Final = 8 << 20
"""Of one group's state. The groups of other workloads weigh less by far."""


class LowerLimits(Equipment):
    """Limits of state that are soon reached: a group may hold `GROUP_BYTES_MAX`."""

    provides = frozenset({"state_limit"})

    def environment(self, node_id: int) -> Mapping[str, str]:
        return {"MUSTERD_STATE_GROUP_MAX_BYTES": str(GROUP_BYTES_MAX)}


def all_equipment(size_mb: int = SIZE_MB) -> tuple[Equipment, ...]:
    """Disks of `size_mb` MiB, clocks and limits; what cannot be had says why (`lacks`).

    Disks come as they are or not at all: a node without one lives in the run's folder.
    """
    client = EquipmentClient()
    return (
        LoopDisks(client, size_mb),
        NodeClocks(),
        LowerLimits(),
        Limits(client),
    )
