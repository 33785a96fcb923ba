"""The CronJob of deploy/backup, run: the real `muster` in its arguments, environment and volumes.

Three nodes have a certificate with the names that the chart asks cert-manager for. They and the job
are in a network of their own, whose hosts file is Kubernetes' name service.
"""

import shlex
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest

from musterd.backup.archive import load_shard, read_manifest
from musterd.backup.folders import Directory
from musterd.coordinator.node.authority import CA_CERT, CERT, KEY, Authority
from tests.deploy.test_kubernetes import TLS, objects, rendered

pytestmark = [pytest.mark.deploy, pytest.mark.processes]

MANIFEST = Path(__file__).parents[2] / "deploy" / "backup" / "cronjob.yaml"
PROGRAMS = f"{Path(sys.executable).parent}:/usr/bin:/bin"
NODES = 3
WAIT_S = 240
SCRIPT = """
set -eu
ip link set lo up
for n in 1 2 3; do ip address add 10.1.0.$n/32 dev lo; done
mount --make-rprivate /
mount -t proc proc /proc
mount --bind "$1" /etc/hosts
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/backups
{mounts}
{nodes}
for _ in $(seq 100); do {create} 2>/dev/null && break; sleep 0.2; done
if {unprotected}; then echo "in the clear"; exit 1; fi
if {without_secret}; then echo "without the secret"; exit 1; fi
{job}
"""


@pytest.fixture(scope="module")
def made():
    """What the file has, by kind and name."""
    return objects(MANIFEST.read_text())


@pytest.fixture(scope="module")
def chart():
    """What the chart makes with TLS and a secret."""
    return objects(rendered(*TLS))


def pod_of(made):
    """The specification of the job's pod."""
    return made["CronJob", "muster-backup"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def test_each_object_is_what_kubernetes_takes(made):
    """Strictly; and no variables of services, of which one has the prefix of ours."""
    for one in made.values():
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    assert pod_of(made)["enableServiceLinks"] is False


def test_the_chart_has_the_values_that_the_head_names():
    """With two of them the nodes take the secret without TLS."""
    values = ("adminSecret=muster-admin", "tls.insecure=true", "insecureAdminSecret=true")
    assert all(value in MANIFEST.read_text() for value in values)
    pod = objects(rendered(*values))["StatefulSet", "muster"]["spec"]["template"]["spec"]
    environment = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
    assert environment["MUSTERD_INSECURE_ADMIN_SECRET"] == "true"
    assert environment["MUSTERD_ADMIN_SECRET_FILE"] == "/secrets/admin.secret"


def test_its_names_are_the_charts(made, chart):
    """Its secrets, its image, and a name of a service that stands in the nodes' certificate."""
    [container] = pod_of(made)["containers"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    host, _, port = environment["MUSTER_BOOTSTRAP"].rpartition(":")
    certificate = chart["Certificate", "muster"]["spec"]
    assert host in certificate["dnsNames"]
    assert host == "muster.muster.svc"
    assert chart["Service", "muster"]["spec"]["ports"][0]["port"] == int(port)
    nodes = chart["StatefulSet", "muster"]["spec"]["template"]["spec"]
    known = {one["secret"]["secretName"] for one in nodes["volumes"] if "secret" in one}
    asked = {one["secret"]["secretName"] for one in pod_of(made)["volumes"] if "secret" in one}
    assert asked == {certificate["secretName"], "muster-admin"} <= known
    assert container["image"] == nodes["containers"][0]["image"]
    assert pod_of(made)["securityContext"] == nodes["securityContext"]


def secrets(folder, names):
    """Secrets by name, each a folder of files: what cert-manager and an operator would make."""
    Authority.create(folder / "certs", "muster")
    Authority.read(folder / "certs").node(0, names)
    pem = {"tls.crt": CERT, "tls.key": KEY, "ca.crt": CA_CERT}
    issued = folder / "certs" / "node-0"
    content = {
        "muster-tls": {key: (issued / name).read_bytes() for key, name in pem.items()},
        "muster-admin": {"admin.secret": b"0123456789abcdef0123456789abcdef"},
    }
    for name, files in content.items():
        (folder / name).mkdir()
        for key, value in files.items():
            (folder / name / key).write_bytes(value)


def volumes_of(pod, folder):
    """Each volume's folder, as Kubernetes would fill it."""
    for volume in pod["volumes"]:
        place = folder / "volumes" / volume["name"]
        place.mkdir(parents=True)
        if "secret" in volume:
            secret = folder / volume["secret"]["secretName"]
            keys = [{"key": one.name, "path": one.name} for one in secret.iterdir()]
            for item in volume["secret"].get("items", keys):
                (place / item["path"]).write_bytes((secret / item["key"]).read_bytes())
        yield volume["name"], place


def node(number, folder, *, tls):
    """The shell's command that starts a node: as the chart does, at an address of its own."""
    address = "10.1.0.{}"
    environment = {
        "PATH": PROGRAMS,
        "MUSTERD_DATA_DIR": folder / f"node-{number}",
        "MUSTERD_LISTEN": f"{address.format(number + 1)}:7070",
        "MUSTERD_ADVERTISE": f"muster-{number}.muster-nodes.muster.svc:7070",
        "MUSTERD_PEER_LISTEN": f"{address.format(number + 1)}:7170",
        "MUSTERD_PEERS": ",".join(
            f"{n}={address.format(n + 1)}:7170" for n in range(NODES) if n != number
        ),
        "MUSTERD_METRICS_LISTEN": "",
        "MUSTERD_INSECURE_PEERS": "true",
        "MUSTERD_ADMIN_SECRET_FILE": folder / "muster-admin" / "admin.secret",
    }
    if tls:
        files = folder / "muster-tls"
        environment |= {"MUSTERD_TLS_CERT": files / "tls.crt", "MUSTERD_TLS_KEY": files / "tls.key"}
    else:
        environment |= {"MUSTERD_INSECURE": "true", "MUSTERD_INSECURE_ADMIN_SECRET": "true"}
    init = ["init", "--data-dir", str(folder / f"node-{number}"), "--node-id", str(number)]
    init += ["--nodes", str(NODES), "--shards", "4", "--cluster-id", "muster"]
    muster = [sys.executable, "-P", "-m", "muster.cli"]
    subprocess.run([*muster, *init], check=True, capture_output=True)
    log = shlex.quote(str(folder / f"node-{number}.log"))
    return f"{with_environment(environment, 'muster', 'serve')} >{log} 2>&1 &"


def with_environment(environment, *command):
    """A command line of the shell with this environment and nothing else."""
    return shlex.join(["env", "-i", *(f"{k}={v}" for k, v in environment.items()), *command])


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plain"])
def test_it_takes_a_backup_and_verifies_it(made, chart, tmp_path, tls):
    """None without the secret, and none where that would go in the clear unless the head's
    variable says so.
    """
    pod = pod_of(made)
    [container] = pod["containers"]
    environment = {one["name"]: one["value"] for one in container["env"]} | {"PATH": PROGRAMS}
    if not tls:
        environment["MUSTER_INSECURE_ADMIN_SECRET"] = "true"
        del environment["MUSTER_TLS_CA"]
    secrets(tmp_path, chart["Certificate", "muster"]["spec"]["dnsNames"])
    volumes = dict(volumes_of(pod, tmp_path))
    mounts = [
        f"mkdir -p {one['mountPath']}; mount --bind {volumes[one['name']]} {one['mountPath']}"
        for one in container["volumeMounts"]
        if one["mountPath"] != "/tmp"  # the test's own folder is in it
    ]
    command = [*container["command"], *container["args"]]

    def without(*names):
        return {key: value for key, value in environment.items() if key not in names}

    unprotected = without("MUSTER_TLS_CA", "MUSTER_INSECURE_ADMIN_SECRET")
    create = ("muster", "topic", "create", "orders", "--partitions", "3")
    script = SCRIPT.format(
        mounts="\n".join(mounts),
        nodes="\n".join(node(number, tmp_path, tls=tls) for number in range(NODES)),
        create=with_environment(environment, *create),
        unprotected=with_environment(unprotected, *command),
        without_secret=with_environment(without("MUSTER_ADMIN_SECRET_FILE"), *command),
        job=with_environment(environment, *command),
    )
    hosts = tmp_path / "hosts"
    pods = [f"10.1.0.{n + 1} muster-{n}.muster-nodes.muster.svc" for n in range(NODES)]
    hosts.write_text("\n".join(["127.0.0.1 localhost", "10.1.0.1 muster.muster.svc", *pods, ""]))
    namespaces = ("--mount", "--net", "--pid", "--fork", "--kill-child")
    done = subprocess.run(
        ["unshare", *namespaces, "bash", "-c", script, "job", hosts],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    refusal = (
        "muster.muster.svc:7070 speaks TLS, and this client does not"
        if tls
        else "the admin secret would go to muster.muster.svc:7070 in the clear"
    )
    assert refusal in done.stderr
    [backup] = [one for one in volumes["backups"].iterdir() if (one / "manifest.json").exists()]
    folder = Directory(backup)
    cuts = read_manifest(folder).shards
    assert "orders" in load_shard(folder, cuts[0]).topics
