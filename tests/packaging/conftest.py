"""Both wheels, as `make wheels` builds them."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory, worker_id):
    """A folder with both, built offline by the backend that is installed: once for all workers."""
    own = tmp_path_factory.getbasetemp()
    shared = own if worker_id == "master" else own.parent
    folder = shared / "wheels"
    with (shared / "wheels.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            new = shared / "wheels.new"
            for source in (ROOT, ROOT / "packaging" / "client"):
                build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(new)]
                subprocess.run(build, cwd=source, check=True, capture_output=True)
            new.rename(folder)
    return folder
