"""Broken builds: each is caught, by a seed that the shipped build passes."""

import subprocess
import sys
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import pytest

from musterd.chaos import check
from musterd.chaos.mutants import __main__ as mutants_main
from musterd.chaos.mutants.__main__ import LAYERS
from musterd.chaos.mutants.build import Build
from musterd.chaos.mutants.builds import BUILDS, PROCESS_BUILDS
from musterd.chaos.mutants.hunt import TURNS, Caught, Sought, by_promise
from musterd.chaos.sim.hunt import sim_layer, sought_builds
from musterd.chaos.sim.hunt.sim_layer import LAYER
from musterd.chaos.sim.hunt.sought_builds import SOUGHT
from musterd.chaos.sim.scenarios import named
from musterd.chaos.verdict import Violation

pytestmark = pytest.mark.long

QUICK = (
    "majority",
    "no_fsync",
    "pre_vote",
    "applied_ahead",
    "parked_join",
    "shard_time_cap",
    "extra_round",
)
"""Such as are caught in a few seconds. `make mutants` hunts a fifth of all; each must be caught, so
each checker that catches one looks at something in its world."""


@pytest.mark.parametrize("name", QUICK)
def test_a_build_without_a_safety_measure_is_caught(name: str) -> None:
    """Each violates a promise of its own on a seed that the shipped build passes."""
    caught = LAYER.hunt(name, 40)
    assert caught.seed is not None, caught.what
    assert set(caught.promises) <= set(SOUGHT[name].promises)
    assert caught.promises


def test_the_shipped_build_is_no_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hunt for a build that lacks nothing ends without a catch, and says so."""
    monkeypatch.setitem(BUILDS, "nothing", Build("nothing", "Lacks nothing.", ()))
    monkeypatch.setitem(SOUGHT, "nothing", Sought("fifo3", ("H-voted-twice",)))
    caught = LAYER.hunt("nothing", 3)
    assert caught.seed is None
    assert caught.tried == 3
    assert "SURVIVED" in caught.line()


def test_what_else_a_build_breaks_does_not_catch_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another check says nothing of the one that is made for the rule; the hunt names both."""
    broken = [Violation("S-shard-time-went-back", "", 1), Violation("X-KeyError", "", 2)]
    runs = cycle((SimpleNamespace(violations=[]), SimpleNamespace(violations=broken)))
    monkeypatch.setattr(sim_layer, "Simulation", lambda *_: SimpleNamespace(run=lambda: next(runs)))
    caught = LAYER.hunt("silent_setting", 3)
    assert (caught.seed, caught.tried, caught.promises) == (None, 3, ())
    assert "H-setting-not-taken or I17 was not broken" in caught.what
    assert "S-shard-time-went-back; X-KeyError" in caught.what
    broken.append(Violation("H-setting-not-taken", "", 3))
    caught = LAYER.hunt("silent_setting", 3)
    assert (caught.seed, caught.what, caught.promises) == (
        0,
        "H-setting-not-taken",
        ("H-setting-not-taken",),
    )


def test_every_build_names_promises_that_a_check_can_find_broken() -> None:
    """A name that no check uses would catch nothing, and nobody would see that."""
    own = Path(sought_builds.__file__)
    folders = (own.parents[1], Path(check.__file__).parent)
    files = [one for folder in folders for one in folder.rglob("*.py") if one.name != own.name]
    source = "".join(one.read_text("utf-8") for one in files)
    assert all(one.promises and named(one.world) for one in SOUGHT.values())
    kinds = {kind for one in SOUGHT.values() for kind in one.promises}
    assert {kind for kind in kinds if f'"{kind}"' not in source} == set()
    assert not any(kind.startswith("X-") for kind in kinds)


def test_it_is_said_which_promise_caught_which_builds() -> None:
    """A build that broke two of its promises stands under both; one that survived nowhere."""
    caught = [
        Caught("b", "sim", "w", 1, "H-x", 1, 0.0, ("H-x",)),
        Caught("a", "sim", "w", 1, "H-x, H-y", 1, 0.0, ("H-x", "H-y")),
        Caught("c", "sim", "w", None, "no seed broke H-x", 1, 0.0),
    ]
    assert by_promise(caught) == {("sim", "H-x"): ["a", "b"], ("sim", "H-y"): ["a"]}


def test_it_is_said_of_how_many_builds_the_hunts_were(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that is hunted in both layers counts twice in the last line, and once before it."""
    monkeypatch.setattr(
        mutants_main,
        "_hunted",
        lambda jobs, *_, **__: [
            Caught(name, layer.name, "w", 1, "H-x", 1, 0.0, ("H-x",)) for layer, name in jobs
        ],
    )
    assert mutants_main.main(["majority", "pre_vote"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-2:] == [
        "3 hunts of 2 builds: 2 simulated, 1 as processes",
        "caught 3 of 3",
    ]


def test_five_turns_in_a_row_hunt_every_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """From whatever turn, in each layer."""
    jobs: list[list[tuple[str, str]]] = []
    monkeypatch.setattr(
        mutants_main,
        "_hunted",
        lambda mine, *_, **__: jobs.append([(layer.name, name) for layer, name in mine]) or [],
    )
    for layer in LAYERS.values():
        monkeypatch.setattr(layer, "lacks", lambda _: "")
    for turn in range(7, 7 + TURNS):
        mutants_main.main(["--turn", str(turn)])
    for name, layer in LAYERS.items():
        known = [(name, build) for build in layer.sought]
        mine = [[job for job in one if job[0] == name] for one in jobs]
        assert sorted(job for one in mine for job in one) == sorted(known)
        assert all(len(known) // TURNS <= len(one) <= len(known) // TURNS + 1 for one in mine)


def test_every_build_is_sought_and_says_what_it_lacks() -> None:
    """In one layer at least; each has a line of text and something it replaces."""
    sought = {name: set(layer.sought) for name, layer in LAYERS.items()}
    assert set().union(*sought.values()) == set(BUILDS) == set(PROCESS_BUILDS)
    assert set(SOUGHT) == sought["sim"]
    assert len(BUILDS) >= 130
    assert all(build.rule and build.patches for build in PROCESS_BUILDS.values())


def test_a_patch_of_what_is_not_there_is_refused() -> None:
    """A build that replaces nothing would be the shipped one under another name."""
    with pytest.raises(AttributeError):
        Build("stale", "Patches a name that is gone.", ((Build, "no_such_name", None),)).install()


def test_a_server_can_be_a_broken_build() -> None:
    """The launcher runs the `muster` command, says what it lacks, and refuses unknown builds."""

    def launch(*arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "musterd.chaos.mutants.serve", *arguments]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    served = launch("no_fsync", "--", "serve", "--help")
    assert served.returncode == 0, served.stderr
    assert "page cache" in served.stderr
    assert "--data-dir" in served.stdout
    for wrong in (("no_such_build", "--", "serve"), ("no_fsync", "serve"), ()):
        refused = launch(*wrong)
        assert refused.returncode == 2
        assert "vote_durability" in refused.stderr
