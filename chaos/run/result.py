"""Everything that one run found out: the shape of `run.json` in a run's folder.

Times ending in `_ns` are CLOCK_MONOTONIC of the machine that ran it, comparable with each other and
with the history files; durations are ms or s as named. A figure that was not measured is None or
absent, never 0.
"""

import os
import platform
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import ClassVar

import pydantic

from musterd.chaos.build import Build, version
from musterd.chaos.verdict import Verdict

VERSION = 2
FILE = "run.json"


class ResultError(Exception):
    """`run.json` is missing, damaged, or of another version."""


@dataclass(slots=True)
class Machine:
    """The machine of a run; its limits are those of the figures."""

    cpu: str
    cores: int
    memory_mib: int
    kernel: str
    python: str
    muster: str
    """Its version."""
    network: str
    """`netns`, `loopback`, `own` (an installation of the user's)."""
    disk: str
    """What the nodes' data was on: file system and device."""


@dataclass(slots=True)
class Counts:
    """Operations by what their client knows of them."""

    ok: int = 0
    fail: int = 0
    unknown: int = 0


@dataclass(slots=True)
class Spread:
    """Of a list of figures: how many, and some of them. Nearest rank; None where there are none."""

    count: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Spread":
        """Take it from the figures, in any order."""
        ordered = sorted(figures)
        if not ordered:
            return cls()

        def rank(percent: int) -> float:
            return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]

        return cls(len(ordered), rank(50), rank(95), rank(99), ordered[-1])


@dataclass(slots=True)
class WorkloadResult:
    """One workload of the run."""

    name: str
    """`W1` ... `W12`."""
    title: str
    processes: int
    groups: int
    counts: dict[str, Counts]
    """By kind of operation: `commit`, `read`, `reset`, `delete`, `join`, `admin`, ..."""
    figures: dict[str, float] = field(default_factory=dict)
    """What else it counted (`killed`, `unfenced_stale_writes`, ...)."""
    errors: dict[str, int] = field(default_factory=dict)
    """Refused or unknown operations by the error's name."""


@dataclass(slots=True)
class FaultRun:
    """One fault of the schedule, and what the probes saw of it."""

    kind: str
    planned_s: float
    """After the run's start."""
    began_ns: int
    """Just before it was injected."""
    injected: bool = False
    """Whether it really was: False fails the run, with `error`."""
    targets: list[str] = field(default_factory=list)
    """`node-1`, `node-0>node-2`, ..."""
    quorum: bool = True
    """Whether a majority was up and connected throughout."""
    healed_ns: int | None = None
    settled_ns: int | None = None
    """When every shard was led and every node had caught up; None: not before the next fault."""
    detail: str = ""
    error: str = ""
    verified: bool = True
    """False: that something broke said a command of the user's, and nothing can be seen of it."""
    unreal: str = ""
    """Why no effect of it was visible; "" where one was, or none is looked for."""
    hit_ms: float | None = None
    """The longest time without an acknowledged commit, of a probe's group that a hit node led.

    From the injection at the earliest, until the next fault's at the latest."""
    other_ms: float | None = None
    """The same of the groups that other nodes led."""
    first_commit_ms: float | None = None
    """From the injection to the first commit of a hit group that was sent after it."""
    owned_ms: float | None = None
    """From the injection until each partition that lost its owner in this fault had one again.

    0.0: none lost it. None: no group was looked at, or see `unowned`."""
    unowned: int = 0
    """Partitions that lost their owner in this fault and had none when the next one began."""
    unowned_ms: float | None = None
    """From the injection until then. None: there are none."""
    never_owned: int = 0
    """Of `unowned`, those that nobody owned again."""
    latency_before: Spread = field(default_factory=Spread)
    """ms of the probes' commits in the 5 s before it."""
    latency_during: Spread = field(default_factory=Spread)


@dataclass(slots=True)
class FaultClass:
    """All faults of one kind. Spreads in ms."""

    kind: str
    count: int
    hit_ms: Spread
    other_ms: Spread
    unseen: int = 0
    """So many of them had no visible effect."""
    first_commit_ms: Spread = field(default_factory=Spread)
    owned_ms: Spread = field(default_factory=Spread)
    """Of those after which all was owned again."""
    unowned: int = 0
    """Those after which something had no owner until the next one."""
    unowned_ms: float | None = None
    """The longest time for which that was looked at."""
    p99_before_ms: float | None = None
    p99_during_ms: float | None = None
    quorum: bool = True
    verified: bool = True
    """False: that one of them broke something said a command of the user's alone."""


def fault_classes(faults: Iterable[FaultRun]) -> list[FaultClass]:
    """Those that were injected, by kind, in order of their names."""
    by_kind: dict[str, list[FaultRun]] = defaultdict(list)
    for one in faults:
        if one.injected:
            by_kind[one.kind].append(one)
    return [
        FaultClass(
            kind,
            len(some),
            hit_ms=Spread.of(known(some, "hit_ms")),
            other_ms=Spread.of(known(some, "other_ms")),
            unseen=sum(bool(one.unreal) for one in some),
            first_commit_ms=Spread.of(known(some, "first_commit_ms")),
            owned_ms=Spread.of(known(some, "owned_ms")),
            unowned=sum(one.unowned > 0 for one in some),
            unowned_ms=most(some, "unowned_ms"),
            p99_before_ms=most(some, "latency_before.p99"),
            p99_during_ms=most(some, "latency_during.p99"),
            quorum=all(one.quorum for one in some),
            verified=all(one.verified for one in some),
        )
        for kind, some in sorted(by_kind.items())
    ]


def known(of: Iterable[object], path: str) -> list[float]:
    """The values of one field that are known."""
    return [value for value in map(attrgetter(path), of) if value is not None]


def most(of: Iterable[object], path: str) -> float | None:
    """The highest; of times the worst: percentiles of several runs cannot be added."""
    return max(known(of, path), default=None)


@dataclass(slots=True)
class SkippedFault:
    """A kind of fault that this machine or installation does not allow."""

    kind: str
    reason: str


@dataclass(slots=True)
class ProbeTrack:
    """Every commit of one probe group, column by column: the picture of latency through faults."""

    group: str
    shard: int
    """-1: not known."""
    sent_ms: list[float]
    """After the run's start."""
    latency_ms: list[float | None]
    """None: never acknowledged."""
    leaders: list[tuple[float, int]] = field(default_factory=list)
    """(ms after the run's start, node id that answered) where it changed."""


@dataclass(slots=True)
class Rebalancing:
    """Figures of members that came and went."""

    join_to_assigned_ms: Spread = field(default_factory=Spread)
    leave_to_reassigned_ms: Spread = field(default_factory=Spread)
    """From a leaver's letting go of a partition until it was given to anybody."""
    rebalances: int = 0
    by_cause: dict[str, int] = field(default_factory=dict)
    moved: int = 0
    """Partitions that changed hands between two generations in a row that were both seen whole."""
    moved_minimum: int = 0
    """The least that had to, for the same changes of members, in a balanced assignment."""


@dataclass(slots=True)
class RunResult:
    """Everything that `run.json` holds: how the run was started, what it saw, how it ended."""

    version: int
    seed: int
    started_at: str
    """Wall time, ISO 8601, UTC."""
    began_ns: int
    ended_ns: int
    minutes: float
    """As asked for."""
    nodes: int
    shards: int
    command: list[str]
    """As it was called."""
    ended: str
    """`finished`, `interrupted`, or `broken: WHY` where the run itself could not go on."""
    machine: Machine
    workloads: list[WorkloadResult]
    faults: list[FaultRun]
    classes: list[FaultClass]
    skipped: list[SkippedFault]
    verdicts: list[Verdict]
    counts: Counts
    """All operations of the history."""
    commits: Counts
    commits_per_s: float
    """Acknowledged, of all workloads, over the whole run with its faults."""
    commit_ms: Spread
    """Acknowledged ones, over the whole run with its faults."""
    commits_lost: int | None
    """Acknowledged commits that a later read did not have, each once; None: not looked at."""
    rebalancing: Rebalancing
    probes: list[ProbeTrack]
    checkpoints: int
    """Digests read of all nodes."""
    checkpoints_compared: int
    """(shard, index) of which two nodes or more told a digest."""
    largest: dict[str, int]
    """`groups`, `members` (the most at one time), `partitions`: of one cluster, as told by the
    workloads."""
    passed: bool
    reasons: list[str]
    """Why it did not pass, a line each."""
    limits: list[str]
    """What a reader has to know of such a test."""
    keys_unread: int | None = None
    """Keys that were not read after their last acknowledged commit, so that nothing shows it."""
    commits_looked_up: int | None = None
    """Acknowledged commits that were looked up in the nodes' logs; None: none were exported."""
    calm_ms: float | None = None
    """The longest time without an acknowledged commit of a probe's group while nothing was broken:
    what unavailability in a fault has to be compared with. None: there was no such span."""
    notes: list[str] = field(default_factory=list)
    """Figures that are missing and why, and what else stands beside them; fails nothing."""
    build: Build | None = None
    """None: an earlier muster's, which did not say."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(extra="forbid")


_JSON = pydantic.TypeAdapter(RunResult)


def dump(result: RunResult) -> bytes:
    return _JSON.dump_json(result, indent=1)


def write(result: RunResult, folder: Path) -> Path:
    """Write `run.json`; a run that is cut there leaves the earlier file or none."""
    path = folder / FILE
    part = path.with_suffix(".part")
    part.write_bytes(dump(result))
    part.replace(path)
    return path


def read(folder: Path) -> RunResult:
    """Read a run's folder.

    Raises:
        ResultError: there is no such file, or it is not one of this version.
    """
    path = folder / FILE
    try:
        result = _JSON.validate_json(path.read_bytes())
    except FileNotFoundError as missing:
        raise ResultError(f"{folder} is no run's folder: it has no {FILE}") from missing
    except pydantic.ValidationError as error:
        raise ResultError(f"{path}: {error}") from error
    if result.version != VERSION:
        raise ResultError(f"{path} is of version {result.version}, not {VERSION}")
    return result


def this_machine(network: str, disk: Path | None) -> Machine:
    """`disk`: a folder on the nodes' disk; None: not known."""
    return Machine(
        cpu=_cpu(),
        cores=os.cpu_count() or 1,
        memory_mib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1024 * 1024),
        kernel=platform.release(),
        python=platform.python_version(),
        muster=version() or "not installed",
        network=network,
        disk="not known" if disk is None else _disk(disk),
    )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _disk(folder: Path) -> str:
    best = ("", "not known")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, where, kind, *_ = line.split(" ")
        inside = folder.resolve().is_relative_to(where)
        if inside and len(where) >= len(best[0]):
            best = (where, f"{kind} on {device}")
    return best[1]
