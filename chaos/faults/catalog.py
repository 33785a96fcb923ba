"""Every fault there is: importing this module fills the registry.

A module of faults is added by one line here.
"""

from chaos.faults import clock, damage, disk, network, operation, process, resources
from chaos.faults.contract import kinds

MODULES = (process, network, operation, disk, damage, clock, resources)

__all__ = ["MODULES", "kinds"]
