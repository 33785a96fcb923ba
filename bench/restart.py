"""Nodes with 50,000 groups of 20 offsets are killed and started again: how soon they serve.

Three nodes, raw stubs. Some times one node is killed with `kill -9` and started while two serve:
the time until it listens, until its first shard is loaded, and until all are. Then, as often, all
three at once: the time until the first shard has a commit acknowledged, and until all have. A
commit is offered to a group of each shard over and over, as an SDK would. At the end every group
that was asked has all its offsets.

Limits are multiples of what a start cannot do without, measured in the same run: a process that
imports gRPC and hashes as many records.
Wished on a machine of two cores that does nothing else: one node listens and has a shard within 2 s
and all within 6 s; three answer for the first shard within 4 s and for all within 12 s.
"""

import argparse
import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

import grpc.aio

from bench.raw import PARTITIONS, TOPIC, Pool, group_names, shard_of
from bench.report import Report, Yardstick, median
from muster.v1 import admin_pb2, admin_pb2_grpc, errors_pb2
from muster.v1 import group_pb2 as pb
from musterd.chaos.child import Child, ask_all, close_all
from musterd.chaos.world.world import World

GROUPS: Final = 50_000
OFFSETS: Final = 20
PROCESSES: Final = 2
IN_FLIGHT: Final = 48
FILL_S_MAX: Final = 1_800.0
ROUNDS: Final = 5
HASHES: Final = 5
RESTARTED_S_MAX: Final = 300.0
POLL_S: Final = 0.05
CALL_S: Final = 2.0

ONE_FIRST_HASHES, ONE_ALL_HASHES = 6, 12
THREE_FIRST_HASHES, THREE_ALL_HASHES = 12, 24


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench restart")
    parser.add_argument("--groups", type=int, default=GROUPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each kind")
    options = parser.parse_args(arguments)
    report = Report("restart", arguments)
    with World() as cluster:
        asked = _fill(report, cluster, options.groups)
        yardstick = _hash_records(report, options.groups)
        _one(report, cluster, options.rounds, yardstick)
        _three(report, cluster, asked, options.rounds, yardstick)
    return report.finish()


def _fill(report: Report, cluster: World, groups: int) -> dict[int, str]:
    """Give all groups their offsets; returns one group of each shard."""
    cluster.create_topic(TOPIC, PARTITIONS)
    cluster.wait_balanced()
    names = group_names("restart", groups, cluster.shards)
    config = {"endpoints": cluster.endpoints, "groups": [], "others": []}
    children: list[Child] = []
    try:
        children += [Child("bench.large_commits_client", config) for _ in range(PROCESSES)]
        for number, child in enumerate(children):
            child.ready(timeout_s=120)
            child.ask("know", 120, groups=names[number::PROCESSES])
        each = IN_FLIGHT // PROCESSES
        ask_all(children, "fill", FILL_S_MAX, partitions=OFFSETS, in_flight=each)
    finally:
        close_all(children)
    report.say(f"{groups:,} groups have {OFFSETS} offsets each")
    cluster.wait_settled()
    return {shard_of(name, cluster.shards): name for name in names}


def _hash_records(report: Report, groups: int) -> Yardstick:
    """Seconds of a process that hashes as many records as a node has, and does no more."""
    records = groups * (OFFSETS + 1)
    command = [sys.executable, "-m", "bench.record_hashes", str(records)]
    took_s: list[float] = []
    for _ in range(HASHES):
        began_s = time.monotonic()
        subprocess.run(command, check=True)
        took_s.append(time.monotonic() - began_s)
    report.add_count("records", records)
    report.add("yardstick_records_hashed_s", took_s, "s")
    return Yardstick(median(took_s), "s", "a process that hashes as many records")


def _one(report: Report, cluster: World, rounds: int, yardstick: Yardstick) -> None:
    """One node at a time is killed and comes back, while two serve."""
    listens_s: list[float] = []
    first_s: list[float] = []
    all_s: list[float] = []
    for number in range(rounds):
        node_id = sorted(cluster.nodes)[number % len(cluster.nodes)]
        cluster.signal(node_id, signal.SIGKILL)
        began_s = time.monotonic()
        cluster.start(node_id)
        loaded = asyncio.run(_loaded(cluster.nodes[node_id].endpoint, cluster.shards, began_s))
        listens_s.append(loaded["listens"])
        first_s.append(loaded["first"])
        all_s.append(loaded["all"])
        report.say(
            f"node {node_id}: listens after {listens_s[-1]:.2f} s, has its first shard after "
            f"{first_s[-1]:.2f} s, all after {all_s[-1]:.2f} s"
        )
        cluster.wait_settled(RESTARTED_S_MAX)
    report.add("one_listens_s", listens_s, "s")
    report.add("one_first_shard_s", first_s, "s")
    report.add("one_all_shards_s", all_s, "s")
    report.at_most(
        "one node: its first shard, median", median(first_s), ONE_FIRST_HASHES, yardstick
    )
    report.at_most("one node: all shards, median", median(all_s), ONE_ALL_HASHES, yardstick)


async def _loaded(endpoint: str, shards: int, began_s: float) -> dict[str, float]:
    """When the node first answered, when it had loaded a shard, and when all: seconds."""
    at_s: dict[str, float] = {}
    async with grpc.aio.insecure_channel(endpoint, _EAGER) as channel:
        stub: admin_pb2_grpc.AdminAsyncStub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[assignment]
        async with asyncio.timeout(RESTARTED_S_MAX):
            while "all" not in at_s:
                await asyncio.sleep(POLL_S)
                try:
                    request = admin_pb2.DescribeClusterRequest()
                    view = await stub.DescribeCluster(request, timeout=CALL_S)
                except grpc.aio.AioRpcError:
                    continue
                now_s = time.monotonic() - began_s
                loaded = sum(not shard.loading for shard in view.shard_states)
                at_s.setdefault("listens", now_s)
                if loaded:
                    at_s.setdefault("first", now_s)
                if loaded == shards:
                    at_s["all"] = now_s
    return at_s


_EAGER: Final = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
]


def _three(
    report: Report, cluster: World, asked: Mapping[int, str], rounds: int, yardstick: Yardstick
) -> None:
    """All nodes are killed and come back."""
    first_s: list[float] = []
    all_s: list[float] = []
    lost: list[str] = []
    for _ in range(rounds):
        for node_id in cluster.nodes:
            cluster.signal(node_id, signal.SIGKILL)
        began_s = time.monotonic()
        for node_id in cluster.nodes:
            cluster.start(node_id)
        answered_s = asyncio.run(_answered(cluster.endpoints, asked, began_s, lost))
        first_s.append(min(answered_s))
        all_s.append(max(answered_s))
        report.say(
            f"three nodes: the first shard answers after {first_s[-1]:.2f} s, all after "
            f"{all_s[-1]:.2f} s"
        )
        cluster.wait_ready(RESTARTED_S_MAX)
        cluster.wait_settled(RESTARTED_S_MAX)
    report.add("three_first_shard_s", first_s, "s")
    report.add("three_all_shards_s", all_s, "s")
    report.require(not lost, f"every group that was asked has its {OFFSETS} offsets ({lost})")
    what = "three nodes: the first shard, median"
    report.at_most(what, median(first_s), THREE_FIRST_HASHES, yardstick)
    report.at_most("three nodes: all shards, median", median(all_s), THREE_ALL_HASHES, yardstick)


async def _answered(
    endpoints: Sequence[str], asked: Mapping[int, str], began_s: float, lost: list[str]
) -> list[float]:
    """When each shard acknowledged a commit. `lost` gets the groups that lack offsets."""
    pool = Pool()

    async def ask(group: str) -> float:
        request = pb.OffsetCommitRequest(group_id=group, generation=-1)
        request.partitions.add(topic=TOPIC, partition=0, offset=1)
        turn = 0
        while True:
            stub = pool.at(endpoints[turn % len(endpoints)])
            turn += 1
            try:
                answer = await stub.OffsetCommit(request, timeout=CALL_S)
                done = answer.status.code == errors_pb2.NONE and all(
                    one.status.code == errors_pb2.NONE for one in answer.partitions
                )
                if done:
                    at_s = time.monotonic() - began_s
                    every = pb.OffsetFetchRequest(group_id=group, all=True)
                    found = await stub.OffsetFetch(every, timeout=CALL_S)
                    if len(found.partitions) != OFFSETS and not found.status.code:
                        lost.append(group)
                    return at_s
            except grpc.aio.AioRpcError:
                pass
            await asyncio.sleep(POLL_S)

    async with asyncio.timeout(RESTARTED_S_MAX):
        return await asyncio.gather(*map(ask, asked.values()))
