"""Every fault there is: importing this module fills the registry.

A module of faults is added by one line here.
"""

from chaos.faults import network, operation, process
from chaos.faults.contract import kinds

MODULES = (network, operation, process)

__all__ = ["MODULES", "kinds"]
