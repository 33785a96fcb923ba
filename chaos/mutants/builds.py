"""All broken builds by name, wherever they are caught."""

from musterd.chaos.mutants import (
    consensus,
    coordinator,
    disk,
    protocol,
    quarantine,
    sdk,
    service,
)
from musterd.chaos.mutants.build import Build

BUILDS: dict[str, Build] = {
    **consensus.BUILDS,
    **disk.BUILDS,
    **protocol.BUILDS,
    **coordinator.BUILDS,
    **quarantine.BUILDS,
    **sdk.BUILDS,
    **service.BUILDS,
}
PROCESS_BUILDS = BUILDS | disk.REAL
"""Those that a real server can be."""
