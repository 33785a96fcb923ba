"""The systemd unit: what systemd says of it, and its command under a notify socket of its own."""

import math
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "systemd" / "muster.service"
MUSTER = Path(sys.executable).parent / "muster"
WAIT_S = 60
EXPOSURE_MAX = 20
"""In tenths, of 100: systemd calls up to 2.0 OK."""


def setting(name):
    """A value of the unit."""
    return re.search(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)[1]


def analyze(*arguments):
    """`systemd-analyze`, which needs no systemd that runs."""
    program = shutil.which("systemd-analyze")
    assert program, "install Debian's package systemd: this needs its systemd-analyze"
    return subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    """With the program where it is here. A key that systemd does not know would be told."""
    unit = tmp_path / "muster.service"
    unit.write_text(UNIT.read_text().replace("/opt/muster/bin/muster", str(MUSTER)))
    done = analyze("verify", unit)
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("PrivateTmp=", "PrivteTmp="))
    assert "PrivteTmp" in analyze("verify", unit).stderr


def test_the_unit_is_hardened():
    """By systemd's own count of what a service could reach."""
    done = analyze("security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", UNIT)
    assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_the_time_to_stop_is_longer_than_a_node_takes():
    """Or systemd would kill it while it hands its shards over; install.md says both."""
    from musterd.coordinator.runtime import timeouts  # noqa: PLC0415

    stop_ms = (
        timeouts.DRAIN_MS_MAX
        + timeouts.DEPOSED_HOLD_MS
        + timeouts.STOP_GRACE_MS
        + timeouts.STORE_CLOSE_MS_MAX
    )
    stop_s = math.ceil(stop_ms / 1_000)
    unit_s = int(setting("TimeoutStopSec").removesuffix("s"))
    assert unit_s > stop_s
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    assert f"takes {stop_s} s at most; systemd waits for {unit_s} s." in page
    assert int(setting("WatchdogSec").removesuffix("s")) * 1_000 > timeouts.STORE_CLOSE_MS_MAX


@pytest.mark.processes
def test_the_unit_s_command_is_ready_alive_and_stops_as_the_unit_says(tmp_path):
    """As systemd would start it: Type=notify, the watchdog, SIGTERM; it ends with 0."""
    assert setting("Type") == "notify"
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
        socket.create_server(("127.0.0.1", 0)) as three,
    ):
        ports = [each.getsockname()[1] for each in (one, two, three)]
    config = tmp_path / "node.toml"
    config.write_text(
        f'data_dir = "{tmp_path / "data"}"\nlisten = "127.0.0.1:{ports[0]}"\n'
        f'peer_listen = "127.0.0.1:{ports[1]}"\nmetrics_listen = "127.0.0.1:{ports[2]}"\n'
    )
    init = ("--cluster-id=c", "--node-id=0", "--nodes=1", "--shards=2")
    subprocess.run(
        [str(MUSTER), "init", f"--data-dir={tmp_path / 'data'}", *init],
        check=True,
        capture_output=True,
    )
    command = [
        word.replace("/opt/muster/bin/muster", str(MUSTER)).replace(
            "/etc/muster/node.toml", str(config)
        )
        for word in shlex.split(setting("ExecStart"))
    ]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(WAIT_S)
        environment = os.environ | {
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "200000",
        }
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as node:
            try:
                ready = heard.recv(1_000).decode()
                alive = [heard.recv(1_000) for _ in range(3)]
                node.terminate()
                while (said := heard.recv(1_000)) == b"WATCHDOG=1":
                    pass
                _, log = node.communicate(timeout=WAIT_S)
            finally:
                node.kill()
    assert ready == f"READY=1\nSTATUS=node 0 of c serves at 127.0.0.1:{ports[0]}"
    assert alive == [b"WATCHDOG=1"] * 3
    assert said.startswith(b"STOPPING=1")
    assert node.returncode == 0, log.decode()
