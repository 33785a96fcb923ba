"""The Containerfile: built by buildah without a daemon, then run as a runtime would run it.

Its base is made of Debian's packages, since no registry of images can be reached everywhere. The
container is a mount, a network and a process namespace: a root that is read-only, a user without
rights, the image's own entry point, command, environment and health check.
"""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.deploy, pytest.mark.processes]

ROOT = Path(__file__).parents[2]
BASE = ROOT / ".venv" / "debian-base"
USER = "65532:65532"
WAIT_S = 240

SCRIPT = """
set -eu
root=$1
ip link set lo up
mount --make-rprivate /
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs -o size=64m tmpfs "$root/tmp"
mount -t tmpfs -o size=1g,uid=65532,gid=65532,mode=700 tmpfs "$root/var/lib/muster"
mount -o remount,ro,bind "$root"
inside() { chroot --userspec=%(user)s "$root" /usr/bin/env -i %(environment)s "$@"; }
if inside touch /written 2>/dev/null; then echo "the root can be written to"; exit 1; fi
inside id -u
inside muster init --node-id 0 --nodes 1 --cluster-id c --data-dir /var/lib/muster/node >/dev/null
if inside %(health)s 2>/dev/null; then echo "healthy before it runs"; exit 1; fi
chroot --userspec=%(user)s "$root" /usr/bin/env -i %(environment)s %(command)s &
node=$!
for _ in $(seq 300); do inside %(health)s 2>/dev/null && break; sleep 0.1; done
inside %(health)s
inside muster topic create orders --partitions 2
inside muster cluster status
kill -TERM $node
wait $node
if inside %(health)s 2>/dev/null; then echo "healthy after it ended"; exit 1; fi
echo "it ended with 0"
"""


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    """Runs buildah with a store of its own, which goes with it."""
    assert shutil.which("buildah"), "install Debian's packages buildah and debootstrap"
    assert os.geteuid() == 0, "chroots take root"
    store = tmp_path_factory.mktemp("images")
    options = ("--root", store / "root", "--runroot", store / "run", "--storage-driver", "vfs")

    def run(*arguments):
        command = ["buildah", *map(str, options), *map(str, arguments)]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert done.returncode == 0, done.stderr[-2_000:]
        return done.stdout.strip()

    yield run
    run("rm", "--all")
    shutil.rmtree(store)


@pytest.fixture(scope="module")
def context(tmp_path_factory, wheels):
    """The folder that an image is built from: both wheels as they are now, and the lock files."""
    folder = tmp_path_factory.mktemp("context")
    shutil.copytree(wheels, folder / "dist")
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    shutil.copy(ROOT / ".containerignore", folder)
    return folder


@pytest.fixture(scope="module")
def image(buildah, context):
    """The image's name, built on Debian's packages."""
    if not (BASE / ".made").exists():
        subprocess.run([str(ROOT / "deploy/container/base.sh"), str(BASE)], check=True)
    scratch = buildah("from", "scratch")
    buildah("add", "--quiet", scratch, BASE, "/")
    buildah("commit", "--quiet", "--rm", scratch, "localhost/debian-base")
    # This machine's authorities: its way to the package index may have one of its own.
    authorities = "/etc/ssl/certs/ca-certificates.crt"
    buildah(
        *("bud", "--quiet", "--isolation", "chroot", "--format", "docker", "--layers=false"),
        *("--volume", f"{authorities}:/authorities.crt:ro"),
        *("--build-arg", "BASE=localhost/debian-base", "--build-arg", "PIP_CERT=/authorities.crt"),
        *("-f", ROOT / "deploy/container/Containerfile", "-t", "localhost/muster", context),
    )
    return "localhost/muster"


def test_the_image_is_built_and_a_node_lives_in_it_on_a_read_only_root(buildah, image):
    """Without rights; its health check fails before it runs and after it ended."""
    config = json.loads(buildah("inspect", "--type", "image", image))["Docker"]["config"]
    assert config["User"] == USER
    assert list(config["Volumes"]) == ["/var/lib/muster"]
    assert set(config["ExposedPorts"]) == {"7070/tcp", "7170/tcp", "7270/tcp"}
    kind, *health = config["Healthcheck"]["Test"]
    assert kind == "CMD"
    script = SCRIPT % {
        "user": USER,
        "environment": shlex.join(config["Env"]),
        "health": shlex.join(health),
        "command": shlex.join([*config["Entrypoint"], *config["Cmd"]]),
    }
    container = buildah("from", image)
    root = buildah("mount", container)
    namespaces = ("--mount", "--net", "--pid", "--fork", "--kill-child")
    done = subprocess.run(
        ["unshare", *namespaces, "bash", "-c", script, "node", root],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("65532\n")
    assert done.stdout.endswith("it ended with 0\n")
    assert "orders" in done.stdout


def test_nothing_but_wheels_and_lock_files_is_sent_to_the_builder():
    """No key or data directory of a checkout gets into an image."""
    kept = [line for line in (ROOT / ".containerignore").read_text().splitlines() if line]
    assert kept == ["*", "!dist/*.whl", "!requirements/*.txt"]
