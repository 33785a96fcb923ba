"""Which runs porcupine judges: `make cross-check` does not pass where there is none."""

import subprocess
from pathlib import Path

import pytest

from tests.chaos.porcupine import __main__ as cross_check

ROOT = Path(__file__).parents[3]


def test_a_cross_check_that_needs_a_run_and_has_none_says_how_one_is_made(capsys):
    """Before anything is compared."""
    with pytest.raises(SystemExit) as ended:
        cross_check.main(["no-such-program", "--runs"])
    assert ended.value.code == 2
    assert "`make chaos-short` makes one" in capsys.readouterr().err


def test_make_cross_check_needs_a_run():
    """Whatever RUNS is."""
    argv = ["make", "--no-print-directory", "--dry-run", "cross-check", "RUNS="]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1].endswith("/porcupine  --runs")


def test_made_up_histories_are_compared_without_a_run(monkeypatch, capsys):
    """Where nobody asked for runs."""
    figures = {"compared": 10, "linearizable_yes": 5, "linearizable_no": 5}
    monkeypatch.setattr(cross_check, "compared", lambda *_: (True, figures))
    assert cross_check.main(["no-such-program", "--histories", "10"]) == 0
    assert "generated" in capsys.readouterr().out
