"""Was everything counted, once, and was every result followed by its commit?"""

from musterd.demo.checks.base import SHOWN, Check, Figure, Series, first
from musterd.demo.events import Attempt
from musterd.demo.evidence import Evidence


def check_finished(evidence: Evidence) -> Check:
    """Every line was counted and committed in time, and nothing unexpected happened."""
    done, total = sum(evidence.stored.values()), sum(evidence.lines)
    detail = f"{done:,} of {total:,} lines in {len(evidence.lines)} partitions"
    if evidence.trouble:
        detail += "; " + "; ".join(evidence.trouble[:SHOWN])
    passed = evidence.finished and done == total and not evidence.trouble
    return Check("work finished", passed, detail, {"lines": done, "expected_lines": total})


def check_counts(evidence: Evidence) -> Check:
    """The token table of all partitions is what one process counts alone."""
    expected, found = evidence.expected_digest, evidence.found_digest
    passed = expected is not None and expected == found
    detail = (
        f"{evidence.tokens:,} tokens, digest {found[:16]}"
        if passed and found
        else f"one process counts {expected or 'nothing'}, the workers {found or 'nothing'}"
    )
    figures: dict[str, Figure] = {
        "tokens": evidence.tokens,
        "digest": found,
        "single_process_digest": expected,
    }
    return Check("token table equals the single-process count", passed, detail, figures)


def check_offsets(evidence: Evidence) -> Check:
    """At the end every committed offset, every result and every partition's end are the same."""
    final = evidence.final or {}
    bad = [
        f"partition {number}: {lines} lines, written {evidence.stored.get(number)}, "
        f"committed {final.get(number)}"
        for number, lines in enumerate(evidence.lines)
        if {lines} != {evidence.stored.get(number), final.get(number)}
    ]
    detail = first(bad) or f"{len(evidence.lines)} partitions, committed = written = lines"
    return Check("every result has its committed offset", not bad, detail, {"differ": len(bad)})


def check_order(evidence: Evidence) -> Check:
    """No offset was committed before its result was written.

    By the ledger's clock against the workers', and by an outsider who reads committed offsets
    linearizably and the ledger after that.
    """
    written = Series()
    for note in evidence.notes:
        if note.granted:
            written.add(note.at_ns, {note.partition: note.offset})
    bad = []
    attempts = 0
    for worker, event in evidence.events:
        if isinstance(event, Attempt):
            for number, offset in event.offsets.items():
                attempts += 1
                done = written.up_to(number, event.at_ns)
                if offset > done:
                    bad.append(f"{worker} committed {offset} of {number} where {done} was written")
    bad += [
        f"partition {number} was committed up to {committed}, written up to {stored}"
        for number, committed, stored in evidence.audit.ahead
    ]
    passed = not bad and attempts > 0 and evidence.audit.samples > 0
    detail = first(bad) or f"{attempts} commits, {evidence.audit.samples} looks from outside"
    figures: dict[str, Figure] = {
        "commits": attempts,
        "audits": evidence.audit.samples,
        "early": len(bad),
    }
    return Check("no commit before its result", passed, detail, figures)
