"""What other commands found out gets into a report: by `--with`, and by what ships."""

import json
import re

from musterd.chaos.mutants import cold
from musterd.chaos.run import result as results
from musterd.chaos.sim.hunt.sought_builds import KNOWN_SEEDS
from tests.chaos.report import made_up

SIM = {"seeds": 7, "violations": 0, "faults": {"crash": 3}, "counts": {}, "mutants": {"a": 3}}
ROW = {"name": "a", "layer": "process", "world": "cuts", "seed": 1, "what": "I15", "tried": 1}


def test_a_report_takes_what_is_there_and_says_what_is_not(muster, tmp_path) -> None:
    """Seeds and mutants of both layers come from the folder; that there is no soak is said."""
    found = tmp_path / "found"
    found.mkdir()
    (found / "sim.json").write_text(json.dumps(SIM))
    skipped = [{"name": "no_fsync", "layer": "process", "reason": "no loop devices here"}]
    (found / "mutants.json").write_text(json.dumps({"mutants": [ROW], "skipped": skipped}))
    run = tmp_path / "run"
    run.mkdir()
    results.write(made_up.run(), run)
    ran = muster("chaos", "report", str(run), "--with", str(found))
    assert ran.exit_code == 0, ran.err
    assert re.search(r"sim\.json, written 20\d\d-", ran.err)
    assert "has nothing of soak" in ran.err
    assert "has nothing of sim" not in ran.err
    # The first `make chaos` of a clone has nothing else to report of.
    nothing = muster("chaos", "report", str(run), "--to", f"{run}/n.html", "--with", f"{run}/none")
    assert nothing.exit_code == 0, nothing.err
    assert all(f"has nothing of {kind}" in nothing.err for kind in ("sim", "mutants", "soak"))
    told = json.loads((run / "chaos-report.json").read_text())
    assert [one["seeds"] for one in told["simulations"]] == [7]
    assert {(one["layer"], one["name"]) for one in told["mutants"]} == {
        ("sim", "a"),
        ("process", "a"),
    }
    assert told["unsought"] == ["no_fsync (process): no loop devices here"]
    assert "no loop devices here" in (run / "chaos-report.html").read_text()


def test_a_cold_hunt_of_every_build_with_a_known_seed_is_published() -> None:
    """Each was caught; the longest comes first, and the report names it."""
    rows = cold.read().hunts
    assert {one.name for one in rows} == set(KNOWN_SEEDS)
    assert all(one.seed is not None and one.tried == one.seed + 1 for one in rows)
    assert [one.tried for one in rows] == sorted((one.tried for one in rows), reverse=True)


def test_no_published_cold_hunt_is_longer_than_a_known_seed_allows() -> None:
    """From seed 0 on, a seed that is known to catch ends the hunt at the latest."""
    late = {
        one.name: (one.seed, KNOWN_SEEDS[one.name])
        for one in cold.read().hunts
        if one.seed is None or one.seed > KNOWN_SEEDS[one.name]
    }
    assert not late, f"(published, known) seed; `{cold.COMMAND}` measures anew: {late}"


def test_cold_hunts_are_published_with_the_build_that_they_were_measured_on() -> None:
    """A commit that can be had again."""
    commit = cold.read().build.commit
    assert commit is not None
    assert re.fullmatch("[0-9a-f]{40}", commit)


def test_a_report_shows_the_longest_cold_hunt_with_its_build(muster, tmp_path) -> None:
    """On the page and in its JSON."""
    results.write(made_up.run(), tmp_path)
    ran = muster("chaos", "report", str(tmp_path))
    assert ran.exit_code == 0, ran.err
    page = (tmp_path / "chaos-report.html").read_text()
    longest = cold.read().hunts[0]
    assert f"measured on {cold.read().named}): {longest.name}, {longest.tried} seeds" in page
    told = json.loads((tmp_path / "chaos-report.json").read_text())["cold"]
    assert told["build"]["commit"] == cold.read().build.commit
    assert told["hunts"][0]["name"] == longest.name
