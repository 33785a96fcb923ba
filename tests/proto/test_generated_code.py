"""muster/v1 is what proto/ says, made with the older pinned tools."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_generated_code_is_fresh(tmp_path):
    """Generate anew beside the tree and compare every file."""
    subprocess.run([ROOT / "proto" / "generate.sh", tmp_path], check=True, capture_output=True)
    fresh = {p.name: p.read_text() for p in (tmp_path / "muster" / "v1").iterdir()}
    checked_in = {
        p.name: p.read_text()
        for p in (ROOT / "muster" / "v1").iterdir()
        if p.is_file() and p.name != "__init__.py"
    }
    assert len(fresh) >= 10
    assert sorted(fresh) == sorted(checked_in)
    stale = [name for name, text in fresh.items() if checked_in[name] != text]
    assert not stale, f"run `make proto`: {stale}"


def test_generated_code_runs_on_the_floor():
    """Its runtime check names a protobuf no newer than the SDK's floor (5.29)."""
    for path in (ROOT / "muster" / "v1").glob("*_pb2.py"):
        (line,) = [x for x in path.read_text().splitlines() if "Protobuf Python Version" in x]
        major, minor, *_ = line.rpartition(" ")[2].split(".")
        assert (int(major), int(minor)) <= (5, 29), path.name
