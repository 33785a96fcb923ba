"""Disks of their own for tests; what this machine cannot have is skipped with the reason."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from musterd.chaos.world.equipment.client import EquipmentClient
from musterd.chaos.world.equipment.disk import SIZE_MB_MIN, LoopDisks
from tests import machine_lacks


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[LoopDisks]:
    """Disks of two nodes without nodes; their folders are tmp_path/node-0 and node-1."""
    made = LoopDisks(EquipmentClient(), SIZE_MB_MIN)
    machine_lacks.refuse(made.lacks())
    try:
        for node_id in range(2):
            made.prepare(node_id, tmp_path / f"node-{node_id}")
        yield made
    finally:
        made.close()
