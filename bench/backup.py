"""A backup of 50,000 groups while others commit, its restore, and the first commit after it.

Three nodes, raw stubs. Every group has some offsets; beside them others commit, at a steady rate.
Their latency is compared before and while the backup is taken. The backup is verified and restored
into three new nodes, and the time until a restored group commits is printed.

The others' p99 may double while the backup is taken, or be the median of a bare echo with 64 in
flight in the same run, where that is longer: below it is the machine's own noise.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import grpc.aio

from bench.raw import PARTITIONS, TOPIC, Pool, find, group_names
from bench.report import Report, Yardstick, quantile
from bench.yardstick import Echo
from muster.v1 import errors_pb2
from muster.v1 import group_pb2 as pb
from musterd.chaos.child import Child, ask_all, close_all
from musterd.chaos.world.world import World
from musterd.coordinator.node.launcher import Cluster

GROUPS: Final = 50_000
OFFSETS: Final = 4
PROCESSES: Final = 4
IN_FLIGHT: Final = 72
FILL_S_MAX: Final = 1_800.0
COMMAND_S_MAX: Final = 1_800.0
OTHERS: Final = 48
PER_S: Final = 100.0
BEFORE_S: Final = 20.0
CALL_S: Final = 3.0
RATIO_MAX: Final = 2.0


class Others:
    """Commits of groups of their own, at a steady rate, each counted from when it was due."""

    def __init__(self, endpoints: Sequence[str], groups: Sequence[str]) -> None:
        self._endpoints, self._groups = endpoints, groups
        self._done = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.took: list[tuple[float, float]] = []
        """When each was due, CLOCK_MONOTONIC seconds, and how long it took."""
        self.failed = 0

    def start(self) -> None:
        """Begin to commit."""
        self._thread.start()

    def stop(self) -> None:
        """Wait for the last answers."""
        self._done.set()
        self._thread.join()

    def p99_s(self, from_s: float, to_s: float) -> float:
        """Of the commits that were due in an interval."""
        return quantile([took for due, took in self.took if from_s <= due < to_s], 0.99)

    async def _run(self) -> None:
        pool = Pool()
        found = await find(pool, self._endpoints, self._groups)
        tasks: set[asyncio.Task[None]] = set()
        due_s, number = time.monotonic(), 0
        while not self._done.is_set():
            group = self._groups[number % len(self._groups)]
            task = asyncio.create_task(self._commit(pool, found[group], group, number, due_s))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
            due_s += 1 / PER_S
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        await asyncio.gather(*tasks)

    async def _commit(
        self, pool: Pool, endpoint: str, group: str, number: int, due_s: float
    ) -> None:
        request = pb.OffsetCommitRequest(group_id=group, generation=-1)
        request.partitions.add(topic=TOPIC, partition=number % PARTITIONS, offset=number)
        try:
            answer = await pool.at(endpoint).OffsetCommit(request, timeout=CALL_S)
        except grpc.aio.AioRpcError:
            self.failed += 1
            return
        taken = all(one.status.code == errors_pb2.NONE for one in answer.partitions)
        self.failed += answer.status.code != errors_pb2.NONE or not taken
        self.took.append((due_s, time.monotonic() - due_s))


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench backup")
    parser.add_argument("--groups", type=int, default=GROUPS)
    options = parser.parse_args(arguments)
    report = Report("backup", arguments)
    with tempfile.TemporaryDirectory(prefix="muster-bench-backup-") as folder:
        with Echo() as echo:
            url = _take(report, Path(folder), options.groups, echo)
            echo.add(report)
        _restore(report, Path(folder), url, options.groups)
    return report.finish()


def _command(report: Report, figure: str, *arguments: str) -> str:
    """Run `muster`, keep how long it took, and return what it printed."""
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "muster.cli", *arguments, "-o", "name"],
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_S_MAX,
    )
    report.add(figure, [time.monotonic() - began_s], "s")
    report.require(done.returncode == 0, f"`muster {arguments[0]} {arguments[1]}` {done.stderr}")
    return done.stdout.strip()


def _take(report: Report, folder: Path, groups: int, echo: Echo) -> str:
    children: list[Child] = []
    with World() as cluster:
        try:
            cluster.create_topic(TOPIC, PARTITIONS)
            cluster.wait_balanced()
            names = group_names("kept", groups, cluster.shards)
            config = {"endpoints": cluster.endpoints, "groups": [], "others": []}
            children += [Child("bench.large_commits_client", config) for _ in range(PROCESSES)]
            for number, child in enumerate(children):
                child.ready(timeout_s=120)
                child.ask("know", 120, groups=names[number::PROCESSES])
            share = IN_FLIGHT // PROCESSES
            ask_all(children, "fill", FILL_S_MAX, partitions=OFFSETS, in_flight=share)
        finally:
            close_all(children)
        report.say(f"{groups} groups have {OFFSETS} offsets each")
        echo.take()
        others = Others(cluster.endpoints, group_names("other", OTHERS, cluster.shards))
        others.start()
        time.sleep(BEFORE_S)
        began_s = time.monotonic()
        url = _command(
            report,
            "backup_s",
            *("cluster", "backup", "--to", str(folder / "backups")),
            *("--bootstrap", ",".join(cluster.endpoints)),
        )
        ended_s = time.monotonic()
        others.stop()
    before = others.p99_s(began_s - BEFORE_S + 2, began_s)
    during = others.p99_s(began_s, ended_s)
    report.add("others_p99_before_ms", [before * 1e3], "ms")
    report.add("others_p99_during_ms", [during * 1e3], "ms")
    report.require(others.failed == 0, f"no commit of the others failed ({others.failed})")
    judge(report, before, during, echo.latency())
    size = sum(path.stat().st_size for path in Path(url).glob("*.records"))
    report.add_count("backup_bytes", size, "bytes")
    return url


def judge(report: Report, before_s: float, during_s: float, echo: Yardstick) -> None:
    """The p99 of others beside a backup, by theirs before it, or the echo's median if longer."""
    times, of = RATIO_MAX, Yardstick(before_s, "s", "that before it")
    if echo.value > RATIO_MAX * before_s:
        times, of = 1.0, echo
    report.at_most("the others' p99 during the backup:", during_s, times, of)


def _restore(report: Report, folder: Path, url: str, groups: int) -> None:
    _command(report, "verify_s", "cluster", "backup", "verify", url)
    ticket = folder / "ticket.json"
    began_s = time.monotonic()
    _command(
        report, "ticket_s", "cluster", "restore", url, "--name", "restored", "--to", str(ticket)
    )
    cluster = Cluster(folder / "restored", nodes=3)
    made_s = time.monotonic()
    inits = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "muster.cli", "init", "--data-dir", str(node.data_dir)),
                *("--node-id", str(node.node_id), "--nodes", "3", "--restore", str(ticket)),
            ],
            stdout=subprocess.DEVNULL,
        )
        for node in cluster.nodes.values()
    ]
    codes = [one.wait(COMMAND_S_MAX) for one in inits]
    report.require(codes == [0, 0, 0], f"three nodes begin with the backup ({codes})")
    report.add("init_three_nodes_s", [time.monotonic() - made_s], "s")
    started_s = time.monotonic()
    with cluster:
        cluster.wait_ready(FILL_S_MAX)
        last = group_names("kept", groups, cluster.shards)[-1]
        asyncio.run(_first_commit(cluster.endpoints, last))
        now_s = time.monotonic()
        report.add("start_to_first_commit_s", [now_s - started_s], "s")
        report.add("restore_to_first_commit_s", [now_s - began_s], "s")


async def _first_commit(endpoints: Sequence[str], group: str) -> None:
    """The group has what it had, and commits."""
    pool = Pool()
    at = pool.at((await find(pool, endpoints, [group], 60.0))[group])
    fetch = pb.OffsetFetchRequest()
    fetch.groups.add(group_id=group, all=True)
    answer = await at.OffsetFetch(fetch, timeout=CALL_S)
    stored = [len(one.partitions) for one in answer.groups]
    if stored != [OFFSETS]:
        raise SystemExit(f"{group} has {stored} offsets, not {OFFSETS}")
    request = pb.OffsetCommitRequest(group_id=group, generation=-1)
    request.partitions.add(topic=TOPIC, partition=0, offset=1)
    committed = await at.OffsetCommit(request, timeout=CALL_S)
    if any(one.status.code != errors_pb2.NONE for one in committed.partitions):
        raise SystemExit(f"{group} does not commit: {committed}")
