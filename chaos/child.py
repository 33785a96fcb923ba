"""Child processes that die with their parent and speak JSON lines.

A run is one parent that measures nothing itself and child processes that serve or offer load. The
parent writes one JSON object per line to a child's stdin and reads one per line from its stdout;
stderr is the run's own.
"""

import asyncio
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import IO, Any

from musterd.coordinator.host import die_with, tied_command
from musterd.coordinator.node.loopback import ClusterError

Message = dict[str, Any]

_LINE_BYTES_MAX = 256 * 1024 * 1024


class ChildError(ClusterError):
    """A child ended, or did not answer in time."""


class ChildRefusedError(ChildError):
    """It said why it did not do what it was asked; it goes on."""


def end_with_pool(parent_pid: int) -> None:
    """For a process of a pool: Ctrl-C is its parent's business, whose end is this one's.

    The initializer of a ProcessPoolExecutor that was made in its parent's main thread.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what the parent does at it was inherited
    die_with(parent_pid)


class Child:
    """One Python module, run as a process."""

    def __init__(
        self,
        module: str,
        config: Message,
        wrap: Callable[[list[str]], list[str]] | None = None,
        stderr: IO[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start `python -m module CONFIG`; the child says "ready" when it is (see `ready`).

        `wrap` turns the command into one that runs elsewhere and ends with this process
        (`World.client_command`); by default it runs right here. `stderr`: where that goes
        instead of the run's own. `environment`: all of it, by default this process's.
        """
        argv = [sys.executable, "-P", "-m", module, json.dumps(config)]
        self.name = f"{module} {config.get('name', '')}".strip()
        self.process = subprocess.Popen(
            (wrap or tied_command)(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
        )
        self._buffer = bytearray()

    @property
    def pid(self) -> int:
        return self.process.pid

    def ready(self, timeout_s: float = 30.0) -> Message:
        """Wait for the child's first line."""
        return self.read(timeout_s)

    def send(self, verb: str, **fields: Any) -> None:
        """Write one command to the child's stdin; ChildError where the child has ended."""
        if self.process.stdin is None:
            raise ChildError(f"{self.name}: no stdin")
        try:
            self.process.stdin.write(json.dumps({"verb": verb, **fields}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as broken:
            raise ChildError(f"{self.name} ended with code {self.process.poll()}") from broken

    def read(self, timeout_s: float = 30.0) -> Message:
        """Wait for one line; raises ChildError after `timeout_s` or where the child has ended."""
        if self.process.stdout is None:
            raise ChildError(f"{self.name}: no stdout")
        deadline = time.monotonic() + timeout_s
        handle = self.process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(handle, selectors.EVENT_READ)
            while (end := self._buffer.find(b"\n")) < 0:
                if len(self._buffer) > _LINE_BYTES_MAX:
                    raise ChildError(f"{self.name}: a line of more than {_LINE_BYTES_MAX} bytes")
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise ChildError(f"{self.name}: no answer within {timeout_s} s")
                data = os.read(handle, 1 << 20)
                if not data:
                    raise ChildError(f"{self.name} ended with code {self.process.wait()}")
                self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        message: Message = json.loads(line)
        if "error" in message:
            raise ChildRefusedError(f"{self.name}: {message['error']}")
        return message

    def ask(self, verb: str, timeout_s: float = 30.0, **fields: Any) -> Message:
        """Send one command and wait for its answer."""
        self.send(verb, **fields)
        return self.read(timeout_s)

    def hang_up(self) -> None:
        """Close stdin, which tells the child to end."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):  # it has ended already
                self.process.stdin.close()

    def close(self, timeout_s: float = 10.0) -> None:
        """Close stdin, which ends the child; kill it where that does not help."""
        self.hang_up()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def ask_all(
    children: Iterable[Child], verb: str, timeout_s: float = 30.0, **fields: Any
) -> list[Message]:
    """Send one command to all, then collect the answers in order."""
    everyone = list(children)
    for child in everyone:
        child.send(verb, **fields)
    return [child.read(timeout_s) for child in everyone]


def close_all(children: Iterable[Child]) -> None:
    """Close each; all are told to end before the first is waited for."""
    everyone = list(children)
    for child in everyone:
        child.hang_up()
    for child in everyone:
        child.close()


# ---- inside the child


def config() -> Message:
    got: Message = json.loads(sys.argv[1])
    return got


def answer(**fields: Any) -> None:
    """Send one line to the parent."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def commands() -> AsyncIterator[Message]:
    """The parent's commands, until it closes the pipe."""
    reader = asyncio.StreamReader(limit=_LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)
