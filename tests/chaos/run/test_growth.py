"""What a soak calls a leak: planted ones are caught, noise and warm-up are not."""

import random
from itertools import pairwise

import pytest

from muster import timeouts
from musterd.chaos.history import Outcome
from musterd.chaos.run.growth import DATABASE_HANDLES_MAX, QUIET, judge, rows, went_on
from musterd.chaos.run.samples import Sample, Samples, SamplesError, Timetable, Writer, read
from musterd.chaos.run.soak import CALM_S
from tests.chaos.check.made import S, commit, history

TWO_HOURS_S = 7_200.0
BOTH = ("node-1", "worker-1")


def _sample(at_s, name, window, **fields):
    given = {
        "kind": "node" if name.startswith("node") else "worker",
        "pid": 7,
        "rss_kib": 100 * 1024,
        "handles": {"socket": 20, "database": 9, "deleted": 0, "other": 12},
        "threads": 9,
        "pool_threads": 0,
        "cpu_s": at_s * 0.1,
        "tasks": 40,
    }
    return Sample(at_s=at_s, name=name, window=window, **{**given, **fields})


def _samples(change=lambda at_s, quiet: {}, total_s=TWO_HOURS_S, name="node-1", names=BOTH):
    """A sound run of these processes; `change` gives one of them other fields."""
    samples = Samples(total_s, BOTH)
    times = Timetable(total_s)
    noise = random.Random(5)
    begins = list(enumerate(times.rests()))
    for at_s in range(0, int(total_s), max(1, int(times.sample_s))):
        window = next((n for n, begin in begins if begin <= at_s < begin + times.rest_s), None)
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
            samples.samples.append(_sample(at_s, one, window, **fields))
    return samples


def _broken(samples):
    return {one.invariant for one in judge(samples) if one.applies and not one.passed}


def test_a_sound_run_of_two_hours_passes():
    """Noise of 1.5 MiB, and members that come and go between the windows, are no leak."""
    samples = _samples()
    assert _broken(samples) == set()
    assert all(one.applies for one in judge(samples))


def test_what_grows_in_the_warm_up_only_is_no_leak():
    """30 MiB in the first 20 minutes, then nothing: caches fill once."""
    growth = lambda at_s, was: {"rss_kib": was["rss_kib"] + int(30 * 1024 * min(1, at_s / 1_200))}  # noqa: E731
    assert _broken(_samples(growth)) == set()


@pytest.mark.parametrize("name", ["node-1", "worker-1"])
@pytest.mark.parametrize(("mib_per_h", "broken"), [(1.3, {"S1"}), (0.6, set())])
def test_memory_that_rises_by_more_than_a_mebibyte_an_hour_is_caught(name, mib_per_h, broken):
    """In noise of 1.5 MiB; a rise of 0.6 MiB/h is not."""
    samples = _samples(
        lambda at_s, was: {"rss_kib": was["rss_kib"] + int(mib_per_h * 1024 * at_s / 3_600)},
        name=name,
    )
    assert _broken(samples) == broken
    if broken:
        [verdict] = [one for one in judge(samples) if one.violations]
        assert [one.what.split(":")[0] for one in verdict.violations] == [name]


def test_calls_under_way_in_a_quiet_window_are_no_leak():
    """On a busy machine half of the samples see some; what is at rest is the same."""
    busy = lambda at_s, was: {"tasks": was["tasks"] + (at_s > 7_000 and at_s % 2)}  # noqa: E731
    assert _broken(_samples(busy)) == set()


def test_a_window_with_too_few_samples_is_no_window():
    """Three samples say nothing."""
    samples = _samples()
    samples.samples = [one for one in samples.samples if one.at_s < 7_148]
    assert _broken(samples) == {"S6"}


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

    each_minute = _samples(lambda at_s, was: more(was, at_s // 60), name=name)
    assert _broken(each_minute) == {invariant}
    single = _samples(lambda at_s, was: more(was, int(at_s > 5_000)), name=name)
    assert _broken(single) == {invariant}


def test_a_file_that_is_deleted_and_still_open_is_a_handle_that_was_left():
    """RocksDB's own files come and go; one that is gone from its directory must be closed."""
    deleted = lambda at_s, was: {"handles": was["handles"] | {"deleted": int(at_s > 4_000)}}  # noqa: E731
    assert _broken(_samples(deleted)) == {"S2"}


def test_files_of_the_store_have_a_bound_of_their_own():
    """They may rise and fall, up to the bound."""
    few = lambda at_s, was: {"handles": was["handles"] | {"database": at_s // 100}}  # noqa: E731
    many = lambda at_s, was: {"handles": was["handles"] | {"database": at_s // 50}}  # noqa: E731
    assert TWO_HOURS_S / 100 < DATABASE_HANDLES_MAX < TWO_HOURS_S / 50
    assert _broken(_samples(few)) == set()
    assert _broken(_samples(many)) == {"S3"}


def test_threads_of_grpcs_pool_have_a_bound_of_their_own():
    """More of them on a busy machine are no leak, one more per minute is."""
    few = lambda at_s, was: {"pool_threads": 4 + (at_s > 7_000)}  # noqa: E731
    many = lambda at_s, was: {"pool_threads": at_s // 60}  # noqa: E731
    assert _broken(_samples(few)) == set()
    assert _broken(_samples(many)) == {"S4"}


def test_a_process_that_was_started_again_is_not_judged_as_if_it_had_lived():
    """Its memory would begin anew, and hide what it had leaked."""
    assert _broken(_samples(lambda at_s, was: {"pid": 7 if at_s < 3_000 else 8})) == {"S6"}


def test_a_process_that_was_not_seen_at_the_end_is_not_judged_as_sound():
    """It may have ended, or nobody could look."""
    samples = _samples()
    samples.samples = [one for one in samples.samples if one.name != "node-1" or one.at_s < 6_000]
    assert "S6" in _broken(samples)


def test_a_run_that_is_cut_is_judged_as_far_as_it_went_and_does_not_pass():
    """A leak shows before the end; what did not leak is not said to be sound."""
    sound, leaking = _samples(), _samples(lambda at_s, was: {"tasks": was["tasks"] + at_s // 60})
    for samples in (sound, leaking):
        samples.samples = [one for one in samples.samples if one.at_s < 4_000]
    assert _broken(sound) == {"S6"}
    assert _broken(leaking) == {"S5", "S6"}


def test_a_process_that_was_never_seen_fails_the_run():
    """Its metrics page was never there, say: nobody knows what it leaks."""
    [verdict] = [one for one in judge(_samples(names=("node-1",))) if one.violations]
    assert verdict.invariant == "S6"
    assert {one.what for one in verdict.violations} == {
        f"worker-1 was seen 0 times in quiet window {number}" for number in (0, 9)
    }


def test_a_short_run_does_not_claim_that_memory_is_flat():
    """The line through 100 s of noise says nothing; all else is judged."""
    samples = _samples(total_s=120.0)
    [memory] = [one for one in judge(samples) if one.invariant == "S1"]
    assert (memory.applies, memory.passed) == (False, False)
    assert _broken(samples) == set()


def test_nothing_seen_is_nothing_held():
    """An empty run passes no check at all."""
    samples = Samples(TWO_HOURS_S, BOTH)
    assert len(_broken(samples)) == len(judge(samples))
    assert rows(samples) == []


@pytest.mark.parametrize("minutes", [2, 5, 20, 59, 60, 120, 480])
def test_windows_lie_in_the_judged_part_and_there_is_churn_between_them(minutes):
    """The first begins with the judged part, the last ends with the run."""
    times = Timetable(60.0 * minutes)
    rests = times.rests()
    assert rests[0] == times.warm_up_s
    assert rests[-1] + times.rest_s == pytest.approx(times.total_s)
    assert times.warm_up_s == (10.0 * minutes if minutes < 60 else 1_200.0)
    for one, other in pairwise(rests):
        assert other - one > times.rest_s + 25
    assert times.rest_s >= 4 * times.sample_s


def test_samples_come_back_as_they_were_written_also_of_a_cut_run(tmp_path):
    """A line that was cut short is left out."""
    samples = _samples(total_s=300.0)
    writer = Writer(tmp_path / "whole", samples.total_s, samples.processes)
    for one in samples.samples:
        writer.write(one)
    writer.close()
    whole = read(tmp_path / "whole")
    assert (whole.total_s, whole.processes) == (300.0, BOTH)
    assert whole.samples == samples.samples
    (tmp_path / "cut").write_text((tmp_path / "whole").read_text()[:-20])
    assert read(tmp_path / "cut").samples == samples.samples[:-1]


@pytest.mark.parametrize(
    "text", ["", "{}\n", '{"schema": "x", "total_s": 1, "processes": []}\n', "nonsense\n"]
)
def test_what_is_no_samples_file_is_refused(tmp_path, text):
    """With the file's name, and not as an empty run."""
    (tmp_path / "given").write_text(text)
    with pytest.raises(SamplesError, match="given"):
        read(tmp_path / "given")


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ((), ["g: no commit for 80 s from 60 s on"]),
        ((140,), []),
        ((130,), ["g: no commit for 70 s from 130 s on"]),
    ],
)
def test_a_load_that_stops_is_told_and_one_that_rests_is_not(last, said):
    """A minute is allowed, up to the end of the run; the quiet window's time is not counted."""
    acknowledged = [commit(1, at, at) for at in (*range(0, 61, 10), *last)]
    refused = commit(2, 170, 170, outcome=Outcome.FAIL)
    made = history(*acknowledged, refused, facts={f"{QUIET} 0": [70 * S, 130 * S]})
    verdict = went_on(made, ["g"], 0, 200 * S)
    assert [one.what for one in verdict.violations] == said
    assert "h" in went_on(made, ["h"], 0, 200 * S).violations[0].what


def test_streams_that_nobody_uses_have_ended_before_a_quiet_window():
    """Else a process has more tasks in the last one than in the first where a coordinator moved."""
    looks_ms = 2 * timeouts.STREAM_PING_MS  # it is looked for so often, and the node answers
    assert timeouts.STREAM_REST_MS + looks_ms < CALM_S * 1000
