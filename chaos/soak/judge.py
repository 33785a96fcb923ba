"""Whether anything grew: verdicts on a run's samples.

What is judged, and why so, stands in docs/chaos.md, A soak.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from statistics import linear_regression
from typing import Any, Final

from musterd.chaos.soak.plan import JUDGED
from musterd.chaos.soak.records import Records
from musterd.chaos.soak.sampling import Sample
from musterd.chaos.verdict import Verdict, Violation

GROWTH_MIB_PER_H: Final = 1.0
FIT_S_MIN: Final = 1_800.0
"""In less time the line through the samples says more of noise than of growth."""
DATABASE_HANDLES_MAX: Final = 100
POOL_THREADS_MAX: Final = 16
SAMPLES_MIN: Final = 4
"""In a quiet window; of fewer nothing is concluded."""
COMMITS_PER_S_MIN: Final = 20.0
"""Less would not be a load that shows a leak."""
SILENT_S_MAX: Final = 60.0
VISIT_S_MAX: Final = 60.0
"""A visit that went well in so long, on average; one is begun every ten seconds."""
CHURN: Final = ("bounces", "kills", "pauses", "transfers")
"""What has to have happened at all (`Load`)."""
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


def judged(records: Records) -> dict[str, list[Sample]]:
    """Samples after the warm-up of processes that ought to live as long as the run, by name."""
    found: dict[str, list[Sample]] = {}
    for one in records.samples:
        if one.kind != "churned" and one.at_s >= records.timetable.warm_up_s:
            found.setdefault(one.name, []).append(one)
    return found


def growth_mib_per_h(samples: Iterable[Sample]) -> float | None:
    """Slope of resident memory; None where the samples cover less than FIT_S_MIN."""
    points = [(one.at_s / _S_PER_H, one.rss_kib / _KIB_PER_MIB) for one in samples]
    if len(points) < 2 or (points[-1][0] - points[0][0]) * _S_PER_H < FIT_S_MIN:  # noqa: PLR2004
        return None
    return linear_regression(*zip(*points, strict=True)).slope


def at_rest(values: Iterable[int]) -> int:
    """The lower quartile: one of the values, of which there is one at least."""
    ordered = sorted(values)
    return ordered[len(ordered) // 4]


def rows(records: Records) -> list[Row]:
    """The table of all judged processes that were seen in both windows."""
    windows = ends(records)
    if windows is None:
        return []
    first, last = windows
    found = []
    for name, samples in sorted(judged(records).items()):
        begin = [one for one in samples if one.window == first]
        end = [one for one in samples if one.window == last]
        if not begin or not end:
            continue

        def pair(
            read: Callable[[Sample], int], begin: list[Sample] = begin, end: list[Sample] = end
        ) -> tuple[int, int]:
            return at_rest(map(read, begin)), at_rest(map(read, end))

        span_s = samples[-1].at_s - samples[0].at_s
        rss_kib = pair(lambda one: one.rss_kib)
        found.append(
            Row(
                name=name,
                kind=samples[0].kind,
                rss_mib=(rss_kib[0] / _KIB_PER_MIB, rss_kib[1] / _KIB_PER_MIB),
                growth_mib_per_h=growth_mib_per_h(samples),
                handles=pair(lambda one: sum(one.handles.values()) - one.handles["database"]),
                database=max(one.handles["database"] for one in samples),
                threads=pair(lambda one: one.threads - one.pool_threads),
                pool_threads=max(one.pool_threads for one in end),
                tasks=pair(lambda one: one.tasks),
                cores=(samples[-1].cpu_s - samples[0].cpu_s) / span_s if span_s else 0.0,
            )
        )
    return found


def ends(records: Records) -> tuple[int, int] | None:
    """The first and the last quiet window after the warm-up that were seen; None: fewer than two.

    Of a run that is cut or under way that is not the last one of the plan.
    """
    after_s = records.timetable.warm_up_s
    seen = {one.window for one in records.samples if one.window is not None and one.at_s >= after_s}
    return (min(seen), max(seen)) if len(seen) > 1 else None


def judge(records: Records, expected: Collection[str] = JUDGED) -> list[Verdict]:
    """All verdicts on a run, cut or whole.

    Args:
        records: what was seen.
        expected: names of the processes that must have been seen all the time.
    """
    table = rows(records)
    seen = len(table)
    return [
        _memory(table),
        _verdict(
            "S2", "no handle is left open", seen, _more_at_last(table, lambda row: row.handles)
        ),
        _store_files(table),
        _verdict(
            "S4",
            "no thread is left",
            seen,
            [
                *_more_at_last(table, lambda row: row.threads),
                *(
                    f"{row.name}: {row.pool_threads} threads in gRPC's pool"
                    for row in table
                    if row.pool_threads > POOL_THREADS_MAX
                ),
            ],
        ),
        _verdict("S5", "no task is left", seen, _more_at_last(table, lambda row: row.tasks)),
        _same_processes(records, expected),
        _went_on(records),
        _nothing_left(records),
    ]


def _verdict(
    number: str, title: str, looked_at: int, broken: Iterable[str], **more: Any
) -> Verdict:
    violations = tuple(Violation(number, what) for what in broken)
    return Verdict(number, title, looked_at, violations, **more)


def _memory(table: list[Row]) -> Verdict:
    grown = {row.name: mib for row in table if (mib := row.growth_mib_per_h) is not None}
    return _verdict(
        "S1",
        f"memory grows by less than {GROWTH_MIB_PER_H:g} MiB/h",
        len(grown),
        (f"{name}: {mib:+.2f} MiB/h" for name, mib in grown.items() if mib >= GROWTH_MIB_PER_H),
        applies=bool(grown) or not table,
        note="" if grown else f"fewer than {FIT_S_MIN / 60:.0f} minutes after the warm-up",
    )


def _more_at_last(table: list[Row], read: Callable[[Row], tuple[int, int]]) -> list[str]:
    pairs = [(row.name, *read(row)) for row in table]
    return [
        f"{name}: {first} at first, {last} at last" for name, first, last in pairs if last > first
    ]


def _store_files(table: list[Row]) -> Verdict:
    nodes = [row for row in table if row.kind == "node"]
    return _verdict(
        "S3",
        f"a node has at most {DATABASE_HANDLES_MAX} files of its store open",
        len(nodes),
        (f"{row.name}: {row.database}" for row in nodes if row.database > DATABASE_HANDLES_MAX),
    )


def _same_processes(records: Records, expected: Collection[str]) -> Verdict:
    """None was replaced, and each was seen from the first sample to the last."""
    planned = [one.number for one in records.timetable.windows()]
    first, last = (ends(records) or planned)[0], planned[-1]
    found = judged(records)
    broken = [f"{one} was never seen after the warm-up" for one in expected if one not in found]
    for name, samples in sorted(found.items()):
        if len({one.pid for one in samples}) > 1:
            broken.append(f"{name} was started again")
        for number in (first, last):
            seen = sum(one.window == number for one in samples)
            if seen < SAMPLES_MIN:
                broken.append(f"{name} was seen {seen} times in quiet window {number}")
    return _verdict("S6", "every process lived as long as the run", len(found), broken)


def _went_on(records: Records) -> Verdict:
    """Members commit all the time, and come and go: a run without load shows no leak."""
    loads = [one for one in records.loads if one.at_s >= records.timetable.warm_up_s]
    broken = list(records.failures)
    if len(loads) > 1:
        span_s, done = loads[-1].at_s - loads[0].at_s, loads[-1].commits - loads[0].commits
        if done < COMMITS_PER_S_MIN * span_s:
            broken.append(f"{done / span_s:.1f} commits/s")
        if loads[-1].visits - loads[0].visits < span_s / VISIT_S_MAX:
            broken.append(f"{loads[-1].visits} visits")
        broken += [f"not one of the {one}" for one in CHURN if not getattr(loads[-1], one)]
    since = loads[0] if loads else None
    for one in loads:
        if since is not None and one.at_s - since.at_s > SILENT_S_MAX:
            broken.append(f"no commit seen from {since.at_s:.0f} s on")
            break
        if since is None or one.commits > since.commits:
            since = one
    return _verdict("S7", "the load went on", len(loads), broken)


def _nothing_left(records: Records) -> Verdict:
    left = records.left
    return _verdict(
        "S8",
        "no process outlived the run",
        0 if left is None else 1,
        (f"{pid}: {what}" for pid, what in (left or {}).items()),
        note="the run was cut, nobody looked" if left is None else "",
    )
