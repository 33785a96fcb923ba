"""The Helm chart and the kustomize base: by Kubernetes' schemas, and by what a node takes."""

import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from cryptography import x509

from musterd.coordinator.api.frame.client_certificate import principal_of
from musterd.coordinator.api.frame.operator_access import read_secret
from musterd.coordinator.node.authority import Authority
from musterd.coordinator.node.certificates import Certificates
from musterd.coordinator.node.config import ConfigError, Settings, load_settings
from musterd.raft.identity import Identity
from musterd.raft.tls import node_uri
from tests.certificates import signed

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "muster"
BASE = ROOT / "deploy" / "kubernetes" / "base"
HELM = ROOT / ".venv" / "helm"
PLAIN = ("tls.insecure=true", "insecureMetrics=true")
TLS = ("tls.issuer=ca", "adminSecret=muster-admin", "antiAffinity=preferred", "nodes=5")
CSI = ("tls.issuer=ca", "tls.csi.enabled=true")
RULES = (
    "adminSecret=muster-admin",
    "superusers={ann,jwt:root}",
    "tls.clients=muster-tls",
    "jwt.issuer=https://id.example",
    "jwt.audience=muster",
    "jwt.keys=https://id.example/keys",
    "jwt.keysCa=id-ca",
    "metricsFrom[0].podSelector.matchLabels.app=prometheus",
    "env.MUSTERD_CONNECTIONS_PER_HOST=400",
)
FILES = {"tls.crt", "tls.key", "ca.crt"}
"""In a Secret of cert-manager, and in a volume of its driver unless that is told otherwise."""


def rendered(*values):
    """What Helm makes of the chart, as text."""
    assert HELM.exists(), "make test-deploy builds Helm first"
    sets = [word for value in values for word in ("--set", value)]
    command = [str(HELM), "template", "muster", str(CHART), "--namespace", "muster", *sets]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def refused(*values):
    """What Helm says to values that the chart does not take."""
    with pytest.raises(subprocess.CalledProcessError) as error:
        rendered(*values)
    return error.value.stderr


def objects(text):
    """By kind and name."""
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one}


KINDS = {"defaults": (), "tls": TLS, "csi": CSI, "rules": RULES, "plain": PLAIN}


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def made(request):
    """The chart's objects: at its defaults, with everything that is optional, without TLS."""
    return objects(rendered(*request.param))


def test_each_object_is_what_kubernetes_takes(made):
    """Strictly: a key that it does not know is refused. cert-manager's own is not its."""
    for (kind, _), one in made.items():
        if kind != "Certificate":
            kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    wrong = made["StatefulSet", "muster"] | {"speck": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_the_base_for_kustomize_is_the_chart_at_its_defaults():
    """`make kubernetes` writes it."""
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    assert kustomization["resources"] == ["muster.yaml"]
    assert (BASE / "muster.yaml").read_text() == rendered()


@pytest.mark.parametrize("ordinal", [0, 2])
def test_a_pod_starts_a_node_with_settings_that_a_node_takes(made, monkeypatch, tmp_path, ordinal):
    """Its script is run, with a `muster` that only says what it was given."""
    pod = made["StatefulSet", "muster"]["spec"]["template"]["spec"]
    (node,) = pod["containers"]
    replicas = made["StatefulSet", "muster"]["spec"]["replicas"]
    stub = tmp_path / "muster"
    stub.write_text('#!/bin/sh\necho "$@"\nenv\n')
    stub.chmod(0o755)
    environment = {one["name"]: one["value"] for one in node["env"]}
    said = subprocess.run(
        [*node["command"], *node["args"]],
        env=environment | {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOSTNAME": f"muster-{ordinal}"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert said[0] == "serve"
    for line in said[1:]:
        if line.startswith("MUSTERD_"):
            name, _, value = line.partition("=")
            monkeypatch.setenv(name, value)
    (tmp_path / "admin.secret").write_text("0123456789abcdef0123")
    for name in ("MUSTERD_ADMIN_SECRET_FILE", "MUSTERD_METRICS_TOKEN_FILE"):
        if name in environment:
            monkeypatch.setenv(name, str(tmp_path / "admin.secret"))
    settings = load_settings(None, {})
    place = "muster-nodes.muster.svc"
    assert settings.endpoint == f"muster-{ordinal}.{place}:7070"
    assert settings.peers == {
        n: f"muster-{n}.{place}:7170" for n in range(replicas) if n != ordinal
    }
    settings.check_exposure()
    called = environment["MUSTER_BOOTSTRAP"].split(",")
    assert called == [f"muster-{n}.{place}:7070" for n in range(replicas)]
    secret = environment.get("MUSTERD_ADMIN_SECRET_FILE")
    assert environment.get("MUSTER_ADMIN_SECRET_FILE") == secret
    mounted = [one["mountPath"] for one in node["volumeMounts"]]
    if settings.insecure:
        assert settings.insecure_peers
        assert settings.tls_cert is settings.peer_files is None
        assert not {"/tls", "/peers"} & set(mounted)
        return
    assert not settings.insecure_peers
    files = settings.peer_files
    if csi_of(pod):
        assert "/peers" not in mounted
        assert (files.cert, files.key) == (settings.tls_cert, settings.tls_key)
        used = (files.cert, files.key, files.ca, Path(environment["MUSTER_TLS_CA"]))
        assert {one.as_posix() for one in used} == {f"/tls/{one}" for one in FILES}
        return
    assert {"/tls", "/peers"} <= set(mounted)
    for one in (files.cert, files.key, files.ca):
        name = one.relative_to("/peers").as_posix()
        assert secret_of(pod, "peers")[name] == (f"muster-peer-{ordinal}", one.name)
    for one in (settings.tls_cert, settings.tls_key, Path(environment["MUSTER_TLS_CA"])):
        assert secret_of(pod, "tls") == "muster-tls"
        assert one.relative_to("/tls").name in FILES


def mounted_from(pod, file):
    """The Secret that has a file of a node, and the file's key there."""
    [place] = [
        one
        for one in pod["containers"][0]["volumeMounts"]
        if Path(one["mountPath"]) == Path(file).parent
    ]
    return secret_of(pod, place["name"]), Path(file).name


def test_a_cluster_with_rules_can_be_had(monkeypatch, tmp_path):
    """Superusers, clients' certificates, JWTs, and a setting that the chart has no value for."""
    made = objects(rendered(*RULES))
    pod = made["StatefulSet", "muster"]["spec"]["template"]["spec"]
    environment = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123")
    for name, value in environment.items():
        if name.startswith("MUSTERD_"):
            monkeypatch.setenv(name, str(secret) if "SECRET" in name or "TOKEN" in name else value)
    monkeypatch.setenv("MUSTERD_PEER_LISTEN", "127.0.0.1:7170")  # the pod's script has the files
    settings = load_settings(None, {})
    assert settings.superusers == ("ann", "jwt:root")
    assert settings.connections_per_host == 400
    assert settings.jwt_issuer == "https://id.example"
    assert (settings.jwt_audience, settings.jwt_claim) == ("muster", "sub")
    assert settings.jwt_keys == "https://id.example/keys"
    assert mounted_from(pod, settings.jwt_keys_ca) == ("id-ca", "ca.crt")
    assert mounted_from(pod, settings.tls_ca) == ("muster-tls", "ca.crt")
    client = {environment["MUSTER_TLS_CERT"], environment["MUSTER_TLS_KEY"]}
    assert client == {str(settings.tls_cert), str(settings.tls_key)}


def test_the_metrics_page_needs_a_token_unless_it_is_said_otherwise():
    """A Secret at the defaults; without one nothing is rendered."""
    for values in ((), RULES):
        pod = objects(rendered(*values))["StatefulSet", "muster"]["spec"]["template"]["spec"]
        environment = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
        assert "MUSTERD_INSECURE_METRICS" not in environment
        file = environment["MUSTERD_METRICS_TOKEN_FILE"]
        assert mounted_from(pod, file) == ("muster-metrics", "metrics.token")
    [metrics] = [
        one
        for one in objects(rendered(*RULES))["NetworkPolicy", "muster"]["spec"]["ingress"]
        if {"port": "metrics"} in one["ports"]
    ]
    assert metrics["ports"] == [{"port": "metrics"}]
    assert metrics["from"] == [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]
    pod = objects(rendered(*PLAIN))["StatefulSet", "muster"]["spec"]["template"]["spec"]
    assert {"name": "MUSTERD_INSECURE_METRICS", "value": "true"} in pod["containers"][0]["env"]
    assert refused("metricsToken=").count("metricsToken") > 0


def test_superusers_without_the_admin_secret_are_refused():
    """The nodes would be strangers to each other."""
    assert "set adminSecret" in refused("superusers={ann}")


def secret_of(pod, volume):
    """The name of a volume's Secret; of several, by each file's name the Secret and its key."""
    [found] = [one for one in pod["volumes"] if one["name"] == volume]
    if "secret" in found:
        return found["secret"]["secretName"]
    return {
        item["path"]: (source["secret"]["name"], item["key"])
        for source in found["projected"]["sources"]
        for item in source["secret"]["items"]
    }


def csi_of(pod):
    """The attributes of the volume that cert-manager's driver fills; {} where there is none."""
    for one in pod["volumes"]:
        if "csi" in one:
            assert one["csi"]["driver"] == "csi.cert-manager.io"
            assert one["csi"]["readOnly"]
            attributes = one["csi"]["volumeAttributes"]
            return {key.removeprefix("csi.cert-manager.io/"): attributes[key] for key in attributes}
    return {}


KUBECTL = """#!/bin/sh
set -eu
[ "$1 $2 $3 $4 $5" = "-n muster create secret generic" ]
mkdir "$SECRETS/$6"
for one in "$@"; do
  case $one in --from-file=*) file=${one#--from-file=} ;; *) continue ;; esac
  cp "${file#*=}" "$SECRETS/$6/${file%%=*}"
done
"""


def test_the_secrets_that_the_page_makes_are_those_of_the_pods(tmp_path):
    """Word for word, with a kubectl that writes files: each node would start with them."""
    page = (ROOT / "docs" / "install.md").read_text()
    [block] = [one for one in page.split("```") if "muster cert ca" in one]
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    path = f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin"
    subprocess.run(
        ["sh", "-euc", block.removeprefix("sh\n")],
        cwd=tmp_path,
        env={"PATH": path, "SECRETS": str(secrets)},
        check=True,
        capture_output=True,
    )
    chart = objects(rendered())
    pod = chart["StatefulSet", "muster"]["spec"]["template"]["spec"]
    sources = secret_of(pod, "peers")
    asked = {name for name, _ in sources.values()}
    asked |= {secret_of(pod, "tls"), secret_of(pod, "metrics")}
    assert {one.name for one in secrets.iterdir()} == asked
    assert len(read_secret(secrets / "muster-metrics" / "metrics.token")) >= 32
    client = secrets / "muster-tls"
    names = x509.load_pem_x509_certificate((client / "tls.crt").read_bytes()).extensions
    hosts = names.get_extension_for_class(x509.SubjectAlternativeName).value
    wanted = objects(rendered(*TLS))["Certificate", "muster"]["spec"]["dnsNames"]
    assert sorted(hosts.get_values_for_type(x509.DNSName)) == sorted(wanted)
    for node in range(3):
        cert, key, ca = (
            secrets / sources[f"{node}/{kind}"][0] / sources[f"{node}/{kind}"][1]
            for kind in ("tls.crt", "tls.key", "ca.crt")
        )
        settings = Settings(
            data_dir=tmp_path,
            peer_cert=cert,
            peer_key=key,
            peer_ca=ca,
            tls_cert=client / "tls.crt",
            tls_key=client / "tls.key",
        )
        identity = Identity("muster", node, 0, (0, 1, 2), 16, bytes(16))
        assert Certificates(settings, identity).peers.requires


def test_cert_manager_is_asked_for_each_nodes_own_name():
    """The one that the other nodes look for, in the Secret that its pod reads."""
    made = objects(rendered(*TLS, "clusterId=shop/eu"))
    pod = made["StatefulSet", "muster"]["spec"]["template"]["spec"]
    sources = secret_of(pod, "peers")
    for node in range(5):
        asked = made["Certificate", f"muster-peer-{node}"]["spec"]
        [uri] = asked["uris"]
        assert uri == node_uri("shop/eu", node)
        assert {"server auth", "client auth"} <= set(asked["usages"])
        assert sources[f"{node}/tls.crt"] == (asked["secretName"], "tls.crt")


def test_with_cert_managers_driver_a_pod_has_its_own_key_alone(tmp_path):
    """One certificate for both ports, by which its node takes it for its own, and no other does."""
    made = objects(rendered(*CSI, "clusterId=shop"))
    assert not [name for kind, name in made if kind == "Certificate"]
    pod = made["StatefulSet", "muster"]["spec"]["template"]["spec"]
    secrets = [secret_of(pod, one["name"]) for one in pod["volumes"] if "secret" in one]
    assert secrets == ["muster-metrics"]
    assert not [one for one in pod["volumes"] if "projected" in one]
    asked = csi_of(pod)
    assert (asked["issuer-name"], asked["issuer-kind"]) == ("ca", "Issuer")
    assert asked["fs-group"] == str(pod["securityContext"]["fsGroup"])
    assert {"server auth", "client auth"} <= set(asked["key-usages"].split(","))
    authority = Authority.create(tmp_path / "ca", "shop")
    for ordinal in (0, 2):
        name = f"muster-{ordinal}"
        hosts, uri = (asked[key].replace("${POD_NAME}", name) for key in ("dns-names", "uri-sans"))
        assert hosts.split(",") == ["muster.muster.svc", f"{name}.muster-nodes.muster.svc"]
        files = signed(authority, tmp_path / name, [uri.encode()])
        settings = Settings(
            data_dir=tmp_path, peer_cert=files.cert, peer_key=files.key, peer_ca=files.ca
        )
        own, other = (Identity("shop", node, 0, (0, 1, 2), 16, bytes(16)) for node in (ordinal, 1))
        assert Certificates(settings, own).peers.requires
        with pytest.raises(ConfigError, match="lack this node's"):
            Certificates(settings, other)
        assert principal_of(files.cert.read_bytes(), "shop").node == ordinal


def test_a_pod_that_is_to_stop_waits_a_minute_by_the_clock(made, tmp_path):
    """However long each look takes: the rest of Kubernetes' time is for handing over."""
    (node,) = made["StatefulSet", "muster"]["spec"]["template"]["spec"]["containers"]
    for name, body in (
        ("date", 'n=$(cat "$AT/now"); echo "$n"'),
        ("sleep", ":"),
        ("python3", 'echo look >>"$AT/looks"; echo $(($(cat "$AT/now") + 25)) >"$AT/now"; exit 1'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "now").write_text("1000", encoding="utf-8")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "AT": str(tmp_path)}
    command = node["lifecycle"]["preStop"]["exec"]["command"]
    subprocess.run(command, env=environment, check=False, timeout=30)
    assert len((tmp_path / "looks").read_text("utf-8").splitlines()) == 3


def test_the_driver_needs_an_issuer():
    """It would wait for a certificate for ever."""
    assert "set tls.issuer" in refused("tls.csi.enabled=true")


def test_a_pod_is_live_without_a_majority_and_waits_until_it_is_safe_to_stop(made):
    """Within the time that Kubernetes gives it; nothing but its volume is written."""
    spec = made["StatefulSet", "muster"]["spec"]
    pod = spec["template"]["spec"]
    (node,) = pod["containers"]
    assert node["livenessProbe"]["httpGet"] == {"path": "/live", "port": "metrics"}
    assert node["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "metrics"}
    assert "/safe-to-restart" in node["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert pod["terminationGracePeriodSeconds"] >= 60 + 30
    for one in (*pod["containers"], *pod["initContainers"]):
        assert one["securityContext"]["readOnlyRootFilesystem"]
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsUser"] == 65532
    assert spec["podManagementPolicy"] == "Parallel"
    assert made["PodDisruptionBudget", "muster"]["spec"]["maxUnavailable"] == 1
    assert made["Service", "muster-nodes"]["spec"]["publishNotReadyAddresses"]
    (*_, peers) = made["NetworkPolicy", "muster"]["spec"]["ingress"]
    assert peers["ports"] == [{"port": "peers"}]
    assert peers["from"]


def test_the_optional_parts_are_there_when_they_are_asked_for():
    """A certificate for each node's name, kept where the pod looks for it."""
    made = objects(rendered(*TLS))
    certificate = made["Certificate", "muster"]["spec"]
    assert "*.muster-nodes.muster.svc" in certificate["dnsNames"]
    pod = made["StatefulSet", "muster"]["spec"]["template"]["spec"]
    assert certificate["secretName"] in str(pod["volumes"])
    affinity = pod["affinity"]["podAntiAffinity"]
    assert list(affinity) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert ("Certificate", "muster") not in objects(rendered())
