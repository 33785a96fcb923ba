"""`muster doctor` and `muster debug bundle` on a cluster that runs."""

import json
import subprocess
import sys
import tarfile

import pytest

from musterd.coordinator.node.launcher import Cluster

WAIT_S = 60


def muster(*arguments):
    """A command's end."""
    return subprocess.run(
        [sys.executable, "-m", "muster.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


@pytest.mark.processes
def test_a_live_cluster_is_well_until_a_node_is_stopped(tmp_path):
    """From outside, and from the machine of a node, whose ports are its own."""
    with Cluster(tmp_path, nodes=3, shards=4) as cluster:
        cluster.wait_ready()
        at = cluster.nodes[0].addresses
        config = tmp_path / "node.toml"
        config.write_text(
            f'data_dir = "{cluster.nodes[0].data_dir}"\n'
            f'listen = "{at.listen}"\npeer_listen = "{at.peer_listen}"\n'
            f'metrics_listen = "{at.metrics_listen}"\n'
            "disk_reserve_bytes = 1\n"
        )
        outside = muster("doctor", "-o", "json", "-b", cluster.bootstrap)
        assert outside.returncode == 0, outside.stderr
        findings = json.loads(outside.stdout)["findings"]
        quotas = [one["detail"] for one in findings if one["check"] == "quotas"]
        assert quotas == ["there are none"]
        clocks = [one["result"] for one in findings if one["check"] == "clock"]
        assert clocks == ["ok"] * 4
        inside = muster("doctor", "--config", config, "-o", "json")
        assert inside.returncode == 0, inside.stderr
        (files,) = (
            one["detail"]
            for one in json.loads(inside.stdout)["findings"]
            if one["check"] == "files"
        )
        assert f"process {cluster.nodes[0].pid}" in files
        ports = [
            one["detail"]
            for one in json.loads(inside.stdout)["findings"]
            if one["check"].startswith("port ")
        ]
        assert len(ports) == 3
        assert all("is the running node's" in detail for detail in ports)
        file = tmp_path / "bundle.tar.gz"
        log = ("--log", cluster.nodes[0].log_path)
        given = ("--config", config, *log, "-b", cluster.bootstrap)
        done = muster("debug", "bundle", "--to", file, *given)
        assert done.returncode == 0, done.stderr
        with tarfile.open(file) as archive:
            page = archive.extractfile("muster-debug/node/metrics.txt").read()
        assert b"muster_build_info" in page
        cluster.stop(2)
        outside = muster("doctor", "-b", cluster.bootstrap)
        assert outside.returncode == 5
        assert "node 2 does not answer" in outside.stdout
