"""A benchmark fails for what the code does and not for a slow day: its limits are ratios."""

import ast
import json
import re
from pathlib import Path

import pytest

from bench import backup, fleet
from bench.report import Report, Yardstick
from bench.yardstick import Echo

BENCH = Path(__file__).parents[2] / "bench"
OF_A_UNIT = re.compile(r"_(S|MS|US|MIB|BYTES|PERCENT)$")
ECHO = Yardstick(0.02, "s", "a bare echo's median")


def _calls(method: str) -> list[tuple[str, ast.Call]]:
    return [
        (f"{path.name}:{node.lineno}", node)
        for path in sorted(BENCH.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
    ]


def _of_a_unit(node: ast.AST) -> list[str]:
    """Constants in it that are seconds, bytes or percent, and fractions that are written out."""
    return [
        ast.unparse(one)
        for one in ast.walk(node)
        if (isinstance(one, ast.Name) and one.id.isupper() and OF_A_UNIT.search(one.id))
        or (isinstance(one, ast.Constant) and isinstance(one.value, float))
    ]


def test_no_condition_compares_a_measurement_with_seconds_or_bytes_of_its_own() -> None:
    """`require` has counts, equalities and ratios; what has a unit goes through `at_most`."""
    conditions = _calls("require")
    assert len(conditions) > 20
    assert [at for at, call in conditions if _of_a_unit(call.args[0])] == []


def test_a_condition_with_a_unit_is_a_multiple_of_something_measured() -> None:
    """The factor of `at_most` has no unit, and the yardstick is no constant."""
    for at, call in _calls("at_most"):
        if any(isinstance(one, ast.Starred) for one in call.args):
            continue
        times, of = call.args[2], call.args[3]
        assert not [one for one in _of_a_unit(times) if one.isupper()], at
        assert not (isinstance(of, ast.Name) and of.id.isupper()), at


@pytest.mark.parametrize(("value", "code"), [(0.3, 0), (0.31, 1)])
def test_a_limit_is_what_timers_wait_and_so_many_times_the_yardstick(value, code, capsys) -> None:
    """0.1 s and ten times 0.02 s; the sentence says all of it."""
    report = Report("failover")
    report.at_most("kill -9: median", value, 10, ECHO, 0.1)
    assert report.finish() == code
    said = "at most 0.3: 0.1 s of timers and 10 times a bare echo's median (0.02)"
    assert said in capsys.readouterr().out


def test_a_machine_that_is_three_times_as_slow_passes_with_three_times_the_figure() -> None:
    """And fails with the same figure on a machine that is not."""
    slow = Report("fill")
    slow.at_most("p99", 2.4, 100, Yardstick(0.03, "s", "the echo"))
    assert slow.failed == []
    slow.at_most("p99", 2.4, 100, Yardstick(0.01, "s", "the echo"))
    assert len(slow.failed) == 1


@pytest.mark.parametrize(
    ("raw_s", "call_s", "holds"),
    [(2.0, 0.001, True), (1.0, 0.2, True), (1.0, 0.001, False), (None, 0.2, True)],
    ids=["by raw stubs", "by the echo", "by neither", "raw stubs failed"],
)
def test_a_fleet_is_compared_with_the_longer_of_raw_stubs_and_the_echo(
    raw_s, call_s, holds
) -> None:
    """3 s through the SDK are 1.5 times the raw stubs' 2 s."""
    report = Report("fleet")
    took = {False: 3.0} | ({True: raw_s} if raw_s else {})
    fleet.judge(report, 1000, took, Yardstick(call_s, "s", "the echo"))
    assert (report.failed == []) == holds


@pytest.mark.parametrize(
    ("before_s", "during_s", "holds"),
    [(0.05, 0.1, True), (0.05, 0.11, False), (0.002, 0.02, True), (0.002, 0.021, False)],
    ids=["doubled", "more", "noise", "more than noise"],
)
def test_a_backup_may_double_the_p99_of_others_or_lift_it_to_the_echo(
    before_s, during_s, holds
) -> None:
    """The echo's median is 20 ms here."""
    report = Report("backup")
    backup.judge(report, before_s, during_s, ECHO)
    assert (report.failed == []) == holds


@pytest.mark.processes
def test_the_yardstick_is_taken_from_a_real_echo_and_stands_among_the_figures(capsys) -> None:
    """Each `take` is one value of each; a thousand calls take a thousand times one call's time."""
    report = Report("idle")
    with Echo() as echo:
        echo.take(0.3)
        echo.take(0.3)
        echo.add(report)
    assert report.finish() == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert {key: got["n"] for key, got in figures.items()} == {
        "yardstick_echo_ms_64": 2,
        "yardstick_echo_per_s_64": 2,
        "yardstick_echo_cpu_us_1": 2,
    }
    assert all(got["min"] > 0 for got in figures.values())
    assert echo.calls(1000).value == pytest.approx(1000 * echo.calls().value)
    assert echo.latency().value > 0
    assert echo.cpu().value > 0
