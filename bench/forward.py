"""Measures what a commit costs that goes through another node than its coordinator.

Three nodes with --forward. One client process commits, through a stream, to groups of one
coordinator: at that node, and at another one, in rounds that alternate, with 1 and 64 in flight.
Figures: commits per second, latencies, CPU of the three nodes per commit, and the ratios of both
ways in the same pair of rounds. Wished: no more than twice the CPU, and 2 ms more at 1 in flight.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Final

import grpc

from bench import machine
from bench.raw import PARTITIONS, TOPIC, group_names
from bench.report import Report, Yardstick, median, quantile
from muster.v1 import admin_pb2, admin_pb2_grpc
from musterd.chaos.child import Child, close_all
from musterd.coordinator.node.launcher import Cluster

GROUPS: Final = 16
IN_FLIGHT: Final = (1, 64)
CPU_TIMES_MAX: Final = 4.0
"""A guard, no measured promise: of the CPU that a commit takes where it is not passed on."""
BALANCED_S_MAX: Final = 60.0
POLL_S: Final = 0.2
WAYS: Final = ("direct", "edge")


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench forward")
    parser.add_argument("--rounds", type=int, default=5, help="of each way")
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args(arguments)
    report = Report("forward", arguments)
    children: list[Child] = []
    with Cluster(nodes=3, flags=("--forward",), name="bench") as cluster:
        try:
            cluster.wait_ready()
            _run(report, cluster, children, options.rounds, options.seconds)
        finally:
            close_all(children)
    return report.finish()


def _run(
    report: Report, cluster: Cluster, children: list[Child], rounds: int, seconds: float
) -> None:
    edge, leader = 0, 1
    with grpc.insecure_channel(cluster.nodes[edge].endpoint) as channel:
        topics = admin_pb2_grpc.TopicsStub(channel)
        topics.CreateTopic(admin_pb2.CreateTopicRequest(name=TOPIC, partitions=PARTITIONS))
    view = _balanced(cluster.nodes[edge].endpoint)
    led = _led(view, leader)
    clients: dict[str, Child] = {}
    for way, node in zip(WAYS, (leader, edge), strict=True):
        config = {
            "endpoints": [cluster.nodes[node].endpoint],
            "groups": group_names(way, GROUPS, view.shards, only=led),
            "name": way,
            "simple": True,
            "session": True,
        }
        clients[way] = Child("bench.commit_client", config)
        children.append(clients[way])
        clients[way].ready()
    pids = [cluster.nodes[node].pid for node in cluster.nodes]
    for in_flight in IN_FLIGHT:
        _compare(report, clients, pids, in_flight, rounds, seconds)
    now = _led(_view(cluster.nodes[edge].endpoint), leader)
    report.require(led == now, f"node {leader} led the same shards at the end: {led}")


def _view(endpoint: str) -> admin_pb2.DescribeClusterResponse:
    with grpc.insecure_channel(endpoint) as channel:
        admin = admin_pb2_grpc.AdminStub(channel)
        return admin.DescribeCluster(admin_pb2.DescribeClusterRequest())


def _led(view: admin_pb2.DescribeClusterResponse, node: int) -> list[int]:
    return [one.shard for one in view.shard_states if one.leader_id == node]


def _balanced(endpoint: str) -> admin_pb2.DescribeClusterResponse:
    """Wait until every shard is led by the node that it belongs to, as after some seconds."""
    end_s = time.monotonic() + BALANCED_S_MAX
    while True:
        view = _view(endpoint)
        nodes = sorted(node.node_id for node in view.nodes)
        if all(one.leader_id == nodes[one.shard % len(nodes)] for one in view.shard_states):
            return view
        if time.monotonic() > end_s:
            raise TimeoutError("leaders are not spread over the nodes")
        time.sleep(POLL_S)


def _compare(
    report: Report,
    clients: dict[str, Child],
    pids: Sequence[int],
    in_flight: int,
    rounds: int,
    seconds: float,
) -> None:
    """Both ways, one round after the other; the first of each is not counted."""
    per_s: dict[str, list[float]] = {way: [] for way in WAYS}
    median_ms: dict[str, list[float]] = {way: [] for way in WAYS}
    p99_ms: dict[str, list[float]] = {way: [] for way in WAYS}
    cpu_us: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        for way in WAYS:
            before_s = sum(map(machine.cpu_s, pids))
            got = clients[way].ask("closed", seconds + 30, in_flight=in_flight, seconds=seconds)
            took_s = sum(map(machine.cpu_s, pids)) - before_s
            if not number:
                continue
            per_s[way].append(len(got["latencies_s"]) / seconds)
            median_ms[way].append(1e3 * median(got["latencies_s"]))
            p99_ms[way].append(1e3 * quantile(got["latencies_s"], 0.99))
            cpu_us[way].append(1e6 * took_s / got["acknowledged"])
    for way in WAYS:
        report.add(f"{way}_commits_per_s_{in_flight}", per_s[way], "1/s")
        report.add(f"{way}_median_ms_{in_flight}", median_ms[way], "ms")
        report.add(f"{way}_p99_ms_{in_flight}", p99_ms[way], "ms")
        report.add(f"{way}_nodes_cpu_us_{in_flight}", cpu_us[way], "us")
    for name, both in (("commits", per_s), ("median", median_ms), ("nodes_cpu", cpu_us)):
        pairs = zip(both["edge"], both["direct"], strict=True)
        report.add(f"{name}_edge_to_direct_{in_flight}", [a / b for a, b in pairs], "times")
    direct = Yardstick(median(cpu_us["direct"]), "us", "the CPU of a commit at its coordinator")
    what = f"CPU of the nodes per commit through an edge, {in_flight} in flight:"
    report.at_most(what, median(cpu_us["edge"]), CPU_TIMES_MAX, direct)
