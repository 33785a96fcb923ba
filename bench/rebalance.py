"""Measures how long a group of 100 or 1,000 members takes to agree again after one comes or goes.

Three nodes, members in client processes of their own, one held heartbeat call per process: by raw
stubs, whose figures have limits, and, with `sdk_` before the name, by the SDK, as users have it.
Every figure is the time from the first request that caused the round to the last assignment of the
new generation, over all members. Who leaves comes from one process after the other. Beside each
stands what Kafka showed.
"""

import argparse
import os
import re
import signal
import time
from collections.abc import Sequence

from bench.raw import PARTITIONS, TOPIC
from bench.report import Report, median
from musterd.chaos.child import Child, ask_all, close_all
from musterd.chaos.world.world import World

PROCESSES = 20
WAYS = {"": "bench.member_client", "sdk_": "bench.fleet_client"}
"""What stands before a figure's name, and which client processes it is measured with."""

SESSION_MS = 10_000
LEAVES_OF_MANY = 3
PATIENCE_S = 120.0

START_MAX_S = 3.0
LEAVE_100_MAX_S, LEAVE_1000_MAX_S, JOIN_100_MAX_S = 0.2, 1.0, 0.2
OWNED_AGAIN_MAX_S = 3.0

_HELD = re.compile(r"^muster_heartbeats_held (\S+)$", re.MULTILINE)

KAFKA = {
    "start_1000_s": "6.3 s; 0.4 s without its initial delay; modern protocol 10.6 s",
    "leave_1_of_100_s": "0.5 s; modern protocol 3.9 s",
    "leave_1_of_1000_s": "1.7 s; modern protocol 3.9 s",
    "join_1_to_100_s": "0.9 s; cooperative 4.8 s; modern protocol 5.0 s",
    "kill9_member_owned_again_s": "45 s",
}
"""Three brokers of Kafka 4.4 with their defaults, on a machine of this size."""


class Fleet:
    """One group's members, spread evenly over client processes."""

    def __init__(self, cluster: World, group: str, members: int, module: str) -> None:
        """Start the processes, each with one member more than its share; nobody joins yet."""
        self._cluster = cluster
        self._each = each = members // PROCESSES
        self.processes = [
            Child(
                module,
                {
                    "endpoints": cluster.endpoints,
                    "groups": [group] * (each + 1),
                    "session_timeout_ms": SESSION_MS,
                    "name": f"{group}-{number}",
                },
            )
            for number in range(PROCESSES)
        ]
        for process in self.processes:
            process.ready(timeout_s=60)

    def start(self) -> float:
        """Everybody joins at once: seconds from the first Join to the last assignment."""
        began = ask_all(self.processes, "join", PATIENCE_S, count=self._each)
        generation, stable_s = self.agreed(above=0)
        if generation != 1:
            raise ValueError(f"the start took {generation} generations")
        return stable_s - min(float(one["began_s"]) for one in began)

    def agreed(self, above: int) -> tuple[int, float]:
        """Wait for one generation beyond `above`: which, and when the last member had it."""
        found: tuple[int, float] = (0, 0.0)

        def one_generation() -> bool:
            nonlocal found
            told = ask_all(self.processes, "status")
            generations = {gen for one in told for _, gen in one["generations"]}
            if len(generations) != 1 or None in generations:
                return False
            found = (generations.pop(), max(one["stable_s"] for one in told))
            return found[0] > above

        self._cluster.wait(one_generation, PATIENCE_S, "all members in one generation")
        return found

    def leave(self, processes: Sequence[Child], count: int) -> tuple[float, int]:
        """`count` members of each process leave: seconds and rounds until the rest agree."""
        before, _ = self.agreed(above=0)
        began = ask_all(processes, "leave", 60, count=count)
        after, stable_s = self.agreed(above=before)
        return stable_s - min(one["began_s"] for one in began), after - before

    def join(self, process: Child, count: int) -> float:
        """`count` members that are not in the group join: seconds until all agree."""
        before, _ = self.agreed(above=0)
        began = process.ask("join", PATIENCE_S, count=count)
        _, stable_s = self.agreed(above=before)
        return stable_s - float(began["began_s"])

    def kill(self) -> float:
        """Kill -9 the last process: seconds until the others have shared out what it owned."""
        before, _ = self.agreed(above=0)
        # A member that is killed before its first heartbeat has its whole session. A process has
        # one held call at the coordinator.
        self._cluster.wait(self._all_heartbeat, PATIENCE_S, "a held heartbeat of each process")
        victim = self.processes.pop()
        at_s = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        _, stable_s = self.agreed(above=before)
        victim.close()
        return stable_s - at_s

    def _all_heartbeat(self) -> bool:
        pages = [self._cluster.metrics(node_id) for node_id in self._cluster.nodes]
        held = sum(int(float(calls)) for page in pages for calls in _HELD.findall(page))
        return held >= len(self.processes)

    def close(self) -> None:
        close_all(self.processes)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench rebalance")
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--large", type=int, default=1000)
    options = parser.parse_args(arguments)
    report = Report("rebalance", arguments)
    with World() as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        cluster.wait_balanced()
        for prefix, module in WAYS.items():
            _small(report, cluster, options.rounds, prefix, module)
            _large(report, cluster, options, prefix, module)
    for key, seen in KAFKA.items():
        report.say(f"Kafka 4.4 beside {key}: {seen}")
    return report.finish()


def _small(report: Report, cluster: World, rounds: int, prefix: str, module: str) -> None:
    fleet = Fleet(cluster, f"{prefix}hundred", 100, module)
    try:
        report.say(f"{prefix}100 members agree after {fleet.start():.2f} s")
        left, joined = [], []
        for number in range(rounds):
            process = fleet.processes[number % PROCESSES]
            joined.append(fleet.join(process, 1))
            fleet.leave([process], 1)
            left.append(fleet.leave([process], 1)[0])
            fleet.join(process, 1)
        report.add(f"{prefix}leave_1_of_100_s", left, "s")
        report.add(f"{prefix}join_1_to_100_s", joined, "s")
        killed = [fleet.kill() for _ in range(min(rounds, 5))]
        report.add(f"{prefix}kill9_member_owned_again_s", killed, "s")
    finally:
        fleet.close()
    if not prefix:
        _at_most(report, "one of 100 leaves: median", median(left), LEAVE_100_MAX_S)
        _at_most(report, "one more joins 100: median", median(joined), JOIN_100_MAX_S)
        _at_most(report, "a killed process' share is owned again", max(killed), OWNED_AGAIN_MAX_S)


def _large(
    report: Report, cluster: World, options: argparse.Namespace, prefix: str, module: str
) -> None:
    took = []
    starts, rounds, members = options.starts, options.rounds, options.large
    for number in range(starts):
        fleet = Fleet(cluster, f"{prefix}start-{number}", members, module)
        try:
            took.append(fleet.start())
            report.say(
                f"{prefix}start {number + 1}: {members} members agree after {took[-1]:.2f} s"
            )
            if number == starts - 1:
                left, many = [], []
                for turn in range(rounds):
                    process = fleet.processes[turn % PROCESSES]
                    left.append(fleet.leave([process], 1)[0])
                    fleet.join(process, 1)
                fifth = members // PROCESSES // 5
                for _ in range(LEAVES_OF_MANY):
                    many.append(fleet.leave(fleet.processes, fifth)[1])
                    ask_all(fleet.processes, "join", PATIENCE_S, count=fifth)
                    fleet.agreed(above=0)
        finally:
            fleet.close()
    report.add(f"{prefix}start_1000_s", took, "s")
    report.add(f"{prefix}leave_1_of_1000_s", left, "s")
    report.add(f"{prefix}leave_200_of_1000_rounds", many, "rounds")
    if not prefix:
        _at_most(report, "all join at once: longest", max(took), START_MAX_S)
        _at_most(report, "one of all leaves: median", median(left), LEAVE_1000_MAX_S)
        report.require(max(many) == 1, f"a fifth leaves at once: {max(many)} rounds, one wanted")


def _at_most(report: Report, what: str, seconds: float, most_s: float) -> None:
    report.require(seconds <= most_s, f"{what} {seconds:.3f} s, at most {most_s} s")
