"""Each scenario in tests/testdata/client runs as recorded."""

from pathlib import Path

import pytest

from tests.client.scenario import run_file

TESTDATA = Path(__file__).parent.parent / "testdata" / "client"
FILES = sorted(TESTDATA.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_scenario_runs_as_recorded(path, rewrite, golden):
    """A difference is a change of behaviour; `pytest --rewrite` records it: read the diff."""
    recorded, produced = run_file(path)
    golden(path)
    if rewrite:
        path.write_text(produced)
        return
    assert produced == recorded


def test_there_are_scenarios():
    """An empty folder would prove nothing."""
    assert len(FILES) >= 15
