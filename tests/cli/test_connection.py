"""Which node is asked, and what happens when it is the wrong one or gone."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from muster.admin.operator_secret import CLEAR_VARIABLE, FILE_VARIABLE, METADATA_KEY
from muster.cli import connection
from muster.cli.errors import ExitCode
from muster.net import bearer_token, credentials
from muster.net.tls import Tls
from muster.v1 import admin_pb2, admin_pb2_grpc, group_pb2
from muster.v1.errors_pb2 import Coordinator, ErrorCode

TOPICS = admin_pb2.ListTopicsResponse(topics=[admin_pb2.Topic(name="t", partitions=1)])


def _node(cluster, number):
    return cluster.nodes[number - 1]


def test_the_hint_of_the_wrong_node_is_followed(cluster, muster, no):
    """NOT_COORDINATOR with an endpoint leads to the right node at once."""
    leader = Coordinator(node_id=3, endpoint=_node(cluster, 3).endpoint, term=7)
    _node(cluster, 1).script["CreateTopic"] = admin_pb2.CreateTopicResponse(
        status=no(ErrorCode.NOT_COORDINATOR, retriable=True, coordinator=leader)
    )
    _node(cluster, 3).script["CreateTopic"] = admin_pb2.CreateTopicResponse(
        topic=admin_pb2.Topic(name="t", partitions=1), created=True
    )
    assert muster("topic", "create", "t", "--partitions", "1").exit_code == 0
    assert [len(node.named("CreateTopic")) for node in cluster.nodes] == [1, 0, 1]


def test_two_nodes_that_name_each_other_do_not_loop(cluster, muster, no):
    """Hints in a circle are followed once per round, and the command ends with 6."""
    for mine, other in ((1, 2), (2, 1)):
        hint = Coordinator(node_id=other, endpoint=_node(cluster, other).endpoint, term=7)
        _node(cluster, mine).script["CreateTopic"] = admin_pb2.CreateTopicResponse(
            status=no(ErrorCode.NOT_COORDINATOR, retriable=True, coordinator=hint)
        )
    ran = muster("topic", "create", "t", "--partitions", "1", "--timeout", "0.5")
    assert ran.exit_code == 6
    assert len(_node(cluster, 1).named("CreateTopic")) < 10


def test_a_dead_bootstrap_node_is_passed_over(cluster, muster):
    """Any living node of the bootstrap list will do."""
    _node(cluster, 2).script["ListTopics"] = TOPICS
    dead = _node(cluster, 1).endpoint
    _node(cluster, 1).stop()
    ran = muster("topic", "list", "-o", "name", "-b", f"{dead},{_node(cluster, 2).endpoint}")
    assert (ran.exit_code, ran.out) == (0, "t\n")


def test_a_retriable_refusal_is_repeated(cluster, muster, no):
    """A loading coordinator is asked again, without a word."""
    loading = no(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, retriable=True)
    answers = [admin_pb2.ListTopicsResponse(status=loading), TOPICS]
    _node(cluster, 1).script["ListTopics"] = lambda request: answers.pop(0)
    ran = muster("topic", "list", "-o", "name")
    assert (ran.exit_code, ran.out, ran.err) == (0, "t\n", "")


def test_a_group_is_asked_at_its_coordinator_only(cluster, muster):
    """FindCoordinator names node 3; the others see no DescribeGroups."""
    cluster.coordinate(_node(cluster, 3))
    _node(cluster, 3).script["DescribeGroups"] = admin_pb2.DescribeGroupsResponse(
        groups=[admin_pb2.DescribeGroupsResponse.Group(group_id="g", state="Empty")]
    )
    assert muster("group", "describe", "g", "-o", "name").out == "g\n"
    assert [len(node.named("DescribeGroups")) for node in cluster.nodes] == [0, 0, 1]


def test_a_coordinator_that_died_is_looked_up_again(cluster, muster):
    """The coordinator may move between FindCoordinator and the call: the new one is asked."""
    dead = _node(cluster, 2)
    dead.stop()
    first = group_pb2.FindCoordinatorResponse.Result(
        group_id="g", coordinator=Coordinator(node_id=2, endpoint=dead.endpoint, term=7)
    )
    second = group_pb2.FindCoordinatorResponse.Result(
        group_id="g",
        coordinator=Coordinator(node_id=3, endpoint=_node(cluster, 3).endpoint, term=8),
    )
    answers = [first, second]
    _node(cluster, 1).script["FindCoordinator"] = lambda request: group_pb2.FindCoordinatorResponse(
        results=[answers.pop(0)]
    )
    _node(cluster, 3).script["DescribeGroups"] = admin_pb2.DescribeGroupsResponse(
        groups=[admin_pb2.DescribeGroupsResponse.Group(group_id="g", state="Empty")]
    )
    ran = muster("group", "describe", "g", "-o", "name")
    assert (ran.exit_code, ran.out) == (0, "g\n")


def test_a_pending_coordinator_is_no_coordinator(cluster, muster):
    """`pending` means ask again; at the end of the time it is exit 6."""
    for node in cluster.nodes:
        node.script["FindCoordinator"] = group_pb2.FindCoordinatorResponse(
            results=[group_pb2.FindCoordinatorResponse.Result(group_id="g", pending=True)]
        )
    assert muster("group", "describe", "g", "--timeout", "0.5").exit_code == 6


def test_without_a_leader_it_says_who_was_asked_and_what_each_said(cluster, muster, no):
    """Three nodes, three answers, in one line."""
    first, second, third = cluster.nodes
    loading = no(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "it is loading", retriable=True)
    first.script["ListTopics"] = admin_pb2.ListTopicsResponse(status=loading)
    nobody = no(ErrorCode.NOT_COORDINATOR, "it follows nobody", retriable=True)
    second.script["ListTopics"] = admin_pb2.ListTopicsResponse(status=nobody)
    third.stop()
    bootstrap = ",".join(node.endpoint for node in cluster.nodes)
    ran = muster("topic", "list", "--timeout", "0.5", "-b", bootstrap)
    error = ran.err.splitlines()[0]
    assert ran.exit_code == 6
    assert "no leader answers: " in error
    assert f"{first.endpoint}: COORDINATOR_LOAD_IN_PROGRESS: it is loading" in error
    assert f"{second.endpoint}: NOT_COORDINATOR: it follows nobody" in error
    assert f"{third.endpoint}: UNAVAILABLE" in error


def test_without_a_groups_leader_it_says_who_was_asked(cluster, muster):
    """The search for a coordinator, too."""
    for node in cluster.nodes:
        node.script["FindCoordinator"] = group_pb2.FindCoordinatorResponse(
            results=[group_pb2.FindCoordinatorResponse.Result(group_id="g", pending=True)]
        )
    bootstrap = ",".join(node.endpoint for node in cluster.nodes)
    ran = muster("group", "describe", "g", "--timeout", "0.5", "-b", bootstrap)
    assert ran.err.count("it knows no leader for group g") == 3


def test_of_a_killed_majority_it_names_the_node_that_lives_and_what_it_said(cluster, muster):
    """It names a coordinator that is gone; the next step is not to start another cluster."""
    living, dead, gone = cluster.nodes
    cluster.coordinate(dead)
    dead.stop()
    gone.stop()
    bootstrap = ",".join(node.endpoint for node in cluster.nodes)
    ran = muster("group", "describe", "g", "--timeout", "0.5", "-b", bootstrap)
    error, step = ran.err.splitlines()
    assert ran.exit_code == 6
    assert "no leader answers: " in error
    assert f"{living.endpoint}: the coordinator is {dead.endpoint}" in error
    assert f"{dead.endpoint}: UNAVAILABLE: Connection refused" in error
    assert step == "next: see `muster cluster status`"


@pytest.mark.parametrize("text", ["", ",", "host", "host:", ":7070", "host:0", "host:65536", "h:x"])
def test_a_bootstrap_that_is_no_endpoint_is_a_usage_error(muster, text):
    """Nothing is dialled before the list is understood."""
    ran = muster("topic", "list", "--bootstrap", text)
    assert ran.exit_code == 2
    assert "host:port" in ran.err


def test_flags_win_over_the_environment(cluster, muster, monkeypatch):
    """--bootstrap and -o beat MUSTER_BOOTSTRAP and MUSTER_OUTPUT, which beat the defaults."""
    for number, name in ((1, "environment"), (2, "flag")):
        topic = admin_pb2.Topic(name=name, partitions=1)
        _node(cluster, number).script["ListTopics"] = admin_pb2.ListTopicsResponse(topics=[topic])
    monkeypatch.setenv("MUSTER_OUTPUT", "name")
    assert muster("topic", "list").out == "environment\n"
    assert muster("topic", "list", "-b", _node(cluster, 2).endpoint).out == "flag\n"
    assert muster("topic", "list", "-o", "jsonl").out.startswith("{")


TLS = Path(__file__).parents[1] / "testdata" / "tls"


@pytest.fixture
def tls_endpoint():
    """One node behind a certificate of the test's own authority."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    servicer = type("Topics", (), {"ListTopics": lambda *_: TOPICS})()
    for method in admin_pb2.DESCRIPTOR.services_by_name["Topics"].methods:
        if method.name != "ListTopics":
            setattr(servicer, method.name, None)
    admin_pb2_grpc.add_TopicsServicer_to_server(servicer, server)
    pair = ((TLS / "server.key").read_bytes(), (TLS / "server.pem").read_bytes())
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_a_cluster_behind_tls_is_reached_with_its_authority(tls_endpoint, muster, monkeypatch):
    """MUSTER_TLS_CA is enough; without it the connection is refused, not made plainly."""
    monkeypatch.setenv("MUSTER_TLS_CA", str(TLS / "ca.pem"))
    assert muster("topic", "list", "-o", "name", "-b", tls_endpoint).out == "t\n"
    monkeypatch.delenv("MUSTER_TLS_CA")
    assert muster("topic", "list", "-b", tls_endpoint, "--timeout", "5").exit_code == 6


def test_a_folder_of_muster_cert_gives_all_three_files_and_each_variable_wins(monkeypatch):
    """MUSTER_TLS_DIR for a command and the SDK; without any of the four there is no TLS."""
    assert Tls.from_environment() is None
    monkeypatch.setenv("MUSTER_TLS_DIR", "certs/client-ann")
    folder = "certs/client-ann/"
    all_three = Tls(f"{folder}ca.pem", f"{folder}cert.pem", f"{folder}key.pem")
    assert Tls.from_environment() == all_three
    monkeypatch.setenv("MUSTER_TLS_CA", "other.pem")
    assert Tls.from_environment() == replace(all_three, ca="other.pem")
    monkeypatch.delenv("MUSTER_TLS_DIR")
    assert Tls.from_environment() == Tls("other.pem")


def test_a_certificate_file_that_is_missing_is_a_usage_error(muster, monkeypatch, tmp_path):
    """The file is named, and nothing is dialled."""
    monkeypatch.setenv("MUSTER_TLS_CA", str(tmp_path / "absent.pem"))
    ran = muster("topic", "list")
    assert ran.exit_code == 2
    assert "absent.pem" in ran.err


REFUSED = admin_pb2.ListTopicsResponse()
REFUSED.status.code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("refusal", [REFUSED, grpc.StatusCode.UNAUTHENTICATED])
def test_a_call_whose_token_ends_is_made_again_where_the_file_has_another(
    cluster, muster, monkeypatch, tmp_path, refusal
):
    """Once for each; one that stays, or is refused as well, is an error."""
    file, first = tmp_path / "token", _node(cluster, 1)
    monkeypatch.setenv(bearer_token.FILE_VARIABLE, str(file))
    for text, answers, code in (
        ("two", [refusal, TOPICS], ExitCode.OK),
        ("one", [refusal], ExitCode.NOT_PERMITTED),
        ("wrong", [refusal, refusal], ExitCode.NOT_PERMITTED),
    ):
        file.write_text("one")
        first.calls.clear()
        first.metadata.clear()
        left = [*answers]

        def answer(_request, text=text, left=left):
            file.write_text(text)
            return left.pop(0)

        first.script["ListTopics"] = answer
        assert muster("topic", "list").exit_code == code
        shown = [told["authorization"] for told in first.metadata]
        assert shown == ["Bearer one", f"Bearer {text}"][: len(answers)]


def test_the_admin_secret_goes_in_the_clear_only_where_the_user_says_so(
    cluster, muster, monkeypatch, tmp_path
):
    """To this machine it always goes; to others by TLS, or by the variable."""
    secret = tmp_path / "admin.secret"
    secret.write_text("0123456789abcdef\n")
    monkeypatch.setenv(FILE_VARIABLE, str(secret))
    first = _node(cluster, 1)
    first.script["DescribeClientQuotas"] = admin_pb2.DescribeClientQuotasResponse()

    def shown():
        named = [name for name, _ in first.calls]
        return first.metadata[named.index("DescribeClientQuotas")].get(METADATA_KEY)

    assert muster("quota", "list").exit_code == ExitCode.OK
    assert shown() == b"0123456789abcdef"
    for module in (connection, credentials):
        monkeypatch.setattr(module, "is_loopback", lambda _: False)  # as on another machine
    first.calls.clear()
    first.metadata.clear()
    refused = muster("quota", "list")
    assert refused.exit_code == ExitCode.USAGE
    assert f"would go to {first.endpoint} in the clear" in refused.err
    assert CLEAR_VARIABLE in refused.err
    assert first.calls == []
    monkeypatch.setenv(CLEAR_VARIABLE, "true")
    assert muster("quota", "list").exit_code == ExitCode.OK
    assert shown() == b"0123456789abcdef"
