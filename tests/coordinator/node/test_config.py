"""Settings: file, environment, flags in that order of weakness; exposure only on purpose."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from musterd.coordinator.node.config import (
    ARGUMENT_MAX_BYTES,
    CLIENTS,
    FIELDS,
    ConfigError,
    is_loopback,
    load_settings,
    split_address,
    unread_variables,
)
from musterd.coordinator.node.node import Node


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    for name in [name for name in os.environ if name.startswith("MUSTER")]:
        monkeypatch.delenv(name)


def test_flags_win_over_environment_and_file(tmp_path, monkeypatch):
    """Each source overrides only what it names."""
    file = tmp_path / "muster.toml"
    file.write_text(
        'data_dir = "/from/file"\nlisten = "127.0.0.1:1"\nmetrics_listen = "127.0.0.1:11"\n'
        '[peers]\n1 = "127.0.0.1:2"\n'
    )
    monkeypatch.setenv("MUSTERD_LISTEN", "127.0.0.1:3")
    monkeypatch.setenv("MUSTERD_METRICS_LISTEN", "127.0.0.1:33")
    settings = load_settings(file, {"metrics_listen": "", "peer_listen": None})
    assert str(settings.data_dir) == "/from/file"
    assert settings.listen == settings.endpoint == "127.0.0.1:3"
    assert settings.metrics_listen == ""
    assert settings.peers == {1: "127.0.0.1:2"}


def test_peers_can_be_given_as_text(monkeypatch):
    """As the environment and the flags give them."""
    monkeypatch.setenv("MUSTERD_PEERS", "1=10.0.0.1:7170, 2=[::1]:7170")
    settings = load_settings(None, {"data_dir": "/d"})
    assert settings.peers == {1: "10.0.0.1:7170", 2: "[::1]:7170"}


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({}, "data_dir"),
        ({"data_dir": "/d", "listen": "7070"}, "host:port"),
        ({"data_dir": "/d", "listen": "0.0.0.0:7070"}, "loopback"),
        ({"data_dir": "/d", "peer_listen": "10.0.0.1:7170"}, "loopback"),
        ({"data_dir": "/d", "metrics_listen": "10.0.0.1:7270"}, "loopback"),
        ({"data_dir": "/d", "peers": "one=127.0.0.1:1"}, "NODE=host:port"),
        ({"data_dir": "/d", "peers": "1=127.0.0.1"}, "host:port"),
        ({"data_dir": "/d", "tls_cert": "/c"}, "belong together"),
        ({"data_dir": "/d", "log_format": "xml"}, "log_format"),
        ({"data_dir": "/d", "offset_retention_ms": 10**24}, "offset_retention_ms"),
        ({"data_dir": "/d", "disk_reserve_bytes": 2**62 + 1}, "disk_reserve_bytes"),
        ({"data_dir": "/d", "state_node_max_bytes": 2**62 + 1}, "state_node_max_bytes"),
        ({"data_dir": "/d", "state_group_max_bytes": 2**29}, "<= state_shard_max_bytes"),
        ({"data_dir": "/d", "state_shard_max_bytes": 2**30}, "<= state_node_max_bytes"),
        ({"data_dir": "/d", "what": 1}, "what"),
    ],
)
def test_a_wrong_setting_is_named(flags, named):
    """One sentence that names the setting and what would be right."""
    with pytest.raises(ConfigError, match=named):
        load_settings(None, flags)


def test_all_that_is_wrong_is_said_at_once_with_what_would_be_right(tmp_path, monkeypatch):
    """A value of each source, one that lacks, and one that is long, which is cut."""
    file = tmp_path / "node.toml"
    file.write_text(f'log_format = "xml"\nsuperusers = 3\ntls_ca = [{"1, " * 10_000}]\n')
    monkeypatch.setenv("MUSTERD_FORWARD", "perhaps")
    with pytest.raises(ConfigError) as raised:
        load_settings(file, {"heartbeat_ms": 0})
    said = str(raised.value)
    for one in (
        "data_dir: it must be given",
        "heartbeat_ms: it takes at least 1, not 0",
        "forward: it takes `true`, `false`, not 'perhaps'",
        f"{file}: log_format: it takes `json`, `text`, not 'xml'",
        f"{file}: superusers: it takes text, ..., not 3",
        f"{file}: tls_ca: it takes a path, not [1, ",
    ):
        assert one in said
    assert len(said) < 1_000


@pytest.mark.parametrize("text", ["true", "True", "1"])
def test_a_variable_is_text_and_its_setting_has_a_type(monkeypatch, text):
    """Numbers, yes and no, paths, lists."""
    monkeypatch.setenv("MUSTERD_INSECURE", text)
    monkeypatch.setenv("MUSTERD_HEARTBEAT_MS", "110")
    monkeypatch.setenv("MUSTERD_DATA_DIR", "/d")
    monkeypatch.setenv("MUSTERD_SUPERUSERS", "ann, bob")
    settings = load_settings(None, {})
    assert (settings.insecure, settings.heartbeat_ms) == (True, 110)
    assert (settings.data_dir, settings.superusers) == (Path("/d"), ("ann", "bob"))
    assert settings.shown["data_dir"] == "/d"


def test_exposure_needs_tls_or_insecure(tmp_path):
    """Other addresses than loopback only on purpose (arch-6.3)."""
    open_to_all = {"data_dir": "/d", "listen": "0.0.0.0:7070"}
    assert load_settings(None, open_to_all | {"insecure": True}).insecure
    tls = {"tls_cert": tmp_path / "c", "tls_key": tmp_path / "k"}
    assert load_settings(None, open_to_all | tls).listen == "0.0.0.0:7070"


@pytest.mark.parametrize(
    ("port", "own", "next_step"),
    [
        ("listen", "insecure", "`--tls-cert` and `--tls-key`, or `--insecure`"),
        ("peer_listen", "insecure_peers", "`--insecure-peers`"),
        ("metrics_listen", "insecure_metrics", "`--insecure-metrics`"),
    ],
)
def test_each_port_is_exposed_by_its_own_setting_alone(tmp_path, monkeypatch, port, own, next_step):
    """From a flag, a file or the environment; the others, and TLS for clients, do not open it."""
    flags = {"data_dir": "/d", port: "10.0.0.1:7000"}
    others = {"insecure", "insecure_peers", "insecure_metrics"} - {own}
    if port != "listen":
        flags |= {"tls_cert": tmp_path / "c", "tls_key": tmp_path / "k"}
    with pytest.raises(ConfigError, match="not loopback") as raised:
        load_settings(None, flags | dict.fromkeys(others, True))
    assert port in str(raised.value)
    assert next_step in raised.value.next_step
    assert getattr(load_settings(None, flags | {own: True}), port) == "10.0.0.1:7000"
    file = tmp_path / "muster.toml"
    file.write_text(f"{own} = true\n")
    assert getattr(load_settings(file, flags), own)
    monkeypatch.setenv(f"MUSTERD_{own.upper()}", "true")
    assert getattr(load_settings(None, flags), own)


def test_a_file_that_is_not_there_or_no_toml(tmp_path):
    """Both are said before anything starts."""
    with pytest.raises(ConfigError, match="no such file"):
        load_settings(tmp_path / "none.toml", {})
    bad = tmp_path / "bad.toml"
    bad.write_text("data_dir = ")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        load_settings(bad, {})


@pytest.mark.parametrize("line", ['lissten = "127.0.0.1:1"', "heartbeat_ms = 0", 'listen = "7070"'])
def test_a_key_that_is_wrong_is_named_with_its_file(tmp_path, line):
    """A value that a flag gives is not the file's."""
    file = tmp_path / "node.toml"
    file.write_text(line)
    key = line.split()[0]
    with pytest.raises(ConfigError, match=rf"node\.toml: {key}: "):
        load_settings(file, {"data_dir": "/d"})
    if key == "listen":
        with pytest.raises(ConfigError, match=r"^listen: "):
            load_settings(file, {"data_dir": "/d", "listen": "7071"})


def test_addresses():
    """Hosts, IPv6 in brackets, loopback of both kinds."""
    assert split_address("[::1]:7070") == ("::1", 7070)
    assert [is_loopback(a) for a in ("127.3.2.1:1", "[::1]:1", "localhost:1", "0.0.0.0:1")] == [
        True,
        True,
        True,
        False,
    ]
    with pytest.raises(ValueError, match="host:port"):
        split_address("host:99999")


@pytest.mark.parametrize("name", sorted(FIELDS.keys() - CLIENTS))
def test_an_old_name_of_a_variable_is_refused_with_the_new_one(monkeypatch, name):
    """Nobody's setting is lost without a word: even an empty one."""
    monkeypatch.setenv(f"MUSTER_{name.upper()}", "")
    with pytest.raises(ConfigError, match=f"MUSTERD_{name.upper()}"):
        load_settings(None, {"data_dir": "/d"})


def test_a_clients_variables_are_not_a_nodes(monkeypatch):
    """A node that is started again from a client's shell demands no client certificates."""
    for name in (*map(str.upper, CLIENTS), "BOOTSTRAP", "OUTPUT", "TIMEOUT"):
        monkeypatch.setenv(f"MUSTER_{name}", "/client")
    settings = load_settings(None, {"data_dir": "/d"})
    assert (settings.tls_ca, settings.tls_cert, settings.tls_key) == (None, None, None)
    assert settings.admin_secret_file is None
    assert set(unread_variables()) == {f"MUSTER_{name.upper()}" for name in CLIENTS}
    assert "MUSTER_TLS_CA" in unread_variables()


def test_a_misspelt_variable_is_told_of(monkeypatch):
    """It is not refused: Kubernetes sets MUSTERD_PORT by itself beside a service `musterd`."""
    monkeypatch.setenv("MUSTERD_LISEN", "127.0.0.1:1")
    monkeypatch.setenv("musterd_heartbeat_ms", "150")
    monkeypatch.setenv("MUSTERD_LISTEN", "127.0.0.1:1")
    assert set(unread_variables()) == {"MUSTERD_LISEN", "musterd_heartbeat_ms"}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"heartbeat_ms": 99}, "heartbeat_ms >= 20 * REST_MS_MAX"),
        ({"heartbeat_ms": 134}, "quorum_ms >= 3 * heartbeat_ms"),
        ({"quorum_ms": 401}, "election_min_ms >= quorum_ms"),
        ({"election_min_ms": 700}, "election_max_ms > election_min_ms"),
        ({"election_max_ms": 1000}, "session_timeout_min_ms > election_max_ms"),
    ],
)
def test_times_that_do_not_go_together_are_refused(changes, rule):
    """With the line of docs/timeouts.md that they break, and their values."""
    with pytest.raises(ConfigError) as raised:
        load_settings(None, {"data_dir": "/d"} | changes)
    assert rule in str(raised.value)
    ((name, value),) = changes.items()
    assert f"{name} is {value}" in str(raised.value)


def test_times_that_go_together_are_taken():
    """And they are the consensus layer's."""
    times = {"heartbeat_ms": 150, "quorum_ms": 500, "election_min_ms": 500, "election_max_ms": 900}
    raft = load_settings(None, {"data_dir": "/d"} | times).raft_settings
    assert {name: getattr(raft, name) for name in times} == times


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"listen": "192.0.2.1:1", "insecure": True}, True),
        ({"listen": "192.0.2.1:1", "insecure": True, "insecure_admin_secret": True}, False),
        ({"listen": "127.0.0.1:1"}, False),
    ],
)
def test_a_node_that_cannot_hear_operators_of_other_machines_says_so(tmp_path, keys, said):
    """Builds before took the secret in the clear, and an upgrade must not be silent."""
    secret = tmp_path / "admin.secret"
    secret.write_text("0123456789abcdef")
    settings = load_settings(None, {"data_dir": "/d", "admin_secret_file": secret, **keys})
    node = SimpleNamespace(settings=settings, assembly=SimpleNamespace(core=Mock()))
    with capture_logs() as lines:
        Node._tell_access(node)
    event = "without TLS operators' calls are taken from this machine alone"
    assert (event in [line["event"] for line in lines]) is said


@pytest.mark.parametrize("name", ["anonymous", "operator", "node:1"])
def test_a_superuser_has_no_name_that_muster_gives(name):
    """Nobody could be it; JWTs' principals can."""
    with pytest.raises(ConfigError, match="a name that muster gives"):
        load_settings(None, {"data_dir": "/d", "superusers": f"jwt:root,{name}"})
    assert load_settings(None, {"data_dir": "/d", "superusers": "jwt:root"}).superusers


@pytest.mark.parametrize(
    ("keys", "taken"),
    [
        ({}, True),
        ({"peers": "1=127.0.0.1:7171"}, True),
        ({"peers": "1=192.0.2.1:7171"}, False),
        ({"peer_listen": "192.0.2.1:7171"}, False),
        ({"tls_cert": "/c", "tls_key": "/k", "tls_ca": "/a"}, False),
        ({"tls_cert": "/c", "tls_key": "/k"}, True),
    ],
)
@pytest.mark.parametrize("peer_tls", ["off", "prefer", "require"])
def test_calls_are_passed_on_by_tls_alone_beyond_loopback(keys, taken, peer_tls):
    """With `require` everywhere; else between nodes on loopback, of clients without theirs."""
    files = {} if peer_tls == "off" else {f"peer_{name}": "/f" for name in ("cert", "key", "ca")}
    given = {"data_dir": "/d", "forward": True, "peer_tls": peer_tls, **files, **keys}
    if taken or peer_tls == "require":
        assert load_settings(None, given).forward
    else:
        with pytest.raises(ConfigError, match="forward needs peer_tls = require"):
            load_settings(None, given)


def test_settings_that_no_program_can_be_given_are_refused_and_not_a_traceback():
    """`muster serve` gives them to the program that it becomes, as one argument."""
    with pytest.raises(ConfigError, match=r"/tls-\\udcff/.*is not UTF-8"):
        load_settings(None, {"data_dir": "/d", "tls_dir": os.fsdecode(b"/tls-\xff")}).encode()
    names = tuple(f"{number}-{'n' * 2_000}" for number in range(99))
    with pytest.raises(ConfigError, match=f"may take {ARGUMENT_MAX_BYTES}"):
        load_settings(None, {"data_dir": "/d", "superusers": names}).encode()


def test_the_longest_settings_that_are_taken_are_one_argument_of_a_program():
    """As long as the kernel takes it."""
    empty = len(load_settings(None, {"data_dir": "/d", "jwt_claim": "c"}).encode())
    longest = "c" * (1 + ARGUMENT_MAX_BYTES - empty)
    argument = load_settings(None, {"data_dir": "/d", "jwt_claim": longest}).encode()
    assert len(argument) == ARGUMENT_MAX_BYTES
    subprocess.run([sys.executable, "-c", "", argument], check=True)
