"""`muster doctor`: what is wrong is found and named, and what to do stands beside it."""

import json
import time
from functools import partial

import pytest

from muster.cli.connection import NodeAnswer
from muster.cli.doctor import _forwards, expiry, group_findings
from muster.v1 import admin_pb2
from muster.v1.admin_pb2 import DescribeClusterResponse, DescribeGroupsResponse, Refusal
from muster.v1.errors_pb2 import ErrorCode
from muster.v1.group_pb2 import ConsumerAssignment, TopicPartitions
from muster.v1.quota_pb2 import QuotaChange
from musterd.coordinator.api.server import server_credentials
from musterd.coordinator.node.authority import CA_CERT, CERT, KEY, Authority

Group = DescribeGroupsResponse.Group
DAY_S = 24 * 3_600


@pytest.fixture
def healthy(cluster):
    """Three nodes whose clocks are right, without groups."""
    cluster.ahead_ms = dict.fromkeys((1, 2, 3), 0)
    cluster.level, cluster.levels = 6, dict.fromkeys((1, 2, 3), 6)

    def view(node):
        def answer(_request):
            made = cluster.view(node.node_id)
            made.wall_ms = int(time.time() * 1_000) + cluster.ahead_ms[node.node_id]
            made.level = cluster.level
            for one in made.nodes:
                one.level = cluster.levels[one.node_id]
            return made

        return answer

    for node in cluster.nodes:
        node.script["DescribeCluster"] = view(node)
        node.script["ListGroups"] = admin_pb2.ListGroupsResponse()
        node.script["ListTopics"] = admin_pb2.ListTopicsResponse()
        node.script["DescribeClientQuotas"] = admin_pb2.DescribeClientQuotasResponse()
    return cluster


def found(ran, check):
    """The findings of one check: where -> (result, detail, next step)."""
    return {
        one["where"]: (one["result"], one["detail"], one["next_step"])
        for one in json.loads(ran.out)["findings"]
        if one["check"] == check
    }


def test_of_a_healthy_cluster_nothing_is_wrong(healthy, muster):
    """Every check is in the table, and the command ends with 0."""
    ran = muster("doctor", "-o", "json")
    assert ran.exit_code == 0, ran.err
    findings = json.loads(ran.out)["findings"]
    assert {one["check"] for one in findings} == {
        *("nodes", "shards", "versions", "levels", "clock", "tls", "groups", "quotas")
    }
    assert {one["result"] for one in findings} == {"ok"}
    table = muster("doctor").out.splitlines()
    assert table[0].split() == ["CHECK", "WHERE", "RESULT", "DETAIL", "NEXT"]
    assert len(table) == len(findings) + 1


@pytest.mark.parametrize(
    ("ahead_ms", "result", "code"), [(5_000, "warning", 0), (-90_000, "problem", 5)]
)
def test_a_clock_that_is_wrong_is_named(healthy, muster, ahead_ms, result, code):
    """Seconds are a warning, minutes a problem; the others' clocks are right."""
    healthy.ahead_ms[2] = ahead_ms
    ran = muster("doctor", "-o", "json")
    clocks = found(ran, "clock")
    assert clocks["node 2"][0] == result
    assert "NTP" in clocks["node 2"][2]
    assert {where for where, one in clocks.items() if one[0] == "ok"} == {
        *("here", "node 1", "node 3")
    }
    assert ran.exit_code == code


def test_where_all_nodes_agree_this_machine_s_clock_is_wrong(healthy, muster):
    """It is one beside three."""
    healthy.ahead_ms.update({1: 60_000, 2: 60_000, 3: 60_000})
    clocks = found(muster("doctor", "-o", "json"), "clock")
    assert {where for where, one in clocks.items() if one[0] == "problem"} == {"here"}


def test_a_node_that_is_silent_and_one_of_another_version_are_found(healthy, muster):
    """A former build, which does not tell its clock, is no problem."""
    view = healthy.view(2)
    view.nodes[1].version = "0.0.9"
    healthy.nodes[1].script["DescribeCluster"] = view
    ran = muster("doctor", "-o", "json")
    assert ran.exit_code == 0
    result, detail, step = found(ran, "versions")["cluster"]
    assert (result, detail) == ("warning", "0.0.9 on node 2, 0.1.0 on nodes 1, 3")
    assert "upgrade" in step
    assert found(ran, "clock")["node 2"][0] == "unknown"
    healthy.nodes[2].stop()
    ran = muster("doctor", "-o", "json")
    assert ran.exit_code == 5
    assert "node 3 does not answer" in str(found(ran, "health"))
    assert "next: start the node again" in ran.err


def test_certificates_that_end_soon_or_are_of_another_authority_are_named(
    healthy, muster, tmp_path, monkeypatch
):
    """Of each node, as this machine's authority has it."""
    ours, other = (Authority.create(tmp_path / name, "c") for name in ("ours", "other"))
    for node, authority, days in zip(healthy.nodes, (ours, other, ours), (90, 90, 9), strict=True):
        folder = authority.node(node.node_id, ["127.0.0.1"], days).folder
        node.stop()
        node.start(server_credentials(folder / CERT, folder / KEY, None))
    monkeypatch.setenv("MUSTER_BOOTSTRAP", healthy.nodes[0].endpoint)
    monkeypatch.setenv("MUSTER_TLS_CA", str(tmp_path / "ours" / CA_CERT))
    ran = muster("doctor", "-o", "json")
    told = found(ran, "tls")
    assert {where: one[0] for where, one in told.items()} == {
        "node 1": "ok",
        "node 2": "problem",
        "node 3": "warning",
    }
    assert "no handshake" in told["node 2"][1]
    assert "MUSTER_TLS_CA" in told["node 2"][2]
    assert "renew" in told["node 3"][2]
    assert ran.exit_code == 5


@pytest.mark.parametrize(
    ("level", "levels", "result", "detail", "step"),
    [
        (6, (6, 6, 6), "ok", "known are 6 by nodes 1, 2, 3", ""),
        (5, (6, 5, 6), "warning", "known are 5 by node 2, 6 by nodes 1, 3", "upgrade the nodes"),
        (5, (6, 6, 6), "warning", "at level 5; known are 6 by nodes 1, 2, 3", "--finalize"),
        (0, (0, 0, 0), "unknown", "do not tell", ""),
    ],
)
def test_levels_that_differ_or_wait_to_be_finalised_are_named(
    healthy, muster, level, levels, result, detail, step
):
    """With what to do: upgrade the rest, or finalise."""
    healthy.level, healthy.levels = level, dict(zip((1, 2, 3), levels, strict=True))
    ran = muster("doctor", "-o", "json")
    assert ran.exit_code == 0
    got = found(ran, "levels")["cluster"]
    assert got[0] == result
    assert detail in got[1]
    assert step in (got[2] or "")


def test_a_node_that_cannot_pass_calls_on_says_to_whom_and_why():
    """Of nodes that forward alone."""
    view = partial(DescribeClusterResponse, forwards=True)
    down = Refusal(who="node 3", reason="node 1 names no lane")
    views = [
        NodeAnswer(1, "a:1", view(forward_refusals=[down]), None),
        NodeAnswer(2, "b:1", view(), None),
        NodeAnswer(3, "c:1", DescribeClusterResponse(), None),
        NodeAnswer(4, "d:1", None, "silent"),
    ]
    first, second = _forwards(views)
    assert (first.check, first.where, first.result) == ("forward", "node 1", "warning")
    assert first.detail == "no calls pass to node 3: node 1 names no lane"
    assert "MusterForwardConnectionDown" in first.next_step
    assert (second.where, second.result) == ("node 2", "ok")


def test_quotas_are_counted_and_unknown_without_the_right_to_see_them(healthy, muster, no):
    """A missing right is no problem of the cluster, and the other checks are there."""
    assert found(muster("doctor", "-o", "json"), "quotas") == {
        "cluster": ("ok", "there are none", None)
    }
    quotas = [QuotaChange(entity=2, name="billing", key=key, value=9) for key in (1, 2)]
    quotas.append(QuotaChange(entity=1, key=1, value=9))
    refused = no(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no")
    for node in healthy.nodes:
        node.script["DescribeClientQuotas"] = admin_pb2.DescribeClientQuotasResponse(quotas=quotas)
    detail = "3 limit 2 entities (`muster quota list`)"
    assert found(muster("doctor", "-o", "json"), "quotas") == {"cluster": ("ok", detail, None)}
    for node in healthy.nodes:
        node.script["DescribeClientQuotas"] = admin_pb2.DescribeClientQuotasResponse(status=refused)
    ran = muster("doctor", "-o", "json")
    result, detail, _ = found(ran, "quotas")["here"]
    assert (ran.exit_code, result) == (0, "unknown")
    assert "CLUSTER_AUTHORIZATION_FAILED" in detail


def test_a_cluster_that_is_not_there_is_a_finding_too(healthy, muster):
    """With what to do; not only an error."""
    for node in healthy.nodes:
        node.stop()
    ran = muster("doctor", "--timeout", "1")
    assert ran.exit_code == 5
    assert ran.out.splitlines()[1].split()[:3] == ["nodes", "here", "problem"]


def group(*owned, topics=("orders",), state="Stable", **more):
    """A group of one member that owns these partitions of orders."""
    assignment = ConsumerAssignment(
        assigned=[TopicPartitions(topic="orders", partitions=owned)]
    ).SerializeToString()
    member = Group().members.add(assignment=assignment, subscribed_topics=topics)
    return Group(group_id="g", state=state, protocol_type="consumer", members=[member], **more)


def test_partitions_that_nobody_owns_and_topics_that_are_not_there_are_found():
    """Of a group that is stable; while it rebalances nobody can say."""
    counts = {"orders": 3, "payments": 2}
    assert group_findings(group(0, 1, 2), counts) == []
    (one,) = group_findings(group(1), counts)
    assert (one.result, one.detail) == (
        "problem",
        "2 partitions have no owner: orders:0, orders:2",
    )
    assert "muster group why g" in one.next_step
    assert group_findings(group(1, state="PreparingRebalance"), counts) == []
    (one,) = group_findings(group(0, 1, 2, topics=("orders", "oders")), counts)
    assert (one.result, one.detail) == ("warning", "reads oders, which does not exist")


def test_of_a_modern_group_what_waits_for_a_member_that_is_away_is_no_problem():
    """What else its coordinator names is, also of topics that are read by a pattern; all count."""
    unowned = DescribeGroupsResponse.Unowned
    away = unowned(topic="orders", partitions=[2], reason="away")
    modern = {"type": "consumer", "unowned": [away], "unowned_by_reason": {"away": 1}}
    assert group_findings(group(0, 1, **modern), {"orders": 3}) == []
    modern["unowned"].append(unowned(topic="clicks", partitions=[7], reason="over_limit"))
    modern["unowned_by_reason"]["over_limit"] = 1_001
    (one,) = group_findings(group(0, 1, **modern), {"orders": 3})
    assert (one.result, one.detail) == (
        "problem",
        "1001 partitions have no owner: clicks:7 and 1000 more",
    )


def test_a_rebalance_that_hangs_is_found():
    """Longer than a minute, with what it waits for."""
    wait = DescribeGroupsResponse.Wait(kind="join", waited_ms=70_000)
    (one,) = group_findings(group(state="PreparingRebalance", wait=wait), {"orders": 3})
    assert one.detail == "a rebalance waits for join for 70 s"
    wait.waited_ms = 5_000
    assert group_findings(group(state="PreparingRebalance", wait=wait), {"orders": 3}) == []


@pytest.mark.parametrize(("days", "result"), [(-1, "problem"), (10, "warning"), (40, "ok")])
def test_a_certificate_is_judged_by_its_end(days, result):
    """Within 30 days it is a warning, and the renewal is named."""
    one = expiry("tls", "node 1", 1_700_000_000 + days * DAY_S, 1_700_000_000)
    assert one.result == result
    assert ("renew" in one.next_step) is (result != "ok")
