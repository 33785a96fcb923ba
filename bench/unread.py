"""Measures what a client that never reads costs the others, and a node's memory.

Three nodes; 80 commits a second to the node that leads most, over eight connections. Rounds of ten
seconds, every second one with a client that asks that node for 350 long answers on one connection
and takes none. Side by side: the others' p99 of a round with it, by that of the round before.
"""

import argparse
import os
import time
from collections.abc import Sequence

from bench.flood import ACKNOWLEDGED
from bench.raw import PARTITIONS, TOPIC, group_names
from bench.report import Report, Yardstick, median, quantile
from musterd.chaos.child import Child, Message, close_all
from musterd.chaos.world.process_state import rss_kib
from musterd.chaos.world.world import World

GROUPS = 24
PER_S = 80
"""Half of what kept two cores busy: where they are, whatever is added delays the others."""
CONNECTIONS = 8
CALLS = 350
DEAF_NICE = 15
"""On a machine of its own it would leave the nodes' cores alone."""
SAMPLE_S = 0.05
P99_FACTOR_MAX = 1.5
RISE_MAX = 0.6
"""Of the node's memory before the first round. Wished: 64 MiB, and half of it at the end."""
BACK_S = 70.0
"""What was taken is back after the node's next look at its memory, a minute later at most."""


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench unread")
    parser.add_argument("--rounds", type=int, default=5, help="of each kind")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args(arguments)
    report = Report("unread", arguments)
    children: list[Child] = []
    with World() as cluster:
        try:
            _run(report, cluster, children, options)
        finally:
            close_all(children)
    return report.finish()


def _run(
    report: Report, cluster: World, children: list[Child], options: argparse.Namespace
) -> None:
    cluster.create_topic(TOPIC, PARTITIONS)
    cluster.wait_balanced()
    node_id, shards = cluster.leads_most()
    node = cluster.nodes[node_id]
    load = Child(
        "bench.commit_client",
        {
            "endpoints": cluster.endpoints,
            "groups": group_names("unread", GROUPS, cluster.shards, shards),
            "name": "load",
        },
    )
    children.append(load)
    load.ready(timeout_s=60)
    _offer(load, options.seconds)  # what comes once has come
    latencies_s: dict[bool, list[float]] = {False: [], True: []}
    factors, rises_mib = [], []
    before_kib = rss_kib(node.pid)
    for _ in range(options.rounds):
        p99_s = {}
        for deaf in (False, True):
            start_kib, highest_kib = rss_kib(node.pid), 0
            client = None
            if deaf:
                config = {"endpoint": node.endpoint, "calls": CALLS, "waits": True}
                client = Child("musterd.chaos.faults.nonreading_client", config)
                os.setpriority(os.PRIO_PROCESS, client.pid, DEAF_NICE)
                client.ready()
            load.send("open", **_round(options.seconds))
            if client is not None:
                client.send("ask")
            end_s = time.monotonic() + options.seconds
            while time.monotonic() < end_s:
                highest_kib = max(highest_kib, rss_kib(node.pid))
                time.sleep(SAMPLE_S)
            got = load.read(options.seconds + 30)
            if client is not None:
                client.close()
                rises_mib.append((highest_kib - start_kib) / 1024)
            round_s = [latency_s for _, latency_s in got["acknowledged"]]
            report.require(
                got["outcomes"] == {ACKNOWLEDGED: got["offered"]},
                f"every commit is acknowledged ({got['outcomes']} of {got['offered']})",
            )
            latencies_s[deaf] += round_s
            p99_s[deaf] = quantile(round_s, 0.99)
        factors.append(p99_s[True] / p99_s[False])
        report.say(f"p99 {p99_s[False] * 1e3:.1f} ms without, {p99_s[True] * 1e3:.1f} ms with it")
    _wait_back(node.pid, before_kib)
    kept_mib = (rss_kib(node.pid) - before_kib) / 1024
    for deaf, name in ((False, "others_p99_ms_without"), (True, "others_p99_ms_with")):
        report.add(name, [quantile(latencies_s[deaf], 0.99) * 1e3], "ms")
    report.add("others_p99_factor", factors, "times")
    report.add("memory_rise_mib", rises_mib, "MiB")
    report.add("memory_kept_mib", [kept_mib], "MiB")
    factor = median(factors)
    report.require(
        factor <= P99_FACTOR_MAX,
        f"others' p99 is {factor:.2f} times, at most {P99_FACTOR_MAX} (the rounds' median)",
    )
    before = Yardstick(before_kib / 1024, "MiB", "the node's memory before")
    report.add("memory_before_mib", [before.value], "MiB")
    report.at_most("memory rises by", max(rises_mib), RISE_MAX, before)
    report.at_most("kept of it in the end:", kept_mib, RISE_MAX / 2, before)


def _wait_back(pid: int, before_kib: int) -> None:
    """Wait until the node has given back what was taken, or should have."""
    back_s = time.monotonic() + BACK_S
    while rss_kib(pid) - before_kib > RISE_MAX * before_kib / 2:
        if time.monotonic() > back_s:
            break
        time.sleep(SAMPLE_S)


def _round(seconds: float) -> Message:
    return {
        "per_s": PER_S,
        "seconds": seconds,
        "start_s": time.monotonic() + 0.2,
        "connections": CONNECTIONS,
    }


def _offer(load: Child, seconds: float) -> None:
    load.ask("open", seconds + 30, **_round(seconds))
