"""All broken builds by name, wherever they are caught."""

from musterd.chaos.mutants import (
    of_coordinator,
    of_disk,
    of_machine,
    of_raft,
    of_room,
    of_sdk,
    of_service,
)
from musterd.chaos.mutants.build import Build

BUILDS: dict[str, Build] = {
    build.name: build
    for build in (
        *of_raft.BUILDS,
        *of_disk.BUILDS,
        *of_room.SIMULATED,
        *of_machine.BUILDS,
        *of_coordinator.BUILDS,
        *of_sdk.BUILDS,
        *of_service.SIMULATED,
    )
}
