"""On which build each part of a report was measured, and what its headline covers."""

import json
import xml.etree.ElementTree as ET

import pytest

from musterd.chaos import build as builds
from musterd.chaos.build import Build
from musterd.chaos.mutants import __main__ as mutants_main
from musterd.chaos.mutants.hunt import Caught
from musterd.chaos.report import page
from musterd.chaos.report.figures import build
from musterd.chaos.report.inputs import Inputs, Soaked, read
from musterd.chaos.run import result
from musterd.chaos.run.samples import SCHEMA, Writer
from musterd.chaos.sim import run as sim_run
from musterd.chaos.sim.summary import Summary
from tests.chaos.report import made_up
from tests.chaos.report.test_report import NOW, words

AT = "2026-11-22T01:02:03+00:00"
MINE, OTHER = Build("0.1.0", "1" * 40, AT), Build("0.1.0", "2" * 40, AT)
SEEDS = ("sim", Summary(5, 0))


def report(*runs, **more):
    """A report of these."""
    return build(Inputs([(f"run-{n}", run) for n, run in enumerate(runs)], **more), [], NOW)


def told(made):
    """The words of its page."""
    return words(ET.fromstring(page.html(made).removeprefix("<!DOCTYPE html>")))


# ---- builds


def test_every_result_carries_its_build_and_is_read_back_with_it(tmp_path, monkeypatch):
    """Run, simulation, mutants and soak."""
    monkeypatch.setattr(builds, "here", lambda: MINE)
    stamp = builds.stamp()
    made_up.write(tmp_path / "mutants.json", made_up.caught(build=MINE))
    made_up.write(tmp_path / "sim.json", Summary(3, 0, build=MINE))
    Writer(tmp_path / "soak.jsonl", 60.0, ()).close()  # a cut one says it as well
    result.write(made_up.run(build=MINE), tmp_path)
    inputs = read([tmp_path])
    assert [run.build for _, run in inputs.runs] == [MINE]
    assert [one.build for _, one in inputs.simulations] == [MINE]
    assert [one.build for one in inputs.hunts] == [MINE]
    assert [one.build for one in inputs.soaks] == [MINE]
    written = json.loads(page.document(build(inputs, [], NOW)))
    for kind in ("runs", "simulations", "soaks"):
        assert written[kind][0]["build"] == stamp, kind
    assert [one["kind"] for one in written["parts"]] == ["run", "seeds", "mutants", "soak"]
    assert [one["build"] for one in written["parts"]] == [stamp] * 4
    assert "another build" not in told(build(inputs, [], NOW))


def test_the_commands_write_their_build(tmp_path, monkeypatch, muster):
    """The simulator into its last line, too; the hunt of mutants into its file."""
    monkeypatch.setattr(builds, "here", lambda: MINE)
    monkeypatch.setattr(sim_run, "run_many", lambda *_: {"udp3": sim_run.Totals(seeds=1)})
    monkeypatch.setattr(sim_run, "judge", lambda *_: [])
    files = [tmp_path / "sim.json", tmp_path / "mutants.json"]
    ran = muster("chaos", "sim", "--report", str(files[0]))
    assert ran.exit_code == 0, ran.err
    assert json.loads(ran.out.splitlines()[-1])["build"] == builds.stamp()
    caught = Caught("majority", "process", "cuts", 1, "I15", 1, 2.0)
    monkeypatch.setattr(mutants_main, "_hunted", lambda *_, **__: [caught])
    assert mutants_main.main(["majority", "--layer", "process", "--report", str(files[1])]) == 0
    assert {part.build for part in build(read(files), [], NOW).parts} == {MINE}


def test_a_part_of_another_build_is_said_to_be(tmp_path):
    """With both builds, in the headline as well; it fails nothing."""
    made = report(
        made_up.run(build=MINE),
        hunts=[made_up.caught(build=OTHER)],
        simulations=[("sim", Summary(5, 0, build=MINE))],
    )
    assert made.passed
    assert {one.kind: one.another for one in made.parts} == {
        "run": False,
        "seeds": False,
        "mutants": True,
    }
    said = told(made)
    assert (
        f"measured on another build: muster 0.1.0, commit 222222222222, {AT}; "
        "run-0 is of muster 0.1.0, commit 111111111111"
    ) in said
    assert "mutants: of another build" in made.headline
    assert made.headline in said


def test_files_of_an_earlier_muster_are_read_and_their_build_is_not_known(tmp_path):
    """Nothing is guessed: they are not said to be of another build, nor of the same."""
    start = {"schema": SCHEMA, "total_s": 60.0, "processes": []}
    (tmp_path / "soak.jsonl").write_text(json.dumps(start) + "\n")
    result.write(made_up.run(build=MINE), tmp_path)
    run = json.loads((tmp_path / "run.json").read_text())
    for new in ("build", "notes"):
        del run[new]
    for fault in run["faults"]:
        for new in ("unowned", "unowned_ms", "never_owned"):
            del fault[new]
    (tmp_path / "run.json").write_text(json.dumps(run))
    made = build(read([tmp_path]), [], NOW)
    assert [one.build for one in made.parts] == [None] * 2
    assert told(made).count("build not known") == 4
    assert "another build" not in made.headline


# ---- the headline


@pytest.mark.parametrize(
    ("runs", "more", "says"),
    [
        (1, {}, "No violation in this run; seeds, mutants, soak: not measured"),
        (2, {}, "No violation in these 2 runs; seeds, mutants, soak: not measured"),
        (
            0,
            {"simulations": [SEEDS]},
            "No violation in the seeds; runs on real processes, mutants, soak: not measured",
        ),
        (
            1,
            {"simulations": [SEEDS], "hunts": [made_up.caught()]},
            (
                "No violation in this run, the seeds; every mutant that was hunted was caught; "
                "soak: not measured"
            ),
        ),
        (
            1,
            {"hunts": [made_up.caught(seed=None)]},
            "NOT PASSED: 1 reason; seeds, soak: not measured",
        ),
    ],
)
def test_the_headline_says_what_it_covers(runs, more, says):
    """What nobody measured is not part of a clean result."""
    made = report(*(made_up.run() for _ in range(runs)), **more)
    assert made.headline == says
    assert says in told(made)


def test_the_headline_of_everything_has_nothing_left_out():
    """No part of it is not measured."""
    made = report(
        made_up.run(),
        simulations=[SEEDS],
        hunts=[made_up.caught()],
        soaks=[Soaked("soak.jsonl", 120.0, 20.0, [], [], [], [])],
    )
    assert made.headline == (
        "No violation in this run, the seeds, the soak; every mutant that was hunted was caught"
    )


def test_the_headline_is_printed(tmp_path, muster):
    """Where nobody opens the page."""
    result.write(made_up.run(build=MINE), tmp_path)
    ran = muster("chaos", "report", str(tmp_path))
    assert "seeds, mutants, soak: not measured" in ran.out
    assert "commit 111111111111" in ran.out
