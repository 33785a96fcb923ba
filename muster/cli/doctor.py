"""`muster doctor`: looks at a cluster, or at a node's machine, and says what to do."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import typer

from muster.cli.certificates import served_until
from muster.cli.cluster.commands import trouble
from muster.cli.connection import Connection, NodeAnswer, Stubs
from muster.cli.errors import CommandError, ExitCode
from muster.cli.findings import Finding, Verdict, on_node
from muster.cli.group.list import groups_of_all_nodes
from muster.cli.group.owners import is_modern, members_of
from muster.cli.group.read import described
from muster.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Output, Timeout
from muster.cli.output import Format, Result, Table, show
from muster.cli.quota import all_quotas
from muster.cli.version import installed
from muster.net.tls import Tls
from muster.v1.admin_pb2 import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeGroupsResponse,
    ListTopicsRequest,
)
from muster.v1.errors_pb2 import Status

COLUMNS: Final = ("CHECK", "WHERE", "RESULT", "DETAIL", "NEXT")
SKEW_WARNING_MS: Final = 1_000
SKEW_PROBLEM_MS: Final = 30_000
EXPIRES_SOON_S: Final = 30 * 24 * 3_600
ROUND_LONG_MS: Final = 60_000
GROUPS_MAX: Final = 200
"""Groups with members that are looked at; a line says how many others there are."""
AWAY: Final = "away"
"""Why a partition of a modern group has no owner that is no alarm: a member is to come back."""
NAMED_MAX: Final = 3

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Look at this machine, as the node with these settings would find it.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add `doctor` to `muster`."""
    app.command("doctor")(doctor)


def doctor(
    config: Config = None,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Look for what is wrong with a cluster, or with --config with a node's machine.

    Exits 5 where a check found a problem; the last column says what to do.
    """
    findings = on_node("doctor")(config) if config else cluster_findings(bootstrap, timeout)
    items = [
        {
            "check": one.check,
            "where": one.where,
            "result": one.result.value,
            "detail": one.detail,
            "next_step": one.next_step or None,
        }
        for one in findings
    ]
    show(
        Result(
            schema="muster.doctor/v1",
            document={"findings": items},
            tables=[Table(COLUMNS, [list(item.values()) for item in items])],
            items=items,
            names=[f"{one.check} {one.result.value}" for one in findings],
        ),
        output,
    )
    problems = [one for one in findings if one.result is Verdict.PROBLEM]
    if problems:
        raise CommandError(
            f"{len(problems)} of {len(findings)} checks found a problem",
            next_step=problems[0].next_step,
            exit_code=ExitCode.UNHEALTHY,
        )


def cluster_findings(bootstrap: str, timeout_s: float) -> list[Finding]:
    """What can be told of a cluster from here. A node that cannot be asked is a finding."""
    with Connection(bootstrap, timeout_s) as to:
        try:
            cluster, answers = to.ask_each(_look)
        except CommandError as error:
            return [Finding("nodes", "here", Verdict.PROBLEM, error.message, error.next_step)]
        views: Views = [
            NodeAnswer(
                one.node_id, one.endpoint, one.answer.view if one.answer else None, one.error
            )
            for one in answers
        ]
        findings = [*_health(cluster, views), *_versions(views), *_levels(views)]
        findings += _forwards(views)
        findings += _clocks(answers)
        findings += [_certificate(one.node_id, one.endpoint) for one in views]
        try:
            findings += _groups(to)
        except CommandError as error:
            findings.append(
                Finding("groups", "here", Verdict.UNKNOWN, error.message, error.next_step)
            )
        findings.append(_quotas(to))
    return findings


# ---- nodes


@dataclass(frozen=True, slots=True)
class _Look:
    """A node's view, and its clock less ours, known to within `within_ms`."""

    status: Status
    view: DescribeClusterResponse
    ahead_ms: float
    within_ms: float


def _look(at: Stubs, timeout_s: float) -> _Look:
    # Asked twice: the first call makes the connection, which would count as distance.
    at.admin.DescribeCluster(DescribeClusterRequest(), timeout=timeout_s)
    began = time.time()
    view = at.admin.DescribeCluster(DescribeClusterRequest(), timeout=timeout_s)
    took_ms = (time.time() - began) * 1_000
    return _Look(view.status, view, view.wall_ms - began * 1_000 - took_ms / 2, took_ms / 2)


Views = list[NodeAnswer[DescribeClusterResponse]]


def _health(cluster: DescribeClusterResponse, views: Views) -> list[Finding]:
    found = [
        Finding("nodes", f"node {one.node_id}", Verdict.OK, f"answers at {one.endpoint}")
        for one in views
        if one.answer
    ]
    wrong = trouble(cluster, views)
    if wrong is None:
        return [*found, Finding("shards", "cluster", Verdict.OK, f"{cluster.shards} are served")]
    return [*found, Finding("health", "cluster", Verdict.PROBLEM, wrong.message, wrong.next_step)]


def _versions(views: Views) -> list[Finding]:
    by_version: dict[str, list[int]] = {}
    for view in views:
        for node in view.answer.nodes if view.answer else ():
            if node.node_id == view.node_id:
                by_version.setdefault(node.version, []).append(view.node_id)
    spelled = ", ".join(f"{name} on {_ids(nodes)}" for name, nodes in sorted(by_version.items()))
    found = []
    if len(by_version) > 1:
        step = "upgrade the others, one after the other (docs/operations.md, Upgrade)"
        found.append(Finding("versions", "cluster", Verdict.WARNING, spelled, step))
    elif by_version:
        found.append(Finding("versions", "cluster", Verdict.OK, spelled))
    own = installed("muster-client")
    if own and by_version and own not in by_version:
        step = "workers are upgraded after the nodes: install a version that the nodes have"
        detail = f"muster-client {own}, the nodes have {', '.join(sorted(by_version))}"
        found.append(Finding("versions", "here", Verdict.WARNING, detail, step))
    return found


def _levels(views: Views) -> list[Finding]:
    """The cluster's level beside the levels that the nodes' builds know.

    The highest one that a node tells counts: others have not applied it yet.
    """
    told = [view.answer for view in views if view.answer and view.answer.level]
    if not told:
        return [Finding("levels", "cluster", Verdict.UNKNOWN, "these builds do not tell it")]
    level = max(answer.level for answer in told)
    known = {node.node_id: node.level for answer in told for node in answer.nodes if node.level}
    by_level: dict[int, list[int]] = {}
    for node_id, knows in known.items():
        by_level.setdefault(knows, []).append(node_id)
    spelled = ", ".join(f"{knows} by {_ids(nodes)}" for knows, nodes in sorted(by_level.items()))
    detail = f"the cluster is at level {level}; known are {spelled or 'none'}"
    if len(by_level) > 1:
        step = "upgrade the nodes that know less (docs/operations.md, Upgrade)"
        return [Finding("levels", "cluster", Verdict.WARNING, detail, step)]
    if any(knows > level for knows in by_level):
        step = "`muster cluster upgrade --finalize` once nobody wants the former release back"
        return [Finding("levels", "cluster", Verdict.WARNING, detail, step)]
    return [Finding("levels", "cluster", Verdict.OK, detail)]


def _forwards(views: Views) -> list[Finding]:
    """Says of each node that forwards to whom it cannot pass calls."""
    found = []
    for view in views:
        if view.answer is None or not view.answer.forwards:
            continue
        where = f"node {view.node_id}"
        if not view.answer.forward_refusals:
            detail = "calls pass to every other node"
            found.append(Finding("forward", where, Verdict.OK, detail))
        for one in view.answer.forward_refusals:
            detail = f"no calls pass to {one.who}: {one.reason}"
            step = "docs/alerts.md, MusterForwardConnectionDown"
            found.append(Finding("forward", where, Verdict.WARNING, detail, step))
    return found


def _ids(nodes: list[int]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, sorted(nodes)))}"


# ---- clocks and certificates


def _clocks(answers: list[NodeAnswer[_Look]]) -> list[Finding]:
    """Each clock, this machine's too, beside the middle of them all."""
    ahead = {"here": 0.0}
    within = {"here": 0.0}
    found = []
    for one in answers:
        where = f"node {one.node_id}"
        if one.answer and one.answer.view.wall_ms:
            ahead[where], within[where] = one.answer.ahead_ms, one.answer.within_ms
        elif one.answer:
            found.append(Finding("clock", where, Verdict.UNKNOWN, "its build does not tell it"))
    middle = median(ahead.values())
    for where, ms in ahead.items():
        off_ms = ms - middle
        least_ms = max(0.0, abs(off_ms) - within[where])
        detail = f"{off_ms / 1_000:+.3f} s beside the others'"
        if least_ms < SKEW_WARNING_MS:
            found.append(Finding("clock", where, Verdict.OK, detail))
            continue
        bad = Verdict.PROBLEM if least_ms >= SKEW_PROBLEM_MS else Verdict.WARNING
        step = "set the clock by NTP: times of retention and certificates go by it"
        found.append(Finding("clock", where, bad, detail, step))
    return found


def _certificate(node_id: int, endpoint: str) -> Finding:
    where = f"node {node_id}"
    files = Tls.from_environment()
    if files is None:
        host = endpoint.rpartition(":")[0].strip("[]")
        if host in {"localhost", "::1"} or host.startswith("127."):
            return Finding("tls", where, Verdict.OK, "plain, on loopback")
        step = "give the nodes tls_cert and tls_key, and set MUSTER_TLS_CA"
        return Finding("tls", where, Verdict.WARNING, "connections are plain", step)
    try:
        until = served_until(endpoint, files)
    except (OSError, ValueError) as error:
        step = "see that the node runs, and that MUSTER_TLS_CA names its authority"
        return Finding("tls", where, Verdict.PROBLEM, f"no handshake: {error}", step)
    return expiry("tls", where, until, time.time())


def expiry(check: str, where: str, until: float, now: float) -> Finding:
    """Judge a certificate that ends at `until`; both in seconds since 1970."""
    days = int((until - now) // (24 * 3_600))
    detail = f"the certificate is valid until {time.strftime('%Y-%m-%d', time.gmtime(until))}"
    step = "renew it now; docs/operations.md, Certificates"
    if until <= now:
        return Finding(check, where, Verdict.PROBLEM, f"the certificate ended: {detail}", step)
    if until - now < EXPIRES_SOON_S:
        return Finding(check, where, Verdict.WARNING, f"{detail}, {days} days", step)
    return Finding(check, where, Verdict.OK, detail)


# ---- quotas


def _quotas(to: Connection) -> Finding:
    """What is limited. Whom it made wait, a node's own page tells (--config)."""
    try:
        found = all_quotas(to)
    except CommandError as error:
        return Finding("quotas", "here", Verdict.UNKNOWN, error.message, error.next_step)
    if not found:
        return Finding("quotas", "cluster", Verdict.OK, "there are none")
    entities = {(one.entity, one.name) for one in found}
    detail = f"{len(found)} limit {len(entities)} entities (`muster quota list`)"
    return Finding("quotas", "cluster", Verdict.OK, detail)


# ---- groups


def _groups(to: Connection) -> list[Finding]:
    items, incomplete = groups_of_all_nodes(to)
    topics = to.ask(lambda at, s: at.topics.ListTopics(ListTopicsRequest(), timeout=s)).topics
    counts = {topic.name: topic.partitions for topic in topics}
    with_members = [str(item["group_id"]) for item in items if item["members"]]
    found = (
        [Finding("groups", "cluster", Verdict.UNKNOWN, incomplete.message, incomplete.next_step)]
        if incomplete
        else []
    )
    for group_id in with_members[:GROUPS_MAX]:
        try:
            found += group_findings(described(to, group_id), counts)
        except CommandError as error:
            found.append(Finding("groups", f"group {group_id}", Verdict.UNKNOWN, error.message))
    if not found:
        looked = min(len(with_members), GROUPS_MAX)
        detail = f"{looked} groups have members, and every partition has an owner"
        found.append(Finding("groups", "cluster", Verdict.OK, detail))
    if len(with_members) > GROUPS_MAX:
        detail = f"{len(with_members) - GROUPS_MAX} more groups were not looked at"
        found.append(Finding("groups", "cluster", Verdict.UNKNOWN, detail))
    return found


def group_findings(group: DescribeGroupsResponse.Group, counts: Mapping[str, int]) -> list[Finding]:
    """What is wrong with a group. `counts`: the partitions of each topic that there is."""
    where = f"group {group.group_id}"
    see = f"`muster group describe {group.group_id}`; `muster group why {group.group_id}`"
    found = []
    if group.HasField("wait") and group.wait.waited_ms > ROUND_LONG_MS:
        detail = f"a rebalance waits for {group.wait.kind} for {group.wait.waited_ms // 1_000} s"
        found.append(Finding("groups", where, Verdict.WARNING, detail, see))
    subscribed = {topic for member in group.members for topic in member.subscribed_topics}
    missing = sorted(subscribed - counts.keys())
    if missing:
        step = "create it with `muster topic create`, or correct the workers' list"
        detail = f"reads {_some(missing, len(missing))}, which does not exist"
        found.append(Finding("groups", where, Verdict.WARNING, detail, step))
    members = members_of(group)
    if group.state != "Stable" or any(member.partitions is None for member in members):
        return found
    if is_modern(group):
        # Patterns name no topics, and what waits for a member that is away is no alarm.
        rows = [one for one in group.unowned if one.reason != AWAY]
        unowned = [f"{one.topic}:{number}" for one in rows for number in one.partitions]
        count = sum(n for reason, n in group.unowned_by_reason.items() if reason != AWAY)
    else:
        owned = {partition for member in members for partition in member.partitions or ()}
        unowned = [
            f"{topic}:{number}"
            for topic in sorted(subscribed & counts.keys())
            for number in range(counts[topic])
            if (topic, number) not in owned
        ]
        count = len(unowned)
    if count:
        detail = f"{count} partitions have no owner: {_some(unowned, count)}"
        found.append(Finding("groups", where, Verdict.PROBLEM, detail, see))
    return found


def _some(names: list[str], count: int) -> str:
    """The first of the names, and how many more of the count there are."""
    more = count - len(names[:NAMED_MAX])
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
