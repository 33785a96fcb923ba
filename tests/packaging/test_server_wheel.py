"""The server's wheel: everything is `musterd`, and a user's modules of other names hide nothing."""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKS = {path.name for path in (ROOT / "musterd").iterdir() if path.is_symlink()}
WAIT_S = 120
OLD_IMPORT = re.compile(rf"^\W*(?:from|import) (?:{'|'.join(sorted(LINKS))})\b", re.MULTILINE)


def test_a_wheel_from_the_source_archive_is_the_same(wheels, tmp_path):
    """The archive has files where the tree has links, each of them."""
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run([*build, "-t", "sdist"], cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    source = next(one for one in tmp_path.iterdir() if one.is_dir())
    subprocess.run([*build, "-t", "wheel"], cwd=source, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.whl")
    names = [zipfile.ZipFile(one).namelist() for one in (path, wheels / path.name)]
    assert sorted(names[0]) == sorted(names[1])


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory):
    """A folder with both wheels; what they need is in this interpreter's own folder."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", str(folder), *map(str, wheels.glob("*.whl"))], check=True)
    return folder


def beside(installed, users_modules):
    """How to run a command where the user stands: beside his modules, first in PYTHONPATH."""
    path = os.pathsep.join((str(users_modules), str(installed)))
    return {"cwd": users_modules, "env": os.environ | {"PYTHONPATH": path}}


@pytest.fixture
def muster(installed, users_modules):
    """Runs a command there."""

    def run(*arguments, code=0):
        done = subprocess.run(
            [str(installed / "bin" / "muster"), *map(str, arguments)],
            **beside(installed, users_modules),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    return run


def test_the_wheel_holds_musterd_and_nothing_else(wheels):
    """Every file of the linked folders is there, data among them, and no top-level name besides."""
    (path,) = wheels.glob("muster_coordinator-*.whl")
    with zipfile.ZipFile(path) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == {"musterd"}
    listed = subprocess.check_output(["git", "ls-files", *sorted(LINKS)], cwd=ROOT, text=True)
    assert {f"musterd/{name}" for name in listed.splitlines()} <= names


def test_nothing_in_the_tree_imports_a_folder_by_its_own_name():
    """In a checkout `import raft` would load a second copy of each module, beside `musterd.raft`.

    In an installation it does not work at all. Code in strings counts.
    """
    listed = subprocess.check_output(["git", "ls-files", "*.py", "*.md"], cwd=ROOT, text=True)
    found = {
        name: match[0]
        for name in listed.splitlines()
        if (ROOT / name).is_file() and (match := OLD_IMPORT.search((ROOT / name).read_text()))
    }
    assert found == {}


def test_every_command_says_its_help_beside_a_users_modules(muster):
    """Each of them is loaded for that, `muster chaos run` and the like too."""
    shown = muster("--help")
    commands = re.findall(r"^  ([a-z]+) ", shown.split("Commands:")[1], re.MULTILINE)
    assert {"serve", "dev", "export", "replay", "demo", "chaos", "group"} <= set(commands)
    for command in commands:
        muster(command, "--help")
    for command in ("run", "sim", "replay-seed", "soak", "report"):
        muster("chaos", command, "--help")


@pytest.mark.deploy
@pytest.mark.processes
def test_a_cluster_its_export_and_its_replay_work_beside_a_users_modules(
    muster, installed, users_modules, tmp_path
):
    """`init`, `dev` and its nodes, client commands, `export`, `replay` by both engines, `chaos`.

    `demo` and `chaos run` start beside the same modules in their own tests.
    """
    init = ("--cluster-id=c", "--node-id=0", "--nodes=1", "--shards=2")
    muster("init", f"--data-dir={tmp_path / 'own'}", *init)
    data = tmp_path / "data"
    flags = ("--nodes=1", "--shards=2", "--port=0", f"--dir={data}", "-o", "jsonl")
    with subprocess.Popen(
        [str(installed / "bin" / "muster"), "dev", *flags],
        **beside(installed, users_modules),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as dev:
        try:
            line = dev.stdout.readline()
            assert line, dev.stderr.read()
            bootstrap = f"--bootstrap={json.loads(line)['bootstrap']}"
            muster("cluster", "status", bootstrap)
            muster("topic", "create", "t", "--partitions=2", bootstrap)
            assert json.loads(muster("topic", "list", bootstrap, "-o", "json"))
        finally:
            dev.terminate()
            dev.communicate(timeout=WAIT_S)
    node = data / "node-0"
    muster("export", f"--data-dir={node}", f"--to={tmp_path / 'export'}")
    for engine in ("local", "spark"):
        to = tmp_path / engine
        muster("replay", f"--input={tmp_path / 'export'}", f"--to={to}", f"--engine={engine}")
    muster("chaos", "replay-seed", "sdk-eager:1", "--quiet")
