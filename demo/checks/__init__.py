"""The checks: pure functions from the evidence to lines that hold or fail, with their figures.

Evidence that is missing fails its check. Each one can fail: tests/demo shows it.
"""

from collections.abc import Callable

from musterd.demo.checks import faults, history, leader, work, workers
from musterd.demo.checks.base import Check
from musterd.demo.evidence import Evidence

CHECKS: tuple[Callable[[Evidence], Check], ...] = (
    work.check_finished,
    work.check_counts,
    work.check_offsets,
    work.check_order,
    leader.check_reads,
    leader.check_gap,
    leader.check_failover,
    faults.check_node_killed,
    faults.check_node_restarted,
    faults.check_worker_killed,
    faults.check_worker_added,
    workers.check_workers,
    workers.check_takeovers,
    workers.check_owners,
    history.check_rebalances,
    history.check_replicas,
    history.check_history,
    history.check_processes,
)
"""In the order of the report."""


def run_checks(evidence: Evidence) -> list[Check]:
    return [check(evidence) for check in CHECKS]
