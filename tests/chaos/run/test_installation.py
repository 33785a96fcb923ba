"""A run against a cluster that was there before, with the user's own command for faults."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from musterd.chaos.run import result as results
from musterd.chaos.world.world import World

pytestmark = [pytest.mark.processes, pytest.mark.faults]

RUN_S_MAX = 200.0
TRIES_MAX = 3
TLS = Path(__file__).parents[2] / "testdata" / "tls"
HOOK = """#!/bin/sh
echo "$@" >> {log}
case "$1 $3" in
{cases}
*) exit 3 ;;
esac
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[World]:
    """Of somebody else's."""
    with World(nodes=3) as running:
        yield running


class Secure(World):
    """Its nodes speak TLS."""

    def __init__(self) -> None:
        """Three nodes behind the certificate of the tests."""
        pair = [f"--tls-cert={TLS / 'server.pem'}", f"--tls-key={TLS / 'server.key'}"]
        super().__init__(nodes=3, flags=pair)

    def _channel(self, node_id: int) -> grpc.Channel:
        if node_id not in self._channels:
            trust = grpc.ssl_channel_credentials((TLS / "ca.pem").read_bytes())
            at = self.nodes[node_id].endpoint
            self._channels[node_id] = grpc.secure_channel(at, trust)
        return self._channels[node_id]


def run(
    cluster: World, folder: Path, *options: str, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """`muster chaos run` against it."""
    bootstrap = ",".join(cluster.endpoints)
    argv = ["-m", "muster.cli", "chaos", "run", "--bootstrap", bootstrap, "--to", str(folder)]
    return subprocess.run(
        [sys.executable, *argv, "--seed", "4", "--workload", "W1", "-o", "json", *options],
        capture_output=True,
        timeout=RUN_S_MAX,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), **environment},
    )


def hook(cluster: World, folder: Path) -> Path:
    """A command that pauses a node's process, and lets it go on."""
    cases = "".join(
        f'"inject node-{n}") kill -STOP {node.pid} ;;\n"heal node-{n}") kill -CONT {node.pid} ;;\n'
        for n, node in cluster.nodes.items()
    )
    path = folder / "hook.sh"
    path.write_text(HOOK.format(log=folder / "calls", cases=cases))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_faults_are_the_users_own_and_the_groups_are_gone_afterwards(
    cluster: World, tmp_path: Path
):
    """The command is called to inject and to heal; every checker that applies looked at something.

    Nothing of the run is left but its topics.
    """
    command = str(hook(cluster, tmp_path))
    done = run(
        cluster,
        tmp_path / "run",
        *("--minutes", "0.2", "--on-fault", command, "--fault", "pause_follower"),
    )
    result = results.read(tmp_path / "run")
    assert (done.returncode, result.reasons) == (0, []), done.stderr.decode()
    (fault,) = result.faults
    assert fault.injected
    assert fault.verified
    assert "it does not answer" in fault.detail
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [f"inject pause_follower {fault.targets[0]}", calls[1]]
    assert calls[1] == f"heal pause_follower {fault.targets[0]}"
    assert json.loads(cluster.muster("group", "list", "-o", "json"))["groups"] == []
    assert result.machine.network == "own"


def test_a_command_that_fails_fails_the_run(cluster: World, tmp_path: Path):
    """A fault that was not made is none that the cluster has survived."""
    command = tmp_path / "never.sh"
    command.write_text("#!/bin/sh\necho no such host >&2\n[ $1 = heal ]\n")
    command.chmod(0o755)
    done = run(
        cluster,
        tmp_path / "run",
        *("--minutes", "0.15", "--on-fault", str(command), "--fault", "reboot_leader"),
    )
    assert done.returncode == 1
    assert b"reboot_leader at 3 s was not injected" in done.stderr
    assert b"no such host" in done.stderr


def test_a_command_that_does_nothing_fails_the_run(cluster: World, tmp_path: Path):
    """It exits with 0, and nobody was killed: the fault counts as not injected.

    A machine that stands still for a second at that moment looks like a leader that is gone.
    """
    for number in range(TRIES_MAX):
        folder = tmp_path / f"run-{number}"
        fault = ("--minutes", "0.15", "--on-fault", "true", "--fault", "kill_leader")
        done = run(cluster, folder, *fault)
        (seen,) = results.read(folder).faults
        if not seen.injected:
            break
    assert done.returncode == 1
    assert not seen.injected
    assert "exits with 0, and node-" in seen.error


def test_a_cluster_behind_tls_is_broken_as_any_other(tmp_path: Path):
    """With the authority in MUSTER_TLS_CA, in every process; without it the run says what is wrong.

    No file of it is on a command line.
    """
    with Secure() as cluster:
        plain = run(cluster, tmp_path / "plain", "--minutes", "0.15")
        trusting = {"MUSTER_TLS_CA": str(TLS / "ca.pem")}
        done = run(cluster, tmp_path / "run", "--minutes", "0.15", "--workload", "W2", **trusting)
    assert plain.returncode == 1
    assert b"if it speaks TLS" in plain.stderr
    assert b"MUSTER_TLS_CA" in plain.stderr
    result = results.read(tmp_path / "run")
    assert (done.returncode, result.reasons) == (0, []), done.stderr.decode()
    assert {one.name for one in result.workloads} == {"W1", "W2", "probe", "pulse"}
    assert all(one.counts["commit"].ok for one in result.workloads)
    assert result.checkpoints_compared
