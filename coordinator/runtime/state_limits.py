"""How large the state of a node may grow; growth.py has what becomes of that."""

from dataclasses import dataclass

from musterd.coordinator.machine.limits import MIB


@dataclass(frozen=True, slots=True)
class StateLimits:
    """Limits of the state in bytes (sizes.py counts them): of a group, a shard, the node."""

    group: int = 64 * MIB
    shard: int = 256 * MIB
    node: int = 512 * MIB
