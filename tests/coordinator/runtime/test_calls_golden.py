"""Each scenario in tests/testdata/coordinator runs as recorded."""

from pathlib import Path

import pytest

from tests.coordinator.call_scripts import run_file

TESTDATA = Path(__file__).parents[2] / "testdata" / "coordinator"
FILES = sorted(TESTDATA.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_callers_are_told_what_is_recorded(path, rewrite, golden):
    """What callers are told, and when; read the diff of `--rewrite`."""
    recorded, produced = run_file(path)
    golden(path)
    if rewrite:
        path.write_text(produced, "utf-8")
        return
    assert produced == recorded


def test_there_are_scenarios():
    """An empty folder would prove nothing."""
    assert len(FILES) >= 25
