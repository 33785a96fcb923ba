"""The demo's tests have helpers beside them, and worker processes import some of them."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _helpers(monkeypatch):
    """Find them by name, here and in child processes, which get this import path."""
    monkeypatch.syspath_prepend(str(HERE))
    yield
    for name in ("proofs", "plants"):
        sys.modules.pop(name, None)
