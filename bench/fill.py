"""50,000 groups get 20 offsets each, as fast as they can be stored.

Three nodes, raw stubs, four client processes. Once with 72 commits in flight over all of them, once
with 128, on a new cluster each. A node that takes too much work leaves its heartbeats late, and its
shards find other leaders: that shall not happen however much is offered.

The memory of a node may grow by what it takes at rest, and by so much of what its state weighs.
Wished: 250 MiB with all of them.

The p99 of a commit may be so many times the median of a bare echo with 64 in flight, taken before
and after on the same cluster at rest. Wished on a quiet machine: under 1 s.
"""

import argparse
from collections import Counter
from collections.abc import Sequence

from bench.growth import MIB, state_bytes
from bench.large_commits_client import ACKNOWLEDGED
from bench.machine import rss_mib
from bench.raw import PARTITIONS, TOPIC, group_names
from bench.report import Report, median, quantile
from bench.yardstick import Echo
from musterd.chaos.child import Child, ask_all, close_all
from musterd.chaos.world.world import World

GROUPS = 50_000
OFFSETS = 20
IN_FLIGHT = (72, 128)
PROCESSES = 4
FILL_S_MAX = 1_800.0
P99_ECHOES = 100
STATE_SHARE = 0.35
"""Of what the state weighs, 333 bytes an offset."""
REFUSED = "RESOURCE_EXHAUSTED"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench fill")
    parser.add_argument("--groups", type=int, default=GROUPS)
    options = parser.parse_args(arguments)
    report = Report("fill", arguments)
    with Echo() as echo:
        for in_flight in IN_FLIGHT:
            children: list[Child] = []
            with World() as cluster:
                try:
                    _run(report, cluster, children, echo, options.groups, in_flight)
                finally:
                    close_all(children)
        echo.add(report)
    return report.finish()


def _run(
    report: Report,
    cluster: World,
    children: list[Child],
    echo: Echo,
    groups: int,
    in_flight: int,
) -> None:
    cluster.create_topic(TOPIC, PARTITIONS)
    cluster.wait_balanced()
    names = group_names("fill", groups, cluster.shards)
    config = {"endpoints": cluster.endpoints, "groups": [], "others": []}
    children += [Child("bench.large_commits_client", config) for _ in range(PROCESSES)]
    for number, child in enumerate(children):
        child.ready(timeout_s=120)
        child.ask("know", 120, groups=names[number::PROCESSES])
    echo.take()
    rest_mib = [rss_mib(node.pid) for node in cluster.nodes.values()]
    report.add(f"rss_mib_at_rest_{in_flight}", rest_mib, "MiB")
    terms = cluster.terms()
    got = ask_all(
        children, "fill", FILL_S_MAX, partitions=OFFSETS, in_flight=in_flight // PROCESSES
    )
    after = cluster.terms()
    echo.take()
    changes = sum(after[shard] - term for shard, term in terms.items())
    full_mib = [rss_mib(node.pid) for node in cluster.nodes.values()]
    report.add(f"rss_mib_{in_flight}", full_mib, "MiB")
    held_mib = max(state_bytes(cluster, node_id) for node_id in cluster.nodes) / MIB
    report.add(f"state_mib_{in_flight}", [held_mib], "MiB")
    limit_mib = 2 * max(rest_mib) + STATE_SHARE * held_mib
    report.require(
        max(full_mib) <= limit_mib,
        f"with {in_flight} in flight: memory of a node {max(full_mib):.0f} MiB, at most "
        f"{limit_mib:.0f}: twice what it takes at rest ({max(rest_mib):.0f}) and {STATE_SHARE} of "
        f"what its state weighs ({held_mib:.0f})",
    )
    outcomes: Counter[str] = Counter()
    for one in got:
        outcomes.update(one["outcomes"])
    took_s = [took for one in got for took in one["took_s"]]
    report.say(f"{in_flight} in flight: {dict(outcomes)}")
    report.add_count(f"leader_changes_{in_flight}", changes)
    report.add(f"p99_ms_{in_flight}", [quantile(took_s, 0.99) * 1e3], "ms")
    in_all_s = [took for one in got for took in one["in_all_s"]]
    report.add(f"in_all_p99_ms_{in_flight}", [quantile(in_all_s, 0.99) * 1e3], "ms")
    rate = outcomes[ACKNOWLEDGED] / median(one["elapsed_s"] for one in got)
    report.add(f"commits_per_s_{in_flight}", [rate], "1/s")
    report.add_count(f"refused_{in_flight}", outcomes[REFUSED])
    report.require(changes == 0, f"no shard changed its leader with {in_flight} in flight")
    what = f"with {in_flight} in flight: p99"
    report.at_most(what, quantile(took_s, 0.99), P99_ECHOES, echo.latency())
    wrong = {what: n for what, n in outcomes.items() if what not in (ACKNOWLEDGED, REFUSED)}
    report.require(not wrong, f"every other answer is {REFUSED} (not so: {wrong})")
