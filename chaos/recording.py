"""Records of a process: each appends to a file of its own, and a reader merges the files.

A file is JSON lines: `{"header": {...}}` first, then one object per line whose one name says what
it is. An operation has a line when it begins and one when it has ended; an ownership has one more
when it is to be given up. The last line counts. Each line is handed to the kernel before the call
that it is about goes on, so what a killed process had begun has no end there and is unknown.
Nothing is synced: the files survive a dead process, not a power cut of the machine.
"""

import itertools
import os
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter

from musterd.chaos.history import KINDS, RECORDS, WRITES, Key, Operation, Outcome, Ownership

VERSION = 2
SUFFIX = ".history.jsonl"
"""Of the files' names, by which a folder of them is read."""
BYTES_MAX = 1 << 30
"""One file's size, at most: some two million operations. Never rotated: a history without its
beginning proves nothing."""
LINE_BYTES_MAX = 64 * 1024
END_BYTES = 1024
"""Room kept for the end of everything that has begun."""
ERROR_CHARS_MAX = 64
"""Of an error's name; six bytes a character at most, so that it fits in there."""
_T = TypeVar("_T")


class RecordingError(Exception):
    """A history cannot be written or read; the message says which file, which line, and why."""


class RecordingFullError(RecordingError):
    """The file has reached its maximum: nothing new may begin; what has begun may still end."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a file; it says who wrote it and which clock its times are of."""

    version: int
    process: str
    """Who wrote the file, a name for people."""
    boot: str
    """Which boot of which machine CLOCK_MONOTONIC counts from."""


@dataclass(frozen=True, slots=True)
class OperationLine:
    """An operation as it begins, or once more with its outcome."""

    id: int
    operation: Operation


@dataclass(frozen=True, slots=True)
class OwnershipLine:
    """A member owns a partition, begins to give it up, or has stopped to work on it."""

    id: int
    ownership: Ownership


@dataclass(frozen=True, slots=True)
class Died:
    """A client was killed: all that it owned is released. Whoever killed it says so."""

    client: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class Fact:
    """A line that holds one of `History.facts`."""

    name: str
    value: Any


RELEASES = frozenset({"revoked", "lost", "left"})
LINES: dict[str, type[Any]] = {
    "header": Header,
    "operation": OperationLine,
    "ownership": OwnershipLine,
    "died": Died,
    "fact": Fact,
    **RECORDS,
}
"""Every line's name and shape."""


def adapter(shape: type[Any]) -> TypeAdapter[Any]:
    """Return an adapter that writes and checks one shape; wrong fields of any kind are errors."""
    # A union of one more passes its configuration on to a dataclass, which has none of its own.
    either: Any = shape | None
    return TypeAdapter(either, config={"extra": "forbid", "strict": True})


def boot_id() -> str:
    """This boot of this machine, or "" where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Recording(ABC):
    """Records the operations of one process; a subclass says where the lines go.

    Its methods raise RecordingError where a line cannot be kept.
    """

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._operations: dict[int, Operation] = {}
        self._ownerships: dict[int, Ownership] = {}

    def now_ns(self) -> int:
        """The time of the next line."""
        return time.monotonic_ns()

    @abstractmethod
    def _write(self, line: object, *, opens: int = 0) -> None:
        """Keep a line; `opens`: how many more lines are owed after it, less those that it ends."""

    # -- operations

    def invoke(self, client: str, kind: str, key: Key, **known: Any) -> int:
        """An operation is about to be sent; returns the number by which it is ended.

        `known`: other fields of `Operation`; of a write `value` at least, -1 for a delete.

        Raises:
            RecordingFullError: it must not be sent then.
            ValueError: there is no such kind, or a write has no value.
        """
        operation = Operation(client, kind, key, self.now_ns(), **known)
        if kind not in KINDS:
            raise ValueError(
                f"no kind of operation: {kind!r}; there are {', '.join(sorted(KINDS))}"
            )
        if kind in WRITES and operation.value is None:
            raise ValueError(f"a {kind} has a value before it is sent")
        number = next(self._ids)
        self._write(OperationLine(number, operation), opens=1)
        self._operations[number] = operation
        return number

    def end(
        self,
        number: int,
        outcome: Outcome,
        *,
        value: int | None = None,
        node: int | None = None,
        error: str = "",
        generation: int | None = None,
    ) -> None:
        """An operation was answered, or given up (unknown). `value`: what a read was told.

        `node` and `generation`: where they were not known before.
        """
        begun = _under_way(self._operations, number)
        ended = replace(
            begun,
            ended_ns=self.now_ns(),
            outcome=outcome,
            value=begun.value if value is None else value,
            node=begun.node if node is None else node,
            generation=begun.generation if generation is None else generation,
            error=error[:ERROR_CHARS_MAX],
        )
        self._write(OperationLine(number, ended), opens=-1)
        del self._operations[number]

    # -- ownership

    def owns(
        self,
        client: str,
        key: Key,
        member_id: str,
        generation: int,
        instance_id: str = "",
        token: int = 0,
    ) -> int:
        """A member was told that it owns `key`; call before it works. Returns a number.

        Raises RecordingFullError.
        """
        owned = Ownership(
            client, key, member_id, generation, self.now_ns(), instance_id=instance_id, token=token
        )
        number = next(self._ids)
        self._write(OwnershipLine(number, owned), opens=2)  # two lines may follow
        self._ownerships[number] = owned
        return number

    def revoking(self, number: int) -> None:
        """It was told to give it up: call when the notice comes, before work is stopped."""
        owned = _under_way(self._ownerships, number)
        if owned.revoking_ns is None:
            owned = self._ownerships[number] = replace(owned, revoking_ns=self.now_ns())
            self._write(OwnershipLine(number, owned), opens=-1)

    def released(self, number: int, how: str) -> None:
        """It has stopped to work on it, and another may. `how`: revoked | lost | left."""
        if how not in RELEASES:
            raise ValueError(f"no way to release: {how!r}; there are {', '.join(sorted(RELEASES))}")
        owned = replace(_under_way(self._ownerships, number), until_ns=self.now_ns(), ended=how)
        self._write(OwnershipLine(number, owned), opens=-1)
        del self._ownerships[number]

    def died(self, client: str, at_ns: int | None = None) -> None:
        """`client` was killed by the caller, who waited until it was gone (default: now)."""
        self._write(Died(client, self.now_ns() if at_ns is None else at_ns))

    # -- everything else

    def record(self, record: object) -> None:
        """One of `history.RECORDS`. Raises RecordingFullError."""
        self._write(record)

    def fact(self, name: str, value: object) -> None:
        """One of `History.facts`; `value` is JSON. Raises RecordingFullError."""
        self._write(Fact(name, value))


def _under_way(begun: dict[int, _T], number: int) -> _T:
    """Return what has begun under this number and not ended."""
    if number not in begun:
        raise RecordingError(f"{number} is not under way")
    return begun[number]


class Recorder(Recording):
    """Appends to one file. Threads may share it; each call is one write to the kernel.

    Every method but `close` raises RecordingError where the file cannot be written, and from then
    on always: a history with a hole would prove what is not so.
    """

    def __init__(self, path: Path, process: str, bytes_max: int = BYTES_MAX) -> None:
        """Create `path` (its name should end with `SUFFIX`). Raises RecordingError.

        A file that exists is an error: two lives of one process are two files.
        """
        super().__init__()
        self.path = path
        self._bytes_max = bytes_max
        self._bytes = 0
        self._open = 0
        """How many have begun and not ended."""
        self._broken = ""
        self._lock = threading.Lock()
        self._dump = {LINES[name]: (name, adapter(LINES[name]).dump_json) for name in LINES}
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o644)
        except OSError as error:
            raise RecordingError(f"{path}: {error.strerror}") from error
        self._write(Header(VERSION, process, boot_id()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """No more is written. What has not ended stays open: unknown, or owned."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1
            self._broken = self._broken or "the recorder is closed"

    def _write(self, line: object, *, opens: int = 0) -> None:
        name, dump = self._dump[type(line)]
        data = b'{"%b": %b}\n' % (name.encode(), dump(line, exclude_defaults=True))
        if len(data) > LINE_BYTES_MAX:
            raise RecordingError(f"{self.path}: a line of more than {LINE_BYTES_MAX} bytes")
        with self._lock:
            if self._broken:
                raise RecordingError(f"{self.path}: {self._broken}")
            begun = max(0, self._open + opens)
            if opens >= 0 and self._bytes + len(data) + begun * END_BYTES > self._bytes_max:
                raise RecordingFullError(f"{self.path} has reached {self._bytes_max} bytes")
            try:
                written = os.write(self._file, data)
            except OSError as error:
                self._broken = str(error.strerror)
                raise RecordingError(f"{self.path}: {error.strerror}") from error
            if written != len(data):
                self._broken = "a line was written in part"
                raise RecordingError(f"{self.path}: {self._broken}")
            self._open = begun
            self._bytes += written
