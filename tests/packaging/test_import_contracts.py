"""Each import contract of pyproject.toml is broken by an import that it is there to forbid."""

import ast
import importlib
import os
import subprocess
import tomllib
from copy import deepcopy
from pathlib import Path

import grimp
import pytest
from importlinter import configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

from tests.import_contracts import on_circles

ROOT = Path(__file__).parents[2]
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
BREAKS = {
    "no circle of imports anywhere in the tree": [
        "musterd.chaos.sim.engine.world -> musterd.chaos.sim.simulation"
    ],
    "the machine imports a listed few modules": ["musterd.coordinator.machine.state -> time"],
    "the planner knows nothing of the rest of the machine": [
        "musterd.coordinator.machine.plan.spec -> musterd.coordinator.machine.state"
    ],
    "the rooms of the coordinator: each imports those below it, none above": [
        "musterd.coordinator.runtime.shard -> musterd.coordinator.api.frame.statuses"
    ],
    "the rooms of the api: each imports those below it, none above": [
        "musterd.coordinator.api.limits.admission -> musterd.coordinator.api.frame.handler"
    ],
    "the runtime imports a listed few modules": [
        "musterd.coordinator.runtime.sessions -> asyncio",
        "musterd.coordinator.runtime.sessions -> datetime",
        "musterd.coordinator.runtime.sessions -> muster.v1.group_pb2",
        "musterd.coordinator.runtime.sessions -> musterd.coordinator.host",
        "musterd.coordinator.runtime.sessions -> time",
    ],
    "the codec imports a listed few modules": [
        "musterd.coordinator.codec -> asyncio",
        "musterd.coordinator.codec -> musterd.export.layout",
        "musterd.coordinator.codec -> time",
    ],
    "the api and the integrity open no socket and start neither process nor thread": [
        "musterd.coordinator.api.server -> socket",
        "musterd.coordinator.integrity.verify -> threading",
    ],
    "only the node composes, and the chaos suite for its simulator and its peers": [
        "musterd.coordinator.api.frame.handler -> musterd.coordinator.runtime.turns",
        "musterd.coordinator.api.server -> musterd.coordinator.integrity.peer_checkpoints",
        "musterd.coordinator.api.server -> musterd.coordinator.api.rpcs.services",
        "musterd.coordinator.api.server -> musterd.raft.driver",
        "musterd.coordinator.metrics.node -> musterd.raft.transport",
        "musterd.export.process -> musterd.storage.rocks",
        "musterd.demo.pace -> musterd.coordinator.node.assembly",
    ],
    "parts that an assembly makes are known in their own rooms and to the metrics alone": [
        "musterd.coordinator.api.frame.handler -> musterd.coordinator.integrity.quarantine",
        "musterd.coordinator.api.frame.handler -> musterd.coordinator.runtime.node_context",
    ],
    "the coordinator needs neither export nor replay": [
        "musterd.coordinator.api.server -> musterd.export.layout",
        "musterd.coordinator.api.server -> musterd.replay.fold",
        "musterd.coordinator.api.server -> pyarrow",
        "musterd.coordinator.node.cli -> musterd.export.cli",
    ],
    "the rooms below the node know raft by its contract alone": [
        "musterd.coordinator.runtime.shard -> musterd.raft.driver"
    ],
    "the rooms below the node know no store": [
        "musterd.coordinator.api.rpcs.admin_service -> musterd.storage.store"
    ],
    "storage imports none of the other folders": ["musterd.storage.rocks -> musterd.replay.fold"],
    "raft imports storage and nobody else": [
        "musterd.raft.replica.replica -> musterd.export.layout"
    ],
    "raft imports a listed few modules, but for its runner and its transport": [
        "musterd.raft.driver -> asyncio",
        "musterd.raft.driver -> musterd.storage.clock",
        "musterd.raft.driver -> socket",
        "musterd.raft.driver -> time",
        "musterd.raft.journal -> grpc",
        "musterd.raft.journal -> musterd.storage.rocks",
    ],
    "raft knows the wire and not the SDK's code": ["musterd.raft.hello -> muster.errors"],
    "the SDK imports its generated code only": ["muster.client -> musterd.demo.pace"],
    "re2 lives in one file of the coordinator only": [
        "musterd.coordinator.api.frame.bounds -> re2",
    ],
    "pysyncobj lives in its gate and its adapter only": [
        "musterd.demo.pace -> pysyncobj",
        "musterd.raft.replica.voting -> pysyncobj",
    ],
    "of raft only the replica and what drives it need pysyncobj": [
        "musterd.raft.journal -> musterd.raft.replica.pysyncobj_adapter",
        "musterd.raft.log_format -> musterd.raft.driver",
    ],
    "rocksdict lives in storage's two RocksDB files only": ["musterd.export.source -> rocksdict"],
    "pyroute2 lives in one file of the chaos suite only": [
        "musterd.chaos.world.networks.network -> pyroute2"
    ],
    "pyspark lives in replay.job and replay.session only": ["musterd.replay.fold -> pyspark"],
    "backups run the machine, not the server": [
        "musterd.backup.take -> musterd.coordinator.node.node"
    ],
    "export and replay run the machine, not the server": [
        "musterd.export.source -> musterd.coordinator.node.node"
    ],
    "replay reads exported files: no log and no store": [
        "musterd.replay.fold -> musterd.storage.rocks",
        "musterd.replay.fold -> musterd.raft.log_format",
    ],
    "nothing needs the demo, the chaos suite or the benches": [
        "musterd.export.source -> musterd.chaos.history"
    ],
    "the chaos suite ships: it needs neither the demo nor the benches": [
        "musterd.chaos.child -> bench.report"
    ],
    "the demo's worker has the public SDK only": [
        "musterd.demo.worker -> musterd.coordinator.node.launcher"
    ],
}


def contract(options):
    """A contract as import-linter makes it of its table."""
    kinds = {"forbidden": ForbiddenContract, "layers": LayersContract}
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
    assert contract(options).check(graph, verbose=False).kept
    for line in BREAKS[options["name"]]:
        importer, imported = line.split(" -> ")
        assert importer in graph.modules
        more = deepcopy(graph)
        if imported not in more.modules:
            more.add_module(imported, is_squashed=True)
        assert not more.direct_import_exists(importer=importer, imported=imported)
        more.add_import(importer=importer, imported=imported)
        assert not contract(options).check(more, verbose=False).kept, line


LISTS = [(one, name) for one in LINTER["contracts"] for name in ("allowed_modules", "exceptions")]


@pytest.mark.parametrize(
    ("options", "name"),
    [(options, name) for options, name in LISTS if name in options],
    ids=lambda given: given if isinstance(given, str) else given["name"],
)
def test_what_is_on_a_list_for_nothing_breaks_its_contract(graph, options, name):
    """So no list allows more than the tree needs."""
    longer = {**options, name: [*options[name], "musterd.nobody"]}
    assert not contract(longer).check(graph, verbose=False).kept


def test_every_package_is_under_contract():
    """A new top-level package of the repository is not forgotten."""
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    links = {path.name for path in (ROOT / "musterd").iterdir() if path.is_symlink()}
    links -= {"deploy"}  # data
    assert found == set(LINTER["root_packages"]) | links


def test_no_test_module_imports_itself_by_way_of_others():
    """The tests are no package that import-linter reads; for them this stands for its contract."""
    listed = subprocess.check_output(["git", "ls-files", "tests/*.py"], cwd=ROOT, text=True)
    files = [Path(name) for name in listed.splitlines()]
    modules = {".".join(file.with_suffix("").parts): file for file in files}
    imported = {name: _imports(ROOT / file, modules) - {name} for name, file in modules.items()}
    assert on_circles(imported) == []
    assert on_circles({**imported, "tests.coordinator.fakes": {"tests.coordinator.local"}}) != []
    assert imported["tests.coordinator.local"] >= {"tests.coordinator.fakes"}


def _imports(file, modules):
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(modules)
