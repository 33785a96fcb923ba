"""Real Prometheus, taken by `make test-prometheus`; not part of `make test`, which needs no apt."""

import os
from pathlib import Path

import pytest

ROOT = os.environ.get("MUSTER_PROMETHEUS", "")

# Without the target these tests are not collected at all; with it they fail rather than skip.
collect_ignore_glob = [] if ROOT else ["test_*.py"]


@pytest.fixture(scope="session")
def programs():
    """Where prometheus and promtool are."""
    folder = Path(ROOT) / "usr" / "bin"
    assert (folder / "promtool").exists(), f"{folder} has no promtool: make test-prometheus"
    return folder
