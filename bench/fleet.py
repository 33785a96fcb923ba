"""Measures how long a fleet that starts at once takes until every group is stable, and its cost.

Groups of ten whose members are spread over 20 client processes. Each size is started twice, each
time on three fresh nodes: by raw stubs, and through the SDK with one `Client` per process. The time
counts from the first member's start to the last assignment. Both are measured in the same run, so
that their ratio means something on any machine. Either way the clients run at nice 15: on machines
of their own they would leave the nodes' cores alone; `--nice 0` lets them compete. CPU at rest is
the SDK fleet's. With `--assignment server` the coordinator assigns; a group is stable then when its
partitions are shared out evenly.

Through the SDK a start may take 1.5 times as long as by raw stubs in the same run, or the time in
which a bare echo answers so many calls of each member with 64 in flight, whichever is longer.
Wished on a quiet machine: 3 s for 1,000 members, 8 s for 3,000, 40 s for 10,000.

A short form: `--sizes 300 --rest 5`.
"""

import argparse
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from bench import machine
from bench.raw import TOPIC, group_names
from bench.rebalance import evenly_shared
from bench.report import Report, Yardstick
from bench.yardstick import Echo
from musterd.chaos.child import Child, ChildError, Message, ask_all, close_all
from musterd.chaos.world.world import World

PROCESSES: Final = 20
GROUP_SIZE: Final = 10
PARTITIONS: Final = 20
SESSION_MS: Final = 10_000
CLIENTS_NICE: Final = 15
POLL_S: Final = 0.25
"""Asking for the state of 10,000 members is work, too; when they were stable is their own word."""

SIZES: Final = (1000, 3000, 10000)
ECHO_CALLS: Final = 28
RAW_FACTOR_MAX: Final = 1.5
GENERATIONS_MAX: Final = 2

_EXPIRED = re.compile(
    r"^(muster_group_member_expirations_total\{[^}]*\}) ([0-9.e+]+)$", re.MULTILINE
)


class Fleet:
    """One size, started in one way."""

    def __init__(
        self, cluster: World, members: int, assignment: str, *, raw: bool, nice: int
    ) -> None:
        """Start the processes; nobody joins yet."""
        groups = group_names("fleet", members // GROUP_SIZE, cluster.shards)
        own: list[list[str]] = [[] for _ in range(PROCESSES)]
        for number in range(members):
            own[number % PROCESSES].append(groups[number // GROUP_SIZE])
        self.members = members
        self._agreed = _agreed if assignment == "client" else _shared_out
        self.processes: list[Child] = []
        try:
            for number, its in enumerate(own):
                config: Message = {
                    "endpoints": cluster.endpoints,
                    "groups": its,
                    "session_timeout_ms": SESSION_MS,
                    "name": f"fleet-{number}",
                    "assignment": assignment,
                }
                module = "bench.member_client" if raw else "bench.fleet_client"
                self.processes.append(Child(module, config))
            for process in self.processes:
                process.ready(timeout_s=120)
                os.setpriority(os.PRIO_PROCESS, process.pid, nice)
        except BaseException:
            self.close()
            raise

    def start(self, patience_s: float) -> tuple[float, int]:
        """Everybody joins at once: seconds until all are stable, and the highest generation.

        Raises ChildError where they are not stable in time, or a member has failed.
        """
        deadline = time.monotonic() + patience_s
        began_s = min(one["began_s"] for one in ask_all(self.processes, "join", patience_s))
        while True:
            told = ask_all(self.processes, "status", 120)
            failed = [error for one in told for error in one.get("failed", ())]
            if failed:
                raise ChildError(f"{len(failed)} members failed for good, one with: {failed[0]}")
            generations = [generation for one in told for _, generation in one["generations"]]
            stable = sum(generation is not None for generation in generations)
            if stable == self.members and (highest := self._agreed(told)):
                return max(one["stable_s"] for one in told) - began_s, highest
            if time.monotonic() > deadline:
                raise ChildError(f"{stable} of {self.members} are stable after {patience_s:.0f} s")
            time.sleep(POLL_S)

    @property
    def pids(self) -> list[int]:
        """The ids of the client processes."""
        return [process.pid for process in self.processes]

    def close(self) -> None:
        """End every process; who still runs is killed."""
        for process in self.processes:
            process.process.kill()
        close_all(self.processes)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench fleet")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="MEMBERS")
    parser.add_argument("--rest", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--patience", type=float, default=180.0, metavar="SECONDS")
    parser.add_argument(
        "--nice", type=int, default=CLIENTS_NICE, metavar="N", help="of the clients"
    )
    parser.add_argument("--only", choices=("raw", "sdk"), help="one of the two ways")
    parser.add_argument("--assignment", choices=("client", "server"), default="client")
    options = parser.parse_args(arguments)
    unfit = [size for size in options.sizes if size < PROCESSES or size % GROUP_SIZE]
    if unfit:
        parser.error(f"a size is a multiple of {GROUP_SIZE}, at least {PROCESSES}: not {unfit[0]}")
    report = Report("fleet", arguments)
    expired, changes, highest = [0], [0], [0]
    with Echo() as echo:
        for members in options.sizes:
            echo.take()
            took: dict[bool, float] = {}
            for raw in (True, False):
                if options.only is None or raw == (options.only == "raw"):
                    with _fleet(members, options.assignment, raw=raw, nice=options.nice) as (
                        cluster,
                        fleet,
                    ):
                        one = _measure(report, cluster, fleet, options, raw=raw)
                    if one is None:
                        continue
                    took[raw], generations = one.stable_s, one.generations
                    if not raw:
                        highest.append(generations)
                        expired.append(one.expired)
                        changes.append(one.changes)
            echo.take()
            if options.only is None:
                judge(report, members, took, echo.calls(members))
        echo.add(report)
    report.add_count("generations_max", max(highest))
    report.add_count("expired", sum(expired))
    report.add_count("leader_changes", sum(changes))
    if options.only != "raw":
        if options.assignment == "client":
            what = f"at most {GENERATIONS_MAX} generations until all are stable"
            report.require(0 < max(highest) <= GENERATIONS_MAX, what)
        report.require(sum(expired) == 0, "nobody expired")
        report.require(sum(changes) == 0, "no shard changed its leader")
    return report.finish()


@contextmanager
def _fleet(members: int, assignment: str, *, raw: bool, nice: int) -> Iterator[tuple[World, Fleet]]:
    """Fresh nodes and processes that wait for their start."""
    with World() as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        cluster.wait_balanced()
        fleet = Fleet(cluster, members, assignment, raw=raw, nice=nice)
        try:
            yield cluster, fleet
        finally:
            fleet.close()


def _agreed(told: list[Message]) -> int:
    """The highest generation, where every group has one; else 0."""
    seen: dict[str, set[int | None]] = {}
    for one in told:
        for group, generation in one["generations"]:
            seen.setdefault(group, set()).add(generation)
    if any(len(each) != 1 or None in each for each in seen.values()):
        return 0
    return max(generation or 0 for each in seen.values() for generation in each)


def _shared_out(told: list[Message]) -> int:
    """The highest epoch, where every group's partitions are shared out evenly; else 0."""
    shares: dict[str, list[int]] = {}
    for one in told:
        for group, share in one["shares"]:
            shares.setdefault(group, []).append(share)
    if not all(evenly_shared(each, PARTITIONS) for each in shares.values()):
        return 0
    highest: int = max(epoch for one in told for _, epoch in one["generations"])
    return highest


class _Measured:
    """The figures of one start of a fleet."""

    def __init__(self, stable_s: float, generations: int, expired: int, changes: int) -> None:
        self.stable_s = stable_s
        self.generations = generations
        self.expired = expired
        self.changes = changes


def _measure(
    report: Report, cluster: World, fleet: Fleet, options: argparse.Namespace, *, raw: bool
) -> _Measured | None:
    """Start, then rest. None where the fleet does not settle, which fails the benchmark."""
    kind, members = ("raw" if raw else "sdk"), fleet.members
    terms, expired = cluster.terms(), _expired(cluster)
    before = _cpu_s(cluster, fleet)
    try:
        stable_s, generations = fleet.start(options.patience)
    except ChildError as error:
        _say_counters(report, fleet, raw=raw)
        report.require(False, f"{members} members start, {kind}: {error}")
        return None
    nodes_ms, clients_ms = (
        1000 * (b - a) / members for a, b in zip(before, _cpu_s(cluster, fleet), strict=True)
    )
    report.add(f"{'raw' if raw else 'stable'}_{members}_s", [stable_s], "s")
    report.add(f"{kind}_start_nodes_cpu_ms_{members}", [nodes_ms], "ms/member")
    report.add(f"{kind}_start_clients_cpu_ms_{members}", [clients_ms], "ms/member")
    report.say(f"{members} members, {kind}: stable after {stable_s:.2f} s, {generations=}")
    _say_counters(report, fleet, raw=raw)
    if not raw and options.rest > 0:
        _rest(report, cluster, fleet, options.rest)
    gone = _expired(cluster)
    return _Measured(
        stable_s,
        generations,
        sum(max(0, count - expired.get(series, 0)) for series, count in gone.items()),
        sum(cluster.terms()[shard] - term for shard, term in terms.items()),
    )


def _rest(report: Report, cluster: World, fleet: Fleet, seconds: float) -> None:
    """CPU of each node and of all clients together while members only heartbeat."""
    nodes = [node.pid for node in cluster.nodes.values()]
    before = [machine.cpu_s(pid) for pid in nodes], _sum_s(fleet.pids)
    began_s = time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - began_s
    after = [machine.cpu_s(pid) for pid in nodes], _sum_s(fleet.pids)
    percent = [100 * (b - a) / took_s for a, b in zip(before[0], after[0], strict=True)]
    of_clients = 100 * (after[1] - before[1]) / took_s
    report.add(f"rest_node_cpu_percent_{fleet.members}", percent, "% of a core")
    report.add(f"rest_clients_cpu_percent_{fleet.members}", [of_clients], "% of a core")


def judge(report: Report, members: int, took: Mapping[bool, float], calls: Yardstick) -> None:
    """At most the raw stubs' time (`took[True]`) or the echo's, each so often, the longer one."""
    if False not in took:
        return
    times, of = float(ECHO_CALLS), calls
    if True in took and RAW_FACTOR_MAX * took[True] > ECHO_CALLS * calls.value:
        times, of = RAW_FACTOR_MAX, Yardstick(took[True], "s", "the raw stubs' time")
    report.at_most(f"{members} members through the SDK start in", took[False], times, of)


def _say_counters(report: Report, fleet: Fleet, *, raw: bool) -> None:
    if raw:
        return
    total: dict[str, int] = {}
    for one in ask_all(fleet.processes, "counters", 120):
        for name, value in one["counters"].items():
            total[name] = total.get(name, 0) + value
    report.say("SDK: " + ", ".join(f"{name} {value:,}" for name, value in total.items() if value))


def _cpu_s(cluster: World, fleet: Fleet) -> tuple[float, float]:
    return _sum_s([node.pid for node in cluster.nodes.values()]), _sum_s(fleet.pids)


def _sum_s(pids: Sequence[int]) -> float:
    return sum(machine.cpu_s(pid) for pid in pids)


def _expired(cluster: World) -> dict[str, int]:
    """Series of each node -> members whose session ended."""
    return {
        f"{node_id} {series}": int(float(value))
        for node_id in cluster.nodes
        for series, value in _EXPIRED.findall(cluster.metrics(node_id, 30.0))
    }
