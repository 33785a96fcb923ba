"""Judges whether anything grew in a soak, by its samples.

What is judged, and why so, stands in docs/chaos.md, A soak.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import linear_regression
from typing import Any, Final

from musterd.chaos.history import History, Outcome
from musterd.chaos.run.samples import Sample, Samples
from musterd.chaos.verdict import Verdict, Violation

GROWTH_MIB_PER_H: Final = 1.0
FIT_S_MIN: Final = 1_800.0
"""In less time the line through the samples says more of noise than of growth."""
DATABASE_HANDLES_MAX: Final = 100
POOL_THREADS_MAX: Final = 16
SAMPLES_MIN: Final = 4
"""In a quiet window; of fewer nothing is concluded."""
SILENT_NS_MAX: Final = 60_000_000_000
"""A group has an acknowledged commit at least so often, quiet windows not counted."""
QUIET: Final = "quiet window"
"""Facts of a history are called so, with the window's number: its begin and its end, ns."""
_KIB_PER_MIB = 1024.0
_S_PER_H = 3600.0


@dataclass(frozen=True, slots=True)
class Row:
    """One process that lived as long as the run."""

    name: str
    kind: str
    rss_mib: tuple[float, float]
    """Lower quartiles of the first and the last quiet window, as all pairs here."""
    growth_mib_per_h: float | None
    """None: the run was too short to say."""
    handles: tuple[int, int]
    """Sockets, deleted files and others; without those of the store."""
    database: int
    """Most files of the store that were open at once, at any time after the warm-up."""
    threads: tuple[int, int]
    """Without those of gRPC's pool."""
    pool_threads: int
    """Most of them in the last quiet window."""
    tasks: tuple[int, int]
    cores: float
    """CPU seconds per second, after the warm-up."""


def rows(samples: Samples) -> list[Row]:
    """The table of all processes that were seen in the first and the last quiet window so far."""
    judged = _judged(samples)
    windows = {one.window for some in judged.values() for one in some if one.window is not None}
    if len(windows) < 2:  # noqa: PLR2004
        return []
    found = []
    for name, some in sorted(judged.items()):
        begin = [one for one in some if one.window == min(windows)]
        end = [one for one in some if one.window == max(windows)]
        if begin and end:
            found.append(_row(name, some, begin, end))
    return found


def _judged(samples: Samples) -> dict[str, list[Sample]]:
    """Samples after the warm-up, by process."""
    found: dict[str, list[Sample]] = defaultdict(list)
    for one in samples.samples:
        if one.at_s >= samples.timetable.warm_up_s:
            found[one.name].append(one)
    return found


def _row(name: str, some: list[Sample], begin: list[Sample], end: list[Sample]) -> Row:
    def pair(read: Callable[[Sample], int]) -> tuple[int, int]:
        return _at_rest(map(read, begin)), _at_rest(map(read, end))

    first, last = pair(lambda one: one.rss_kib)
    span_s = some[-1].at_s - some[0].at_s
    points = [(one.at_s / _S_PER_H, one.rss_kib / _KIB_PER_MIB) for one in some]
    line = linear_regression(*zip(*points, strict=True)) if span_s >= FIT_S_MIN else None
    return Row(
        name=name,
        kind=some[0].kind,
        rss_mib=(first / _KIB_PER_MIB, last / _KIB_PER_MIB),
        growth_mib_per_h=None if line is None else line.slope,
        handles=pair(lambda one: sum(one.handles.values()) - one.handles["database"]),
        database=max(one.handles["database"] for one in some),
        threads=pair(lambda one: one.threads),
        pool_threads=max(one.pool_threads for one in end),
        tasks=pair(lambda one: one.tasks),
        cores=(some[-1].cpu_s - some[0].cpu_s) / span_s,
    )


def _at_rest(values: Iterable[int]) -> int:
    """The lower quartile: one of the values, of which there is one at least."""
    ordered = sorted(values)
    return ordered[len(ordered) // 4]


def judge(samples: Samples) -> list[Verdict]:
    """All verdicts on a soak, cut or whole."""
    table = rows(samples)
    nodes = [row for row in table if row.kind == "node"]
    grown = {row.name: mib for row in table if (mib := row.growth_mib_per_h) is not None}
    pools = [row for row in table if row.pool_threads > POOL_THREADS_MAX]
    return [
        _verdict(
            "S1",
            f"memory grows by less than {GROWTH_MIB_PER_H:g} MiB/h",
            len(grown),
            [f"{name}: {mib:+.2f} MiB/h" for name, mib in grown.items() if mib >= GROWTH_MIB_PER_H],
            applies=bool(grown) or not table,
            note="" if grown else f"fewer than {FIT_S_MIN / 60:.0f} minutes after the warm-up",
        ),
        _left("S2", "no handle is left open", table, lambda row: row.handles),
        _verdict(
            "S3",
            f"a node has at most {DATABASE_HANDLES_MAX} files of its store open",
            len(nodes),
            [f"{row.name}: {row.database}" for row in nodes if row.database > DATABASE_HANDLES_MAX],
        ),
        _left(
            "S4",
            "no thread is left",
            table,
            lambda row: row.threads,
            [f"{row.name}: {row.pool_threads} threads in gRPC's pool" for row in pools],
        ),
        _left("S5", "no task is left", table, lambda row: row.tasks),
        _lived(samples),
    ]


def went_on(history: History, groups: Iterable[str], began_ns: int, ended_ns: int) -> Verdict:
    """Whether each of these groups had acknowledged commits all the time, from begin to end."""
    quiet: list[Any] = [span for name, span in history.facts.items() if name.startswith(QUIET)]
    acknowledged: dict[str, list[int]] = {group: [began_ns, ended_ns] for group in groups}
    for one in history.commits():
        if one.outcome is Outcome.OK and one.ended_ns and one.key.group in acknowledged:
            acknowledged[one.key.group].append(min(max(one.ended_ns, began_ns), ended_ns))
    broken = []
    for group, moments in acknowledged.items():
        for since, until in pairwise(sorted(moments)):
            silent = until - since
            silent -= sum(max(0, min(until, end) - max(since, begin)) for begin, end in quiet)
            if silent > SILENT_NS_MAX:
                at_s = (since - began_ns) / 1e9
                broken.append(f"{group}: no commit for {silent / 1e9:.0f} s from {at_s:.0f} s on")
    return _verdict("S7", "the load went on", len(acknowledged), broken)


def _left(
    number: str,
    title: str,
    table: list[Row],
    read: Callable[[Row], tuple[int, int]],
    others: Iterable[str] = (),
) -> Verdict:
    """Nobody has more of it in the last quiet window than in the first."""
    pairs = [(row.name, *read(row)) for row in table]
    more = [
        f"{name}: {first} at first, {last} at last" for name, first, last in pairs if last > first
    ]
    return _verdict(number, title, len(table), [*more, *others])


def _lived(samples: Samples) -> Verdict:
    """Each process is the same one all the time, and was seen often enough to be compared."""
    judged, broken = _judged(samples), []
    for name in samples.processes:
        some = judged.get(name, [])
        if len({one.pid for one in some}) > 1:
            broken.append(f"{name} was started again")
        for number in (0, len(samples.timetable.rests()) - 1):
            seen = sum(one.window == number for one in some)
            if seen < SAMPLES_MIN:
                broken.append(f"{name} was seen {seen} times in quiet window {number}")
    return _verdict("S6", "every process lived as long as the run", len(judged), broken)


def _verdict(
    number: str, title: str, looked_at: int, broken: Iterable[str], **more: Any
) -> Verdict:
    violations = tuple(Violation(number, what) for what in broken)
    return Verdict(number, title, looked_at, violations, **more)
