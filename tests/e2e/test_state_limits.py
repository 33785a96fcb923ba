"""State grows by each path until it is refused, in a real cluster whose nodes may take little."""

import pytest

from bench.growth import PATHS, grow
from bench.report import Report

pytestmark = [pytest.mark.processes, pytest.mark.faults]

LIMIT_MIB = {"groups": 4, "members": 8, "metadata": 8, "offsets": 8}
"""Each group is a call of its own: 4 MiB of them take longer than 8 MiB of anything else."""
ELSEWHERE_MIB = 3
"""A node does not count what the others have under way of the shards that they lead (ADR 18)."""
MEMORY_MIB = 320
GROW_S_MAX = 120.0
ENOUGH = 200
"""Refusals after which it is seen that nothing grows any more."""


@pytest.mark.parametrize("path", sorted(set(PATHS) - {"topics"}))
def test_growth_ends_at_the_limit_and_no_node_does(path):
    """In control groups of 320 MiB where there are any; a restart included."""
    report = Report("growth")
    grow(report, path, GROW_S_MAX, MEMORY_MIB, LIMIT_MIB[path], ENOUGH)
    assert not report.failed
    figures = report.figures
    assert figures[f"{path}_state_mib"]["max"] <= LIMIT_MIB[path] * 1.1 + ELSEWHERE_MIB
    assert figures[f"{path}_refused"]["max"] >= ENOUGH
