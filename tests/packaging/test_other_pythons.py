"""Both wheels on every CPython that is here: installed from the index, as a user does, and run."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests import machine_lacks

pytestmark = [pytest.mark.deploy, pytest.mark.processes]

ROOT = Path(__file__).parents[2]
WAIT_S = 240
VERSIONS = ("3.11", "3.12", "3.13")
UNTESTED = ("3.14",)
"""Newer ones that no machine of ours has: docs/install.md names them."""


def find(version):
    """A CPython of this version, in PATH or among those of pyenv; None where there is none."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{version}"), *home.glob(f"versions/{version}.*/bin/python")]
    ask = "import sys; print(sys.implementation.name, '%d.%d' % sys.version_info[:2])"
    for one in filter(None, candidates):
        said = subprocess.run([one, "-c", ask], capture_output=True, text=True, check=False)
        if said.stdout.split() == ["cpython", version]:
            return str(one)
    return None


def run(*argv, environment=None):
    """A command that succeeds; its output."""
    done = subprocess.run(
        list(map(str, argv)),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=VERSIONS)
def python(request, tmp_path):
    """A fresh environment's interpreter."""
    found = find(request.param)
    if found is None:
        machine_lacks.refuse(f"no CPython {request.param} is here: untested on it")
    run(found, "-m", "venv", tmp_path / "venv")
    return tmp_path / "venv" / "bin" / "python"


@pytest.fixture
def pins(tmp_path):
    """The versions that are tested, as pip's constraints; hashes are of the lock files."""
    text = (ROOT / "requirements" / "user.txt").read_text()
    file = tmp_path / "pins.txt"
    file.write_text(
        "".join(f"{n}=={v}\n" for n, v in re.findall(r"^([\w.-]+)==(\S+) ", text, re.MULTILINE))
    )
    return file


def test_the_wheels_run_on_every_cpython_that_is_here(python, wheels, pins, tmp_path):
    """Installed by name, without this checkout; a cluster of one takes a topic."""
    pip = (python, "-m", "pip", "install", "--quiet", "--find-links", wheels, "-c", pins)
    run(*pip, "muster-coordinator")
    muster = python.parent / "muster"
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MUSTER", "PYTHON"))}
    assert "muster-coordinator" in run(muster, "--version", environment=clean)
    flags = ("--nodes=1", "--shards=2", "--port=0", "-o", "jsonl")
    with subprocess.Popen(
        [str(muster), "dev", *flags],
        cwd=tmp_path,
        env=clean,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as dev:
        try:
            line = dev.stdout.readline()
            assert line, dev.stderr.read()
            at = f"--bootstrap={json.loads(line)['bootstrap']}"
            run(muster, "topic", "create", "t", "--partitions=2", at, environment=clean)
            run(muster, "cluster", "status", at, environment=clean)
        finally:
            dev.terminate()
            dev.communicate(timeout=WAIT_S)


def test_the_sdk_needs_no_compiler(python, wheels, pins):
    """Each of its requirements has a wheel, and a compiler that fails is not asked."""
    pip = (python, "-m", "pip", "install", "--quiet", "--find-links", wheels, "-c", pins)
    broken = os.environ | {"CC": "/bin/false", "CXX": "/bin/false"}
    run(*pip, "--only-binary", ":all:", "muster-client", environment=broken)
    assert run(python, "-I", "-c", "import muster; print(muster.Client.__name__)") == "Client\n"


@pytest.mark.parametrize("file", [".ci/run", "CONTRIBUTING.md"])
def test_what_a_machine_must_have_is_said(file):
    """Each CPython, and how the container is run: in CI a lack of one is a failure."""
    text = (ROOT / file).read_text()
    for needed in (*VERSIONS, "root", "`unshare`", "index"):
        assert needed in text


@pytest.mark.parametrize("folder", [".", "packaging/client"])
def test_the_metadata_name_the_versions_that_are_tested(folder):
    """Neither more nor fewer; the page on installing names the one that is not."""
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert tuple(named) == VERSIONS
    page = (ROOT / "docs" / "install.md").read_text()
    for version in (*VERSIONS, *UNTESTED):
        assert version in page
