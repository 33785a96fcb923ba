"""The seams between raft/ and PySyncObj: what we name exists, what we override is reached.

If PySyncObj is to be renewed: read what has changed of `RUNNING` and of `OVERRIDES`.
"""

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pysyncobj
import pytest
from pysyncobj import SyncObj
from pysyncobj.syncobj import SyncObjConf

import musterd.raft
from musterd.raft import pysyncobj_pin
from musterd.raft.journal import Journal
from musterd.raft.replica.pysyncobj_adapter import OVERRIDES, RUNNING, SyncObjAdapter
from musterd.raft.replica.replica import Replica
from musterd.raft.snapshots import Snapshots
from tests.raft.flaws.hand import Options
from tests.raft.flaws.hand_replica import ReplicaGroup

LAYERS = tuple(layer for layer in Replica.__mro__ if layer.__module__.startswith("musterd.raft."))
RAFT = Path(musterd.raft.__file__).parent
ADAPTER = RAFT / "replica/pysyncobj_adapter.py"


def _base_methods() -> dict[str, FunctionType]:
    return {n: f for n, f in vars(SyncObj).items() if isinstance(f, FunctionType)}


def test_every_private_name_exists_in_syncobj() -> None:
    """A mangled name is a method of SyncObj or an attribute that its constructor sets."""
    methods = _base_methods()
    constructor = inspect.getsource(SyncObj.__init__)
    names = set(re.findall(r"_SyncObj__\w+", ADAPTER.read_text()))
    missing = {
        name
        for name in names
        if name not in methods and f"self.__{name.removeprefix('_SyncObj__')} = " not in constructor
    }
    assert len(names) > 25
    assert not missing


def test_private_names_stand_in_the_adapter_alone_and_none_is_made_at_run_time() -> None:
    """No other file names what is PySyncObj's own, nor the beginning that all those names have."""
    naming = {file for file in RAFT.rglob("*.py") if "_SyncObj_" in file.read_text()}
    assert naming == {ADAPTER}
    for node in ast.walk(ast.parse(ADAPTER.read_text())):
        if isinstance(node, ast.JoinedStr):
            text = "".join(v.value for v in node.values if isinstance(v, ast.Constant))
            assert "_SyncObj_" not in text, node.lineno


def test_the_overrides_are_those_that_are_meant() -> None:
    """Whatever raft/ defines under a name of SyncObj is an override of the adapter's."""
    base = set(dir(SyncObj)) - set(dir(object))
    defined = {
        (layer, name)
        for layer in LAYERS
        for name in vars(layer)
        if name in base and not (name.startswith("__") and name.endswith("__"))
    }
    assert defined == {(SyncObjAdapter, name) for name in OVERRIDES}


def test_no_attribute_of_ours_hides_one_of_syncobj_or_is_set_by_two_layers() -> None:
    """But for SyncObj's own, which the adapter names."""
    conf = SyncObjConf(autoTick=False)
    pysyncobj_pin.use_clock(lambda: 1.0)

    class Quiet(pysyncobj.transport.Transport):
        ready = True

    stock = SyncObj("a:1", [], conf=conf, transport=Quiet(None, None, []))
    theirs = set(vars(stock)) | set(dir(SyncObj))
    assigned: dict[str, set[str]] = {}
    for file in (RAFT / "replica").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                owner = node.value
                if isinstance(owner, ast.Name) and owner.id == "self":
                    assigned.setdefault(node.attr, set()).add(file.name)
    assert len(assigned) > 20
    assert not assigned.keys() & theirs
    shared = {name for name, files in assigned.items() if len(files) > 1}
    assert shared <= {
        name for name, value in vars(SyncObjAdapter).items() if isinstance(value, property)
    }


@pytest.mark.parametrize("name", sorted(OVERRIDES))
def test_an_override_takes_what_the_original_takes(name: str) -> None:
    """Parameter names, order and defaults are those that SyncObj's own calls rely on."""
    ours = inspect.signature(vars(SyncObjAdapter)[name]).parameters.values()
    theirs = inspect.signature(vars(SyncObj)[name]).parameters.values()
    assert [(p.name, p.default, p.kind) for p in ours] == [
        (p.name, p.default, p.kind) for p in theirs
    ]


def _live(g: ReplicaGroup) -> None:
    """Elections, commits, a tail that is cut, a snapshot."""
    g.elect(1)
    g.replicate(1, [0, 2])
    g.isolate(1)
    g.propose(1)
    g.elect(0, [2])
    g.connect(0, 1)
    g.connect(1, 2)
    g.replicate(0, [1, 2])
    g.isolate(2)
    g.propose(0, 20)
    g.replicate(0, [1], 6)
    g.compact(0)
    g.connect(0, 2)
    g.set_next_index(0, 2, 2)
    assert g.until(lambda: g.replicate(0, [1, 2], 1), lambda: g.history(2) == g.history(0))


def _called_by_syncobj(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The overrides that SyncObj's own code called in one life of a group."""
    called: set[str] = set()

    def spy(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def seen(*args: Any, **kwargs: Any) -> Any:
            if sys._getframe(1).f_globals["__name__"] == "pysyncobj.syncobj":
                called.add(name)
            return real(*args, **kwargs)

        return seen

    for name in OVERRIDES:
        monkeypatch.setattr(SyncObjAdapter, name, spy(name, vars(SyncObjAdapter)[name]))
    _live(ReplicaGroup(Options(snapshot_chunk_bytes=64)))
    return called


def test_syncobj_itself_calls_every_override(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name mangling does what they rely on: the base's calls land in ours."""
    assert _called_by_syncobj(monkeypatch) == OVERRIDES


def test_what_runs_of_pysyncobj_is_what_is_listed() -> None:
    """Nothing else of it is entered, and nothing is listed that is not."""
    g = ReplicaGroup(Options(snapshot_chunk_bytes=64))
    package, entered = str(Path(pysyncobj.__file__).parent), set[str]()

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            entered.add(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        _live(g)
    finally:
        sys.setprofile(None)
    assert entered == RUNNING


def _base_calls(attribute: str) -> set[str]:
    """Methods that what runs of SyncObj calls on one of its parts."""
    found: set[str] = set()
    for method in _base_methods().values():
        if method.__qualname__ in RUNNING:
            found.update(re.findall(rf"self\.__{attribute}\.(\w+)\(", inspect.getsource(method)))
    return found


def test_our_journal_has_what_the_rest_of_syncobj_calls() -> None:
    """Every call on the log in what runs of the base lands in raft/journal.py."""
    calls = _base_calls("raftLog")
    assert {"add", "setRaftCommitIndex", "deleteEntriesFrom"} <= calls
    assert calls <= set(vars(Journal))


def test_our_snapshots_have_what_the_rest_of_syncobj_calls() -> None:
    """Of the serializer only the receiving end runs in the base."""
    assert _base_calls("serializer") == {"setTransmissionData"}
    assert "setTransmissionData" in vars(Snapshots)


def test_the_gate_refuses_another_version() -> None:
    """A neighbouring release is turned away, and the message says what to install."""
    with pytest.raises(pysyncobj_pin.WrongPySyncObjError, match=r"pip install pysyncobj==0\.3\.17"):
        pysyncobj_pin.check("0.3.16", Path(pysyncobj.syncobj.__file__))


def test_the_gate_refuses_another_file(tmp_path: Path) -> None:
    """One added space in syncobj.py is enough."""
    copy = tmp_path / "syncobj.py"
    copy.write_bytes(Path(pysyncobj.syncobj.__file__).read_bytes())
    pysyncobj_pin.check(pysyncobj_pin.REQUIRED_VERSION, copy)
    copy.write_bytes(copy.read_bytes() + b" ")
    with pytest.raises(pysyncobj_pin.WrongPySyncObjError, match="is not the file"):
        pysyncobj_pin.check(pysyncobj_pin.REQUIRED_VERSION, copy)


def test_nothing_in_raft_can_be_imported_beside_another_pysyncobj(tmp_path: Path) -> None:
    """With a patched library on the path, importing the replica fails: there is no way around."""
    package = Path(pysyncobj.__file__).parent
    shutil.copytree(package, tmp_path / "pysyncobj")
    with (tmp_path / "pysyncobj" / "syncobj.py").open("a") as file:
        file.write("\n# patched\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", "import musterd.raft.replica.replica"],
        env=environment,
        cwd=RAFT.parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert "WrongPySyncObjError" in done.stderr
