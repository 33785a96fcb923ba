"""`muster debug bundle`: complete, bounded, and without any of the secrets that were planted."""

import base64
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from muster.cli import debug
from muster.cli.secrets import Scrubber
from muster.v1 import admin_pb2

ADMIN = "b7e1f0c2a9d84453"
METRICS = "metrics-token-0123"
CLIENTS = "clients-own-admin-secret-77"
TOKEN = "mst_9f8e7d6c5b4a"
TOKEN_IN_FILE = "mst_file_00aa11bb22"
KEY_LINE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
UNKNOWN_KEY_LINE = "MHcCAQEEIOunknownunknownunknown"
BEARER = "eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl"
PASSWORD = "hunter2-hunter2"
QUERY = "s3cr3t-in-a-url"
SECRETS = {
    *(ADMIN, ADMIN.encode().hex(), base64.b64encode(ADMIN.encode()).decode().rstrip("=")),
    *(METRICS, CLIENTS, TOKEN, TOKEN_IN_FILE, KEY_LINE, UNKNOWN_KEY_LINE, BEARER, PASSWORD, QUERY),
}


def pem(line):
    """A private key's file."""
    return f"-----BEGIN PRIVATE KEY-----\n{line}\n{line[::-1]}\n-----END PRIVATE KEY-----\n"


class Page(BaseHTTPRequestHandler):
    """A metrics page that a secret got into."""

    def do_GET(self):
        """Answer who shows the token."""
        shown = self.headers["Authorization"] == f"Bearer {METRICS}"
        self.send_response(200 if shown else 401)
        self.end_headers()
        self.wfile.write(f'muster_group_members{{group="{ADMIN}"}} 3\n'.encode())

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def planted(cluster, tmp_path, monkeypatch):
    """A node's settings and its log, with secrets wherever one may stand."""
    for node in cluster.nodes:
        node.script["ListGroups"] = admin_pb2.ListGroupsResponse()
        node.script["ListTopics"] = admin_pb2.ListTopicsResponse(
            topics=[admin_pb2.Topic(name="orders", partitions=3)]
        )
    for name, text in {
        "admin.secret": f"{ADMIN}\n",
        "metrics.token": f"{METRICS}\n",
        "client.secret": CLIENTS,
        "token": TOKEN_IN_FILE,
        "node.key": pem(KEY_LINE),
        "node.pem": "a certificate",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("MUSTER_ADMIN_SECRET_FILE", str(tmp_path / "client.secret"))
    monkeypatch.setenv("MUSTER_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("MUSTER_TOKEN", TOKEN)
    page = HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=page.serve_forever, daemon=True).start()
    (tmp_path / "node.toml").write_text(
        f'data_dir = "{tmp_path / "data"}"\n'
        f'admin_secret_file = "{tmp_path / "admin.secret"}"\n'
        f'tls_key = "{tmp_path / "node.key"}"\n'
        f'tls_cert = "{tmp_path / "node.pem"}"\n'
        f'metrics_listen = "127.0.0.1:{page.server_port}"\n'
        f'metrics_token_file = "{tmp_path / "metrics.token"}"\n'
    )
    (tmp_path / "node.log").write_text(
        f'{{"event": "serving", "config": {{"admin_secret_file": "admin.secret"}}}}\n'
        f"a line with {ADMIN}, {CLIENTS} and {TOKEN_IN_FILE} in it\n"
        f"in hexadecimal {ADMIN.encode().hex()}, in base64 "
        f"{base64.b64encode(ADMIN.encode()).decode()}\n"
        f"authorization: Bearer {BEARER}\n"
        f'{{"token": "{TOKEN}", "fencing_token": 1234567}}\n'
        f"password={PASSWORD} https://user:{QUERY}@index.example/simple\n"
        f"{pem(UNKNOWN_KEY_LINE)}the last line\n"
    )
    yield tmp_path
    page.shutdown()
    page.server_close()


def parts(file):
    """What is in a bundle, by name."""
    with tarfile.open(file) as archive:
        return {one.name: archive.extractfile(one).read().decode() for one in archive}


def test_no_planted_secret_is_in_the_bundle(planted, muster):
    """Looked for one by one in every part; what is no secret is still there."""
    file = planted / "bundle.tar.gz"
    given = ("--config", planted / "node.toml", "--log", planted / "node.log")
    ran = muster("debug", "bundle", "--to", str(file), *map(str, given))
    assert ran.exit_code == 0, ran.err
    assert file.stat().st_mode & 0o777 == 0o600
    found = parts(file)
    assert set(found) == {
        f"muster-debug/{name}"
        for name in (
            *("versions.json", "environment.json", "cluster.json", "groups.json", "doctor.txt"),
            *("node/settings.json", "node/metrics.txt", "node/doctor.txt", "logs/0-node.log"),
        )
    }
    assert {
        (name, secret) for name, text in found.items() for secret in SECRETS if secret in text
    } == set()
    assert 'fencing_token": 1234567' in found["muster-debug/logs/0-node.log"]
    assert "the last line" in found["muster-debug/logs/0-node.log"]
    assert "admin.secret" in found["muster-debug/node/settings.json"]
    assert "muster_group_members" in found["muster-debug/node/metrics.txt"]
    assert "orders" in found["muster-debug/groups.json"]
    assert "pysyncobj" in found["muster-debug/versions.json"]


def test_each_way_to_find_a_secret_is_needed():
    """Without the known values only what looks like one goes."""
    assert Scrubber([]).scrub(ADMIN.encode()) == ADMIN.encode()
    assert Scrubber([ADMIN.encode()]).scrub(ADMIN.encode()) == b"(hidden)"
    assert Scrubber([]).scrub(f"Bearer {BEARER}".encode()) == b"Bearer (hidden)"
    assert Scrubber([b"abc"]).scrub(b"abcd") == b"abcd"


def test_a_bundle_is_bounded_and_keeps_the_end_of_a_log(planted, muster, monkeypatch):
    """Whatever a log weighs. Too many logs are refused."""
    monkeypatch.setattr(debug, "PART_BYTES_MAX", 1_000)
    (planted / "node.log").write_text("".join(f"line {n}\n" for n in range(10_000)))
    file = planted / "bundle.tar.gz"
    log = ("--log", str(planted / "node.log"))
    assert muster("debug", "bundle", "--to", str(file), *log).exit_code == 0
    found = parts(file)
    assert all(len(text) <= 1_000 for text in found.values())
    lines = found["muster-debug/logs/0-node.log"].splitlines()
    assert lines[-1] == "line 9999"
    assert all(line.startswith("line ") for line in lines)
    assert muster("debug", "bundle", *(log * 9)).exit_code == 2


def test_what_cannot_be_had_says_why_and_nothing_is_written_over(planted, cluster, muster):
    """No cluster, a wrong setting, no log: the rest is still there."""
    for node in cluster.nodes:
        node.stop()
    (planted / "node.toml").write_text("lisen = 1\n")
    file = planted / "bundle.tar.gz"
    given = ("--config", planted / "node.toml", "--log", planted / "none.log", "--timeout", "0.5")
    command = ("debug", "bundle", "--to", str(file), *map(str, given))
    assert muster(*command).exit_code == 0
    found = parts(file)
    assert "lisen" in found["muster-debug/node/settings.error.txt"]
    assert "no connection" in found["muster-debug/cluster.json.error.txt"]
    assert "No such file" in found["muster-debug/logs/0-none.log.error.txt"]
    assert muster(*command).exit_code == 4
