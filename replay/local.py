"""The fold on one core, with pyarrow alone: the default for small exports, and the oracle of the Spark job."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from export.layout import SEGMENT
from replay.checks import Conflict, Inspection, Survey, compare, inspect, overlaps, survey
from replay.digests import Broken, add_up, judge
from replay.fold import fold_shard
from replay.output import TableWriter, prepare
from replay.plan import Plan, make_plan
from replay.report import Report, fold_findings, make_report, suspects
from replay.rows import Piece, groups_in
from replay.tables import DigestDelta, Integrity, Tally

Progress = Callable[[str], None]


def run_local(source: Path, output: Path, *, prove: bool, say: Progress) -> Report:
    """Replay `source` into tables under `output`. Raises `InputError`; what fails is in the report."""
    began = time.monotonic()
    seen = survey(source)
    prepare(output)
    say(f"checking {len(seen.files)} files")
    inspections = [inspect(file) for file in seen.files]
    conflicts = list(find_conflicts(seen, inspections))
    plan = make_plan(seen, inspections, conflicts)
    findings = [*seen.findings, *(row for each in inspections for row in each.findings)]
    findings += plan.findings
    deltas: list[DigestDelta] = []
    tallies: Counter[tuple[int, str]] = Counter()
    with TableWriter(output) as writer:
        for shard in plan.shards:
            say(f"folding shard {shard.shard}")
            for emitted in fold_shard(shard, prove=prove):
                match emitted:
                    case DigestDelta():
                        deltas.append(emitted)
                    case Tally():
                        tallies[emitted.shard, emitted.what] += emitted.amount
                    case Integrity():
                        findings.append(emitted)
                    case _:
                        writer.write(emitted)
            judged, broken = judge(shard, add_up(deltas))
            deltas.clear()
            findings += judged
            findings += blame(plan, shard.shard, broken)
        findings += fold_findings(plan, tallies, prove=prove)
        for row in findings:
            writer.write(row)
    seconds = time.monotonic() - began
    return make_report("local", seen, plan, writer.counts, findings, tallies, seconds)


def find_conflicts(seen: Survey, inspections: Sequence[Inspection]) -> Iterator[Conflict]:
    """Copies that differ, in the sound segments."""
    sound = [
        file
        for file, inspection in zip(seen.files, inspections, strict=True)
        if inspection.sound and file.manifest.kind == SEGMENT
    ]
    for shard in sorted({file.manifest.shard for file in sound}):
        for overlap in overlaps(shard, [file for file in sound if file.manifest.shard == shard]):
            yield from compare(overlap)


def blame(plan: Plan, shard: int, broken: Sequence[Broken]) -> Iterator[Integrity]:
    """The groups with rows in stretches whose digest does not fit, or that could not be folded at all."""
    mine = next(each for each in plan.shards if each.shard == shard)
    for piece in mine.homeless:
        why = "has entries that could not be folded: the state before them is not known"
        yield from suspects(shard, piece, groups_in(piece), why)
    for stretch in broken:
        for run in mine.runs:
            for piece in run.pieces:
                first, last = max(piece.first, stretch.after + 1), min(piece.last, stretch.up_to)
                if first <= last:
                    part = Piece(piece.path, first, last)
                    why = f"may be wrong: the shard's digest does not fit at entry {stretch.up_to}"
                    yield from suspects(shard, part, groups_in(part), why)
