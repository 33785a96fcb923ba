"""The report of a replay, whichever engine ran it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from musterd.replay.checks import Survey, finding
from musterd.replay.digests import Broken, Reached
from musterd.replay.plan import Plan, ShardPlan
from musterd.replay.rows import Piece
from musterd.replay.tables import FAILED, MARKED, OK, Integrity

Progress = Callable[[str], None]
"""Told what a replay is about to do, one line at a time."""


@dataclass(frozen=True, slots=True)
class Report:
    """Rows per table, and what is not in order."""

    engine: str
    cluster_id: str
    counts: Mapping[str, int]
    failed: tuple[Integrity, ...]
    marked: tuple[Integrity, ...]
    checkpoints: int
    """Digests that the fold gave and that equal what the live replicas recorded."""
    proven: int
    """Commands that were decided again with the same events (`--prove`)."""
    unproven: int
    seconds: float
    reached: tuple[Reached, ...] = ()
    """Digests that the fold gave, for whoever knows what they should be from elsewhere."""

    @property
    def sound(self) -> bool:
        return not self.failed


def make_report(
    engine: str,
    seen: Survey,
    counts: Mapping[str, int],
    findings: Iterable[Integrity],
    sums: Mapping[tuple[int, str], int],
    equal: int,
    seconds: float,
    reached: Iterable[Reached] = (),
) -> Report:
    """`sums` are the tallies per (shard, what), `equal` the number of checkpoints that fit."""
    rows = list(findings)
    return Report(
        engine=engine,
        cluster_id=seen.cluster_id,
        counts=dict(counts),
        failed=tuple(row for row in rows if row.result == FAILED),
        marked=tuple(row for row in rows if row.result == MARKED),
        checkpoints=equal,
        proven=_total(sums, "proven"),
        unproven=_total(sums, "unproven"),
        seconds=seconds,
        reached=tuple(reached),
    )


def _total(sums: Mapping[tuple[int, str], int], what: str) -> int:
    return sum(amount for (_, name), amount in sums.items() if name == what)


def fold_findings(
    plan: Plan, sums: Mapping[tuple[int, str], int], *, prove: bool
) -> Iterator[Integrity]:
    """One line per shard about the fold, and one about the proof."""
    for shard in plan.shards:
        number = shard.shard
        events = sums.get((number, "events"), 0)
        yield finding("fold", OK, number, None, f"{events} events in {len(shard.runs)} runs")
        if prove:
            proven, unproven = sums.get((number, "proven"), 0), sums.get((number, "unproven"), 0)
            detail = f"{proven} commands decide the same again; {unproven} not proven"
            yield finding("proof", MARKED if unproven else OK, number, None, detail)


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Entries whose groups cannot be trusted, and why."""

    shard: int
    piece: Piece
    why: str


def suspicions(plan: ShardPlan, broken: Iterable[Broken]) -> Iterator[Suspicion]:
    """Entries that could not be folded, and stretches whose digest does not fit."""
    for piece in plan.homeless:
        why = "has entries that could not be folded: the state before them is not known"
        yield Suspicion(plan.shard, piece, why)
    for stretch in broken:
        why = f"may be wrong: the shard's digest does not fit at entry {stretch.up_to}"
        for run in plan.runs:
            for piece in run.pieces:
                first, last = max(piece.first, stretch.after + 1), min(piece.last, stretch.up_to)
                if first <= last:
                    part = Piece(piece.path, first, last, whole=False)
                    yield Suspicion(plan.shard, part, why)


def suspects(doubt: Suspicion, groups: Iterable[str]) -> Iterator[Integrity]:
    """One failed row per group that a broken check may concern."""
    first, last = doubt.piece.first, doubt.piece.last
    for group in sorted(groups):
        if group:
            yield finding(
                "group", FAILED, doubt.shard, None, doubt.why, group=group, first=first, last=last
            )
