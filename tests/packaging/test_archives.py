"""Source archives and the bill of materials: the same bytes whoever makes them, and complete."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"^([\w.-]+)==(\S+) ", re.MULTILINE)
EPOCH = "1767225600"


def checkout(to, mode, seconds):
    """The tree as git has it, with these modes and times of its files."""
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    for name in listed:
        source, copy = ROOT / name, to / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copy.symlink_to(source.readlink())
        elif source.is_file():
            shutil.copyfile(source, copy)
            copy.chmod(mode | (source.stat().st_mode & 0o111))
            os.utime(copy, (seconds, seconds))
    return to


@pytest.mark.parametrize("project", [".", "packaging/client"])
def test_archives_of_two_checkouts_are_the_same_bytes(tmp_path, project):
    """At other times, in other folders, under another umask."""
    made = []
    for name, mode, seconds in (("one", 0o644, 1_700_000_000), ("two", 0o600, 1_750_000_000)):
        tree = checkout(tmp_path / name, mode, seconds)
        build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel"]
        subprocess.run(
            [*build, "-d", str(tmp_path / f"{name}-dist")],
            cwd=tree / project,
            env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH},
            check=True,
            capture_output=True,
        )
        files = sorted((tmp_path / f"{name}-dist").iterdir())
        assert len(files) == 2
        made.append({file.name: file.read_bytes() for file in files})
    assert made[0] == made[1]


def test_the_bill_of_materials_names_each_package_that_is_tested(tmp_path):
    """Name, version and hashes of requirements/user.txt; written again it is the same."""
    bills = []
    for name in ("one.json", "two.json"):
        command = [
            *(Path(sys.executable).parent / "cyclonedx-py", "requirements"),
            *("--output-reproducible", "--pyproject", "pyproject.toml", "--of", "JSON"),
            *("-o", tmp_path / name, "requirements/user.txt"),
        ]
        subprocess.run(list(map(str, command)), cwd=ROOT, check=True, capture_output=True)
        bills.append((tmp_path / name).read_bytes())
    assert bills[0] == bills[1]
    bill = json.loads(bills[0])
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "muster-coordinator"
    found = {one["name"]: one["version"] for one in bill["components"]}
    assert found == dict(PIN.findall((ROOT / "requirements" / "user.txt").read_text()))
    assert "pysyncobj" in found
    assert all(one["purl"].startswith("pkg:pypi/") for one in bill["components"])
    makefile = (ROOT / "Makefile").read_text()
    assert " ".join(command[1:6]) in makefile
