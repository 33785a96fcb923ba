"""What a machine lacks is skipped, and in CI it fails: one function decides, for every test."""

import re
from pathlib import Path

import pytest

from tests import machine_lacks

TESTS = Path(__file__).parent
OTHERS = {
    "chaos/mutants/test_unit.py": "a test of a test that is skipped",
    "machine_lacks.py": "it decides",
}
"""Files that skip by themselves, and for want of what."""


def test_what_is_lacking_is_skipped_and_in_ci_fails_by_name(monkeypatch):
    """And what is there goes on."""
    monkeypatch.delenv("CI", raising=False)
    machine_lacks.refuse("")
    with pytest.raises(pytest.skip.Exception, match="no loop disks"):
        machine_lacks.refuse("no loop disks")
    monkeypatch.setenv("CI", "1")
    machine_lacks.refuse("")
    with pytest.raises(pytest.fail.Exception, match="no loop disks"):
        machine_lacks.refuse("no loop disks")


def test_nobody_else_skips():
    """Each file that does is listed with the reason."""
    call = re.compile(r"pytest\.(skip\(|mark\.skip|importorskip)")
    found = {str(p.relative_to(TESTS)) for p in TESTS.rglob("*.py") if call.search(p.read_text())}
    assert found == OTHERS.keys()
