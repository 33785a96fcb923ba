"""200 clients commit 1,000 partitions each, as fast as they can, beside one that commits a single.

Three nodes, raw stubs, four processes of clients and one of the other. First what a replica pays to
apply a partition, without a cluster: entries of ten such commits, decided, evolved, counted and put
in a batch.

Limits are so many times the median of a bare echo with 64 in flight, taken before and after while
the cluster rests. Wished on a quiet machine: a turn lag of less than 100 ms at p99, and less than
0.5 s for the other client's commit.
"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence

from bench import machine
from bench.idle import scrape
from bench.large_commits_client import ACKNOWLEDGED
from bench.raw import PARTITIONS, TOPIC, group_names
from bench.rejoin import turn_lag_p99_ms
from bench.report import Report, median, quantile
from bench.yardstick import Echo
from musterd.chaos.child import Child, ask_all, close_all
from musterd.chaos.world.world import World
from musterd.coordinator.codec import decode_entry, encode_entry
from musterd.coordinator.host import calm_collector
from musterd.coordinator.machine.commands import OffsetCommit, PartitionCommit
from musterd.coordinator.machine.envelope import FORMAT
from musterd.coordinator.machine.limits import LIMITS_VERSION
from musterd.coordinator.machine.shard_state import Entry, ShardState, apply_entry
from musterd.coordinator.runtime.persist import Persist
from musterd.levels import LEVEL
from musterd.raft.contract import ShardId
from musterd.raft.state import ShardBatch
from musterd.storage.memory import MemoryStore

CLIENTS = 200
PROCESSES = 4
OTHERS = 16
WARM_S = 5.0
COMMITS_PER_ENTRY = 10
TURN_LAG_ECHOES = 10
OTHER_P99_ECHOES = 50


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench large_commits")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--entries", type=int, default=40)
    options = parser.parse_args(arguments)
    report = Report("large_commits", arguments)
    _apply(report, options.entries)
    children: list[Child] = []
    with World() as cluster:
        try:
            with Echo() as echo:
                _run(report, cluster, children, echo, options.seconds)
        finally:
            close_all(children)
    return report.finish()


def _apply(report: Report, entries: int) -> None:
    """CPU to apply one partition that has an offset already, and to decode it, in microseconds."""
    calm_collector()
    state, persist, store = ShardState(), Persist(), MemoryStore()
    batch = ShardBatch(store, ShardId(0), 0)
    partitions = COMMITS_PER_ENTRY * PARTITIONS
    apply_us, decode_us = [], []
    for index in range(1, entries + 2):
        encoded = encode_entry(_entry(index))
        began_s = time.process_time()
        entry = decode_entry(encoded)
        decoded_s = time.process_time()
        persist.write(batch, index, state, apply_entry(state, entry, index))
        ended_s = time.process_time()
        store.write()
        if index > 1:  # the first stores what is new
            decode_us.append((decoded_s - began_s) / partitions * 1e6)
            apply_us.append((ended_s - decoded_s) / partitions * 1e6)
    report.add("cpu_us_per_partition", apply_us, "us")
    report.add("decode_us_per_partition", decode_us, "us")


def _entry(index: int) -> Entry:
    commits = tuple(
        OffsetCommit(
            f"group-{number}",
            "",
            -1,
            0,
            tuple(PartitionCommit(TOPIC, p, index, "", None) for p in range(PARTITIONS)),
        )
        for number in range(COMMITS_PER_ENTRY)
    )
    return Entry(FORMAT, LEVEL, index, index, LIMITS_VERSION, commits)


def _run(report: Report, cluster: World, children: list[Child], echo: Echo, seconds: float) -> None:
    cluster.create_topic(TOPIC, PARTITIONS)
    cluster.wait_balanced()
    groups = group_names("large", CLIENTS, cluster.shards)
    others = group_names("other", OTHERS, cluster.shards)
    shares: list[tuple[list[str], list[str]]] = [
        (groups[number::PROCESSES], []) for number in range(PROCESSES)
    ]
    for large, single in ([], others), *shares:
        config = {"endpoints": cluster.endpoints, "groups": large, "others": single}
        children.append(Child("bench.large_commits_client", config))
    for child in children:
        child.ready(timeout_s=60)
    pids = [child.pid for child in children] + [node.pid for node in cluster.nodes.values()]
    echo.take()
    terms = cluster.terms()
    pages = {node_id: scrape(cluster, node_id) for node_id in cluster.nodes}
    busy = machine.busy(pids)
    got = ask_all(children, "run", WARM_S + seconds + 120, seconds=seconds, warm_s=WARM_S)
    kept = machine.others_cores(busy, machine.busy(pids))
    report.say(f"other work kept {kept:.2f} cores busy meanwhile")
    lags_ms = [
        turn_lag_p99_ms(pages[node_id], scrape(cluster, node_id)) for node_id in cluster.nodes
    ]
    after = cluster.terms()
    echo.take()
    echo.add(report)
    changes = sum(after[shard] - term for shard, term in terms.items())
    outcomes: Counter[str] = Counter()
    for one in got:
        outcomes.update(one["outcomes"])
    elapsed_s = median(one["elapsed_s"] for one in got)
    other_s = got[0]["other_s"]
    report.say(f"answers: {dict(outcomes)}")
    report.add("turn_lag_p99_ms", lags_ms, "ms")
    report.add_count("leader_changes", changes)
    report.add("other_commit_p99_ms", [quantile(other_s, 0.99) * 1e3], "ms")
    report.add("partitions_per_s", [outcomes[ACKNOWLEDGED] * PARTITIONS / elapsed_s], "1/s")
    report.add_count("refused", outcomes["RESOURCE_EXHAUSTED"])
    wrong = {
        what: number
        for what, number in outcomes.items()
        if what not in (ACKNOWLEDGED, "RESOURCE_EXHAUSTED")
    }
    report.require(not wrong, f"every other answer is RESOURCE_EXHAUSTED (not so: {wrong})")
    report.require(changes == 0, "no shard changed its leader")
    lag_s = max(lags_ms) / 1000
    report.at_most("turn lag of the worst node: p99", lag_s, TURN_LAG_ECHOES, echo.latency())
    p99_s = quantile(other_s, 0.99)
    report.at_most("another client's commit: p99", p99_s, OTHER_P99_ECHOES, echo.latency())
