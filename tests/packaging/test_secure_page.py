"""docs/secure.md as a new user follows it: from wheels, in a folder that has no clone."""

import asyncio
import shutil
import sysconfig
from pathlib import Path

import pytest

from tests.docs.block_runners import record_run
from tests.docs.walkthrough import ROOT, first_port, walk
from tests.packaging.test_install import OWN

pytestmark = [pytest.mark.deploy, pytest.mark.processes]

WHERE = "python -c 'import muster, musterd; print(muster.__file__, *musterd.__path__)'"


def without_muster(folder):
    """A folder with the libraries that are installed here, as if pip had brought them."""
    folder.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not OWN.match(path.name) and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
    return folder


def test_a_new_user_makes_three_tls_nodes_and_a_worker_that_may_no_more_than_its_work(
    wheels, tmp_path
):
    """Each block of the page, in a fresh environment; only its ports are others.

    The worker is the README's, byte for byte. Nothing comes from this checkout.
    """
    first, folder = first_port() // 10, tmp_path / "user"
    folder.mkdir()
    shutil.copytree(wheels, folder / "dist")
    shutil.copy(ROOT / "docs" / "example.py", folder / "worker.py")
    ports = [("127.0.0.1:707", f"127.0.0.1:{first}"), ("127.0.0.1:717", f"127.0.0.1:{first + 10}")]
    libraries = without_muster(tmp_path / "libraries")
    environment = {"PYTHONPATH": str(libraries), "PIP_NO_INDEX": "1"}
    seen = []

    async def look(run):
        seen.append((await run(WHERE))[0])
        seen.append((await run("cat worker.log"))[0])

    page = ROOT / "docs" / "secure.md"
    ran = asyncio.run(walk(page, folder, ports, record_run, after=look, environment=environment))
    assert ran == 12
    assert seen[0].split()[0].startswith(str(folder / "muster"))
    assert str(ROOT) not in seen[0]
    assert "orders 3 offset" in seen[1]
