"""Each import contract of pyproject.toml is broken by an import that it is there to forbid."""

import importlib
import os
import tomllib
from copy import deepcopy
from pathlib import Path

import grimp
import pytest
from importlinter import configuration
from importlinter.contracts.forbidden import ForbiddenContract

ROOT = Path(__file__).parents[2]
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
BREAKS = {
    "the machine imports a listed few of the standard library": (
        "coordinator.machine.state",
        "time",
    ),
    "storage imports nobody": ("storage.rocks", "replay.fold"),
    "raft imports storage and nobody else": ("raft.replica", "export.layout"),
    "raft knows the wire and not the SDK's code": ("raft.hello", "muster.errors"),
    "the SDK imports its generated code only": ("muster.client", "demo.pace"),
    "pysyncobj lives in raft only": ("demo.pace", "pysyncobj"),
    "rocksdict lives in storage's two RocksDB files only": ("export.source", "rocksdict"),
    "pyspark lives in replay.job and replay.session only": ("replay.fold", "pyspark"),
    "export and replay run the machine, not the server": ("export.source", "coordinator.node"),
    "the core of the server is synchronous: no loop, no clock, no socket, no wire": (
        "coordinator.liveness",
        "asyncio",
    ),
    "the core of the server knows raft by its contract alone": ("coordinator.shard", "raft.driver"),
    "only the composition root and its launchers know disks and sockets": (
        "coordinator.admin",
        "raft.transport",
    ),
    "nothing needs the demo, the chaos suite or the benches": ("export.source", "chaos.history"),
    "the chaos suite ships: it needs neither the demo nor the benches": (
        "chaos.child",
        "bench.report",
    ),
    "pyroute2 lives in one file of the chaos suite only": ("chaos.world.links", "pyroute2"),
    "the demo's worker has the public SDK only": ("demo.worker", "coordinator.dev"),
}


def contract(options):
    """A contract as import-linter makes it of its table."""
    kinds = {"forbidden": ForbiddenContract}
    for line in LINTER["contract_types"]:
        kind, path = line.split(": ")
        module, name = path.rsplit(".", 1)
        kinds[kind] = getattr(importlib.import_module(module), name)
    session = {"root_packages": LINTER["root_packages"], "include_external_packages": "True"}
    rest = {
        key: str(value) if isinstance(value, bool) else value
        for key, value in options.items()
        if key not in {"name", "type"}
    }
    return kinds[options["type"]](options["name"], session, rest)


@pytest.fixture(scope="module")
def graph():
    """Who imports whom, in the tree as it is."""
    configuration.configure()  # its contracts ask for its timer
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        roots = LINTER["root_packages"]
        return grimp.build_graph(*roots, include_external_packages=True, cache_dir=None)
    finally:
        os.chdir(before)


@pytest.mark.parametrize("options", LINTER["contracts"], ids=lambda options: options["name"])
def test_a_forbidden_import_breaks_its_contract(graph, options):
    """Kept as it is, broken with one import more: a contract that forgets a package is none."""
    importer, imported = BREAKS[options["name"]]
    assert importer in graph.modules
    assert not graph.direct_import_exists(importer=importer, imported=imported)
    assert contract(options).check(graph, verbose=False).kept
    more = deepcopy(graph)
    if imported not in more.modules:
        more.add_module(imported, is_squashed=True)
    more.add_import(importer=importer, imported=imported)
    assert not contract(options).check(more, verbose=False).kept


def test_every_package_is_under_contract():
    """A new top-level package of the wheel is not forgotten."""
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert found == set(LINTER["root_packages"])
