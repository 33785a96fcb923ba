"""Broken builds: each is caught, by a seed that the shipped build passes."""

import subprocess
import sys

import pytest

from chaos.mutants.build import Build
from chaos.mutants.builds import BUILDS
from chaos.mutants.hunt import layers
from chaos.mutants.process_builds import PROCESS_BUILDS
from chaos.sim.hunting import hunt
from chaos.sim.mutants import KNOWN_SEEDS, MUTANTS, Mutant
from chaos.sim.scenarios import FIFO3

QUICK = (
    "majority",
    "no_fsync",
    "pre_vote",
    "applied_ahead",
    "check_quorum",
    "send_times",
    "timer_generation",
    "generation_floor",
    "parked_join",
    "deposed_expiry",
    "shard_time_cap",
    "extra_round",
    "withheld",
    "unsorted_deletion",
    "silent_setting",
    "forward_only",
)
"""One of each kind of rule and of each checker; `make mutants` hunts all."""


@pytest.mark.parametrize("name", QUICK)
def test_a_build_without_a_safety_measure_is_caught(name: str) -> None:
    """Each violates a promise on a seed that the shipped build passes."""
    caught = hunt(name, 40)
    assert caught.seed is not None, caught.what


def test_the_shipped_build_is_no_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hunt for a build that lacks nothing ends without a catch, and says so."""
    nothing = Mutant(Build("nothing", "Lacks nothing.", ()), FIFO3)
    monkeypatch.setitem(MUTANTS, "nothing", nothing)
    caught = hunt("nothing", 3)
    assert caught.seed is None
    assert caught.tried == 3
    assert "SURVIVED" in caught.line()


def test_every_build_is_sought_and_says_what_it_lacks() -> None:
    """All builds have a world, a line of text and something they replace; at least twenty."""
    assert set(MUTANTS) == set(BUILDS) == set(layers()["sim"].rules)
    assert set(KNOWN_SEEDS) <= set(MUTANTS)
    assert set(PROCESS_BUILDS) >= set(BUILDS)
    assert len(BUILDS) >= 20
    assert all(build.rule and build.patches for build in PROCESS_BUILDS.values())


def test_a_patch_of_what_is_not_there_is_refused() -> None:
    """A build that replaces nothing would be the shipped one under another name."""
    with pytest.raises(AttributeError):
        Build("stale", "Patches a name that is gone.", ((Build, "no_such_name", None),)).install()


def test_a_server_can_be_a_broken_build() -> None:
    """The launcher runs the `muster` command, says what it lacks, and refuses unknown builds."""

    def launch(*arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "chaos.mutants.serve", *arguments]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    served = launch("no_fsync", "--", "serve", "--help")
    assert served.returncode == 0, served.stderr
    assert "page cache" in served.stderr
    assert "--data-dir" in served.stdout
    for wrong in (("no_such_build", "--", "serve"), ("no_fsync", "serve"), ()):
        refused = launch(*wrong)
        assert refused.returncode == 2
        assert "vote_durability" in refused.stderr
