"""What the kernel and a node's own page say of a process: memory, handles, threads, tasks, CPU."""

import contextlib
import os
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

POOL = "event_engine"
"""How gRPC names the threads of its pool."""
PAGE_S = 10.0
"""A node has so long to answer a scrape."""


class SampleError(Exception):
    """A process or its page cannot be read; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one process."""

    at_s: float
    """Since the load began."""
    name: str
    """`node-0`, `worker-3`, ..."""
    kind: str
    """`node`, `worker` (lives as long as the run), `churned`."""
    pid: int
    rss_kib: int
    pss_kib: int
    private_kib: int
    handles: dict[str, int]
    """Open file descriptors: `socket`, `database` (a file of the store), `deleted` (a file that is
    gone from its directory), `other`."""
    threads: int
    cpu_s: float
    tasks: int
    """asyncio tasks that have not ended."""
    window: int | None = None
    """The quiet window it was taken in."""
    pool_threads: int = 0
    """Of the threads, those of gRPC's pool, which grows and shrinks with the machine's load."""


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SampleError(f"{what}: {error}") from error


def memory_kib(pid: int) -> tuple[int, int, int]:
    """Resident, proportional and private memory. Raises SampleError."""
    with _reading(f"process {pid}"):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()[1:]
    found = {line.split(":")[0]: int(line.split()[1]) for line in lines if ":" in line}
    return found["Rss"], found["Pss"], found["Private_Clean"] + found["Private_Dirty"]


def handles(pid: int) -> dict[str, int]:
    """Open file descriptors by kind; see `Sample.handles`. Raises SampleError."""
    found: Counter[str] = Counter(socket=0, database=0, deleted=0, other=0)
    with _reading(f"process {pid}"):
        names = list(Path(f"/proc/{pid}/fd").iterdir())
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found[_kind(str(name.readlink()))] += 1
    return dict(found)


def _kind(target: str) -> str:
    if target.startswith("socket:"):
        return "socket"
    if target.endswith(" (deleted)"):
        return "deleted"
    return "database" if "/db/" in target else "other"


def threads_and_cpu(pid: int) -> tuple[int, float]:
    """Threads, and seconds of CPU so far. Raises SampleError."""
    with _reading(f"process {pid}"):
        text = Path(f"/proc/{pid}/stat").read_text("utf-8")
    fields = text.rpartition(")")[2].split()
    return int(fields[17]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pool_threads(pid: int) -> int:
    """Threads of gRPC's pool. Raises SampleError."""
    found = 0
    with _reading(f"process {pid}"):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                found += (thread / "comm").read_text("utf-8").strip() == POOL
    return found


def look(
    at_s: float, name: str, kind: str, pid: int, tasks: int, window: int | None = None
) -> Sample:
    """One sample of a process that said how many tasks it has. Raises SampleError."""
    rss, pss, private = memory_kib(pid)
    threads, cpu_s = threads_and_cpu(pid)
    return Sample(
        at_s=round(at_s, 2),
        name=name,
        kind=kind,
        pid=pid,
        rss_kib=rss,
        pss_kib=pss,
        private_kib=private,
        handles=handles(pid),
        threads=threads,
        cpu_s=cpu_s,
        tasks=tasks,
        window=window,
        pool_threads=pool_threads(pid),
    )


def node_tasks(endpoint: str) -> int:
    """What a node's page says of its tasks. Raises SampleError."""
    with (
        _reading(f"the metrics page of {endpoint}"),
        urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=PAGE_S) as answer,
    ):
        text = answer.read().decode()
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "muster_asyncio_tasks":
            return int(float(value))
    raise SampleError(f"the metrics page of {endpoint} has no muster_asyncio_tasks")


def marked(marker: str) -> dict[int, str]:
    """Processes whose environment has `marker`, without this one: process id -> command line."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if marker.encode() in (folder / "environ").read_bytes().split(b"\0"):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                found[int(folder.name)] = b" ".join(words).decode(errors="replace")[:200]
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
    return found


def wait_gone(marker: str, timeout_s: float) -> dict[int, str]:
    """Wait until no process has the marker; returns those that are left after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while left := marked(marker):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return left
