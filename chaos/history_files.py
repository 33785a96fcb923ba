"""Read what the processes of a run recorded, as one history.

Memory: about 0.35 KiB per operation, so 10 minutes of 2,000 operations/s take some 400 MiB; lines
are read one by one, and nothing else is kept.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from musterd.chaos.collector import without_collector
from musterd.chaos.history import (
    KINDS,
    RECORDS,
    WRITES,
    History,
    Key,
    Operation,
    Outcome,
    Ownership,
)
from musterd.chaos.recording import (
    LINE_BYTES_MAX,
    LINES,
    RELEASES,
    SUFFIX,
    VERSION,
    Died,
    Fact,
    Header,
    OperationLine,
    OwnershipLine,
    Recording,
    RecordingError,
    adapter,
)

_T = TypeVar("_T")
_PARSE: dict[bytes, Callable[[bytes], Any]] = {
    name.encode(): adapter(shape).validate_json for name, shape in LINES.items()
}


def read_folder(folder: Path) -> History:
    """The history of a folder's files `*.history.jsonl`. Raises RecordingError, also if none."""
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if not files:
        raise RecordingError(f"{folder} has no file *{SUFFIX}")
    return read_files(files)


def read_files(paths: Iterable[Path]) -> History:
    """Merge the files of one run, sorted by time.

    A last line without its end is dropped (its writer was killed); operations without an end are
    unknown, ownerships without one last until their client died, or the history ended.

    Raises:
        RecordingError: a file is damaged elsewhere, of another version, from another boot of the
            machine (its times cannot be compared), or it contradicts itself.
    """
    reader = _Reader()
    with without_collector():
        for path in paths:
            reader.read(path)
        return reader.history()


class _Reader:
    def __init__(self) -> None:
        self._history = History()
        self._keys: dict[Key, Key] = {}
        self._died: dict[str, list[int]] = {}
        self._boot: tuple[str, Path] | None = None
        self._takers: dict[type[Any], Callable[[_File, Any], None]] = {
            Header: self._header,
            OperationLine: self._operation,
            OwnershipLine: self._ownership,
            Died: self._death,
            Fact: self._fact,
            **{shape: self._into(getattr(self._history, name)) for name, shape in RECORDS.items()},
        }

    @staticmethod
    def _into(records: list[_T]) -> "Callable[[_File, _T], None]":
        return lambda _file, record: records.append(record)

    def read(self, path: Path) -> None:
        file = _File(path)
        try:
            with path.open("rb") as lines:
                while line := lines.readline(LINE_BYTES_MAX + 1):
                    file.line += 1
                    if not line.endswith(b"\n") and len(line) <= LINE_BYTES_MAX:
                        break  # torn: only the last line has no end
                    self.take(file, _parse(line))
        except _Damaged as damaged:
            raise RecordingError(f"{path}, line {file.line}: {damaged}") from damaged
        except OSError as error:
            raise RecordingError(f"{path}: {error.strerror}") from error
        self.close(file)

    def close(self, file: "_File") -> None:
        """Nothing more comes of it: what has not ended by now never does."""
        self._history.operations += file.operations.values()
        self._history.ownerships += file.ownerships.values()

    def take(self, file: "_File", line: object) -> None:
        if file.line == 1 and not isinstance(line, Header):
            raise _Damaged("there is no header")
        self._takers[type(line)](file, line)

    def _operation(self, file: "_File", line: OperationLine) -> None:
        one, before = line.operation, file.operations.get(line.id)
        _look(line.id, before is not None and before.ended_ns is None, one.ended_ns, one.began_ns)
        if one.kind not in KINDS:
            raise _Damaged(f"no kind of operation: {one.kind!r}")
        if one.value is None and (one.kind in WRITES or _has_to_tell(one)):
            raise _Damaged(f"a {one.kind} without a value")
        key = self._keys.setdefault(one.key, one.key)
        if key is not one.key:  # one object per key, and not one per line
            object.__setattr__(one, "key", key)
        file.operations[line.id] = one

    def _ownership(self, file: "_File", line: OwnershipLine) -> None:
        one, before = line.ownership, file.ownerships.get(line.id)
        is_open = before is not None and before.until_ns is None
        _look(line.id, is_open, one.until_ns or one.revoking_ns, one.from_ns)
        if one.until_ns is not None and one.ended not in RELEASES:
            raise _Damaged(f"no way to release: {one.ended!r}")
        file.ownerships[line.id] = one

    def _death(self, _file: "_File", line: Died) -> None:
        self._died.setdefault(line.client, []).append(line.at_ns)

    def _fact(self, _file: "_File", line: Fact) -> None:
        known = self._history.facts.setdefault(line.name, line.value)
        if known != line.value:
            raise _Damaged(f"two values for {line.name}: {known!r} and {line.value!r}")

    def _header(self, file: "_File", line: Header) -> None:
        if file.line != 1:
            raise _Damaged("a second header")
        if line.version != VERSION:
            raise _Damaged(f"version {line.version}; this muster reads version {VERSION}")
        known, whose = self._boot = self._boot or (line.boot, file.path)
        if line.boot != known:
            raise _Damaged(f"not recorded in the same boot of the machine as {whose}")

    def history(self) -> History:
        history = self._history
        history.ownerships[:] = [self._until_death(one) for one in history.ownerships]
        history.operations.sort(key=lambda one: (one.began_ns, one.client))
        history.ownerships.sort(key=lambda one: (one.from_ns, one.client))
        history.generations.sort(key=lambda one: (one.at_ns, one.source))
        history.store_writes.sort(key=lambda one: one.at_ns)
        history.faults.sort(key=lambda one: one.began_ns)
        return history

    def _until_death(self, one: Ownership) -> Ownership:
        deaths = [at for at in self._died.get(one.client, ()) if at >= one.from_ns]
        if one.until_ns is not None or not deaths:
            return one
        return replace(one, until_ns=min(deaths), ended="died")


class MemoryRecorder(Recording):
    """A recording that stays in memory: what a whole simulated run writes down.

    `clock_ns`: its time. No two lines have the same, so that their order is that of the run. A line
    that contradicts what was written before raises RecordingError.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        super().__init__()
        self._clock_ns, self._last_ns = clock_ns, 0
        self._reader, self._file = _Reader(), _File(Path())

    def now_ns(self) -> int:
        """The time of the next line."""
        self._last_ns = max(self._clock_ns(), self._last_ns + 1)
        return self._last_ns

    def _write(self, line: object, *, opens: int = 0) -> None:  # noqa: ARG002 - no file to fill
        try:
            self._reader.take(self._file, line)
        except _Damaged as damaged:
            raise RecordingError(str(damaged)) from damaged

    def history(self) -> History:
        """All of it. Nothing may be written afterwards."""
        self._reader.close(self._file)
        return self._reader.history()


class _Damaged(Exception):  # noqa: N818 - it becomes a RecordingError, with the file and the line
    pass


class _File:
    """The content of one file: the last line of each operation and ownership."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 0
        self.operations: dict[int, Operation] = {}
        self.ownerships: dict[int, Ownership] = {}


def _look(number: int, is_open: bool, ended_ns: int | None, began_ns: int) -> None:
    """Whether one more line of something fits those before it."""
    if ended_ns is None and is_open:
        raise _Damaged(f"{number} begins a second time")
    if ended_ns is not None and not is_open:
        raise _Damaged(f"{number} ends and is not under way")
    if ended_ns is not None and ended_ns < began_ns:
        raise _Damaged(f"{number} ended before it began")


def _has_to_tell(one: Operation) -> bool:
    return one.outcome is Outcome.OK and one.kind != "heartbeat"


def _parse(line: bytes) -> object:
    """`{"NAME": {...}}` and a newline."""
    if len(line) > LINE_BYTES_MAX:
        raise _Damaged(f"more than {LINE_BYTES_MAX} bytes")
    end = line.find(b'": ', 2, 32)
    parse = _PARSE.get(line[2:end]) if end > 0 else None
    if parse is None or not line.startswith(b'{"') or not line.endswith(b"}\n"):
        raise _Damaged(f"no record that this muster knows: {_shown(line)}")
    try:
        record: object = parse(line[end + 3 : -2])
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise _Damaged(f"{place}: {first['msg']}: {_shown(line)}") from error
    if record is None:
        raise _Damaged(f"an empty record: {_shown(line)}")
    return record


def _shown(line: bytes) -> str:
    return repr(line[:80].decode("utf-8", "replace"))
