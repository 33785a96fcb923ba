"""Exit codes of the commands, and errors that say what to do next.

Exit codes are part of the interface; docs/cli.md lists them and a test keeps the two equal.
"""

import sys
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of a command. Its values never change."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNHEALTHY = 5
    UNREACHABLE = 6
    NOT_PERMITTED = 7
    TIMED_OUT = 124


class CommandError(Exception):
    """Ends the command: `message` is what happened, `next_step` what to do about it."""

    def __init__(self, message: str, *, next_step: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.exit_code = exit_code


def report(error: CommandError) -> None:
    """Write the error to stderr: one line for what happened, one for what to do."""
    sys.stdout.flush()
    sys.stderr.write(f"error: {error.message}\n")
    if error.next_step:
        sys.stderr.write(f"next: {error.next_step}\n")


def note(text: str) -> None:
    """Write to stderr what is worth knowing and no error."""
    sys.stderr.write(f"note: {text}\n")
