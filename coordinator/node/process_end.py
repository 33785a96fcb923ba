"""The end of a process that cannot go on, whatever its threads wait for.

A thread in an fsync that hangs keeps the process until the kernel gives it back: `os._exit` and
SIGKILL end all others, but what is open stays open, and a port that nobody serves goes on taking
connections. So the sockets are shut first, gRPC's too. Where the kernel holds a write of the event
loop as well, nothing here runs: the process stands still, as after SIGSTOP, until the disk is back.
"""

import contextlib
import os
import socket
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Final, NoReturn

import structlog

from muster.cli.errors import ExitCode
from musterd.coordinator.host import open_files_max

log = structlog.get_logger()

_FILES: Final = "/proc/self/fd"


def shut_sockets() -> None:
    """Shut every TCP socket of this process: connections end, ports refuse new ones (Linux)."""
    for number in _open_files():
        with contextlib.suppress(OSError):  # closed meanwhile, or connected to nobody
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                _shut(socket.socket(fileno=number))


def _open_files() -> Iterable[int]:
    try:
        return [int(name) for name in os.listdir(_FILES)]  # noqa: PTH208  # names are all there is
    except OSError:  # no file may be opened, not even this folder
        return range(open_files_max())


def _shut(one: socket.socket) -> None:
    try:
        inet = one.family in {socket.AF_INET, socket.AF_INET6}
        if inet and one.type == socket.SOCK_STREAM:
            one.shutdown(socket.SHUT_RDWR)
    finally:
        one.detach()  # the file is its owner's


def end_at_once(error: BaseException | None = None) -> NoReturn:
    """End with ExitCode.ERROR; nothing is handed over. `error` is what is said, in one line."""
    shut_sockets()
    if error is not None:
        info = (type(error), error, error.__traceback__) if error.__traceback__ else None
        log.critical("the node cannot go on", error=str(error), exc_info=info)
    sys.stderr.flush()
    os._exit(int(ExitCode.ERROR))


@contextlib.contextmanager
def ends_within(seconds: float, error: BaseException) -> Iterator[None]:
    """Whoever is still inside after so many seconds ends as by `end_at_once(error)`."""
    timer = threading.Timer(seconds, end_at_once, (error,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
