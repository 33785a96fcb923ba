"""The fold on one core, with pyarrow alone.

The default for small exports, and the oracle of the Spark job.
"""

import time
from collections import Counter
from pathlib import Path

from musterd.replay.checks import compare, inspect, sound_overlaps, survey
from musterd.replay.digests import Reached, add_up, judge
from musterd.replay.fold import fold_shard
from musterd.replay.output import TableWriter, prepare
from musterd.replay.plan import make_plan
from musterd.replay.report import Progress, Report, fold_findings, make_report, suspects, suspicions
from musterd.replay.rows import groups_in
from musterd.replay.tables import DigestDelta, Integrity, Tally


def run_local(source: Path, output: Path, *, prove: bool, say: Progress) -> Report:
    """Replay `source` into tables under `output`.

    Raises `InputError`; what fails is in the report.
    """
    began = time.monotonic()
    seen = survey(source)
    prepare(output)
    say(f"checking {len(seen.files)} files")
    inspections = [inspect(file) for file in seen.files]
    ranges = sound_overlaps(seen.files, inspections)
    plan = make_plan(seen, inspections, [each for found in ranges for each in compare(found)])
    findings = [*seen.findings, *(row for each in inspections for row in each.findings)]
    findings += plan.findings
    deltas: list[DigestDelta] = []
    reached: list[Reached] = []
    equal = 0
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
            judgement = judge(shard, add_up(deltas))
            deltas.clear()
            equal += judgement.equal
            reached += judgement.reached
            findings += judgement.findings
            for doubt in suspicions(shard, judgement.broken):
                findings += suspects(doubt, groups_in(doubt.piece))
        findings += fold_findings(plan, tallies, prove=prove)
        for row in findings:
            writer.write(row)
    seconds = time.monotonic() - began
    return make_report("local", seen, writer.counts, findings, tallies, equal, seconds, reached)
