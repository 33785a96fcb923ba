"""The command line, run in this process."""

from dataclasses import dataclass

import pytest

from muster.cli import main


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it printed."""

    exit_code: int
    out: str
    err: str


@pytest.fixture
def muster(capsys):
    """Run `muster ARGS...`."""

    def run(*args):
        capsys.readouterr()
        code = 0
        try:
            main(list(args))
        except SystemExit as end:
            code = end.code
        captured = capsys.readouterr()
        return Ran(int(code or 0), captured.out, captured.err)

    return run
