"""What a node costs when nothing happens: 100 members that only heartbeat.

Three nodes with leaders spread, one group of 100 members in 20 client processes, metrics of every
node scraped every 15 s, export on. CPU of a node and its exporter together over a minute.
"""

import argparse
import time
import urllib.request
from collections.abc import Sequence

from bench import machine
from bench.child import Child, ask_all, close_all
from bench.cluster import Cluster
from bench.overload import start_members
from bench.raw import PARTITIONS, TOPIC
from bench.report import Report

PROCESSES = 20
MEMBERS = 100
SESSION_MS = 10_000
SCRAPE_S = 15.0
CPU_MAX_PERCENT = 5.0


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench idle")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args(arguments)
    report = Report("idle", arguments)
    children: list[Child] = []
    with Cluster(serve=("--export-dir={folder}.export",)) as cluster:
        try:
            cluster.create_topic(TOPIC, PARTITIONS)
            cluster.wait_balanced()
            own = ["idle"] * (MEMBERS // PROCESSES)
            members = start_members(cluster, [own] * PROCESSES, SESSION_MS, children)
            report.say(f"{MEMBERS} members in {PROCESSES} processes are stable")
            ask_all(members, "begin")
            _measure(report, cluster, options.seconds)
            got = ask_all(members, "report")
        finally:
            close_all(children)
    answered = sum(one["answered"] for one in got)
    failures = [one["failures"] for one in got if one["failures"]]
    report.say(f"{answered:,} heartbeats answered")
    report.require(not failures and answered > 0, f"no heartbeat failed ({failures})")
    return report.finish()


def _measure(report: Report, cluster: Cluster, seconds: float) -> None:
    """CPU of each node with its children, scrapes included."""
    pids = {node_id: node.pid for node_id, node in cluster.nodes.items()}
    before = {node_id: machine.cpu_s(pid, children=True) for node_id, pid in pids.items()}
    start_s = time.monotonic()
    end_s = start_s + seconds
    scraped = 0
    while (now_s := time.monotonic()) < end_s:
        time.sleep(min(SCRAPE_S, end_s - now_s))
        for node_id in pids:
            scraped += len(scrape(cluster, node_id))
    elapsed_s = time.monotonic() - start_s
    after = {node_id: machine.cpu_s(pid, children=True) for node_id, pid in pids.items()}
    percent = {node_id: 100 * (after[node_id] - before[node_id]) / elapsed_s for node_id in pids}
    report.add("cpu_percent_per_node", list(percent.values()), "% of a core")
    rss = [machine.rss_mib(pid, children=True) for pid in pids.values()]
    report.add("rss_mib_per_node", rss, "MiB")
    report.say(f"scraped {scraped:,} bytes; CPU {percent}")
    report.require(
        max(percent.values()) <= CPU_MAX_PERCENT,
        f"a node and its exporter take at most {CPU_MAX_PERCENT} % of a core",
    )


def scrape(cluster: Cluster, node_id: int) -> str:
    """One node's metrics page."""
    url = f"http://{cluster.nodes[node_id].metrics_endpoint}/metrics"
    with urllib.request.urlopen(url, timeout=10) as page:
        text: str = page.read().decode()
    return text
