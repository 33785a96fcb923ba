"""The client wheel is what worker fleets install: muster/ and nothing else."""

import email
import re
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def wheel(wheels):
    """The client's, opened."""
    (path,) = wheels.glob("muster_client-*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


def test_the_wheel_holds_muster_and_nothing_else(wheel):
    """Besides its own metadata."""
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"muster"}


def test_the_wheel_is_complete(wheel):
    """Every module of the tree, the type marker and the stubs of the generated code."""
    tree = {
        str(path.relative_to(ROOT))
        for pattern in ("*.py", "*.pyi", "py.typed")
        for path in (ROOT / "muster").rglob(pattern)
    }
    assert {"muster/py.typed", "muster/v1/group_pb2.pyi", "muster/testing/__init__.py"} <= tree
    assert tree <= set(wheel.namelist())


def test_the_wheel_asks_for_the_floor_and_no_more(wheel):
    """A fleet is not forced to the newest gRPC or protobuf, nor to anything of the server."""
    (name,) = [n for n in wheel.namelist() if n.endswith("/METADATA")]
    metadata = email.message_from_bytes(wheel.read(name))
    needs = set(metadata.get_all("Requires-Dist"))
    assert {"grpcio<2,>=1.68.1", "protobuf>=5.29"} <= needs
    names = {need.split(">")[0].split("=")[0].split("<")[0] for need in needs}
    assert names == {"grpcio", "protobuf", "typer", "rich", "msgspec"}


def test_the_floor_of_the_wheel_is_the_floor_that_is_tested(wheel):
    """requirements/sdk-floor.in pins exactly what the wheel's metadata says is the least."""
    (name,) = [n for n in wheel.namelist() if n.endswith("/METADATA")]
    metadata = email.message_from_bytes(wheel.read(name))
    needs = metadata.get_all("Requires-Dist")
    least = dict(re.fullmatch(r"(\w+)(?:<2,)?>=([\d.]+)", need).groups() for need in needs)
    lock = (ROOT / "requirements" / "sdk-floor.txt").read_text()
    assert f"grpcio=={least['grpcio']} " in lock
    assert f"protobuf=={least['protobuf']}." in lock


@pytest.mark.parametrize("package", ["grpcio", "protobuf"])
def test_the_whole_suite_runs_on_the_newest(package):
    """`make test` covers both ends: .venv has what requirements/sdk-newest.txt names."""
    pins = []
    for name in ("dev.txt", "sdk-newest.txt"):
        lines = (ROOT / "requirements" / name).read_text().splitlines()
        pins += [line.split()[0] for line in lines if line.startswith(f"{package}==")]
    assert len(pins) == 2
    assert len(set(pins)) == 1
