"""The page and the JSON: what was measured, what was not, and what was broken."""

import json
import re
import xml.etree.ElementTree as ET

import pytest

from musterd.chaos import build as builds
from musterd.chaos.report import bugs, page
from musterd.chaos.report.figures import ABSENT, EMPTY, HELD, VIOLATED, WAITS, build
from musterd.chaos.report.inputs import InputError, Inputs, read
from musterd.chaos.run import result
from musterd.chaos.run.samples import Sample, Writer
from musterd.chaos.sim.run import Totals, summary
from musterd.chaos.sim.summary import Summary
from musterd.svg import short_ms
from tests.chaos.report import made_up

NOW = "2026-11-22T03:04:05+00:00"
HOSTILE = (
    "</td><script src='//evil'>alert(1)</script><img src=x onerror=alert(2)>"
    "\n\x1b[31m\u202e\ud800&amp;]]>"
)
SVG = "{http://www.w3.org/2000/svg}"
HTML = "{http://www.w3.org/1999/xhtml}"


def report(*runs, **more):
    """A report of these runs."""
    named = [(f"run-{number}", run) for number, run in enumerate(runs)]
    return build(Inputs(runs=named, **more), bugs.read(), NOW)


def figures(of):
    """Values by key."""
    return {one.key: one.value for one in of.figures}


def tree(of):
    """The page, parsed as XML: every element is closed, every text escaped."""
    return ET.fromstring(page.html(of).removeprefix("<!DOCTYPE html>"))


def words(element):
    """All its text, with single spaces."""
    return " ".join("".join(element.itertext()).split())


def state(of, invariant):
    """What is said of an invariant."""
    return next(one.state for one in of.invariants if one.id == invariant)


def sample(at_s, name, kind, rss_mib):
    """One look at a process of a soak."""
    open_ = {"socket": 4, "database": 9, "deleted": 0, "other": 3}
    return Sample(at_s, name, kind, 7, int(rss_mib * 1024), open_, 5, 0, at_s / 10, 20)


def soak(path, *, minutes=120, growth=0.0):
    """A samples file of a node and a worker; `growth` of the node in MiB/h."""
    writer = Writer(path, minutes * 60, ("node-0", "worker-1"))
    for at_s in range(0, minutes * 60, 60):
        writer.write(sample(at_s, "node-0", "node", 80 + growth * at_s / 3600))
        writer.write(sample(at_s, "worker-1", "worker", 40))
    writer.close()
    return path


# ---- figures


def test_what_a_run_measured_is_added_up():
    """Counts of two runs are sums; the worst run's percentiles stand for both."""
    first = made_up.run()
    second = made_up.run(commit_ms=made_up.spread(1.0, 900.0), commits_lost=2)
    found = figures(report(first, second))
    assert found["runs"] == 2
    assert found["operations_ok"] == 40_000
    assert found["operations_unknown"] == 14
    assert found["commits_lost"] == 2
    assert found["commit_ms_p99"] == 900.0
    assert found["faults_injected"] == 2 * len(made_up.KINDS)
    assert found["kill_first_commit_ms_max"] == 110.0
    assert found["gap_hit_ms_max"] == 6_200.0
    assert (found["moved"], found["moved_minimum"]) == (180, 168)
    assert found["real_hours"] == pytest.approx(4 / 60)


def test_the_worst_of_several_runs_is_the_slowest():
    """Of a rate that is the lowest; of times, the longest. Keys that were not read are added."""
    first = made_up.run(commits_per_s=150.0, keys_unread=2)
    second = made_up.run(commits_per_s=240.0, keys_unread=3)
    for runs in ((first, second), (second, first)):
        found = figures(report(*runs))
        assert found["commits_per_s"] == 150.0
        assert found["keys_unread"] == 5
    assert figures(report(first, made_up.run(keys_unread=None)))["keys_unread"] is None


def test_what_nobody_measured_is_never_a_number():
    """Without any run every figure of real processes is None, and the page says so."""
    simulated = Summary(1_230, 0, {"crash": 40}, simulated_s=7_200.0)
    made = report(simulations=[("sim", simulated)])
    known = {key: value for key, value in figures(made).items() if value is not None}
    assert known == {
        "seeds": 1_230,
        "simulated_hours": 2.0,
        "simulated_violations": 0,
        "simulated_faults": 40,
    }
    assert {one.state for one in made.invariants} == {ABSENT, WAITS}
    told = words(tree(made))
    assert told.count("not measured in this run") > 20
    assert "No run on real processes is in this report." in told


def test_a_figure_that_one_of_two_runs_lacks_is_not_a_sum():
    """Whether commits were lost in a run that nobody looked at is unknown for both together."""
    found = figures(report(made_up.run(), made_up.run(commits_lost=None)))
    assert found["commits_lost"] is None


def test_a_simulation_that_failed_makes_no_passing_report(tmp_path):
    """What `muster chaos sim` says last is read back: its problems, and its virtual hours."""
    for problems in ([], ["fifo3: no seed was run"]):
        log = tmp_path / f"sim-{len(problems)}.json"
        totals = {"udp3": Totals(seeds=2, simulated_s=7_200.0)}
        made_up.write(log, summary(totals, 1.0, problems, builds.here()))
        made = report(simulations=read([log]).simulations)
        assert figures(made)["simulated_hours"] == 2.0
        assert [one for one in made.reasons if "no seed was run" in one] == [
            f"{log.stem}: {one}" for one in problems
        ]


# ---- invariants


def test_each_state_of_an_invariant_is_told_apart():
    """Held, broken, looked at nothing, does not apply, was not there."""
    made = report(
        made_up.run(
            made_up.verdict("I1"),
            made_up.verdict("I2", "orders-0 is not linearizable"),
            made_up.verdict("I3", looked_at=0),
            made_up.verdict("I9", applies=False, looked_at=0, note="no cooperative member"),
        )
    )
    states = {one: state(made, one) for one in ("I1", "I2", "I3", "I9", "I4", "I12")}
    assert states == {
        "I1": HELD,
        "I2": VIOLATED,
        "I3": EMPTY,
        "I9": WAITS,
        "I4": ABSENT,
        "I12": WAITS,
    }
    notes = {one.id: one.note for one in made.invariants}
    assert notes["I9"] == "no cooperative member"
    assert "Watch" in notes["I12"]


def test_a_violation_in_one_of_two_runs_is_a_violation():
    """However well the other one went."""
    bad = made_up.run(made_up.verdict("I1", "lost"), passed=False, reasons=["I1"])
    made = report(made_up.run(), bad)
    assert state(made, "I1") == VIOLATED
    assert not made.passed


def test_violations_are_shown_loudly():
    """At the top, in words, and beside the invariant with what was seen."""
    what = "billing orders-0: c1 was told that 7 is committed, later reads gave 5"
    made = report(made_up.run(made_up.verdict("I1", what), passed=False, reasons=["I1: broken"]))
    page_ = tree(made)
    verdict = page_.find(f".//{HTML}div[@class='verdict bad']")
    assert verdict is not None
    assert "NOT PASSED" in words(verdict)
    assert "I1 (no acknowledged commit is lost): 1 violation" in words(verdict)
    [row] = page_.findall(f".//{HTML}tr[@class='bad']")
    assert what in words(row)
    assert "VIOLATED" in words(row)
    assert "No violation." not in words(page_)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"hunts": [made_up.caught("no_fsync", None)]}, "mutant no_fsync SURVIVED"),
        ({"simulations": [("sim", Summary(5, 2))]}, "2 simulated runs violate"),
        ({"simulations": [("s", Summary(5, 0, problems=["fifo3: no crash"]))]}, "fifo3: no crash"),
    ],
)
def test_whatever_did_not_pass_fails_the_report(more, reason):
    """A clean run beside it does not help."""
    made = report(made_up.run(), **more)
    assert not made.passed
    assert any(reason in one for one in made.reasons)
    assert reason in words(tree(made).find(f".//{HTML}div[@class='verdict bad']"))


def test_a_run_that_did_not_pass_and_does_not_say_why_fails_the_report():
    """It is not taken for a good one."""
    made = report(made_up.run(passed=False, ended="broken: the world fell"))
    assert made.reasons == ["run-0: did not pass (broken: the world fell)"]


# ---- faults


def test_faults_that_were_not_injected_or_cannot_be_had_are_named():
    """With their reasons, and not among the injected."""
    run = made_up.run()
    run.faults[0].injected = False
    run.faults[0].error = "no such node"
    made = report(run)
    assert run.faults[0].kind not in [row.kind for row in made.faults]
    told = words(tree(made))
    assert "Planned and not injected" in told
    assert "no such node" in told
    assert "packet_loss: the kernel has no nft numgen" in told


def test_a_kind_of_fault_is_survived_where_no_run_with_it_broke_a_promise():
    """One run that did is enough; what was planned and not injected was not tried."""
    bad = made_up.run(
        made_up.verdict("I1", "lost"),
        faults=[made_up.fault("kill_leader", 5.0, 500.0), made_up.fault("eio", 6.0, 50.0)],
        passed=False,
        reasons=["I1"],
    )
    bad.faults[1].injected = False
    good = made_up.run()
    told = {one.key: one.value for one in report(good, bad).figures}
    kinds = {fault.kind for fault in good.faults if fault.injected}
    assert told["fault_kinds_tried"] == len(kinds)
    assert told["fault_kinds_survived"] == len(kinds - {"kill_leader"})
    assert f"Kinds survived / kinds tried: {len(kinds) - 1} / {len(kinds)}." in words(
        tree(report(good, bad))
    )


def test_a_kind_of_fault_that_never_had_an_effect_was_not_tried():
    """Once is enough, in whatever run; it was injected all the same."""
    idle, busy = (made_up.fault("slow_link", at_s, 50.0) for at_s in (5.0, 9.0))
    idle.unreal = "nothing passed that could be delayed"
    other = made_up.fault("kill_leader", 5.0, 500.0)

    def told(*faults):
        found = {one.key: one.value for one in report(made_up.run(faults=list(faults))).figures}
        kinds = (found["fault_kinds_survived"], found["fault_kinds_tried"])
        return kinds, found["faults_injected"]

    assert told(idle, idle, other) == ((1, 1), 3)
    assert told(idle, busy, other) == ((2, 2), 3)


def test_faults_of_a_kind_share_a_row_over_all_runs():
    """Median, p95 and longest of the gaps of both runs."""
    later = made_up.run(faults=[made_up.fault("kill_leader", 5.0, 500.0)])
    row = next(r for r in report(made_up.run(), later).faults if r.kind == "kill_leader")
    assert row.count == 2
    assert (row.hit_ms.p50, row.hit_ms.max) == (110.0, 500.0)


def test_partitions_that_stay_without_an_owner_are_no_time_and_are_shown():
    """Not the best figure, and not left out: in the row of the kind and among the figures."""
    bad = made_up.fault("kill_leader", 5.0, 90.0)
    bad.owned_ms, bad.unowned, bad.unowned_ms = None, 3, 9_500.0
    good = made_up.fault("kill_leader", 25.0, 90.0)
    good.owned_ms = 4_000.0
    made = report(made_up.run(faults=[bad, good], notes=["kill_leader at 5 s: 3 partitions lost"]))
    (row,) = made.faults
    assert (row.owned_ms.count, row.owned_ms.max, row.unowned) == (1, 4_000.0, 1)
    found = figures(made)
    assert (found["kill_owned_ms_max"], found["kill_unowned"]) == (4_000.0, 1)
    told = words(tree(made))
    assert "1 not within 9.50 s" in told
    assert "run-0: kill_leader at 5 s: 3 partitions lost" in told
    assert figures(report(made_up.run()))["kill_unowned"] == 0


def test_notes_are_printed_and_fail_nothing(tmp_path, muster):
    """A figure that is missing is said where the figures are."""
    result.write(made_up.run(notes=["eio: no figure for groups of a hit node"]), tmp_path)
    ran = muster("chaos", "report", str(tmp_path))
    assert ran.exit_code == 0
    assert "eio: no figure for groups of a hit node" in ran.out


# ---- the page


def test_faults_without_visible_effect_are_counted_in_their_row():
    """Over all runs; a kind that was always seen is not bothered with it."""
    run, other = made_up.run(), made_up.run()
    run.faults[0].unreal = "dropped or held: 0"
    made = report(run, other)
    assert [row.kind for row in made.faults if row.unseen] == [run.faults[0].kind]
    assert words(tree(made)).count("(1 without visible effect)") == 1


def test_the_page_is_well_formed_and_fetches_nothing():
    """No script, no link or address outside of the page; each kind of fault has its picture."""
    text = page.html(report(made_up.run()))
    tree_ = ET.fromstring(text.removeprefix("<!DOCTYPE html>"))
    tags = {element.tag.rpartition("}")[2] for element in tree_.iter()}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "image", "use", "form"}
    for element in tree_.iter():
        for name, value in element.attrib.items():
            assert not name.startswith("on"), name
            assert name not in {"src", "srcset", "action"}, name
            assert name != "href" or value.startswith("#"), value
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/)", text)
    labels = [e.attrib["aria-label"] for e in tree_.iter(f"{SVG}svg")]
    assert labels == [f"latency of commits through {kind}" for kind in sorted(made_up.KINDS)]


def test_every_link_of_the_page_has_its_place():
    """The list at the top leads somewhere."""
    tree_ = tree(report(made_up.run()))
    places = {element.attrib["id"] for element in tree_.iter() if "id" in element.attrib}
    links = {a.attrib["href"].removeprefix("#") for a in tree_.iter(f"{HTML}a")}
    assert links
    assert links <= places


def test_hostile_names_are_text():
    """Wherever a string of a run, a mutant or a simulation is shown."""
    run = made_up.run(made_up.verdict("I1", HOSTILE, note=HOSTILE), reasons=[HOSTILE])
    run.command, run.ended, run.limits = [HOSTILE], HOSTILE, [HOSTILE]
    run.machine.cpu = run.machine.disk = HOSTILE
    run.workloads[0].title = HOSTILE
    run.workloads[0].figures = {HOSTILE: 1.0}
    run.faults[0].kind = HOSTILE
    run.faults[0].targets = [HOSTILE]
    run.skipped[0].reason = HOSTILE
    made = report(
        run,
        hunts=[made_up.caught(HOSTILE, None)],
        simulations=[(HOSTILE, Summary(1, 0, {HOSTILE: 1}, {HOSTILE: 2}))],
    )
    text = page.html(made)
    assert "<script" not in text
    assert "<img" not in text
    assert text.isascii() or not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\ud800]", text)
    text.encode("utf-8")
    tags = {e.tag for e in ET.fromstring(text.removeprefix("<!DOCTYPE html>")).iter()}
    assert not tags & {f"{HTML}script", f"{HTML}img"}
    assert "<script" in words(tree(made)), "it is shown"


def test_a_run_without_faults_probes_and_workloads_is_a_report():
    """One that was interrupted at once."""
    empty = made_up.run(
        faults=[], probes=[], workloads=[], verdicts=[], skipped=[], ended="interrupted"
    )
    told = words(tree(report(empty)))
    assert "interrupted" in told
    assert "no fault was injected into real processes" in told


def test_the_pictures_show_what_the_probes_saw():
    """A commit without an answer is a cross; one that hung is a line as long as it took."""
    run = made_up.run(faults=[made_up.fault("kill_leader", 10.0, 900.0)])
    run.probes = [
        result.ProbeTrack("hit", 0, [9_000.0, 10_000.0], [5.0, 900.0], [(0.0, 0)]),
        result.ProbeTrack("other", 1, [9_000.0, 10_500.0], [5.0, None], [(0.0, 1)]),
    ]
    picture = tree(report(run)).find(f".//{SVG}svg")
    strokes = [path.attrib["stroke"] for path in picture.iter(f"{SVG}path")]
    assert strokes == ["#0072B2", "#B3261E", "#D55E00"]
    [hung] = picture.iter(f"{SVG}polyline")
    assert hung.attrib["stroke"] == "#D55E00"


def test_the_page_says_what_a_gap_in_a_picture_means_and_draws_it_so():
    """Beside the pictures; the claim is that of the probe: one commit after the other."""
    run = made_up.run(faults=[made_up.fault("kill_leader", 10.0, 900.0)])
    run.probes = [result.ProbeTrack("hit", 0, [10_000.0, 14_000.0], [4_000.0, 5.0], [(0.0, 0)])]
    shown = tree(report(run))
    assert "A gap without dots is therefore a wait" in words(shown)
    [waited] = shown.find(f".//{SVG}svg").iter(f"{SVG}polyline")
    begin, end = (float(point.split(",")[0]) for point in waited.attrib["points"].split())
    dots = next(shown.find(f".//{SVG}svg").iter(f"{SVG}path")).attrib["d"]
    assert [float(at) for at in re.findall(r"M([\d.]+) ", dots)] == [begin, end]


def test_a_bug_has_a_row_of_three_columns():
    """Six columns of sentences were a hand's breadth each."""
    tables = [one for one in tree(report()).iter(f"{HTML}table") if one.get("class") == "bugs"]
    rows = [
        row
        for table in tables
        for row in table.iter(f"{HTML}tr")
        if row.find(f"{HTML}td") is not None
    ]
    assert len(rows) == len(bugs.read())
    assert {len(row) for row in rows} == {3}
    for row, bug in zip(rows, bugs.read(), strict=True):
        assert words(row[0]) == bug.id
        assert bug.test in words(row[2])


@pytest.mark.parametrize(
    ("ms", "told"),
    [(3, "3 ms"), (450, "0.45 s"), (12_000, "12 s"), (1_500_000, "25 min"), (12_600_000, "3.5 h")],
)
def test_a_duration_has_the_unit_that_one_reads(ms, told):
    """Nobody counts 12,600 s in hours."""
    assert short_ms(ms) == told


# ---- the JSON


def test_the_json_holds_everything_but_single_commits(tmp_path):
    """Figures by key, null where nobody measured; no bare numbers that JSON does not have."""
    made = report(made_up.run(), hunts=[made_up.caught("no_fsync")])
    beside = page.write(made, tmp_path / "deep" / "r.html")
    assert (tmp_path / "deep" / "r.html").exists()
    told = json.loads(beside.read_text("utf-8"))
    assert told["schema"] == "muster.chaos.report/v1"
    assert told["figures"]["mutants_caught"]["value"] == 1
    assert told["figures"]["soak_minutes"]["value"] is None
    assert told["runs"][0]["seed"] == 7
    assert "probes" not in told["runs"][0]
    assert [one["id"] for one in told["bugs"]] == [bug.id for bug in bugs.read()]
    assert "NaN" not in beside.read_text("utf-8")


# ---- inputs


def test_inputs_are_told_by_what_they_hold(tmp_path):
    """A run's folder with what lies beside it, what the simulator and a hunt wrote, a soak."""
    folder = tmp_path / "run1"
    folder.mkdir()
    result.write(made_up.run(), folder)
    made_up.write(folder / "sim.json", Summary(3, 0))
    made_up.write(tmp_path / "a.json", Summary(4, 0, {"crash": 1}))
    made_up.write(tmp_path / "b.json", made_up.caught())
    inputs = read([folder, *tmp_path.glob("*.json"), soak(tmp_path / "soak.jsonl")])
    assert [name for name, _ in inputs.runs] == ["run1"]
    assert [(name, one.seeds) for name, one in inputs.simulations] == [("sim", 3), ("a", 4)]
    assert [(one.name, one.caught) for one in inputs.mutants] == [("a", True)]
    assert [line.name for line in inputs.soaks[0].lines] == ["node-0", "worker-1"]


def test_a_mutant_counts_once_and_a_survivor_stays_one():
    """Two files name the same builds: one catch makes up for no escape."""
    for seeds in ((5, None), (None, 5)):
        made = report(hunts=[made_up.caught(seed=seed) for seed in seeds])
        assert [(one.name, one.caught) for one in made.mutants] == [("a", False)]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("x.json", None, "cannot be read"),
        ("x.json", "no json", "cannot be read"),
        ("x.json", "[1]", "is neither a run"),
        ("x.json", '{"schema": "muster.chaos.sim/v1", "seeds": "many"}', "valid integer"),
        ("x.json", '{"schema": "muster.chaos.mutants/v1", "build": null}', "mutants"),
        ("x.json", '{"colour": "blue"}', "is neither a run"),
        ("x.jsonl", '{"schema": "else"}\n', "holds no samples of a soak"),
        ("run.json", '{"version": 1}', "run.json"),
    ],
)
def test_what_is_no_input_is_refused_by_name(tmp_path, name, text, says):
    """And nothing is guessed."""
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=re.escape(says)):
        read([path])


def test_a_folder_without_a_result_and_no_inputs_at_all_are_errors(tmp_path):
    """An empty report would look like a clean one."""
    with pytest.raises(InputError, match=r"holds neither run\.json"):
        read([tmp_path])
    with pytest.raises(InputError, match="nothing to report of"):
        read([])


def test_a_soak_that_grew_fails_the_report(tmp_path):
    """With the process that did, and its memory drawn."""
    inputs = read([soak(tmp_path / "soak.jsonl", growth=4.0)])
    made = build(inputs, [], NOW)
    assert not made.passed
    labels = [e.attrib["aria-label"] for e in tree(made).iter(f"{SVG}svg")]
    assert labels == ["memory of each node", "memory of each worker"]
    assert figures(made)["rss_node_mib"] == pytest.approx(80 + 4.0 * 119 / 60, abs=0.1)


# ---- the command


def test_the_command_writes_both_files_and_ends_with_5_where_something_broke(tmp_path, muster):
    """Good: 0. Broken: 5, and the files are there. Not a page's name: 2."""
    result.write(made_up.run(), tmp_path)
    ran = muster("chaos", "report", str(tmp_path), "-o", "json")
    assert (ran.exit_code, json.loads(ran.out)["passed"]) == (0, True)
    assert (tmp_path / "chaos-report.html").exists()
    bad = made_up.run(made_up.verdict("I1", "lost"), passed=False, reasons=["I1\n\x1b[2J"])
    result.write(bad, tmp_path)
    to = tmp_path / "bad.html"
    ran = muster("chaos", "report", str(tmp_path), "--to", str(to))
    assert ran.exit_code == 5
    assert to.exists()
    assert to.with_suffix(".json").exists()
    assert "\x1b" not in ran.err
    assert muster("chaos", "report", str(tmp_path), "--to", "x.txt").exit_code == 2
    assert muster("chaos", "report", str(tmp_path / "none")).exit_code == 2
