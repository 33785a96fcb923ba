"""Each scenario in tests/testdata/assignors runs as recorded."""

from pathlib import Path

import pytest

from tests.client.assignor_scripts import run_file

TESTDATA = Path(__file__).parent.parent / "testdata" / "assignors"
FILES = sorted(TESTDATA.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_assignments_are_as_recorded(path, rewrite, golden):
    """A difference moves partitions at every user's next round; read the diff of `--rewrite`."""
    recorded, produced = run_file(path)
    golden(path)
    if rewrite:
        path.write_text(produced, "utf-8")
        return
    assert produced == recorded


def test_there_are_scenarios():
    """An empty folder would prove nothing."""
    assert len(FILES) >= 10
