"""Samples of the processes of a soak: what the kernel and they themselves say of them, in a file.

The file has one JSON object per line, written as it comes: that of a cut run can be read, too.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from musterd.chaos import build
from musterd.chaos.build import Build
from musterd.chaos.world.process_state import ran_s, rss_kib
from musterd.coordinator.node.loopback import ClusterError

SCHEMA: Final = "muster.chaos.soak/v2"
FILE: Final = "soak.jsonl"
POOL = "event_engine"
"""How gRPC names the threads of its pool."""
WARM_UP_S_MAX: Final = 1_200.0
REST_EVERY_S: Final = 600.0


class SamplesError(ClusterError):
    """A process cannot be looked at, or a samples file cannot be read; says which and why."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """The phases of a soak, in seconds since the load began."""

    total_s: float

    @property
    def warm_up_s(self) -> float:
        """Before this nothing is judged: 20 minutes, or a sixth of a run of less than an hour."""
        return WARM_UP_S_MAX if self.total_s >= 3 * WARM_UP_S_MAX else self.total_s / 6

    @property
    def rest_s(self) -> float:
        """How long a quiet window is, in which nobody comes, goes or is killed."""
        return min(60.0, max(8.0, self.total_s / 20))

    @property
    def sample_s(self) -> float:
        """Between two samples: so many in a window that most are of a moment without a call."""
        return min(10.0, self.rest_s / 20)

    def rests(self) -> list[float]:
        """When quiet windows begin: the first after the warm-up, the last at the end.

        One begins later where members are not at rest when it is due.
        """
        span_s = self.total_s - self.rest_s - self.warm_up_s
        count = max(1, int(span_s // REST_EVERY_S))
        return [self.warm_up_s + span_s * number / count for number in range(count + 1)]


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one process."""

    at_s: float
    """Since the load began."""
    name: str
    """`node-0`, or the name of its job."""
    kind: str
    """`node`, or `worker`: a process of the workloads."""
    pid: int
    rss_kib: int
    handles: dict[str, int]
    """Open file descriptors: `socket`, `database` (a file of the store), `deleted` (a file that is
    gone from its directory), `other`."""
    threads: int
    """Without those of gRPC's pool."""
    pool_threads: int
    """Those of gRPC's pool, which grows and shrinks with the machine's load."""
    cpu_s: float
    tasks: int
    """asyncio tasks that have not ended."""
    window: int | None = None
    """The quiet window it was taken in."""


def look(
    at_s: float, name: str, kind: str, pid: int, tasks: int, window: int | None = None
) -> Sample:
    """One sample of a process that said how many tasks it has. Raises SamplesError."""
    process = Path(f"/proc/{pid}")
    handles: Counter[str] = Counter(socket=0, database=0, deleted=0, other=0)
    threads: Counter[bool] = Counter()
    try:
        memory_kib, cpu_s = rss_kib(pid), ran_s(pid)
        for handle in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                handles[_kind(str(handle.readlink()))] += 1
        for thread in (process / "task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                threads[(thread / "comm").read_text("utf-8").strip() == POOL] += 1
    except OSError as error:
        raise SamplesError(f"{name}, process {pid}: {error}") from error
    return Sample(
        at_s=round(at_s, 2),
        name=name,
        kind=kind,
        pid=pid,
        rss_kib=memory_kib,
        handles=dict(handles),
        threads=threads[False],
        pool_threads=threads[True],
        cpu_s=cpu_s,
        tasks=tasks,
        window=window,
    )


def _kind(target: str) -> str:
    if target.startswith("socket:"):
        return "socket"
    if target.endswith(" (deleted)"):
        return "deleted"
    return "database" if "/db/" in target else "other"


@dataclass(slots=True)
class Samples:
    """Those of one run, whole or cut."""

    total_s: float
    processes: tuple[str, ...]
    """Names of those that are to live as long as the run: they are looked at."""
    samples: list[Sample] = field(default_factory=list)
    build: Build | None = None
    """None: the file does not say."""

    @property
    def timetable(self) -> Timetable:
        return Timetable(self.total_s)


class Writer:
    """Appends samples to a new file; each is on its way to the disk when the call returns."""

    def __init__(self, path: Path, total_s: float, processes: Collection[str]) -> None:
        """`processes`: see `Samples`. Raises OSError where the file cannot be written."""
        self._file = path.open("w", encoding="utf-8", buffering=1)
        start = {"schema": SCHEMA, "total_s": total_s, "processes": [*processes]}
        start["build"] = build.stamp()
        self._file.write(json.dumps(start) + "\n")

    def write(self, sample: Sample) -> None:
        self._file.write(json.dumps(asdict(sample)) + "\n")

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Samples:
    """Read a samples file. A last line that was cut short is left out.

    Raises SamplesError where it is no such file, OSError where it cannot be read.
    """
    lines = path.read_text("utf-8").splitlines(keepends=True)
    if not lines:
        raise SamplesError(f"{path} is empty")
    try:
        start = json.loads(lines[0])
        known = start["schema"] == SCHEMA
        of = build.read(start.get("build"))
        found = Samples(float(start["total_s"]), tuple(start["processes"]), build=of)
        whole = (line for line in lines[1:] if line.endswith("\n"))
        found.samples += [Sample(**json.loads(line)) for line in whole]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise SamplesError(f"{path}: {type(error).__name__}: {error}") from error
    if not known:
        raise SamplesError(f"{path} is no samples file of a soak ({SCHEMA})")
    return found
