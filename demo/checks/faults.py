"""Did every planned fault really happen? A fault that did not would prove nothing."""

from musterd.demo.checks.base import Check, Figure
from musterd.demo.evidence import Evidence


def check_node_killed(evidence: Evidence) -> Check:
    """The process ended by signal 9, and another node leads."""
    name = "fault: the leader's node was killed"
    kill = evidence.node_kill
    if kill is None:
        return Check(name, False, "it never was")
    moved = kill.after is not None and kill.after.node_id != kill.node_id
    passed = kill.exit_status == -9 and moved  # noqa: PLR2004  # SIGKILL
    detail = (
        f"at {kill.at_percent:.1f} %: node {kill.node_id}, "
        f"exit status {kill.exit_status}, leader {'changed' if moved else 'did not change'}"
    )
    return Check(name, passed, detail, _fault(kill.at_percent, kill.exit_status))


def check_node_restarted(evidence: Evidence) -> Check:
    """The killed node came back and caught up."""
    name = "fault: the node was started again"
    restart = evidence.node_restart
    if restart is None:
        return Check(name, False, "it never was")
    detail = (
        f"at {restart.at_percent:.1f} %: node {restart.node_id} "
        f"{'is up to date' if restart.ready else 'did not become ready'}"
    )
    return Check(name, restart.ready, detail, _fault(restart.at_percent, None))


def check_worker_killed(evidence: Evidence) -> Check:
    """The process ended by signal 9, and everything it owned found another owner."""
    name = "fault: a worker was killed"
    kill = evidence.worker_kill
    if kill is None:
        return Check(name, False, "it never was")
    passed = kill.exit_status == -9 and kill.taken_over  # noqa: PLR2004  # SIGKILL
    detail = (
        f"at {kill.at_percent:.1f} %: {kill.name}, exit status {kill.exit_status}, "
        f"{len(kill.partitions)} partitions {'' if kill.taken_over else 'not '}taken over"
    )
    return Check(name, passed, detail, _fault(kill.at_percent, kill.exit_status))


def check_worker_added(evidence: Evidence) -> Check:
    """The new worker joined and was given a share."""
    name = "fault: a worker was added"
    added = evidence.worker_added
    if added is None:
        return Check(name, False, "it never was")
    detail = (
        f"at {added.at_percent:.1f} %: {added.name} "
        f"{'joined' if added.joined else 'did not get its share'}"
    )
    return Check(name, added.joined, detail, _fault(added.at_percent, None))


def _fault(at_percent: float, exit_status: int | None) -> dict[str, Figure]:
    return {"at_percent": round(at_percent, 2), "exit_status": exit_status}
