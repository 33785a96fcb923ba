"""The end of a run: a table for people, a document for programs."""

from muster.cli.output import Result, Table
from musterd.demo.plan import Plan
from musterd.demo.runner import Outcome

SCHEMA = "muster.demo/v1"


def to_result(outcome: Outcome, plan: Plan) -> Result:
    """One line per check, and the lines below it."""
    checks = [
        {
            "name": check.name,
            "passed": check.passed,
            "detail": check.detail,
            "figures": dict(check.figures),
            "each": list(check.each),
        }
        for check in outcome.checks
    ]
    document = {
        "passed": outcome.passed,
        "seconds": round(outcome.seconds, 1),
        "input": str(outcome.corpus.root),
        "files": len(outcome.corpus.files),
        "lines": outcome.corpus.total,
        "assignment": plan.assignment,
        "workers": plan.workers,
        "partitions": plan.partitions,
        "nodes": plan.nodes,
        "checks": checks,
    }
    rows = [[_word(check.passed), check.name, check.detail] for check in outcome.checks]
    below = [
        Table((check.name.upper(),), [[line] for line in check.each])
        for check in outcome.checks
        if check.each
    ]
    failed = [check.name for check in outcome.checks if not check.passed]
    return Result(
        schema=SCHEMA,
        document=document,
        tables=[*below, Table(("", "CHECK", "WHAT WAS SEEN"), rows)],
        items=checks,
        names=failed,
    )


def _word(passed: bool) -> str:
    return "ok" if passed else "FAILED"
