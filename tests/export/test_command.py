"""`muster export` on its way from its options to the program that goes on."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from muster.cli.errors import ExitCode
from muster.cli.output import Format
from musterd.export.command import ExportCommand
from musterd.export.settings import ExportSettings


def test_every_option_reaches_the_program():
    """The settings that have an option and those without, and a path that is no text."""
    numbers = {one.name: 1_000 + n for n, one in enumerate(fields(ExportSettings))}
    folder = Path(b"/data/\xff".decode("utf-8", "surrogateescape"))
    given = ExportCommand(
        folder, Path("to it"), True, ExportSettings(**numbers), Format.JSONL, True
    )
    assert ExportCommand.decode(given.encode()) == given


def test_an_exporter_that_cannot_go_on_says_so_as_any_command_does(tmp_path):
    """The program that it became has the command's exit codes and errors."""
    command = [sys.executable, "-m", "muster.cli", "export", "--follow", f"--data-dir={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.ERROR
    assert done.stderr.splitlines() == [
        f"error: {tmp_path}/db holds no database of a node",
        "next: nothing finished is lost; correct it and start the export again",
    ]
