"""What a soak calls a leak: planted ones are caught, noise and warm-up are not."""

import json
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from muster.cli import build
from muster.cli.errors import CommandError
from musterd.chaos.soak.judge import DATABASE_HANDLES_MAX, judge, rows
from musterd.chaos.soak.plan import JUDGED, Timetable
from musterd.chaos.soak.records import Load, Records, RecordsError, Writer, read
from musterd.chaos.soak.sampling import Sample

TWO_HOURS_S = 7_200.0
FORTY_MINUTES_S = 2_400.0
"""Long enough for memory to be judged."""
BOTH = ("node-1", "worker-1")


def _sample(at_s, name, window, **fields):
    given = {
        "kind": "node" if name.startswith("node") else "worker",
        "pid": 7,
        "rss_kib": 100 * 1024,
        "pss_kib": 90 * 1024,
        "private_kib": 80 * 1024,
        "handles": {"socket": 20, "database": 9, "deleted": 0, "other": 12},
        "threads": 9,
        "cpu_s": at_s * 0.1,
        "tasks": 40,
    }
    return Sample(at_s=at_s, name=name, window=window, **{**given, **fields})


def _records(change=lambda at_s, quiet: {}, total_s=TWO_HOURS_S, name="node-1", names=BOTH):
    """A sound run of these processes; `change` gives one of them other fields."""
    records = Records(total_s, left={})
    times = Timetable(total_s)
    noise = random.Random(5)
    every_s = max(1, int(times.sample_s))
    for at_s in range(0, int(total_s), every_s):
        window = next(
            (one.number for one in times.windows() if one.begin_s <= at_s < one.end_s), None
        )
        for one in names:
            # Outside of the windows members come and go: nothing is to be concluded from that.
            busy = 0 if window is not None else noise.randrange(6)
            fields = {
                "rss_kib": 100 * 1024 + noise.randrange(-1_500, 1_500),
                "tasks": 40 + busy,
                "threads": 9 + busy,
                "handles": {"socket": 20 + busy, "database": 9 + busy, "deleted": 0, "other": 12},
            }
            if one == name:
                fields |= change(at_s, fields)
            records.samples.append(_sample(at_s, one, window, **fields))
        done = {"commits": 80 * at_s, "visits": at_s // 10}
        records.loads.append(Load(at_s, **done, bounces=1, kills=1, pauses=1, transfers=1))
    return records


def _broken(records):
    return {one.invariant for one in judge(records, BOTH) if one.applies and not one.passed}


def test_a_sound_run_of_two_hours_passes():
    """Noise of 1.5 MiB, and members that come and go between the windows, are no leak."""
    records = _records()
    assert _broken(records) == set()
    assert all(one.applies for one in judge(records, BOTH))


def test_what_grows_in_the_warm_up_only_is_no_leak():
    """30 MiB in the first 20 minutes, then nothing: caches fill once."""
    growth = lambda at_s, was: {"rss_kib": was["rss_kib"] + int(30 * 1024 * min(1, at_s / 1_200))}  # noqa: E731
    assert _broken(_records(growth)) == set()


@pytest.mark.parametrize("name", ["node-1", "worker-1"])
@pytest.mark.parametrize(("mib_per_h", "broken"), [(1.3, {"S1"}), (0.6, set())])
def test_memory_that_rises_by_more_than_a_mebibyte_an_hour_is_caught(name, mib_per_h, broken):
    """In noise of 1.5 MiB; a rise of 0.6 MiB/h is not."""
    records = _records(
        lambda at_s, was: {"rss_kib": was["rss_kib"] + int(mib_per_h * 1024 * at_s / 3_600)},
        name=name,
    )
    assert _broken(records) == broken
    if broken:
        [verdict] = [one for one in judge(records, BOTH) if one.violations]
        assert [one.what.split(":")[0] for one in verdict.violations] == [name]


def test_calls_under_way_in_a_quiet_window_are_no_leak():
    """On a busy machine half of the samples see some; what is at rest is the same."""
    busy = lambda at_s, was: {"tasks": was["tasks"] + (at_s > 7_000 and at_s % 2)}  # noqa: E731
    assert _broken(_records(busy)) == set()


def test_a_window_with_too_few_samples_is_no_window():
    """Three samples say nothing."""
    records = _records()
    records.samples = [one for one in records.samples if one.at_s < 7_148]
    assert _broken(records) == {"S6"}


@pytest.mark.parametrize("name", ["node-1", "worker-1"])
@pytest.mark.parametrize(
    ("field", "invariant"), [("tasks", "S5"), ("threads", "S4"), ("handles", "S2")]
)
def test_one_left_behind_per_minute_or_in_all_is_caught(name, field, invariant):
    """Tasks, threads and sockets: one per minute, and a single one in two hours."""

    def more(was, count):
        if field == "handles":
            return {"handles": was["handles"] | {"socket": was["handles"]["socket"] + count}}
        return {field: was[field] + count}

    each_minute = _records(lambda at_s, was: more(was, at_s // 60), name=name)
    assert _broken(each_minute) == {invariant}
    single = _records(lambda at_s, was: more(was, int(at_s > 5_000)), name=name)
    assert _broken(single) == {invariant}


def test_a_file_that_is_deleted_and_still_open_is_a_handle_that_was_left():
    """RocksDB's own files come and go; one that is gone from its directory must be closed."""
    deleted = lambda at_s, was: {"handles": was["handles"] | {"deleted": int(at_s > 4_000)}}  # noqa: E731
    assert _broken(_records(deleted)) == {"S2"}


def test_files_of_the_store_have_a_bound_of_their_own():
    """They may rise and fall, up to the bound."""
    few = lambda at_s, was: {"handles": was["handles"] | {"database": at_s // 100}}  # noqa: E731
    many = lambda at_s, was: {"handles": was["handles"] | {"database": at_s // 50}}  # noqa: E731
    assert TWO_HOURS_S / 100 < DATABASE_HANDLES_MAX < TWO_HOURS_S / 50
    assert _broken(_records(few)) == set()
    assert _broken(_records(many)) == {"S3"}


def test_threads_of_grpcs_pool_have_a_bound_of_their_own():
    """More of them on a busy machine are no leak, one more per minute is."""

    def pool(at_s, was, count):
        return {"threads": was["threads"] + count, "pool_threads": count}

    assert _broken(_records(lambda at_s, was: pool(at_s, was, 4 + (at_s > 7_000)))) == set()
    assert _broken(_records(lambda at_s, was: pool(at_s, was, at_s // 60))) == {"S4"}


def test_a_process_that_was_started_again_is_not_judged_as_if_it_had_lived():
    """Its memory would begin anew, and hide what it had leaked."""
    assert _broken(_records(lambda at_s, was: {"pid": 7 if at_s < 3_000 else 8})) == {"S6"}


def test_a_process_that_was_not_seen_at_the_end_is_not_judged_as_sound():
    """It may have ended, or nobody could look."""
    records = _records()
    records.samples = [one for one in records.samples if one.name != "node-1" or one.at_s < 6_000]
    assert "S6" in _broken(records)


def test_a_run_that_is_cut_is_judged_as_far_as_it_went_and_does_not_pass():
    """A leak shows before the end; what did not leak is not said to be sound."""
    sound, leaking = _records(), _records(lambda at_s, was: {"tasks": was["tasks"] + at_s // 60})
    for records in (sound, leaking):
        records.left = None
        records.samples = [one for one in records.samples if one.at_s < 4_000]
    assert _broken(sound) == {"S6", "S8"}
    assert _broken(leaking) == {"S5", "S6", "S8"}


def test_a_run_without_load_proves_nothing():
    """Too few commits, or a minute without one, and the run has failed."""
    idle, stuck = _records(), _records()
    idle.loads = [replace(one, commits=int(one.at_s)) for one in idle.loads]
    stuck.loads = [replace(one, commits=80 * min(int(one.at_s), 7_000)) for one in stuck.loads]
    assert _broken(idle) == _broken(stuck) == {"S7"}


@pytest.mark.parametrize("what", ["bounces", "kills", "pauses", "transfers", "visits"])
def test_a_run_without_churn_proves_nothing(what):
    """Nobody came or went in one of the ways, or hardly a visit went well."""
    records = _records()
    few = {one.at_s: int(one.at_s) // 100 if what == "visits" else 0 for one in records.loads}
    records.loads = [replace(one, **{what: few[one.at_s]}) for one in records.loads]
    assert _broken(records) == {"S7"}


def test_a_process_that_was_never_seen_fails_the_run():
    """Its metrics page was never there, say: nobody knows what it leaks."""
    assert _broken(_records(names=("node-1",))) == {"S6"}
    missing = _records(names=JUDGED[1:], total_s=300.0)
    [verdict] = [one for one in judge(missing) if one.violations]
    assert [one.what for one in verdict.violations] == ["node-0 was never seen after the warm-up"]


def test_what_failed_while_it_ran_fails_the_run():
    """A membership that ended by itself, for instance."""
    records = _records()
    records.failures.append("17 s: ChildError: worker-3: a membership ended")
    assert _broken(records) == {"S7"}


def test_processes_that_are_left_over_fail_the_run_and_a_cut_run_does_not_pass():
    """Nobody looked for them where the run was cut."""
    left, cut = _records(), _records()
    left.left, cut.left = {"77": "python -m musterd.chaos.soak.worker"}, None
    assert _broken(left) == _broken(cut) == {"S8"}


def test_a_short_run_does_not_claim_that_memory_is_flat():
    """The line through 100 s of noise says nothing; all else is judged."""
    records = _records(total_s=120.0)
    [memory] = [one for one in judge(records, BOTH) if one.invariant == "S1"]
    assert (memory.applies, memory.passed) == (False, False)
    assert _broken(records) == set()


def test_nothing_seen_is_nothing_held():
    """An empty run passes no check at all."""
    records = Records(TWO_HOURS_S)
    assert len(_broken(records)) == len(judge(records))
    assert rows(records) == []


@pytest.mark.parametrize("minutes", [2, 5, 20, 59, 60, 120, 480])
def test_windows_lie_in_the_judged_part_and_there_is_churn_between_them(minutes):
    """The first begins with the judged part, the last ends with the run."""
    times = Timetable(60.0 * minutes)
    windows = list(times.windows())
    assert windows[0].begin_s == times.warm_up_s
    assert windows[-1].end_s == pytest.approx(times.total_s)
    assert times.warm_up_s == (10.0 * minutes if minutes < 60 else 1_200.0)
    for one, other in pairwise(windows):
        assert other.begin_s - one.end_s > times.calm_s + 10
    assert times.window_s >= 4 * times.sample_s


def _write(path, records, *, whole=True):
    writer = Writer(path, records.total_s)
    writer.samples(records.samples)
    for load in records.loads:
        writer.load(load)
    for failure in records.failures:
        writer.failure(0.0, failure)
    if whole:
        writer.end({}, {"RebalanceInProgress": 3})
    writer.close()


def test_samples_come_back_as_they_were_written_also_of_a_cut_run(tmp_path):
    """A line that was cut short is left out, and the run counts as cut."""
    records = _records(total_s=300.0)
    _write(tmp_path / "whole", records)
    whole = read(tmp_path / "whole")
    assert (whole.samples, whole.loads, whole.left) == (records.samples, records.loads, {})
    _write(tmp_path / "cut", records, whole=False)
    text = (tmp_path / "cut").read_text()
    (tmp_path / "cut").write_text(text[:-20])
    cut = read(tmp_path / "cut")
    assert (cut.samples, cut.loads, cut.left) == (records.samples, records.loads[:-1], None)


@pytest.mark.parametrize("text", ["", "{}\n", '{"record": "start", "schema": "x"}\n', "nonsense\n"])
def test_what_is_no_samples_file_is_refused(tmp_path, text):
    """With the file's name, and not as an empty run."""
    (tmp_path / "given").write_text(text)
    with pytest.raises(RecordsError, match="given"):
        read(tmp_path / "given")


def test_check_judges_a_file_and_its_exit_code_says_how(tmp_path):
    """0 for a sound run, 1 with the process named for one that leaks; the summary is JSON."""
    _write(tmp_path / "sound", _records(total_s=FORTY_MINUTES_S, names=JUDGED))
    _write(
        tmp_path / "leak",
        _records(
            lambda at_s, was: {"tasks": was["tasks"] + at_s // 60}, FORTY_MINUTES_S, names=JUDGED
        ),
    )
    command = ["chaos", "soak", "--summary", str(tmp_path / "summary"), "--check"]
    app = build(command)
    assert CliRunner().invoke(app, [*command, str(tmp_path / "sound")]).exit_code == 0
    assert json.loads((tmp_path / "summary").read_text())["ended"] is True
    failed = CliRunner().invoke(app, [*command, str(tmp_path / "leak")])
    assert isinstance(failed.exception, CommandError)
    assert "S5: node-1" in failed.stderr
    missing = CliRunner().invoke(app, [*command, str(tmp_path / "nowhere")])
    assert isinstance(missing.exception, CommandError)


def test_a_short_soak_exits_with_0_and_says_that_memory_was_not_judged(tmp_path):
    """A long one does not say so."""
    _write(tmp_path / "short", _records(total_s=1_200.0, names=JUDGED))
    _write(tmp_path / "long", _records(total_s=FORTY_MINUTES_S, names=JUDGED))
    command = ["chaos", "soak", "--summary", str(tmp_path / "summary"), "--check"]
    app = build(command)
    told = CliRunner().invoke(app, [*command, str(tmp_path / "short")])
    assert told.exit_code == 0
    assert "not judged: memory grows by less than" in told.stderr
    long = CliRunner().invoke(app, [*command, str(tmp_path / "long")])
    assert (long.exit_code, "not judged" in long.stderr) == (0, False)
