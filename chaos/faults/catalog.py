"""Every fault there is: importing this module fills the registry.

A module of faults is added by one line here.
"""

from musterd.chaos.faults import (
    clock,
    damage,
    disk,
    divergence,
    garbage,
    load,
    network,
    operation,
    process,
    resources,
)
from musterd.chaos.faults.contract import kinds

MODULES = (process, network, garbage, operation, disk, damage, divergence, clock, resources, load)

__all__ = ["MODULES", "kinds"]
