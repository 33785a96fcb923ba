"""A run against a cluster that was there before, with the user's own command for faults."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.run import result as results
from chaos.world.cluster import Cluster

pytestmark = [pytest.mark.processes, pytest.mark.faults]

RUN_S_MAX = 200.0
HOOK = """#!/bin/sh
echo "$@" >> {log}
case "$1 $3" in
{cases}
*) exit 3 ;;
esac
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Of somebody else's."""
    with Cluster(nodes=3) as running:
        yield running


def run(cluster: Cluster, folder: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    """`muster chaos run` against it."""
    bootstrap = ",".join(cluster.endpoints)
    argv = ["-m", "muster.cli", "chaos", "run", "--bootstrap", bootstrap, "--to", str(folder)]
    return subprocess.run(
        [sys.executable, *argv, "--seed", "4", "--workload", "W1", "-o", "json", *options],
        capture_output=True,
        timeout=RUN_S_MAX,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )


def hook(cluster: Cluster, folder: Path) -> Path:
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
    cluster: Cluster, tmp_path: Path
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
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [f"inject pause_follower {fault.targets[0]}", calls[1]]
    assert calls[1] == f"heal pause_follower {fault.targets[0]}"
    assert json.loads(cluster.muster("group", "list", "-o", "json"))["groups"] == []
    assert result.machine.network == "own"


def test_a_command_that_fails_fails_the_run(cluster: Cluster, tmp_path: Path):
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
