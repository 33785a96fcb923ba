"""The demo proves its own checks: a small real run passes, and each plant makes one fail.

Real nodes, real workers, real kills; seconds of work, and the history replayed on one core.
"""

import asyncio
import dataclasses
import json
import random

import pytest

from muster.cli.errors import CommandError, ExitCode
from muster.cli.output import Format
from musterd.demo.cli import finish
from musterd.demo.faults import Faults
from musterd.demo.plan import CLIENT, LOCAL, SERVER, Plan
from musterd.demo.runner import Runner
from musterd.demo.view import PlainView

pytestmark = [pytest.mark.processes, pytest.mark.timeout(420)]

COUNTS = "token table equals the single-process count"
OFFSETS = "every result has its committed offset"
ORDER = "no commit before its result"
READS = "acknowledged <= read <= attempted after each change of term"
GAP = "commits go on after the kill"
FAILOVER = "a failover is no rebalance"
KILLED = "fault: the leader's node was killed"
RESTARTED = "fault: the node was started again"
ADDED = "fault: a worker was added"
TAKEOVERS = "takeovers resume where the last owner stopped"
REBALANCES = "every rebalance has its cause"
OWNERS = "nobody works on a partition that is not theirs"
HISTORY = "history (Local): digests match"


@pytest.fixture
def plan(tmp_path):
    """Two hundred lines for each of eight partitions, three workers, ten seconds."""
    source = tmp_path / "input"
    source.mkdir()
    words = random.Random(7)
    for number in range(32):
        lines = (" ".join(f"word{words.randrange(300)}" for _ in range(8)) for _ in range(50))
        (source / f"{number:02d}.txt").write_text("\n".join(lines) + "\n")
    folder = tmp_path / "run"
    folder.mkdir()
    return Plan(
        folder=folder,
        source=source,
        workers=3,
        partitions=8,
        duration_s=10.0,
        engine=LOCAL,
    )


class Patient(Faults):
    """A machine that stands still again and again makes sessions longer."""

    effect_s_max = 90.0


def conduct(plan, **broken):
    """A run with some of its parts replaced."""

    class Broken(Runner):
        faults = Patient
        finish_s_max = 30.0

    for name, part in broken.items():
        setattr(Broken, name, part)
    return asyncio.run(Broken(plan, PlainView()).run())


def failed(outcome):
    """Names of the lines that do not hold, with what they say."""
    return {check.name: check.detail for check in outcome.checks if not check.passed}


@pytest.mark.parametrize(
    "assignment", [CLIENT, pytest.param(SERVER, marks=pytest.mark.plants)], ids=["client", "server"]
)
def test_a_small_run_passes_every_check(assignment, plan, tmp_path, capsys):
    """Nothing fails, the report says so in both forms, nothing is left running."""
    plan = dataclasses.replace(plan, assignment=assignment)
    outcome = conduct(plan)
    assert failed(outcome) == {}
    finish(outcome, plan, tmp_path / "report.json", Format.TABLE, keep=True)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["schema"] == "muster.demo/v1"
    assert report["passed"] is True
    assert report["assignment"] == assignment
    assert report["lines"] == 1600
    assert {one["name"]: one["passed"] for one in report["checks"]}[READS] is True
    shown, told = capsys.readouterr()
    assert f"assignment={assignment}: " in told
    assert all(f"ok  {check.name}" in shown for check in outcome.checks)


PLANTS = {
    "CommitsFirst": ("worker", ORDER, {READS}),
    "WritesOffsetsLate": ("worker", COUNTS, {ORDER, TAKEOVERS}),
    "ForgetsTheLastCommit": ("worker", OFFSETS, {READS}),
    "DropsACommit": ("worker", READS, set()),
    "KeepsWithNewToken": ("worker", OWNERS, {OFFSETS, READS, TAKEOVERS, ADDED}),
    "KeepsWithOldToken": ("worker", OWNERS, {OFFSETS, READS}),
    "DoesNotKill": ("faults", KILLED, {READS, GAP, FAILOVER, RESTARTED}),
    "FlipsAByte": ("historian", HISTORY, {OWNERS, REBALANCES}),
}
"""Plant -> (the part that it replaces, the line that must fail, lines that may fail with it)."""
QUICK = {"DropsACommit"}
"""In every run of the tests; `make test-demo` plays every fifth of the others."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.plants) for name in PLANTS],
)
def test_a_plant_is_found_and_named(name, plan, tmp_path, capsys):
    """Exit code 1, the error names the line; lines that the plant does not touch hold."""
    import plants  # noqa: PLC0415  # the path is a fixture's

    part, line, others = PLANTS[name]
    broken = f"plants:{name}" if part == "worker" else getattr(plants, name)
    outcome = conduct(plan, **{part: broken})
    seen = failed(outcome)
    assert line in seen
    assert set(seen) <= {line, *others}, seen
    with pytest.raises(CommandError) as ended:
        finish(outcome, plan, tmp_path / "report.json", Format.TABLE, keep=True)
    assert ended.value.exit_code == ExitCode.ERROR == 1
    assert line in ended.value.message
    assert f"FAILED  {line}" in capsys.readouterr().out
    assert json.loads((tmp_path / "report.json").read_text())["passed"] is False
