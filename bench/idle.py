"""Measures the cost of an idle node: 100 members that only heartbeat.

Three nodes with leaders spread, one group of 100 members in 20 client processes, metrics of every
node scraped every 15 s, an exporter (`muster export --follow`) beside each node. CPU of a node and
its exporter together over a minute.

The limit is so many calls a second of a bare echo's server, by its CPU of one call where calls come
one by one, taken before and after. Wished on a quiet machine: 5 % of a core.

Memory is what a node and its exporter take together, with the latter's children; pages of a library
that both have are in it once, as in a container's. Wished: 100 MiB. Beside it stands what is
resident in each (RSS), where those pages count in both; its limit is a multiple of a Python process
that has loaded gRPC and RocksDB, and does nothing.
"""

import argparse
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from bench import machine
from bench.overload import start_members
from bench.raw import PARTITIONS, TOPIC
from bench.report import Report
from bench.yardstick import Echo, bare_memory
from musterd.chaos.child import Child, ask_all, close_all
from musterd.chaos.world.world import World
from musterd.coordinator.host import tied_command
from musterd.storage.export_cursor import FILE_NAME

PROCESSES = 20
MEMBERS = 100
SESSION_MS = 10_000
SCRAPE_S = 15.0
ECHO_CALLS = 250
BARE_TIMES = 3.75
"""The memory of a node and its exporter in that of a bare process."""
HEARTBEAT_ECHOES = 100


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench idle")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args(arguments)
    report = Report("idle", arguments)
    children: list[Child] = []
    with World() as cluster, Echo() as echo:
        try:
            exporters = {n: _export(node.data_dir) for n, node in cluster.nodes.items()}
            cluster.create_topic(TOPIC, PARTITIONS)
            cluster.wait_balanced()
            echo.take()
            grace_s = HEARTBEAT_ECHOES * echo.latency().value
            own = ["idle"] * (MEMBERS // PROCESSES)
            members = start_members(cluster, [own] * PROCESSES, SESSION_MS, children, grace_s)
            report.say(f"{MEMBERS} members in {PROCESSES} processes are stable")
            ask_all(members, "begin")
            cluster.wait(lambda: _all_export(cluster), 60.0, "every exporter has written")
            cores = _measure(report, cluster, exporters, options.seconds)
            got = ask_all(members, "report")
            echo.take()
            echo.add(report)
            what = "CPU of a node and its exporter, a second:"
            report.at_most(what, cores, ECHO_CALLS, echo.cpu())
        finally:
            close_all(children)
    answered = sum(one["answered"] for one in got)
    failures = [one["failures"] for one in got if one["failures"]]
    report.say(f"{answered:,} heartbeats answered")
    report.require(not failures and answered > 0, f"no heartbeat failed ({failures})")
    return report.finish()


def _export(data_dir: Path) -> int:
    """`muster export --follow` beside a node; returns its process id."""
    command = [sys.executable, "-P", "-m", "muster.cli", "export", f"--data-dir={data_dir}"]
    with data_dir.with_name(f"export-{data_dir.name}.log").open("a") as log:
        return subprocess.Popen(
            tied_command([*command, "--follow"]), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        ).pid


def _all_export(cluster: World) -> bool:
    """Every exporter's cursor stands in its node's data directory."""
    return all((node.data_dir / FILE_NAME).exists() for node in cluster.nodes.values())


def _measure(report: Report, cluster: World, exporters: dict[int, int], seconds: float) -> float:
    """CPU of each node with its exporter, scrapes included; returns the cores of the busiest."""
    pids = {node_id: (node.pid, exporters[node_id]) for node_id, node in cluster.nodes.items()}
    before = _cpu_s(pids)
    busy = machine.busy(_everybody(pids))
    start_s = time.monotonic()
    end_s = start_s + seconds
    scraped = 0
    while (now_s := time.monotonic()) < end_s:
        time.sleep(min(SCRAPE_S, end_s - now_s))
        for node_id in cluster.nodes:
            scraped += len(scrape(cluster, node_id))
    elapsed_s = time.monotonic() - start_s
    after = _cpu_s(pids)
    others = machine.others_cores(busy, machine.busy(_everybody(pids)))
    parts = {
        node_id: [100 * (b - a) / elapsed_s for a, b in zip(before[node_id], own, strict=True)]
        for node_id, own in after.items()
    }
    percent = {node_id: sum(one) for node_id, one in parts.items()}
    report.add("cpu_percent_per_node", list(percent.values()), "% of a core")
    memory = {
        node_id: [machine.rss_mib(pid, children=True) for pid in both]
        for node_id, both in pids.items()
    }
    together = [machine.together_mib(both) for both in pids.values()]
    report.add("memory_mib_per_node", together, "MiB")
    rss = [sum(both) for both in memory.values()]
    report.add("rss_mib_per_node", rss, "MiB")
    report.at_most("resident in a node and in its exporter:", max(rss), BARE_TIMES, bare_memory())
    report.say(f"scraped {scraped:,} bytes; clients and other work kept {others:.2f} cores busy")
    for node_id, (own, exporter) in parts.items():
        report.say(f"node {node_id}: {own:.2f} %, its exporter {exporter:.2f} % of a core")
        node_mib, exporter_mib = memory[node_id]
        report.say(f"node {node_id}: {node_mib:.0f} MiB, its exporter {exporter_mib:.0f} MiB")
    return max(percent.values()) / 100


def _cpu_s(pids: dict[int, tuple[int, int]]) -> dict[int, list[float]]:
    return {node_id: [machine.cpu_s(pid) for pid in both] for node_id, both in pids.items()}


def _everybody(pids: dict[int, tuple[int, int]]) -> list[int]:
    return [pid for both in pids.values() for pid in both]


def scrape(cluster: World, node_id: int) -> str:
    url = f"http://{cluster.nodes[node_id].metrics_endpoint}/metrics"
    with urllib.request.urlopen(url, timeout=10) as page:
        text: str = page.read().decode()
    return text
