"""What the benchmarks print can be trusted: the arithmetic behind every published figure."""

import json

import pytest

from bench.report import Report, count, figure, median, quantile


def test_quantiles_are_measured_values_by_nearest_rank() -> None:
    """p95 of 1..100 is 95, of twenty values the nineteenth, of one value itself."""
    assert quantile(range(1, 101), 0.95) == 95
    assert quantile(range(1, 21), 0.95) == 19
    assert quantile([7.0], 0.95) == 7.0
    assert quantile([3, 1, 2], 1.0) == 3


def test_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    """Order of the input does not matter."""
    assert median([4, 1, 3, 2]) == 2.5
    assert median([3, 1, 2]) == 2


@pytest.mark.parametrize("summed_up", [median, lambda v: quantile(v, 0.5)])
def test_nothing_measured_is_an_error_and_not_a_zero(summed_up) -> None:
    """A benchmark that measured nothing must not print a figure."""
    with pytest.raises(ValueError, match="nothing was measured"):
        summed_up([])


def test_a_figure_has_the_five_numbers_and_the_unit() -> None:
    """The shape that the published JSON promises."""
    assert figure([0.2, 0.1, 0.4], "s") == {
        "n": 3, "min": 0.1, "median": 0.2, "p95": 0.4, "max": 0.4, "unit": "s",
    }  # fmt: skip


def test_a_count_was_taken_once_and_its_numbers_are_equal() -> None:
    """A count of zero included."""
    for value in (0, 12):
        got = count(value)
        assert got["n"] == 1
        assert [got[k] for k in ("min", "median", "p95", "max")] == [value] * 4


def test_the_last_line_is_one_json_object_with_the_published_shape(capsys) -> None:
    """name, command, cores, figures; and exit code 0 where every condition holds."""
    report = Report("idle", ["--seconds", "3"])
    report.add("cpu_percent_per_node", [1.0, 2.0, 3.0], "% of a core")
    report.require(True, "it is small")
    assert report.finish() == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert sorted(last) == ["command", "cores", "figures", "name"]
    assert last["command"] == "python -m bench idle --seconds 3"
    assert last["cores"] >= 1
    assert last["figures"]["cpu_percent_per_node"]["median"] == 2.0


def test_a_condition_that_does_not_hold_fails_the_run_and_is_named(capsys) -> None:
    """Exit code 1, the sentence on stderr, and the JSON still last on stdout."""
    report = Report("idle")
    report.require(True, "one thing")
    report.require(False, "another thing")
    assert report.finish() == 1
    printed = capsys.readouterr()
    assert printed.err == "FAILS: another thing\n"
    assert json.loads(printed.out.splitlines()[-1])["name"] == "idle"
