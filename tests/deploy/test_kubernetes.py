"""The Helm chart and the kustomize base: by Kubernetes' schemas, and by what a node takes."""

import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from musterd.coordinator.node.config import load_settings

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "muster"
BASE = ROOT / "deploy" / "kubernetes" / "base"
HELM = ROOT / ".venv" / "helm"
TLS = ("tls.issuer=ca", "adminSecret=muster-admin", "antiAffinity=preferred", "nodes=5")


def rendered(*values):
    """What Helm makes of the chart, as text."""
    assert HELM.exists(), "make test-deploy builds Helm first"
    sets = [word for value in values for word in ("--set", value)]
    command = [str(HELM), "template", "muster", str(CHART), "--namespace", "muster", *sets]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def objects(text):
    """By kind and name."""
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one}


@pytest.fixture(scope="module", params=[(), TLS], ids=["defaults", "tls"])
def made(request):
    """The chart's objects, at its defaults and with everything that is optional."""
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
    if "MUSTERD_ADMIN_SECRET_FILE" in environment:
        monkeypatch.setenv("MUSTERD_ADMIN_SECRET_FILE", str(tmp_path / "admin.secret"))
    settings = load_settings(None, {})
    place = "muster-nodes.muster.svc"
    assert settings.endpoint == f"muster-{ordinal}.{place}:7070"
    assert settings.peers == {
        n: f"muster-{n}.{place}:7170" for n in range(replicas) if n != ordinal
    }
    assert settings.insecure is (settings.tls_cert is None)


def test_a_pod_is_live_without_a_majority_and_waits_until_it_is_safe_to_stop(made):
    """Within the time that Kubernetes gives it; nothing but its volume is written."""
    spec = made["StatefulSet", "muster"]["spec"]
    pod = spec["template"]["spec"]
    (node,) = pod["containers"]
    assert node["livenessProbe"]["httpGet"] == {"path": "/live", "port": "metrics"}
    assert node["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "metrics"}
    assert "/safe-to-restart" in node["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert pod["terminationGracePeriodSeconds"] >= 30 * 2 + 30
    for one in (*pod["containers"], *pod["initContainers"]):
        assert one["securityContext"]["readOnlyRootFilesystem"]
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsUser"] == 65532
    assert spec["podManagementPolicy"] == "Parallel"
    assert made["PodDisruptionBudget", "muster"]["spec"]["maxUnavailable"] == 1
    assert made["Service", "muster-nodes"]["spec"]["publishNotReadyAddresses"]
    (_, peers) = made["NetworkPolicy", "muster"]["spec"]["ingress"]
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
