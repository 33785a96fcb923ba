"""The demo's input: files spread over partitions. A record is a line, an offset its number.

Each partition is written to one file of the demo's own folder, so that a reader finds an offset by
counting lines and nobody can change the input while it is read.
"""

import heapq
import os
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from musterd.demo.tokens import count_tokens

FILES_MAX = 200_000
BYTES_MAX = 2 * 1024**3
LINES_PER_PARTITION_MIN = 20
"""With fewer a partition would be read at once, and no fault could fall into its work."""

_PROBE_BYTES = 8192
_NOT_SOURCES = frozenset({"site-packages", "dist-packages", "__pycache__"})


class CorpusError(Exception):
    """The input cannot be used; `next_step` says what can be done about it."""

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file as it was when it was read."""

    path: Path
    lines: int
    bytes: int
    changed_ns: int
    """Its modification time."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """The input, cut into partitions."""

    root: Path
    files: tuple[InputFile, ...]
    folder: Path
    lines: tuple[int, ...]
    """Lines of each partition."""

    @property
    def total(self) -> int:
        """Lines of all partitions."""
        return sum(self.lines)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.files)


def read_corpus(root: Path | None, partitions: int, folder: Path) -> Corpus:
    """Read every text file under `root` (default: Python's own library) into partition files.

    Raises `CorpusError`: no such directory, too little or too much in it.
    """
    sources_only = root is None
    base = Path(sysconfig.get_paths()["stdlib"]) if root is None else root.resolve()
    if not base.is_dir():
        raise CorpusError(f"{base}: there is no such directory", "give --input a directory")
    files = list(_within_limits(base, _walk(base, sources_only=sources_only)))
    shares = spread([one.lines for one in files], partitions)
    lines = tuple(sum(files[number].lines for number in share) for share in shares)
    _refuse_thin(base, lines)
    folder.mkdir(parents=True, exist_ok=True)
    for partition, share in enumerate(shares):
        _write(partition_path(folder, partition), [files[number] for number in share])
    return Corpus(base, tuple(files), folder, lines)


def spread(sizes: Sequence[int], partitions: int) -> list[list[int]]:
    """Numbers of files per partition: the largest first, each to the partition with least lines."""
    shares: list[list[int]] = [[] for _ in range(partitions)]
    lightest = [(0, partition) for partition in range(partitions)]
    for number in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        load, partition = lightest[0]
        shares[partition].append(number)
        heapq.heapreplace(lightest, (load + sizes[number], partition))
    return [sorted(share) for share in shares]


def count_alone(corpus: Corpus) -> Counter[str]:
    """The token table as one process counts it: file by file from the input, no partitions.

    Raises `CorpusError` where a file is not what it was when the partitions were made.
    """
    counts: Counter[str] = Counter()
    for one in corpus.files:
        count_tokens(_unchanged(one), counts)
    return counts


def partition_path(folder: Path, partition: int) -> Path:
    """Where a partition's lines are."""
    return folder / f"partition-{partition:03d}.txt"


class PartitionReader:
    """A partition's lines, from an offset on."""

    def __init__(self, folder: Path, partition: int, offset: int) -> None:
        self._file = partition_path(folder, partition).open("rb")
        for _ in islice(self._file, offset):
            pass

    def read(self, count: int) -> bytes:
        """The next `count` lines as one text, fewer at the end."""
        return b"".join(islice(self._file, count))

    def close(self) -> None:
        self._file.close()


# ---- inside


def _within_limits(base: Path, paths: Iterator[Path]) -> Iterator[InputFile]:
    """Those files that are text, in order of their names."""
    count = total = 0
    for path in sorted(paths):
        found = _read(path)
        if found is not None:
            count, total = count + 1, total + found.bytes
            if count > FILES_MAX or total > BYTES_MAX:
                raise CorpusError(
                    f"{base}: more than {FILES_MAX} text files or {BYTES_MAX} bytes",
                    "give --input a smaller directory",
                )
            yield found


def _walk(base: Path, *, sources_only: bool) -> Iterator[Path]:
    """Regular files, no links, nothing hidden."""
    for folder, folders, names in os.walk(base):
        folders[:] = [
            name for name in folders if not name.startswith(".") and name not in _NOT_SOURCES
        ]
        for name in names:
            path = Path(folder, name)
            if name.startswith(".") or (sources_only and path.suffix != ".py"):
                continue
            if path.is_file() and not path.is_symlink():
                yield path


def _read(path: Path) -> InputFile | None:
    """None for a file without lines, and for one that is no text."""
    try:
        status = path.stat()
        data = path.read_bytes() if status.st_size <= BYTES_MAX else b""
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}", "make it readable, or move it") from error
    if status.st_size > BYTES_MAX:
        raise CorpusError(f"{path}: more than {BYTES_MAX} bytes", "move it elsewhere")
    if not data or b"\0" in data[:_PROBE_BYTES]:
        return None
    return InputFile(path, _lines(data), status.st_size, status.st_mtime_ns)


def _lines(data: bytes) -> int:
    return data.count(b"\n") + (not data.endswith(b"\n"))


def _unchanged(one: InputFile) -> bytes:
    try:
        status = one.path.stat()
        data = one.path.read_bytes()
    except OSError as error:
        raise CorpusError(f"{one.path}: {error.strerror}", "run the demo again") from error
    if (status.st_size, status.st_mtime_ns, len(data)) != (one.bytes, one.changed_ns, one.bytes):
        raise CorpusError(f"{one.path} was changed while it was read", "run the demo again")
    return data


def _refuse_thin(base: Path, lines: Sequence[int]) -> None:
    enough = sum(1 for each in lines if each >= LINES_PER_PARTITION_MIN)
    if enough < len(lines):
        raise CorpusError(
            f"{base}: of {len(lines)} partitions only {enough} would have "
            f"{LINES_PER_PARTITION_MIN} lines or more",
            "give fewer --partitions, or --input with more files: a file is not split",
        )


def _write(path: Path, files: Sequence[InputFile]) -> None:
    with path.open("wb") as out:
        for one in files:
            data = _unchanged(one)
            out.write(data if data.endswith(b"\n") else data + b"\n")
