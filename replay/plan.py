"""From sound files to a plan of the fold: where histories start and break, what to compare.

A shard's history is a list of *runs*: entries without a hole between them, with a known start (the
empty state before entry 1, or a base). Between two runs something is missing; `integrity` says
what. Entries before which the state is not known are not folded: that would be a guess.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from musterd.coordinator.machine.records.digest import DIGEST_MODULUS
from musterd.export.layout import BASE, Manifest
from musterd.replay.checks import Conflict, Inspection, SourceFile, Survey, finding
from musterd.replay.rows import Piece
from musterd.replay.tables import FAILED, MARKED, OK, Integrity

Start = tuple[SourceFile, int]
"""A base, and its digest without shard time's record."""

END_OF_ENTRY = 1 << 31
"""As a `sub`: after every command of an entry (a sub is a 32-bit int)."""


@dataclass(frozen=True, slots=True)
class Run:
    """Entries [first, last] of a shard with a known start: `base`, or None for the empty state.

    `first` is the entry after the start. `last` may be `first - 1`: a base alone. `digest` is the
    shard's at the start, without shard time's record.
    """

    first: int
    last: int
    base: SourceFile | None
    digest: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A place where the shard's digest is known, or the end of a run (`digest` None).

    It covers what is before it.

    `digest` is without shard time's record, which belongs to no group: every entry moves it.
    """

    index: int
    sub: int
    run: int
    digest: int | None
    what: str
    beside: int = 0
    """What shard time and the floors add to it there: with them it is the shard's own."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """All that the fold of one shard needs beside the rows. Small: it travels to every executor.

    `stops`: per group the key (index, sub) from which its rows are not believed.
    """

    shard: int
    runs: tuple[Run, ...]
    marks: tuple[Mark, ...]
    homeless: tuple[Piece, ...]
    stops: Mapping[str, tuple[int, int]]

    def run_of(self, index: int) -> int:
        """The run that entry `index` belongs to.

        A base's index is the entry before its run's first.
        """
        return bisect_right([run.first - 1 for run in self.runs], index) - 1

    def mark_of(self, positions: Sequence[tuple[int, int]], index: int, sub: int) -> int:
        """The first mark that covers what happens at (index, sub)."""
        return bisect_right(positions, (index, sub))


@dataclass(frozen=True, slots=True)
class Plan:
    """The plans of all shards, and what was found while making them."""

    shards: tuple[ShardPlan, ...]
    findings: tuple[Integrity, ...]


def make_plan(
    seen: Survey, inspections: Sequence[Inspection], conflicts: Iterable[Conflict]
) -> Plan:
    """`inspections` are of `seen.files`, in their order."""
    files = list(zip(seen.files, inspections, strict=True))
    shards = sorted(
        {file.manifest.shard for file in seen.files} | {gone.shard for gone in seen.deleted}
    )
    clashes = list(conflicts)
    plans: list[ShardPlan] = []
    findings: list[Integrity] = []
    for shard in shards:
        sound = [
            (file, inspection)
            for file, inspection in files
            if file.manifest.shard == shard and inspection.sound
        ]
        gone = [manifest for manifest in seen.deleted if manifest.shard == shard]
        mine = [conflict for conflict in clashes if conflict.shard == shard]
        plan, found = _plan_shard(shard, sound, gone, mine)
        plans.append(plan)
        findings += found
    return Plan(tuple(plans), tuple(findings))


def _plan_shard(
    shard: int,
    files: Sequence[tuple[SourceFile, Inspection]],
    deleted: Sequence[Manifest],
    conflicts: Sequence[Conflict],
) -> tuple[ShardPlan, list[Integrity]]:
    segments = [file for file, _ in files if file.manifest.kind != BASE]
    bases = sorted(
        (
            (file, of_groups(int(file.manifest.digest, 16), inspection.beside))
            for file, inspection in files
            if file.manifest.kind == BASE and file.manifest.digest is not None
        ),
        key=lambda start: (start[0].manifest.first, start[0].path),
    )
    runs: list[Run] = []
    homeless: list[Piece] = []
    for first, last in _intervals(segments, bases):
        run = _run(first, last, segments, bases)
        start = last + 1 if run is None else run.first
        homeless += _cover(segments, first, min(start - 1, last))
        if run is not None:
            runs.append(run)
    findings = [_conflict(conflict) for conflict in conflicts]
    manifests = [file.manifest for file, _ in files]
    findings += _missing(shard, runs, homeless, manifests, deleted)
    marks = _marks(runs, files, bases)
    plan = ShardPlan(shard, tuple(runs), tuple(marks), tuple(homeless), _stops(conflicts))
    return plan, findings


def _intervals(segments: Sequence[SourceFile], bases: Sequence[Start]) -> Iterator[tuple[int, int]]:
    """Maximal ranges without a hole, in order.

    A base that touches none is an empty range after its index.
    """
    ranges = [(file.manifest.first, file.manifest.last) for file in segments]
    ranges += [(base.manifest.first + 1, base.manifest.first) for base, _ in bases]
    current: tuple[int, int] | None = None
    for first, last in sorted(ranges):
        if current is not None and first <= current[1] + 1:
            current = (current[0], max(current[1], last))
        else:
            if current is not None:
                yield current
            current = (first, last)
    if current is not None:
        yield current


def _run(
    first: int, last: int, segments: Sequence[SourceFile], bases: Sequence[Start]
) -> Run | None:
    if first == 1:
        return Run(1, last, None, 0, tuple(_cover(segments, 1, last)))
    for base, digest in bases:
        index = base.manifest.first
        if first - 1 <= index <= last:
            return Run(index + 1, last, base, digest, tuple(_cover(segments, index + 1, last)))
    return None


def of_groups(digest: int, beside: int) -> int:
    """A shard's digest without what no group's history has (`digest_beside`)."""
    return (digest - beside) % DIGEST_MODULUS


def _cover(segments: Sequence[SourceFile], first: int, last: int) -> Iterator[Piece]:
    """Pieces that hold [first, last] once, with as few changes of file and node as there can be."""
    position, node = first, -1
    while position <= last:
        holding = [s for s in segments if s.manifest.first <= position <= s.manifest.last]
        best = max(holding, key=lambda s: (s.manifest.node == node, s.manifest.last, s.path))
        end = min(best.manifest.last, last)
        whole = (position, end) == (best.manifest.first, best.manifest.last)
        yield Piece(best.path, position, end, whole)
        position, node = end + 1, best.manifest.node


def _missing(
    shard: int,
    runs: Sequence[Run],
    homeless: Sequence[Piece],
    manifests: Sequence[Manifest],
    deleted: Sequence[Manifest],
) -> Iterator[Integrity]:
    """Yield what is not there before, between and in front of the runs, with the known reason."""
    position = 1
    stations = [(run.first, run.last, True) for run in runs]
    stations += [(piece.first, piece.last, False) for piece in homeless]
    for first, last, folded in sorted(stations):
        if first > position:
            yield _hole(shard, position, first - 1, manifests, deleted)
        if not folded:
            detail = "not folded: no state is known from which these entries could be folded"
            yield finding("start", FAILED, shard, None, detail, first=first, last=last)
        position = max(position, last + 1)


def _hole(
    shard: int,
    first: int,
    last: int,
    manifests: Sequence[Manifest],
    deleted: Sequence[Manifest],
) -> Integrity:
    gaps = [manifest.gap for manifest in (*manifests, *deleted) if manifest.gap is not None]
    removed = [(manifest.first, manifest.last) for manifest in deleted]
    if _subtract(first, last, removed) is None:
        detail = "deleted by retention; the fold starts at a base"
        return finding("deleted", OK, shard, None, detail, first=first, last=last)
    left = _subtract(first, last, [*removed, *((gap.first, gap.last) for gap in gaps)])
    if left is None:
        reasons = sorted({gap.reason for gap in gaps if gap.first <= last and gap.last >= first})
        detail = f"recorded by the exporter: {'; '.join(reasons)}"
        return finding("gap", MARKED, shard, None, detail, first=first, last=last)
    detail = f"entries {left[0]} to {left[1]} are in no sound segment, and no manifest says why"
    return finding("gap", FAILED, shard, None, detail, first=first, last=last)


def _subtract(first: int, last: int, ranges: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
    """The first part of [first, last] that no range covers, or None."""
    position = first
    for start, end in sorted(ranges):
        if start > position:
            break
        position = max(position, end + 1)
    if position > last:
        return None
    following = [start for start, _ in ranges if start > position]
    return position, min([*(start - 1 for start in following), last])


def _marks(
    runs: Sequence[Run],
    files: Sequence[tuple[SourceFile, Inspection]],
    bases: Sequence[Start],
) -> list[Mark]:
    known = {
        (
            *(seen.index, seen.sub, of_groups(seen.digest, seen.beside), "checkpoint"),
            seen.beside,
        )
        for _, inspection in files
        for seen in inspection.checkpoints
    }
    known |= {
        (base.manifest.first, END_OF_ENTRY, digest, f"base {base.label}", 0)
        for base, digest in bases
    }
    marks: list[Mark] = []
    for number, run in enumerate(runs):
        for index, sub, digest, what, beside in sorted(known):
            if run.first <= index <= run.last:
                marks.append(Mark(index, sub, number, digest, what, beside))
        marks.append(Mark(run.last, END_OF_ENTRY + 1, number, None, "end"))
    return marks


def _conflict(conflict: Conflict) -> Integrity:
    groups = ", ".join(repr(group) for group in conflict.groups)
    detail = f"copies of entry {conflict.index}.{conflict.sub} differ (groups {groups})"
    return finding(
        "copies",
        FAILED,
        conflict.shard,
        " = ".join(conflict.files),
        detail,
        first=conflict.index,
        last=conflict.index,
    )


def _stops(conflicts: Sequence[Conflict]) -> dict[str, tuple[int, int]]:
    stops: dict[str, tuple[int, int]] = {}
    for conflict in conflicts:
        for group in conflict.groups:
            key = (conflict.index, conflict.sub)
            stops[group] = min(key, stops.get(group, key))
    return stops
