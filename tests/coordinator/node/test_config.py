"""Settings: file, environment, flags in that order of weakness; exposure only on purpose."""

import pytest

from musterd.coordinator.node.config import ConfigError, is_loopback, load_settings, split_address


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    names = ("LISTEN", "PEERS", "DATA_DIR", "INSECURE", "INSECURE_PEERS", "INSECURE_METRICS")
    for name in names:
        monkeypatch.delenv(f"MUSTER_{name}", raising=False)


def test_flags_win_over_environment_and_file(tmp_path, monkeypatch):
    """Each source overrides only what it names."""
    file = tmp_path / "muster.toml"
    file.write_text(
        'data_dir = "/from/file"\nlisten = "127.0.0.1:1"\nmetrics_listen = "127.0.0.1:11"\n'
        '[peers]\n1 = "127.0.0.1:2"\n'
    )
    monkeypatch.setenv("MUSTER_LISTEN", "127.0.0.1:3")
    monkeypatch.setenv("MUSTER_METRICS_LISTEN", "127.0.0.1:33")
    settings = load_settings(file, {"metrics_listen": "", "peer_listen": None})
    assert str(settings.data_dir) == "/from/file"
    assert settings.listen == settings.endpoint == "127.0.0.1:3"
    assert settings.metrics_listen == ""
    assert settings.peers == {1: "127.0.0.1:2"}


def test_peers_can_be_given_as_text(monkeypatch):
    """As the environment and the flags give them."""
    monkeypatch.setenv("MUSTER_PEERS", "1=10.0.0.1:7170, 2=[::1]:7170")
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
        ({"data_dir": "/d", "what": 1}, "what"),
    ],
)
def test_a_wrong_setting_is_named(flags, named):
    """One sentence that names the setting and what would be right."""
    with pytest.raises(ConfigError, match=named):
        load_settings(None, flags)


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
    monkeypatch.setenv(f"MUSTER_{own.upper()}", "true")
    assert getattr(load_settings(None, flags), own)


def test_a_file_that_is_not_there_or_no_toml(tmp_path):
    """Both are said before anything starts."""
    with pytest.raises(ConfigError, match="no such file"):
        load_settings(tmp_path / "none.toml", {})
    bad = tmp_path / "bad.toml"
    bad.write_text("data_dir = ")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        load_settings(bad, {})


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
