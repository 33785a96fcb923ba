"""Writes a node's log lines to stderr: one JSON object a line, or text for people.

Lines of Python libraries take the same way. In JSON the same holds for what libraries in C write
to file 2 by themselves, gRPC's core above all: it is read from a pipe and logged line by line.
"""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Iterator, MutableMapping
from typing import Any, Final

import structlog

from musterd.coordinator.node.config import Settings

log = structlog.get_logger()

LINES_MAX: Final = 50
"""So many lines of one kind are written between two calls of `RateLimit.tell_left_out`."""
KINDS_MAX: Final = 128
"""Kinds of lines that are told apart; the code has fewer."""
OTHER: Final = "(other)"
TELL_S: Final = 10.0
"""How often it is said what was left out."""
PIPE_LINE_MAX: Final = 4_096
"""A longer line of a library is cut there, in bytes."""

_STDERR: Final = 2


class RateLimit:
    """A processor of structlog that leaves out lines of a kind beyond LINES_MAX, and counts them.

    The kind of a line is its event. Critical lines are always written.
    """

    def __init__(self, lines_max: int = LINES_MAX) -> None:
        self._lines_max = lines_max
        self._counts: dict[str, int] = {}

    def __call__(
        self, _logger: object, method: str, line: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """Let a line pass, or raise structlog.DropEvent."""
        if method == "critical":
            return line
        kind = str(line.get("event", ""))
        if kind not in self._counts and len(self._counts) >= KINDS_MAX:
            kind = OTHER
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count > self._lines_max:
            raise structlog.DropEvent
        return line

    def tell_left_out(self) -> None:
        """Log how many lines of each kind were left out since the last call, and begin anew."""
        counts, self._counts = self._counts, {}
        for kind, count in counts.items():
            if count > self._lines_max:
                log.info("lines left out", kind=kind, left_out=count - self._lines_max)


class _Forward(logging.Handler):
    """Lines of Python's own logging."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record under one kind for all libraries."""
        log.warning(
            "a library says",
            library=record.name,
            severity=record.levelname.lower(),
            text=record.getMessage(),
            exc_info=record.exc_info,
        )


def _names_first(
    _logger: object, _method: str, line: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """When, how grave and what, before the fields of the line."""
    return {**{key: line.pop(key) for key in ("timestamp", "level", "event")}, **line}


@contextlib.contextmanager
def logging_to_stderr(settings: Settings) -> Iterator[RateLimit]:
    """Lines on stderr. The rate limit is to be asked now and then what it left out."""
    limit = RateLimit()
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            limit,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _names_first,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[settings.log_level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    forward = _Forward(logging.WARNING)
    logging.getLogger().addHandler(forward)
    try:
        yield limit
    finally:
        logging.getLogger().removeHandler(forward)


async def tell_left_out(limit: RateLimit) -> None:
    """Say every TELL_S what was left out, until cancelled."""
    while True:
        await asyncio.sleep(TELL_S)
        limit.tell_left_out()


@contextlib.contextmanager
def own_stderr() -> Iterator[int]:
    """`sys.stderr` is ours alone meanwhile; what others write to file 2 comes out of a pipe.

    Gives the pipe's end to read, which does not block. Who writes to it is not held up either: what
    does not fit into the pipe, 64 KiB, is lost.
    """
    shown = sys.stderr
    shown.flush()
    # Loggers keep it: its file is left open for them.
    own = os.fdopen(os.dup(_STDERR), "w", buffering=1, errors="backslashreplace", closefd=False)
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.dup2(write, _STDERR)
    os.close(write)
    sys.stderr = own
    try:
        yield read
    finally:
        own.flush()
        sys.stderr = shown
        os.dup2(own.fileno(), _STDERR)
        os.close(read)


class PipeLines:
    """Logs what comes out of a pipe, line by line. `read` is called when there is something."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._rest = b""

    def read(self) -> None:
        """Log every whole line that is there."""
        with contextlib.suppress(BlockingIOError):  # it is empty
            while more := os.read(self._pipe, 65_536):
                *lines, self._rest = (self._rest + more).split(b"\n")
                for line in lines:
                    self._log(line)
                if len(self._rest) > PIPE_LINE_MAX:
                    self._log(self._rest)
                    self._rest = b""

    def end(self) -> None:
        """Log what is left, too: nothing follows."""
        self.read()
        self._log(self._rest)
        self._rest = b""

    def _log(self, line: bytes) -> None:
        text = line[:PIPE_LINE_MAX].decode("utf-8", "replace").strip()
        if text:
            log.warning("a library wrote", text=text)
