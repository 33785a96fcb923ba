"""Measures how long a group of 100 or 1,000 members takes to agree again after one comes or goes.

Three nodes, members in client processes of their own, one held heartbeat call per process: by raw
stubs, whose figures have limits, and, with `sdk_` before the name, by the SDK, as users have it.
Every figure is the time from the first request that caused the round to the last assignment of the
new generation, over all members. Who leaves comes from one process after the other. Beside each
stands what Kafka showed.

With `--assignment server` the coordinator assigns. There are no rounds then: a figure is the time
until every partition is held again, and everybody holds an even share. Each change comes after a
moment of quiet.

Limits are what timers wait, and the time in which a bare echo answers so many calls of each member
with 64 in flight, taken before, between and after. Wished on a quiet machine: 3 s for 1,000 that
start, and for what a killed process owned; 0.2 s for one that leaves or joins 100, 1 s of 1,000.
Where the coordinator assigns: 2 s, 2.5 s, 0.10 s for one that leaves 100, 0.15 s for one that
joins.

A short form: `--starts 3 --rounds 5 --only sdk`.
"""

import argparse
import os
import re
import signal
import time
from collections.abc import Sequence
from typing import NamedTuple

from bench.raw import PARTITIONS, TOPIC
from bench.report import Report, Yardstick, median
from bench.yardstick import Echo
from musterd.chaos.child import Child, ask_all, close_all
from musterd.chaos.world.world import World
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.runtime.timeouts import DISCONNECT_GRACE_MS

PROCESSES = 20
WAYS = {"": "bench.member_client", "sdk_": "bench.fleet_client"}
"""What stands before a figure's name, and which client processes it is measured with."""

SESSION_MS = 10_000
LEAVES_OF_MANY = 3
POLL_S = 0.2
"""Between two looks at all members, who say themselves since when they are stable: each look takes
CPU from what is measured."""

QUIET_S = 0.5
"""Before each change: longer than any group puts its next plan off."""
PATIENCE_S = 120.0

INITIAL_DELAY_S = LIMITS.initial_delay_ms / 1000
GRACE_S = DISCONNECT_GRACE_MS / 1000

_HELD = re.compile(r"^muster_heartbeats_held (\S+)$", re.MULTILINE)

KAFKA = {
    "start_1000_s": "6.3 s; 0.4 s without its initial delay; modern protocol 10.6 s",
    "leave_1_of_100_s": "0.5 s; modern protocol 3.9 s",
    "leave_1_of_1000_s": "1.7 s; modern protocol 3.9 s",
    "join_1_to_100_s": "0.9 s; cooperative 4.8 s; modern protocol 5.0 s",
    "kill9_member_owned_again_s": "45 s",
}
"""Three brokers of Kafka 4.4 with their defaults, on a machine of this size."""


class Small(NamedTuple):
    """Of a group of 100: seconds."""

    left: list[float]
    joined: list[float]
    killed: list[float]


class Large(NamedTuple):
    """Of groups of many: seconds of starts and leaves, and rounds of a fifth that leaves."""

    took: list[float]
    left: list[float]
    many: list[int]


class CallLimits(NamedTuple):
    """Calls of a bare echo, of each member of the group; and seconds of a timer."""

    start: float
    start_timer_s: float
    leave_of_100: float
    leave_of_many: float
    join_to_100: float
    owned_again: float


AT_MOST = {
    "client": CallLimits(18, INITIAL_DELAY_S, 14, 7, 14, 70),
    "server": CallLimits(11, 0, 6, 7, 9, 28),
}
"""By who assigns."""


class Fleet:
    """One group's members, spread evenly over client processes."""

    def __init__(
        self, cluster: World, group: str, members: int, module: str, assignment: str
    ) -> None:
        """Start the processes, each with one member more than its share; nobody joins yet."""
        self._cluster = cluster
        self._in_rounds = assignment == "client"
        self._each = each = members // PROCESSES
        self.processes = [
            Child(
                module,
                {
                    "endpoints": cluster.endpoints,
                    "groups": [group] * (each + 1),
                    "session_timeout_ms": SESSION_MS,
                    "name": f"{group}-{number}",
                    "assignment": assignment,
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
        if self._in_rounds and generation != 1:
            raise ValueError(f"the start took {generation} generations")
        return stable_s - min(float(one["began_s"]) for one in began)

    def agreed(self, above: int) -> tuple[int, float]:
        """Wait for one generation beyond `above`: which, and when the last member had it.

        Where the coordinator assigns, until everything is shared out evenly; the generation is the
        highest epoch of a member.
        """
        found: tuple[int, float] = (0, 0.0)

        def shared_out() -> bool:
            nonlocal found
            told = ask_all(self.processes, "status")
            if not evenly_shared([share for one in told for _, share in one["shares"]], PARTITIONS):
                return False
            generations = [gen for one in told for _, gen in one["generations"]]
            if None in generations:
                return False
            found = max(generations), max(one["stable_s"] for one in told)
            return True

        def one_generation() -> bool:
            nonlocal found
            told = ask_all(self.processes, "status")
            generations = {gen for one in told for _, gen in one["generations"]}
            if len(generations) != 1 or None in generations:
                return False
            found = (generations.pop(), max(one["stable_s"] for one in told))
            return found[0] > above

        if self._in_rounds:
            self._cluster.wait(one_generation, PATIENCE_S, "all members in one generation", POLL_S)
        else:
            self._cluster.wait(shared_out, PATIENCE_S, "all partitions shared out evenly", POLL_S)
        return found

    def leave(self, processes: Sequence[Child], count: int) -> tuple[float, int]:
        """`count` members of each process leave: seconds and rounds until the rest agree."""
        before, _ = self._rest()
        began = ask_all(processes, "leave", 60, count=count)
        after, stable_s = self.agreed(above=before)
        return stable_s - min(one["began_s"] for one in began), after - before

    def join(self, process: Child, count: int) -> float:
        """`count` members that are not in the group join: seconds until all agree."""
        before, _ = self._rest()
        began = process.ask("join", PATIENCE_S, count=count)
        _, stable_s = self.agreed(above=before)
        return stable_s - float(began["began_s"])

    def kill(self) -> float:
        """Kill -9 the last process: seconds until the others have shared out what it owned."""
        before, _ = self._rest()
        # A member that is killed before its first heartbeat has its whole session. A process has
        # one held call at the coordinator.
        self._cluster.wait(self._all_heartbeat, PATIENCE_S, "a held heartbeat of each process")
        victim = self.processes.pop()
        at_s = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        _, stable_s = self.agreed(above=before)
        victim.close()
        return stable_s - at_s

    def _rest(self) -> tuple[int, float]:
        """What holds before a change: `agreed`, and quiet."""
        now = self.agreed(above=0)
        time.sleep(QUIET_S)
        return now

    def _all_heartbeat(self) -> bool:
        pages = [self._cluster.metrics(node_id) for node_id in self._cluster.nodes]
        held = sum(int(float(calls)) for page in pages for calls in _HELD.findall(page))
        return held >= len(self.processes)

    def close(self) -> None:
        close_all(self.processes)


def evenly_shared(shares: Sequence[int], partitions: int) -> bool:
    """Whether members with these numbers of partitions have all of them, as even as can be."""
    return sum(shares) == partitions and max(shares) - min(shares) <= 1


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench rebalance")
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--large", type=int, default=1000)
    parser.add_argument("--assignment", choices=("client", "server"), default="client")
    parser.add_argument("--only", choices=("raw", "sdk"))
    options = parser.parse_args(arguments)
    report = Report("rebalance", arguments)
    with World() as cluster, Echo() as echo:
        cluster.create_topic(TOPIC, PARTITIONS)
        cluster.wait_balanced()
        for prefix, module in WAYS.items():
            if options.only not in (None, "sdk" if prefix else "raw"):
                continue
            echo.take()
            small = _small(report, cluster, options, prefix, module)
            large = _large(report, cluster, options, prefix, module)
            echo.take()
            if not prefix or options.assignment == "server":
                limits = AT_MOST[options.assignment]
                _judge_small(report, small, limits, echo.calls(100))
                _judge_large(report, large, limits, echo.calls(options.large))
        echo.add(report)
    for key, seen in KAFKA.items():
        report.say(f"Kafka 4.4 beside {key}: {seen}")
    return report.finish()


def _small(
    report: Report, cluster: World, options: argparse.Namespace, prefix: str, module: str
) -> Small:
    rounds = options.rounds
    fleet = Fleet(cluster, f"{prefix}hundred", 100, module, options.assignment)
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
    return Small(left, joined, killed)


def _judge_small(report: Report, got: Small, limits: CallLimits, calls: Yardstick) -> None:
    report.at_most("one of 100 leaves: median", median(got.left), limits.leave_of_100, calls)
    report.at_most("one more joins 100: median", median(got.joined), limits.join_to_100, calls)
    what = "a killed process' share is owned again after"
    report.at_most(what, max(got.killed), limits.owned_again, calls, GRACE_S)


def _large(
    report: Report, cluster: World, options: argparse.Namespace, prefix: str, module: str
) -> Large:
    took = []
    starts, rounds, members = options.starts, options.rounds, options.large
    for number in range(starts):
        fleet = Fleet(cluster, f"{prefix}start-{number}", members, module, options.assignment)
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
                for _ in range(LEAVES_OF_MANY if options.assignment == "client" else 0):
                    many.append(fleet.leave(fleet.processes, fifth)[1])
                    ask_all(fleet.processes, "join", PATIENCE_S, count=fifth)
                    fleet.agreed(above=0)
        finally:
            fleet.close()
    report.add(f"{prefix}start_1000_s", took, "s")
    report.add(f"{prefix}leave_1_of_1000_s", left, "s")
    if options.assignment == "client":
        report.add(f"{prefix}leave_200_of_1000_rounds", many, "rounds")
    return Large(took, left, many)


def _judge_large(report: Report, got: Large, limits: CallLimits, calls: Yardstick) -> None:
    what = "all join at once: longest"
    report.at_most(what, max(got.took), limits.start, calls, limits.start_timer_s)
    report.at_most("one of all leaves: median", median(got.left), limits.leave_of_many, calls)
    if not got.many:
        return
    rounds = max(got.many)
    report.require(rounds == 1, f"a fifth leaves at once: {rounds} rounds, one wanted")
