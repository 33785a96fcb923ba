"""`--watch`: a reading command again and again, until Ctrl-C or until nobody reads on.

A terminal is drawn anew each time. Anything else gets blocks one after the other: tables with an
empty line between them, JSON as one line a round. What goes wrong in a round is shown, and the next
round tries again; only a wrong argument or a missing permission ends it.
"""

import functools
import io
import os
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Container
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from typing import Annotated

import typer

from muster.cli.errors import CommandError, ExitCode, report
from muster.cli.more_options import with_options
from muster.cli.output import Format, drop_output, line
from muster.cli.rounds import kept

Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")
]
Interval = Annotated[
    float,
    typer.Option(
        "--interval", min=0.1, max=3600, metavar="SECONDS", help="With --watch: between two looks."
    ),
]
DEFAULT_INTERVAL_S = 2.0
HEARING_S = 0.1
"""A wait is interrupted within this, whoever took the signal."""

_HOME, _CLEAR, _LINE_END, _REST = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J"


def watchable(command: Callable[..., None]) -> Callable[..., None]:
    """The command with `--watch` and `--interval`. It must read only, and show one result."""

    @functools.wraps(command)
    def run(
        *args: object, watch: bool = False, interval: float = DEFAULT_INTERVAL_S, **options: object
    ) -> None:
        once = functools.partial(command, *args, **options)
        if watch:
            repeat(once, interval, _form(options))
        else:
            once()

    return with_options(
        run, command, {"watch": (Watch, False), "interval": (Interval, DEFAULT_INTERVAL_S)}
    )


def repeat(once: Callable[[], None], interval_s: float, form: Format) -> None:
    """Run `once` and show what it wrote, then wait; ends with Ctrl-C or a closed pipe, as success.

    Raises:
        CommandError: what no further round would change (not permitted; usage in the first one).
    """
    screen = _Screen(form)
    try:
        with kept():
            ends = {ExitCode.USAGE, ExitCode.NOT_PERMITTED}
            while True:
                screen.show(*_round(once, ends, terminal=screen.redraws))
                ends.discard(ExitCode.USAGE)
                _wait(interval_s)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        drop_output()


def _wait(seconds: float) -> None:
    """Sleep in pieces: one of gRPC's threads may take the signal of Ctrl-C, and wakes nobody."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(left_s, HEARING_S))


class _Captured(io.StringIO):
    """Captures the output of one round; it answers `isatty` as the real stdout would."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def _round(
    once: Callable[[], None], ends: Container[ExitCode], *, terminal: bool
) -> tuple[str, CommandError | None]:
    captured = _Captured(terminal=terminal)
    try:
        with ExitStack() as stack:
            stack.enter_context(redirect_stdout(captured))
            if terminal:  # a note beside the picture would tear it
                stack.enter_context(redirect_stderr(captured))
            once()
    except CommandError as error:
        if error.exit_code in ends:
            raise
        return captured.getvalue(), error
    return captured.getvalue(), None


class _Screen:
    """Writes one round after the other to the terminal."""

    def __init__(self, form: Format) -> None:
        self._form = form
        self._rounds = 0
        dumb = os.environ.get("TERM", "dumb") == "dumb"
        self.redraws = sys.stdout.isatty() and not dumb and form in {Format.TABLE, Format.NAME}

    def show(self, text: str, error: CommandError | None) -> None:
        """Write what one round printed, over the round before where the output redraws."""
        if self.redraws:
            text = self._frame(text, error)
        elif self._form is Format.JSON and text:
            text = _one_line(text)
        elif self._form is Format.TABLE and self._rounds and text:
            text = "\n" + text
        sys.stdout.write(text)
        sys.stdout.flush()
        if error is not None and not self.redraws:
            report(error)
        self._rounds += 1

    def _frame(self, text: str, error: CommandError | None) -> str:
        """The terminal's new content: as much as fits, no line left of what was there before."""
        size = shutil.get_terminal_size()
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        lines = [f"{moment}  {shlex.join(['muster', *sys.argv[1:]])}"[: size.columns], ""]
        if error is not None:
            for text_line in (f"error: {error.message}", f"next: {error.next_step}"):
                lines += textwrap.wrap(line(text_line), size.columns)
            lines.append("")
        lines += text.splitlines()
        most = max(size.lines - 1, 1)
        if len(lines) > most:
            lines = [*lines[: most - 1], f"({len(lines) - most + 1} more lines)"[: size.columns]]
        drawn = "".join(f"{one}{_LINE_END}\n" for one in lines)
        return ("" if self._rounds else _CLEAR) + _HOME + drawn + _REST


def _one_line(text: str) -> str:
    import msgspec  # noqa: PLC0415  # not needed for tables

    return msgspec.json.format(text, indent=-1) + "\n"


def _form(options: dict[str, object]) -> Format:
    form = options.get("output")
    return form if isinstance(form, Format) else Format.TABLE
