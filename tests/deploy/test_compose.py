"""Compose: against the schema that Compose itself uses, and against what it puts together.

No engine runs it here, and Grafana cannot be had: what they would read is looked at instead.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from cryptography import x509

import muster
from musterd.coordinator.api.frame.client_certificate import principal_of
from musterd.coordinator.node.certificates import Certificates
from musterd.coordinator.node.config import load_settings
from musterd.raft.identity import Identity

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "compose"
FILE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SCHEMA = json.loads((Path(__file__).parent / "schemas" / "compose-spec.json").read_text())
SERVICES = FILE["services"]
ENDED = {"condition": "service_completed_successfully"}
NODES = {int(name[-1]): one for name, one in SERVICES.items() if name.startswith("node-")}


def test_the_file_is_what_compose_takes():
    """A key that it does not know is refused."""
    check = jsonschema.Draft202012Validator(SCHEMA)
    assert [error.message for error in check.iter_errors(FILE)] == []
    wrong = FILE | {"services": {"x": {"image": "y", "read_onli": True}}}
    assert list(check.iter_errors(wrong)) != []


@pytest.mark.parametrize("number", NODES)
def test_a_node_s_environment_are_settings_that_a_node_takes(monkeypatch, tmp_path, number):
    """Read as the node reads them; its peers are the other two, at their own ports."""
    for name, value in NODES[number]["environment"].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MUSTERD_DATA_DIR", "/var/lib/muster/node")
    secret = tmp_path / "admin.secret"
    secret.write_text("0123456789abcdef0123")
    monkeypatch.setenv("MUSTERD_ADMIN_SECRET_FILE", str(secret))
    monkeypatch.setenv("MUSTERD_METRICS_TOKEN_FILE", str(secret))
    settings = load_settings(None, {})
    assert not settings.insecure_metrics
    assert settings.endpoint == f"node-{number}:7070"
    assert settings.peers == {n: f"node-{n}:7170" for n in NODES if n != number}
    assert settings.metrics_listen == "0.0.0.0:7270"
    assert not settings.insecure
    assert not settings.insecure_peers
    settings.check_exposure()


def test_each_node_has_a_directory_of_its_own_that_was_initialised_as_its_id():
    """By a service that ends before the node begins."""
    for number, node in NODES.items():
        volume = f"data-{number}:/var/lib/muster"
        init = SERVICES[f"init-{number}"]
        assert node["volumes"] == init["volumes"] == [volume]
        assert init["environment"]["NODE"] == str(number)
        assert node["depends_on"] == {"certs": ENDED}
        assert SERVICES["certs"]["depends_on"][f"init-{number}"] == ENDED
    (command,) = SERVICES["init-0"]["command"]
    assert f"--nodes {len(NODES)}" in command
    assert {f"data-{number}" for number in NODES} <= FILE["volumes"].keys()


@pytest.fixture
def volumes(tmp_path):
    """Where each volume is once the service `certs` has run twice."""
    mounted = dict(volume.split(":") for volume in SERVICES["certs"]["volumes"])
    (script,) = SERVICES["certs"]["command"]
    script = script.replace("$$", "$")
    for name, place in mounted.items():
        (tmp_path / name).mkdir()
        script = script.replace(place, str(tmp_path / name))
    script = script.replace("/nodes/$n", f"{tmp_path}/data-$n")
    programs = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    for _ in range(2):
        command = [*SERVICES["certs"]["entrypoint"], script]
        subprocess.run(command, env={"PATH": programs}, check=True, capture_output=True)
    return {name: tmp_path / name for name in mounted}


def test_its_certificates_are_the_nodes_and_clients_own(monkeypatch, volumes):
    """Each node's folder is read as the node does, and `admin` is a superuser."""
    for number, node in NODES.items():
        environment = node["environment"]
        folder = volumes[f"data-{number}"] / Path(environment["MUSTERD_TLS_DIR"]).name
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("MUSTERD_DATA_DIR", str(volumes[f"data-{number}"] / "node"))
        monkeypatch.setenv("MUSTERD_TLS_DIR", str(folder))
        secret = folder / Path(environment["MUSTERD_ADMIN_SECRET_FILE"]).name
        monkeypatch.setenv("MUSTERD_ADMIN_SECRET_FILE", str(secret))
        token = folder / Path(environment["MUSTERD_METRICS_TOKEN_FILE"]).name
        monkeypatch.setenv("MUSTERD_METRICS_TOKEN_FILE", str(token))
        settings = load_settings(None, {})
        identity = Identity("compose", number, 0, tuple(NODES), 16, bytes(16))
        found = Certificates(settings, identity)
        assert found.loaded.valid_until.keys() == {"clients", "peers"}
        assert found.peers.requires
        assert found.shows_node
        hosts = x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())
        names = hosts.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert f"node-{number}" in names.get_values_for_type(x509.DNSName)
        assert not (folder / "ca.key").exists()
    environment = SERVICES["muster"]["environment"]
    mine = in_volume(environment["MUSTER_ADMIN_SECRET_FILE"], volumes)
    assert mine.read_bytes() == secret.read_bytes()
    shown = in_volume(environment["MUSTER_TLS_DIR"], volumes) / "cert.pem"
    assert principal_of(shown.read_bytes(), "compose").name in settings.superusers


def test_prometheus_shows_the_token_of_the_metrics_page(volumes):
    """From a volume of its own, which has nothing else; as nobody it can read the file."""
    (job,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    shown = Path(job["authorization"]["credentials_file"])
    prometheus = SERVICES["prometheus"]
    assert f"scrape:{shown.parent}:ro" in prometheus["volumes"]
    assert prometheus["depends_on"] == {"certs": ENDED}
    [file] = volumes["scrape"].iterdir()
    assert file.name == shown.name
    assert file.stat().st_mode & 0o777 == 0o444
    for number, node in NODES.items():
        mine = Path(node["environment"]["MUSTERD_METRICS_TOKEN_FILE"]).name
        there = volumes[f"data-{number}"] / "tls" / mine
        assert there.read_bytes() == file.read_bytes()
        assert there.stat().st_mode & 0o077 == 0


def in_volume(name, volumes):
    """A file of the clients' volume."""
    return volumes["clients"] / Path(name).relative_to("/etc/muster")


def test_the_worker_connects_with_its_own_certificate(monkeypatch, volumes):
    """The README's reads the environment; its folder is in a volume that it has."""
    worker = SERVICES["worker"]
    assert "muster.Tls.from_environment()" in (ROOT / "docs" / "example.py").read_text()
    assert "clients:/etc/muster:ro" in worker["volumes"]
    folder = in_volume(worker["environment"]["MUSTER_TLS_DIR"], volumes)
    monkeypatch.setenv("MUSTER_TLS_DIR", str(folder))
    assert muster.Tls.from_environment().credentials()
    shown = (folder / "cert.pem").read_bytes()
    assert principal_of(shown, "compose").name == "worker"


def test_no_container_may_more_than_it_needs():
    """No rights, and of ours a root that is read-only and nothing published."""
    for name, one in SERVICES.items():
        assert one["cap_drop"] == ["ALL"], name
        if one["image"] == "muster:local":
            assert one["read_only"], name
            assert one["user"] == "65532:65532", name
            assert "ports" not in one, name
    published = [port for one in SERVICES.values() for port in one.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert FILE["networks"]["muster"] == {"internal": True}


def test_what_is_mounted_is_there_and_is_what_prometheus_and_grafana_read():
    """Rules and dashboard of deploy/; scraped are the nodes; the data source is that Prometheus."""
    mounted = {}
    for one in SERVICES.values():
        for volume in one.get("volumes", ()):
            source, target = volume.split(":")[:2]
            if source.startswith("."):
                assert (FOLDER / source).is_file(), source
                mounted[target] = FOLDER / source
    scraped = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (job,) = scraped["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [f"node-{n}:7270" for n in NODES]
    for rules in scraped["rule_files"]:
        assert f"/etc/prometheus/{rules}" in mounted
    (source,) = yaml.safe_load((FOLDER / "grafana/datasource.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((FOLDER / "grafana/dashboards.yml").read_text())["providers"]
    assert mounted[f"{provider['options']['path']}/cluster.json"].name == "cluster.json"
    ours = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    del job["authorization"]
    theirs = re.sub(r"node-\d", "x", json.dumps(scraped))
    assert re.sub(r"127\.0\.0\.1:727\d", "x:7270", json.dumps(ours)) == theirs
