"""What a replay says at its end, whichever engine ran it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from replay.checks import Survey, finding
from replay.plan import Piece, Plan
from replay.tables import FAILED, MARKED, OK, Integrity


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

    @property
    def sound(self) -> bool:
        """Whether every check held."""
        return not self.failed


def make_report(
    engine: str,
    seen: Survey,
    plan: Plan,
    counts: Mapping[str, int],
    findings: Iterable[Integrity],
    sums: Mapping[tuple[int, str], int],
    seconds: float,
) -> Report:
    """`sums` are the tallies per (shard, what)."""
    rows = list(findings)
    failed = tuple(row for row in rows if row.result == FAILED)
    bad = {(row.shard, row.last_index) for row in failed if row.check == "digest"}
    skipped = {row.shard for row in rows if row.check == "digest" and row.result == MARKED}
    checkpoints = sum(
        1
        for shard in plan.shards
        for mark in shard.marks
        if mark.what == "checkpoint"
        and (shard.shard, mark.index) not in bad
        and shard.shard not in skipped
    )
    return Report(
        engine=engine,
        cluster_id=seen.cluster_id,
        counts=dict(counts),
        failed=failed,
        marked=tuple(row for row in rows if row.result == MARKED),
        checkpoints=checkpoints,
        proven=_total(sums, "proven"),
        unproven=_total(sums, "unproven"),
        seconds=seconds,
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


def suspects(shard: int, piece: Piece, groups: Iterable[str], why: str) -> Iterator[Integrity]:
    """One failed row per group that a broken check may concern."""
    for group in sorted(groups):
        if group:
            yield finding(
                "group", FAILED, shard, None, why, group=group, first=piece.first, last=piece.last
            )
