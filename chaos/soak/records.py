"""The samples file: one JSON object per line, written as it comes. A cut run can be read, too."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from musterd.chaos import build
from musterd.chaos.build import Build
from musterd.chaos.soak.plan import Timetable
from musterd.chaos.soak.sampling import Sample

SCHEMA: Final = "muster.chaos.soak/v1"


class RecordsError(Exception):
    """A samples file cannot be read; the message names the line."""


@dataclass(frozen=True, slots=True)
class Load:
    """What was done so far, all processes together."""

    at_s: float
    commits: int
    bounces: int
    kills: int
    pauses: int
    visits: int
    transfers: int = 0


@dataclass(slots=True)
class Records:
    """One run, whole or cut."""

    total_s: float
    samples: list[Sample] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    left: dict[str, str] | None = None
    """Processes that outlived the run; None: it was cut, nobody looked."""
    refused: dict[str, int] = field(default_factory=dict)
    build: Build | None = None
    """None: the file does not say."""

    @property
    def timetable(self) -> Timetable:
        """Of this run."""
        return Timetable(self.total_s)


class Writer:
    """Appends records to a new file; each is on its way to the disk when the call returns."""

    def __init__(self, path: Path, total_s: float) -> None:
        """Raises OSError where the file cannot be written."""
        self._file = path.open("w", encoding="utf-8")
        self._write("start", {"schema": SCHEMA, "total_s": total_s, "build": build.stamp()})

    def _write(self, kind: str, fields: dict[str, Any]) -> None:
        self._file.write(json.dumps({"record": kind, **fields}) + "\n")
        self._file.flush()

    def samples(self, found: Iterable[Sample]) -> None:
        """What was seen at one time."""
        for one in found:
            self._write("sample", asdict(one))

    def load(self, load: Load) -> None:
        """What was done so far."""
        self._write("load", asdict(load))

    def event(self, at_s: float, what: str) -> None:
        """Something was done to the cluster or a process."""
        self._write("event", {"at_s": round(at_s, 1), "what": what})

    def failure(self, at_s: float, what: str) -> None:
        """Something happened that must not."""
        self._write("failure", {"at_s": round(at_s, 1), "what": what})

    def end(self, left: dict[int, str], refused: dict[str, int]) -> None:
        """The run is over; nothing is written after this."""
        self._write("end", {"left": {str(k): v for k, v in left.items()}, "refused": refused})
        self.close()

    def close(self) -> None:
        """Nothing is written after this. Without `end` the run counts as cut."""
        self._file.close()


def read(path: Path) -> Records:
    """Read a samples file. A last line that was cut short is left out.

    Raises RecordsError where it is no such file, OSError where it cannot be read.
    """
    lines = path.read_text("utf-8").splitlines(keepends=True)
    found: Records | None = None
    for number, text in enumerate(lines, start=1):
        if not text.endswith("\n"):
            break
        try:
            line = json.loads(text)
            kind = line.pop("record")
            if found is None:
                if kind != "start" or line["schema"] != SCHEMA:
                    raise RecordsError(f"{path} is no samples file of a soak ({SCHEMA})")
                found = Records(float(line["total_s"]), build=build.read(line.get("build")))
            else:
                _take(found, kind, line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordsError(f"{path}, line {number}: {type(error).__name__}: {error}") from error
    if found is None:
        raise RecordsError(f"{path} is empty")
    return found


def _take(records: Records, kind: str, line: dict[str, Any]) -> None:
    match kind:
        case "sample":
            records.samples.append(Sample(**line))
        case "load":
            records.loads.append(Load(**line))
        case "failure":
            records.failures.append(f"{line['at_s']:.0f} s: {line['what']}")
        case "end":
            records.left, records.refused = line["left"], line["refused"]
        case "event":
            pass  # for people
        case _:
            raise ValueError(f"a record of an unknown kind: {kind}")
