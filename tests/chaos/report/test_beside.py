"""What other commands found out gets into a report: by its folder, and by what ships."""

import json
import re

from musterd.chaos.mutants.hunt import COLD, Caught, Hunts, Skipped, published_cold
from musterd.chaos.run import result as results
from musterd.chaos.sim.hunt.sought_builds import SOUGHT
from musterd.chaos.sim.summary import Summary
from tests.chaos.report import made_up

KNOWN_SEEDS = {name: one.seed for name, one in SOUGHT.items() if one.seed is not None}


def test_a_report_takes_what_is_there_and_says_what_is_not(muster, tmp_path) -> None:
    """Seeds and mutants of both layers come from the folder; that there is no soak is said."""
    found = tmp_path / "found"
    found.mkdir()
    made_up.write(found / "sim.json", Summary(7, 0))
    rows = [Caught("a", layer, "w", 1, "I15", 1, 2.0) for layer in ("sim", "process")]
    skipped = [Skipped("no_fsync", "process", "no loop devices here")]
    made_up.write(found / "mutants.json", Hunts(None, rows, skipped))
    run = tmp_path / "run"
    run.mkdir()
    results.write(made_up.run(), run)
    ran = muster("chaos", "report", str(run), str(found))
    assert ran.exit_code == 0, ran.err
    assert "soak: not measured" in ran.out
    told = json.loads((run / "chaos-report.json").read_text())
    assert [one["seeds"] for one in told["simulations"]] == [7]
    assert {(one["layer"], one["name"]) for one in told["mutants"]} == {
        ("sim", "a"),
        ("process", "a"),
    }
    assert [one["name"] for one in told["unsought"]] == ["no_fsync"]
    assert "no loop devices here" in (run / "chaos-report.html").read_text()


def test_a_cold_hunt_of_every_build_with_a_known_seed_is_published() -> None:
    """Each was caught; the longest comes first, and the report names it."""
    rows = published_cold().mutants
    assert {one.name for one in rows} == set(KNOWN_SEEDS)
    assert all(one.seed is not None and one.tried == one.seed + 1 for one in rows)
    assert [one.tried for one in rows] == sorted((one.tried for one in rows), reverse=True)


def test_no_published_cold_hunt_is_longer_than_a_known_seed_allows() -> None:
    """From seed 0 on, a seed that is known to catch ends the hunt at the latest."""
    late = {
        one.name: (one.seed, KNOWN_SEEDS[one.name])
        for one in published_cold().mutants
        if one.seed is None or one.seed > KNOWN_SEEDS[one.name]
    }
    assert not late, f"(published, known) seed; `{COLD}` measures anew: {late}"


def test_cold_hunts_are_published_with_the_build_that_they_were_measured_on() -> None:
    """A commit that can be had again."""
    commit = published_cold().build.commit
    assert commit is not None
    assert re.fullmatch("[0-9a-f]{40}", commit)


def test_a_report_shows_the_longest_cold_hunt_with_its_build(muster, tmp_path) -> None:
    """On the page and in its JSON."""
    results.write(made_up.run(), tmp_path)
    ran = muster("chaos", "report", str(tmp_path))
    assert ran.exit_code == 0, ran.err
    page = (tmp_path / "chaos-report.html").read_text()
    cold = published_cold()
    longest = cold.mutants[0]
    assert f"measured on {cold.build.dated}): {longest.name}, {longest.tried} seeds" in page
    told = json.loads((tmp_path / "chaos-report.json").read_text())["cold"]
    assert told["build"]["commit"] == cold.build.commit
    assert told["mutants"][0]["name"] == longest.name
