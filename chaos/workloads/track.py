"""Figures that a worker measures beside its history: one JSON object per line, `what` says which.

A line is written by one system call: a worker that is killed leaves what it saw, and a torn last
line at most. A track that is full says so in its last line and takes no more.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BYTES_MAX = 64 * 1024 * 1024
"""Of one track: half a million probes."""

SUFFIX = ".track.jsonl"
FULL = "full"


class TrackError(Exception):
    """A track cannot be read; the message names file and line."""


class Track:
    """One process's track, appended to."""

    def __init__(self, path: Path) -> None:
        """Open it; it may exist."""
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._bytes = os.fstat(self._handle).st_size
        self._full = False

    def note(self, what: str, **fields: Any) -> None:
        """Append one line; once the file is full, one line that says so and nothing more."""
        if self._full:
            return
        line = json.dumps({"what": what, **fields}, separators=(",", ":")).encode() + b"\n"
        if self._bytes + len(line) > BYTES_MAX:
            self._full = True
            line = json.dumps({"what": FULL}).encode() + b"\n"
        self._bytes += os.write(self._handle, line)

    def close(self) -> None:
        os.close(self._handle)


def read_tracks(folder: Path) -> Iterator[dict[str, Any]]:
    """Every line of every track in a folder, each with `by`, the name of its file.

    Raises:
        TrackError: a line before the last one of its file is no JSON object.
    """
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                fields = json.loads(line)
            except ValueError as error:
                if number == len(lines):  # no newline came after it: its writer was killed
                    continue
                raise TrackError(f"{path}:{number}: {error}") from error
            yield {**fields, "by": path.name.removesuffix(SUFFIX)}
