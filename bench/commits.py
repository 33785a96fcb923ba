"""Acknowledged OffsetCommits a second, beside a bare grpc.aio echo of the same messages.

Three nodes, 48 groups with a member each, leaders spread; one client process with raw stubs at
concurrency 1, 64, 1024, in rounds that alternate with the same client against the echo. At 64 and
1024 commits have to come at a share of the rate that the echo would have if each call waited for
two fsyncs of the same run, the leader's and a follower's; at 64 one has to cost at most four times
the echo's CPU, all processes together. The wish is 0.4 of the echo's rate on a quiet machine.

Then the same commits through streams, in frames (`bench.session_client`), by 1, 4 and 16 client
processes that share what is in flight. Each is printed; the figure of a concurrency is that of the
number of processes whose median is highest. As many then commit 20 partitions at a time.

Then the CPU of one commit, in microseconds, where all groups are led by one node: of the client,
the leader and a follower, and of the echo's client and server beside them, by layer
(bench/cpu/commits.py). A second table is of commits through streams, where one node leads and where
each leads a third.

With six shards unless `--shards` says otherwise, which decides how many commits share an entry
(docs/adr/0042, docs/adr/0044).
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from bench import machine
from bench.cpu.commits import GROUPS, WARM_S, profile_calls, profile_streams
from bench.cpu.split import SampledNodes
from bench.flood import ACKNOWLEDGED
from bench.raw import PARTITIONS, TOPIC, group_names
from bench.report import Report, median, quantile
from musterd.chaos.child import Child, Message, ask_all, close_all
from musterd.chaos.world.world import World
from musterd.coordinator.node.doctor import sync_times

IN_FLIGHT = (1, 64, 1024)
PROCESSES = (1, 4, 16)
"""Of clients, through streams."""
MANY = 20
"""Partitions of a larger commit."""
RATIO_MIN = 0.15
"""Of the rates, at 64 and 1024: the median over the rounds. A commit needs four processes, the echo
two, so that other work takes more from it."""

CPU_RATIO_MAX = 4.0
"""Of the CPU of all processes for one call, at 64: the median over the rounds."""

SYNCS = 2
"""That a commit waits for, one after the other: the leader's and a follower's."""


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench commits")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured per round")
    parser.add_argument("--no-profile", action="store_true", help="without CPU by layer")
    parser.add_argument(
        "--profile-at", type=int, nargs="+", default=[64], metavar="N", help="calls in flight"
    )
    parser.add_argument(
        "--profile-seconds", type=float, default=8.0, help="by clocks, then as long with samples"
    )
    parser.add_argument("--shards", type=int, help="as many as `muster init` gives unless told")
    options = parser.parse_args(arguments)
    report = Report("commits", arguments)
    nodes = SampledNodes()
    with World(shards=options.shards, equipment=[nodes]) as cluster:
        report.say(f"three nodes serve {cluster.shards} shards")
        if options.rounds:
            _measure(report, cluster, options.rounds, options.seconds)
            _sessions(report, cluster, options.rounds, options.seconds)
        if not options.no_profile:
            for in_flight in options.profile_at:
                profile_calls(report, cluster, nodes, in_flight, options.profile_seconds)
                profile_streams(report, cluster, nodes, in_flight, options.profile_seconds)
    return report.finish()


def synced_rate(echo_per_s: float, in_flight: int, fsync_s: float) -> float:
    """The rate of the echo, calls/s, if each of its calls waited for the fsyncs of a commit."""
    return in_flight / (in_flight / echo_per_s + SYNCS * fsync_s)


def _measure(report: Report, cluster: World, rounds: int, seconds: float) -> None:
    client = _client(cluster)
    echo = Child("bench.echo_server", {})
    children = [client, echo]
    try:
        echo_client = Child("bench.commit_client", {"echo": echo.ready()["endpoint"]})
        children.append(echo_client)
        echo_client.ready()
        client.ready(timeout_s=60)
        rates: dict[str, list[float]] = defaultdict(list)
        pids = {
            "echo": [echo.pid, echo_client.pid],
            "commits": [client.pid, *(node.pid for node in cluster.nodes.values())],
        }
        syncs_s: list[float] = []
        p99_ms: list[float] = []
        outcomes: dict[int, Counter[str]] = defaultdict(Counter)
        for number in range(rounds):
            syncs_s.append(median(sync_times(cluster.directory)))
            for in_flight in IN_FLIGHT:
                pair = [("echo", echo_client), ("commits", client)]
                for what, one in pair if number % 2 else reversed(pair):
                    before_s = _cpu_s(pids[what])
                    got = one.ask("closed", seconds + 30, in_flight=in_flight, seconds=seconds)
                    used_us = 1e6 * (_cpu_s(pids[what]) - before_s)
                    rates[f"{what}_cpu_us_{in_flight}"].append(used_us / got["acknowledged"])
                    rate = got["outcomes"].get(ACKNOWLEDGED, 0) / got["elapsed_s"]
                    rates[f"{what}_per_s_{in_flight}"].append(rate)
                    if what == "commits":
                        outcomes[in_flight].update(got["outcomes"])
                    if what == "commits" and in_flight == 64:
                        p99_ms.append(quantile(got["latencies_s"], 0.99) * 1e3)
                    report.say(f"round {number + 1}: {what} at {in_flight}: {got['outcomes']}")
    finally:
        close_all(reversed(children))
    report.add("fsync_ms", [1e3 * one for one in syncs_s], "ms")
    for in_flight in IN_FLIGHT:
        _judge(report, in_flight, rates, syncs_s, outcomes[in_flight])
    report.add("commit_p99_ms_64", p99_ms, "ms")


def _judge(
    report: Report,
    in_flight: int,
    rates: dict[str, list[float]],
    syncs_s: list[float],
    told: Counter[str],
) -> None:
    commits, bare = rates[f"commits_per_s_{in_flight}"], rates[f"echo_per_s_{in_flight}"]
    report.add(f"commits_per_s_{in_flight}", commits, "1/s")
    report.add(f"echo_per_s_{in_flight}", bare, "1/s")
    of_echo = [ours / echo for ours, echo in zip(commits, bare, strict=True)]
    report.add(f"commits_of_echo_{in_flight}", of_echo, "ratio")
    ratios = [
        ours / synced_rate(echo, in_flight, sync_s)
        for ours, echo, sync_s in zip(commits, bare, syncs_s, strict=True)
    ]
    report.add(f"commits_of_synced_echo_{in_flight}", ratios, "ratio")
    costs, bare_costs = rates[f"commits_cpu_us_{in_flight}"], rates[f"echo_cpu_us_{in_flight}"]
    report.add(f"commits_cpu_us_{in_flight}", costs, "us")
    report.add(f"echo_cpu_us_{in_flight}", bare_costs, "us")
    if in_flight == 1:
        return
    if in_flight == 64:
        cost = median(ours / echo for ours, echo in zip(costs, bare_costs, strict=True))
        report.require(
            cost <= CPU_RATIO_MAX,
            f"at {in_flight}: median {cost:.2f} times the echo's CPU, at most {CPU_RATIO_MAX}",
        )
    report.require(
        median(ratios) >= RATIO_MIN,
        f"at {in_flight}: median {median(ratios):.3f} of the echo with {SYNCS} fsyncs, "
        f"at least {RATIO_MIN}",
    )
    refused = told.total() - told[ACKNOWLEDGED]
    report.say(f"at {in_flight}: {refused} of {told.total()} commits were refused: overload")


def _cpu_s(pids: Sequence[int]) -> float:
    return sum(machine.cpu_s(pid) for pid in pids)


def _client(cluster: World) -> Child:
    cluster.create_topic(TOPIC, PARTITIONS)
    cluster.wait_balanced()
    groups = group_names("commits", GROUPS, cluster.shards)
    return Child("bench.commit_client", {"endpoints": cluster.endpoints, "groups": groups})


# ---- through streams


def _sessions(report: Report, cluster: World, rounds: int, seconds: float) -> None:
    """Rates by concurrency and number of client processes, in rounds that alternate."""
    tried: dict[tuple[int, int], list[_Taken]] = defaultdict(list)
    of_many: dict[int, list[_Taken]] = defaultdict(list)
    with ExitStack() as stack:
        clients = {count: _session_clients(cluster, count, stack) for count in PROCESSES}
        for some in clients.values():
            _take(cluster, some, len(some), WARM_S, 1)
        for number in range(rounds):
            for in_flight in IN_FLIGHT:
                for count in (one for one in PROCESSES if one <= in_flight):
                    one = _take(cluster, clients[count], in_flight, seconds, 1)
                    tried[in_flight, count].append(one)
                    report.say(
                        f"round {number + 1}: streams of {count} processes at {in_flight}: "
                        f"{dict(one.outcomes)}"
                    )
        for in_flight in IN_FLIGHT:
            best = _best(tried, in_flight)
            of_many[in_flight] += (
                _take(cluster, clients[best], in_flight, seconds, MANY) for _ in range(rounds)
            )
    for (in_flight, count), taken in tried.items():
        key = f"session_commits_per_s_{in_flight}_by_{count}"
        report.add(key, [one.per_s for one in taken], "1/s")
    for in_flight in IN_FLIGHT:
        taken = tried[in_flight, _best(tried, in_flight)]
        report.add(f"session_commits_per_s_{in_flight}", [one.per_s for one in taken], "1/s")
        report.add(f"session_commits_cpu_us_{in_flight}", [one.cpu_us for one in taken], "us")
        report.add(f"session_commit_p99_ms_{in_flight}", [one.p99_ms for one in taken], "ms")
    for in_flight, taken in of_many.items():
        key = f"session_commits_of_{MANY}_per_s_{in_flight}"
        report.add(key, [one.per_s for one in taken], "1/s")


class _Taken(NamedTuple):
    """The figures of one loop of all processes."""

    outcomes: Counter[str]
    per_s: float
    cpu_us: float
    p99_ms: float


def _best(tried: Mapping[tuple[int, int], Sequence[_Taken]], in_flight: int) -> int:
    """The number of processes with the highest median rate."""
    rates = {
        count: median(one.per_s for one in taken)
        for (number, count), taken in tried.items()
        if number == in_flight
    }
    return max(rates, key=rates.__getitem__)


def _take(
    cluster: World, clients: Sequence[Child], in_flight: int, seconds: float, partitions: int
) -> _Taken:
    pids = [one.pid for one in clients] + [node.pid for node in cluster.nodes.values()]
    share = in_flight // len(clients)
    asked = {"in_flight": share, "seconds": seconds, "partitions": partitions}
    before_s = _cpu_s(pids)
    got = ask_all(clients, "closed", seconds + 30, **asked)
    used_us = 1e6 * (_cpu_s(pids) - before_s)
    outcomes = sum((Counter(one["outcomes"]) for one in got), Counter[str]())
    latencies_s = [late for one in got for late in one["latencies_s"]]
    return _Taken(
        outcomes,
        outcomes[ACKNOWLEDGED] / seconds,
        used_us / sum(one["acknowledged"] for one in got),
        quantile(latencies_s, 0.99) * 1e3,
    )


def _session_clients(cluster: World, count: int, stack: ExitStack) -> list[Child]:
    """So many processes that share the groups, ready."""
    groups = group_names(f"session-{count}", GROUPS, cluster.shards)
    clients = []
    for number in range(count):
        config: Message = {
            "endpoints": cluster.endpoints,
            "groups": groups[number::count],
            "name": f"session-{number}",
        }
        clients.append(Child("bench.session_client", config))
        stack.callback(clients[-1].close)
    for client in clients:
        client.ready(timeout_s=60)
    return clients
