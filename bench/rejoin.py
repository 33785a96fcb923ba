"""A wiped node rejoins behind a shard of 100 MB while the others serve.

One shard's offsets are filled with 100 MB of metadata. Then, each round: kill a follower of that
shard, remove its data, `muster init` it anew, start it, let it back in with replace-node, and wait
until it is a voter of every shard and has applied what the leader had committed. A client commits
to groups of all the other shards meanwhile.

The turn lag of each node may be so many times the median of a bare echo with 64 in flight, taken
before and after while nobody commits. Wished on a quiet machine: less than 100 ms at p99.
"""

import argparse
import signal
import time
from collections.abc import Sequence

import grpc
from prometheus_client.parser import text_string_to_metric_families

from bench.idle import scrape
from bench.raw import PARTITIONS, TOPIC, group_names
from bench.report import Report
from bench.yardstick import Echo
from muster.v1 import admin_pb2, errors_pb2
from musterd.chaos.child import Child, close_all
from musterd.chaos.world.world import World

NEWCOMER = 2
BIG_SHARD = 4
"""Its preferred leader is node 1, so it stays where it is when the newcomer comes and goes."""
METRIC = "muster_turn_lag_seconds"
TURN_LAG_ECHOES = 10


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench rejoin")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=100)
    options = parser.parse_args(arguments)
    report = Report("rejoin", arguments)
    children: list[Child] = []
    with World() as cluster:
        try:
            with Echo() as echo:
                _run(report, cluster, children, echo, options.rounds, options.mib)
        finally:
            close_all(children)
    return report.finish()


def _run(
    report: Report, cluster: World, children: list[Child], echo: Echo, rounds: int, mib: int
) -> None:
    cluster.create_topic(TOPIC, PARTITIONS)
    cluster.wait_balanced()
    filler = Child(
        "bench.commit_client",
        {
            "endpoints": cluster.endpoints,
            "groups": group_names("big", mib // 3, cluster.shards, [BIG_SHARD]),
            "simple": True,
        },
    )
    children.append(filler)
    filler.ready()
    filled = filler.ask("fill", timeout_s=300, mib=mib)["bytes"]
    report.say(f"shard {BIG_SHARD} holds {filled / 1e6:.0f} MB of offsets")
    others = set(range(cluster.shards)) - {BIG_SHARD}
    client = Child(
        "bench.commit_client",
        {"endpoints": cluster.endpoints, "groups": group_names("other", 30, 16, others)},
    )
    children.append(client)
    client.ready(timeout_s=60)
    echo.take()
    rejoin_s: list[float] = []
    lag_ms: list[float] = []
    changes = 0
    for number in range(rounds):
        took_s, lags_ms, changed, gap_s = _round(cluster, client, others)
        rejoin_s.append(took_s)
        lag_ms += lags_ms
        changes += changed
        report.say(
            f"round {number + 1}: back after {took_s:.1f} s, turn lag p99 of each node "
            f"{[round(lag, 1) for lag in lags_ms]} ms, {changed} leader changes, "
            f"longest time without any commit {gap_s:.2f} s"
        )
    echo.take()
    echo.add(report)
    report.add_count("leader_changes", changes)
    report.add("turn_lag_p99_ms", lag_ms, "ms")
    report.add("rejoin_s", rejoin_s, "s")
    report.require(changes == 0, "no other shard changed its leader")
    lag_s = max(lag_ms) / 1000
    report.at_most("turn lag of the worst node: p99", lag_s, TURN_LAG_ECHOES, echo.latency())


def _round(
    cluster: World, client: Child, others: set[int]
) -> tuple[float, list[float], int, float]:
    """One wipe and return: seconds, turn lag p99 of each node, leader changes, longest gap."""
    cluster.signal(NEWCOMER, signal.SIGKILL)
    cluster.wipe(NEWCOMER)
    cluster.wait_settled()
    cluster.init(NEWCOMER)
    cluster.start(NEWCOMER)
    cluster.wait(lambda: _refused(cluster), 30.0, "the wiped node is refused")
    client.ask("begin", in_flight=8, pause_s=0.01)
    terms, led_before = cluster.terms(), cluster.leaders()
    goal = _big(cluster, led_before[BIG_SHARD]).commit_index
    pages = {node_id: scrape(cluster, node_id) for node_id in cluster.nodes}
    start_s = time.monotonic()
    _replace(cluster)
    cluster.wait(lambda: _is_back(cluster, goal), 300.0, "a voter again, everywhere")
    took_s = time.monotonic() - start_s
    lags_ms = [
        turn_lag_p99_ms(pages[node_id], scrape(cluster, node_id)) for node_id in cluster.nodes
    ]
    gap_s = client.ask("end")["gap_s"]
    changed = _changes(cluster, others, terms)
    cluster.wait_settled()
    return took_s, lags_ms, changed, gap_s


def _refused(cluster: World) -> bool:
    views = cluster.views()
    return NEWCOMER in views and all(
        any(node.node_id == NEWCOMER for node in view.refused)
        for node_id, view in views.items()
        if node_id != NEWCOMER
    )


def _replace(cluster: World) -> None:
    """Ask node after node until the one that leads shard 0 has committed it."""
    request = admin_pb2.ReplaceNodeRequest(node_id=NEWCOMER)

    def replaced() -> bool:
        for node_id in cluster.nodes:
            if node_id == NEWCOMER:
                continue
            try:
                status = cluster.admin(node_id).ReplaceNode(request, timeout=5.0).status
            except grpc.RpcError:
                continue
            if status.code == errors_pb2.NONE:
                return True
        return False

    cluster.wait(replaced, 15.0, "replace-node is committed")


def _big(cluster: World, node_id: int) -> admin_pb2.Shard:
    view = cluster.describe(node_id)
    if view is None:
        return admin_pb2.Shard(role="")
    return next(state for state in view.shard_states if state.shard == BIG_SHARD)


def _is_back(cluster: World, goal: int) -> bool:
    view = cluster.describe(NEWCOMER)
    return (
        view is not None
        and len(view.shard_states) == cluster.shards
        and all(state.role in ("Leader", "Follower") for state in view.shard_states)
        and _big(cluster, NEWCOMER).applied_index >= goal
    )


def _changes(cluster: World, others: set[int], before: dict[int, int]) -> int:
    """Changes of leader in other shards, a hand-over to the preferred node included."""
    after = cluster.terms()
    return sum(after[shard] - before[shard] for shard in others)


def turn_lag_p99_ms(before: str, after: str) -> float:
    """The p99 between two scrapes, interpolated in its bucket as Prometheus does."""
    old, new = _buckets(before), _buckets(after)
    grown = {bound: new[bound] - old.get(bound, 0.0) for bound in sorted(new)}
    total = max(grown.values(), default=0.0)
    if total <= 0:
        raise ValueError(f"{METRIC}: no turns between the scrapes")
    rank = 0.99 * total
    lower, below = 0.0, 0.0
    for bound, upto in grown.items():
        if upto >= rank:
            if bound == float("inf"):
                return lower * 1e3
            return (lower + (bound - lower) * (rank - below) / (upto - below)) * 1e3
        lower, below = bound, upto
    raise ValueError(f"{METRIC}: no +Inf bucket")


def _buckets(page: str) -> dict[float, float]:
    found: dict[float, float] = {}
    for family in text_string_to_metric_families(page):
        if family.name == METRIC:
            for sample in family.samples:
                if sample.name.endswith("_bucket"):
                    found[float(sample.labels["le"])] = sample.value
    if not found:
        raise ValueError(f"{METRIC}: not on the metrics page")
    return found
