"""`muster dev` for somebody who tries things out: what it prints is enough to go on from."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from muster.cli.errors import ExitCode
from muster.cli.options import DEFAULT_BOOTSTRAP
from musterd.coordinator.node.loopback import ClusterError
from musterd.coordinator.node.prometheus import find_program
from tests.e2e.test_commands import WAIT_S, muster, wait_for

pytestmark = pytest.mark.processes


class Dev:
    """A running `muster dev`, with what it has written to stderr so far."""

    def __init__(self, *flags, env=None):
        command = [sys.executable, "-m", "muster.cli", "dev", "--port=0", "--shards=2", *flags]
        self.process = subprocess.Popen(
            [*command, "-o", "jsonl"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.said = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.ready = json.loads(self.process.stdout.readline() or "null")
        assert self.ready, self.said

    def _read(self):
        for line in self.process.stderr:
            self.said += line

    def wait_said(self, pattern):
        """Wait until stderr has it."""
        wait_for(lambda: re.search(pattern, self.said), f"{pattern} in {self.said}")
        return re.search(pattern, self.said)

    def end(self):
        """Be gone."""
        self.process.kill()
        self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        self.process.stdout.close()
        self.process.stderr.close()


def exported(text):
    """The variables that lines to copy set."""
    return dict(re.findall(r"^export (\w+)=(\S+)$", text, re.MULTILINE))


def healthy(**variables):
    """Whether `muster cluster status` is content, told where by variables alone."""
    done = muster("cluster", "status", env={**os.environ, **variables})
    return done.returncode == ExitCode.OK


def test_a_killed_node_comes_back_by_the_command_that_is_printed():
    """All nodes are in the line to copy; the last node's end is the end of `muster dev`."""
    dev = Dev()
    try:
        dev.wait_said("export MUSTER_BOOTSTRAP=")
        variables = exported(dev.said)
        assert variables == {"MUSTER_BOOTSTRAP": dev.ready["bootstrap"]}
        assert [n["endpoint"] for n in dev.ready["nodes"]] == dev.ready["bootstrap"].split(",")
        first, *others = (node["pid"] for node in dev.ready["nodes"])
        os.kill(first, signal.SIGKILL)
        hint = shlex.split(dev.wait_said(r"in another shell:\n  (muster serve .*)\n")[1])
        done = muster("topic", "create", "t", "-p", "1", env={**os.environ, **variables})
        assert done.returncode == ExitCode.OK, done.stderr
        again = subprocess.Popen(
            [sys.executable, "-m", "muster.cli", *hint[1:]],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(lambda: healthy(**variables), "node 0 is back")
            for pid in others:
                os.kill(pid, signal.SIGKILL)
            dev.wait_said(
                r"node 1 ended with -9(.|\n)*node 2 ended|node 2 ended(.|\n)*node 1 ended"
            )
            assert dev.process.poll() is None, "a node that was started by hand is one of its own"
        finally:
            again.kill()
            again.wait(WAIT_S)
        assert dev.process.wait(WAIT_S) == ExitCode.ERROR
        dev.wait_said("no node is left")
    finally:
        dev.end()


def test_a_node_comes_back_by_itself_and_clients_need_the_certificate(tmp_path):
    """`--restart --tls`: the printed lines reach the cluster from anywhere, a plain client not."""
    dev = Dev("--restart", "--tls", f"--dir={os.path.relpath(tmp_path)}")
    try:
        dev.wait_said("export MUSTER_TLS_CA=")
        variables = exported(dev.said)
        assert variables["MUSTER_TLS_CA"] == dev.ready["tls_ca"] == str(tmp_path / "tls.pem")
        assert healthy(**variables)
        before = dev.ready["nodes"][0]["pid"]
        os.kill(before, signal.SIGKILL)
        dev.wait_said("node 0 is started again")
        wait_for(lambda: healthy(**variables), "node 0 is back")
        assert not psutil.pid_exists(before)
        plain = muster("topic", "list", f"--bootstrap={dev.ready['bootstrap']}")
        assert plain.returncode == ExitCode.UNREACHABLE
        dev.process.send_signal(signal.SIGTERM)
        assert dev.process.wait(WAIT_S) == ExitCode.OK
    finally:
        dev.end()


def test_without_a_bootstrap_a_command_asks_every_node_of_muster_dev():
    """The default ports of three nodes, so that no single one has to live."""
    assert DEFAULT_BOOTSTRAP.split(",") == [f"127.0.0.1:{port}" for port in (7070, 7071, 7072)]


def test_where_prometheus_cannot_be_had_it_says_what_to_do(tmp_path, monkeypatch):
    """No program in PATH, and nothing to fetch Debian's package with."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "mktemp", "rm"):
        (tools / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(ClusterError, match="no apt-get on this machine") as raised:
        find_program(tmp_path / "cache")
    assert "apt install prometheus" in raised.value.next_step
