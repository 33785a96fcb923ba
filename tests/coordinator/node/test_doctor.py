"""`muster doctor --config`: what a node's machine lacks is told before the node runs into it."""

import errno
import shlex
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from musterd.coordinator.api.limits.quota_buckets import DELAYED_MAX
from musterd.coordinator.metrics.catalog import counter
from musterd.coordinator.metrics.http_page import encode
from musterd.coordinator.node import doctor
from musterd.coordinator.node.authority import Authority
from musterd.coordinator.node.config import load_settings
from musterd.coordinator.node.doctor import examine


def checks(findings):
    """Check -> (result, detail)."""
    return {one.check: (one.result.value, one.detail) for one in findings}


@pytest.fixture
def ports():
    """Three addresses that nobody listens on."""
    sockets = [socket.socket() for _ in range(3)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


@pytest.fixture
def config(tmp_path, ports):
    """Settings of a node whose directory was initialised."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "CURRENT").touch()

    def write(**more):
        keys = {
            "data_dir": f'"{tmp_path / "data"}"',
            "listen": f'"{ports[0]}"',
            "peer_listen": f'"{ports[1]}"',
            "metrics_listen": f'"{ports[2]}"',
            "disk_reserve_bytes": 1,
        } | more
        file = tmp_path / "node.toml"
        file.write_text("".join(f"{name} = {value}\n" for name, value in keys.items()))
        return file

    return write


def test_a_machine_that_is_fit_has_no_problem(config):
    """Each check is there, and leaves nothing behind in the directory."""
    file = config()
    found = examine(file)
    assert {one.check for one in found} == {
        *("settings", "data", "disk", "fsync", "files", "tls", "peer tls", "operators"),
        *("port listen", "port peer_listen", "port metrics_listen"),
    }
    assert [one for one in found if one.result.value == "problem"] == []
    assert [path.name for path in (file.parent / "data").iterdir()] == ["CURRENT"]
    assert all(one.next_step for one in found if one.result.value != "ok")


def test_wrong_settings_are_the_only_finding(config):
    """Nothing else can be looked at."""
    (one,) = examine(config(lisen='"x"'))
    assert one.result.value == "problem"
    assert "lisen" in one.detail


def test_a_directory_without_a_node_and_a_full_disk_are_problems(config, tmp_path):
    """`muster init` is what to do."""
    found = checks(examine(config(disk_reserve_bytes=2**60)))
    assert found["disk"][0] == "problem"
    found = examine(config(data_dir=f'"{tmp_path / "none"}"'))
    (data,) = [one for one in found if one.check == "data"]
    assert (data.result.value, "muster init" in data.next_step) == ("problem", True)


@pytest.mark.parametrize(
    ("times", "result"),
    [
        ([0.001] * 32, "ok"),
        ([0.1] * 32, "warning"),
        ([0.001] * 31 + [1.5], "warning"),
        ([2.0] * 32, "problem"),
    ],
)
def test_a_disk_is_judged_by_how_long_it_takes_to_sync(tmp_path, times, result):
    """By the middle one; one that hung is a warning."""
    (one,) = doctor.fsync(tmp_path, lambda _: times)
    assert one.result.value == result


def test_a_disk_that_cannot_be_written_to_is_a_problem(tmp_path):
    """With the system's word."""

    def fails(_):
        raise OSError(errno.EIO, "Input/output error")

    (one,) = doctor.fsync(tmp_path, fails)
    assert (one.result.value, "Input/output error" in one.detail) == ("problem", True)


@pytest.mark.parametrize(("limit", "result"), [(1_024, "warning"), (65_536, "ok"), (-1, "ok")])
def test_few_open_files_are_told_with_what_they_are_enough_for(limit, result):
    """In connections of clients."""
    one = doctor.of_limit(limit, "started from here")
    assert one.result.value == result
    assert ("768 connections" in one.detail) is (limit == 1_024)


def test_of_a_node_that_runs_its_own_limit_counts(tmp_path):
    """Not that of the shell that asks; where it is not there to be read, that is said."""
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "LOCK").touch()
    assert "started from here" in doctor.open_files(tmp_path).detail
    script = (
        "import fcntl, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (777, 888))\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = (sys.executable, "-c", script, tmp_path / "db" / "LOCK")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as node:
        assert node.stdout.readline() == b"locked\n"
        found = doctor.open_files(tmp_path)
        unseen = doctor.open_files(tmp_path, tmp_path)
        node.stdin.close()
    assert found.result.value == "warning"
    assert f"may open 777 files, as it runs, process {node.pid}:" in found.detail
    assert unseen.result.value == "unknown"
    assert "started from here" in doctor.open_files(tmp_path).detail


def test_a_port_that_somebody_else_has_is_a_problem(config, ports):
    """Who listens there is no node: nothing is live at the metrics port."""
    with socket.create_server(("127.0.0.1", int(ports[0].rpartition(":")[2]))):
        found = checks(examine(config()))
    assert found["port listen"] == (
        "problem",
        f"{ports[0]} is taken, and no node answers at metrics_listen",
    )
    assert found["port peer_listen"][0] == "ok"


def test_an_address_of_another_machine_is_a_problem(config):
    """It could not be bound when the node starts."""
    found = checks(examine(config(metrics_listen='"192.0.2.1:7270"', insecure_metrics="true")))
    assert found["port metrics_listen"][0] == "problem"


def test_a_peer_that_takes_no_connection_is_a_warning(config, ports):
    """It may not have been started yet."""
    with socket.create_server(("127.0.0.1", 0)) as peer:
        there = f"127.0.0.1:{peer.getsockname()[1]}"
        found = examine(config(peers=f'"1={there},2=127.0.0.1:1"'))
    said = {one.where: one.result.value for one in found if one.check == "peer"}
    assert said == {"node 1": "ok", "node 2": "warning"}


def test_a_key_that_is_not_the_certificate_s_is_a_problem(config, tmp_path):
    """Files that are none, too."""
    for name in ("cert", "key"):
        (tmp_path / name).write_text("nothing")
    found = checks(
        examine(config(tls_cert=f'"{tmp_path / "cert"}"', tls_key=f'"{tmp_path / "key"}"'))
    )
    assert found["tls"][0] == "problem"


def test_the_end_of_a_certificate_is_looked_at(config, tmp_path):
    """A month before it is a warning."""
    authority = Authority.create(tmp_path / "certs", "c")
    said = {}
    for days in (3, 90):
        folder = authority.node(days, ["localhost"], days).folder
        found = examine(
            config(tls_cert=f'"{folder / "cert.pem"}"', tls_key=f'"{folder / "key.pem"}"')
        )
        said[days] = checks(found)["expiry"][0]
    assert said == {3: "warning", 90: "ok"}


@pytest.mark.parametrize(
    ("more", "result", "said"),
    [
        ({}, "warning", "superusers' certificates"),
        ({"admin_secret_file": "SECRET"}, "warning", "not taken without TLS"),
        ({"admin_secret_file": "SECRET", "insecure_admin_secret": "true"}, "warning", "listens"),
    ],
)
def test_operators_of_a_node_beyond_loopback_are_told_what_becomes_of_their_secret(
    config, tmp_path, more, result, said
):
    """Before they are refused, or heard by others."""
    (tmp_path / "admin.secret").write_text("0123456789abcdef")
    quoted = {
        name: text.replace("SECRET", f'"{tmp_path}/admin.secret"') for name, text in more.items()
    }
    file = config(listen='"192.0.2.1:7070"', insecure="true", **quoted)
    found = checks(examine(file))
    assert found["operators"][0] == result
    assert said in found["operators"][1]


def with_peer_files(config, folder, **more):
    """Settings of a node that shows this folder's certificate to other nodes."""
    files = {"peer_cert": "cert.pem", "peer_key": "key.pem", "peer_ca": "ca.pem"}
    return config(**{name: f'"{folder / file}"' for name, file in files.items()} | more)


@pytest.mark.parametrize(("days", "result"), [(90, "ok"), (10, "warning")])
def test_the_certificate_for_other_nodes_is_looked_at(config, tmp_path, days, result):
    """That it is of peer_ca, and its end."""
    authority = Authority.create(tmp_path / "ca", "c")
    folder = authority.node(0, ["localhost"], days=days).folder
    found = checks(examine(with_peer_files(config, folder)))
    assert found["peer tls"][0] == "ok"
    assert found["peer expiry"][0] == result


def test_a_certificate_of_another_authority_than_peer_ca_is_a_problem(config, tmp_path):
    """The other nodes would refuse it."""
    folder = Authority.create(tmp_path / "ca", "c").node(0, ["localhost"]).folder
    other = Authority.create(tmp_path / "other", "c").node(0, ["localhost"]).folder
    found = checks(examine(with_peer_files(config, folder, peer_ca=f'"{other / "ca.pem"}"')))
    result, detail = found["peer tls"]
    assert result == "problem"
    assert "is not of an authority of" in detail


def test_a_key_of_another_certificate_is_a_problem_of_peers_too(config, tmp_path):
    """As of the client port's."""
    authority = Authority.create(tmp_path / "ca", "c")
    folder, other = (authority.node(number, ["localhost"]).folder for number in (0, 1))
    found = checks(examine(with_peer_files(config, folder, peer_key=f'"{other / "key.pem"}"')))
    assert found["peer tls"][0] == "problem"


class MetricsOfANode(BaseHTTPRequestHandler):
    """A metrics port that is live, and its page."""

    protocol_version = "HTTP/1.1"
    page = b""

    token = None

    def do_get(self):
        needs = self.path == "/metrics" and self.token is not None
        knows = not needs or self.headers["Authorization"] == f"Bearer {self.token}"
        body = self.page if self.path == "/metrics" and knows else b""
        self.send_response(200 if knows else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_get  # noqa: N815

    def log_message(self, *_):
        """Say nothing."""


def quotas_of(page, token=None, **settings):
    """What is found of the quotas of a node with this page, which needs the token."""
    handler = type("Page", (MetricsOfANode,), {"page": page, "token": token})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        try:
            address = {"metrics_listen": f"127.0.0.1:{server.server_port}"}
            return doctor.quotas(load_settings(None, {"data_dir": "/d"} | address | settings))
        finally:
            server.shutdown()
            serving.join()


def quota_page(delayed, throttled=7):
    """A node's page, as a node writes it, with calls that were told to wait for quotas."""
    total = counter("muster_quota_throttled_total")
    total.add_metric(["commits_per_s"], throttled)
    delays = counter("muster_quota_delays_total")
    for labels, times in delayed.items():
        delays.add_metric(labels, times)
    return b"".join(piece for family in (total, delays) for piece in encode(family))


@pytest.mark.parametrize(
    ("page", "result", "said"),
    [
        (quota_page({}, throttled=0), "ok", "nobody"),
        (quota_page({}), "warning", "commits_per_s 7"),
        (quota_page({}) + b'muster_quota_thr{k="', "warning", "commits_per_s 7"),
        (b"", "unknown", "does not tell"),
        (b"no page\n", "unknown", "the metrics page"),
    ],
    ids=["none", "some", "cut", "without", "nonsense"],
)
def test_calls_that_were_told_to_wait_for_a_quota_are_counted(page, result, said):
    """Of a node that runs, by quota, with what to do; a page that was too long has half a line."""
    (one,) = quotas_of(page)
    assert (one.result, said in one.detail) == (result, True)
    assert ("muster quota list" in one.next_step) is (result == "warning")


def test_the_token_of_the_metrics_page_is_shown_and_another_is_said_to_be_refused(tmp_path):
    """As a page beyond loopback wants it."""
    file, page = tmp_path / "metrics.token", quota_page({}, throttled=0)
    file.write_text("0123456789abcdef\n")
    (read,) = quotas_of(page, "0123456789abcdef", metrics_token_file=file)
    assert read.result == "ok"
    (refused,) = quotas_of(page, "another", metrics_token_file=file)
    assert (refused.result, "401" in refused.detail) == ("unknown", True)


def test_who_was_told_to_wait_for_a_quota_is_named_with_what_to_do():
    """A command that is copied names that principal or group, whatever its name is."""
    delayed = {
        ("principal", "ann", "members"): 2,
        ("group", "a}\n\"b'; c", "commits_per_s"): 5,
    }
    _, ann, group = quotas_of(quota_page(delayed))
    assert (ann.where, ann.result) == ("principal:ann", "warning")
    assert "refused 2 times" in ann.detail
    assert "`muster quota set principal:ann members=VALUE`" in ann.next_step
    assert "run fewer members" in ann.next_step
    assert group.where == "group:a}\n\"b'; c"
    assert "told to wait 5 times by its quota of commits_per_s" in group.detail
    command = group.next_step.split("`")[1]
    assert shlex.split(command)[2:] == ["set", group.where, "commits_per_s=VALUE"]


def test_of_many_who_were_told_to_wait_the_last_are_named():
    """As many as a node keeps; another build may name more."""
    delayed = {("group", f"g{number}", "joins_per_s"): 1 for number in range(DELAYED_MAX + 5)}
    _, *named = quotas_of(quota_page(delayed))
    assert [one.where for one in named] == [f"group:g{n}" for n in range(5, DELAYED_MAX + 5)]
