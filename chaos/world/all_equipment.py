"""All equipment that this machine can have, on one keeper."""

from musterd.chaos.world.clock import FakeClock
from musterd.chaos.world.disk import SIZE_MB, LoopDisks
from musterd.chaos.world.equipment import Equipment
from musterd.chaos.world.keeping import Keeping
from musterd.chaos.world.limits import CpuLimit, MemoryLimit, WriteLimit
from musterd.chaos.world.lower_limits import LowerLimits
from musterd.chaos.world.sleep import SleepingClock


def outfit(size_mb: int = SIZE_MB) -> tuple[Equipment, ...]:
    """Disks of `size_mb` MiB, clocks and limits; what cannot be had says why (`lacks`).

    Disks come as they are or not at all: a node without one lives in the run's folder.
    """
    keeping = Keeping()
    disks = LoopDisks(keeping, size_mb)
    return (
        disks,
        SleepingClock(),
        FakeClock(),
        LowerLimits(),
        CpuLimit(keeping),
        MemoryLimit(keeping),
        WriteLimit(keeping, disks),
    )
