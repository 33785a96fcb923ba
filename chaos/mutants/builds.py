"""All broken builds by name, wherever they are caught."""

from musterd.chaos.mutants import (
    access,
    consensus,
    coordinator,
    disk,
    forwarding,
    levels,
    loading,
    modern,
    protocol,
    quarantine,
    quotas,
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
    **levels.BUILDS,
    **loading.BUILDS,
    **modern.BUILDS,
    **sdk.BUILDS,
    **service.BUILDS,
    **access.BUILDS,
    **quotas.BUILDS,
    **forwarding.BUILDS,
}
PROCESS_BUILDS = BUILDS | disk.REAL
"""Those that a real server can be."""
