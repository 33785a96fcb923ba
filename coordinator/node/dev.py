"""`muster dev`: a cluster in the foreground."""

import contextlib
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from muster.cli.output import Result, Table
from musterd.coordinator.node.launcher import Cluster
from musterd.coordinator.node.loopback import Loopback


def run_dev(
    directory: Path | None, nodes: int, shards: int, port: int, say: Callable[[Result], None]
) -> None:
    """Run a cluster until SIGINT or SIGTERM; `say` is given the ready line. Raises ClusterError."""
    stop = _Stop()
    with Cluster(directory, nodes, shards, network=Loopback(port)) as cluster:
        cluster.wait_ready()
        say(_ready(cluster))
        while not stop.wait(0.5):
            for node_id, code in cluster.ended():
                sys.stderr.write(
                    f"node {node_id} ended with {code}: see {cluster.nodes[node_id].log_path}\n"
                )


class _Stop:
    """SIGINT and SIGTERM as something to wait for; a second one ends at once."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True

    def wait(self, timeout_s: float) -> bool:
        """True once asked to stop."""
        self._read.settimeout(timeout_s)
        with contextlib.suppress(TimeoutError):
            self._read.recv(64)
        return self._asked


def _ready(cluster: Cluster) -> Result:
    items: list[dict[str, Any]] = [
        {
            "node_id": node.node_id,
            "endpoint": node.endpoint,
            "peer_endpoint": node.addresses.peer_listen,
            "metrics_endpoint": node.metrics_endpoint,
            "pid": node.pid,
            "data_dir": str(node.data_dir),
            "log": str(node.log_path),
        }
        for node in cluster.nodes.values()
    ]
    columns = ("NODE", "ENDPOINT", "PEER-ENDPOINT", "METRICS-ENDPOINT", "PID", "DATA-DIR", "LOG")
    document: dict[str, Any] = {
        "ready": True,
        "bootstrap": cluster.bootstrap,
        "shards": cluster.shards,
        "nodes": items,
    }
    return Result(
        schema="muster.dev.ready/v1",
        document=document,
        tables=[Table(columns, [list(item.values()) for item in items])],
        items=[document],  # one line of JSON Lines: what a launcher reads
        names=[cluster.bootstrap],
    )
