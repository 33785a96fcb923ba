"""Acknowledged OffsetCommits a second, beside a bare grpc.aio echo of the same messages.

Three nodes, 48 groups with a member each, leaders spread; one client process with raw stubs at
concurrency 1, 64, 1024, in rounds that alternate with the same client against the echo. The ratio
of each round is the figure; at 64 and 1024 it has to be 0.4 at least. Afterwards a second cluster
runs under cProfile at concurrency 64 and says where the time goes, and how much of it is ours; its
rate does not count.
"""

import argparse
import pstats
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from bench.flood import ACKNOWLEDGED
from bench.raw import PARTITIONS, TOPIC, group_names
from bench.report import Report, median, quantile
from musterd.chaos.child import Child, close_all
from musterd.chaos.world.world import World
from musterd.coordinator.node.launcher import Equipment

IN_FLIGHT = (1, 64, 1024)
RATIO_MIN = 0.4
"""At 64 and 1024: the median over the rounds."""

GROUPS = 48


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench commits")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured per round")
    parser.add_argument("--no-profile", action="store_true")
    options = parser.parse_args(arguments)
    report = Report("commits", arguments)
    with World() as cluster:
        report.say("three nodes serve")
        _measure(report, cluster, options.rounds, options.seconds)
    if not options.no_profile:
        _profile(report, options.seconds)
    return report.finish()


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
        p99_ms: list[float] = []
        outcomes: dict[int, Counter[str]] = defaultdict(Counter)
        for number in range(rounds):
            for in_flight in IN_FLIGHT:
                pair = [("echo", echo_client), ("commits", client)]
                for what, one in pair if number % 2 else reversed(pair):
                    got = one.ask("closed", seconds + 30, in_flight=in_flight, seconds=seconds)
                    rate = got["outcomes"].get(ACKNOWLEDGED, 0) / got["elapsed_s"]
                    rates[f"{what}_per_s_{in_flight}"].append(rate)
                    if what == "commits":
                        outcomes[in_flight].update(got["outcomes"])
                    if what == "commits" and in_flight == 64:
                        p99_ms.append(quantile(got["latencies_s"], 0.99) * 1e3)
                    report.say(f"round {number + 1}: {what} at {in_flight}: {got['outcomes']}")
    finally:
        close_all(reversed(children))
    for in_flight in IN_FLIGHT:
        commits, bare = rates[f"commits_per_s_{in_flight}"], rates[f"echo_per_s_{in_flight}"]
        report.add(f"commits_per_s_{in_flight}", commits, "1/s")
        report.add(f"echo_per_s_{in_flight}", bare, "1/s")
        ratios = [ours / echo for ours, echo in zip(commits, bare, strict=True)]
        report.add(f"commits_of_echo_{in_flight}", ratios, "ratio")
        if in_flight == 1:
            continue
        report.require(
            median(ratios) >= RATIO_MIN,
            f"at {in_flight}: median {median(ratios):.3f} of the echo, at least {RATIO_MIN}",
        )
        told = outcomes[in_flight]
        refused = told.total() - told[ACKNOWLEDGED]
        report.say(f"at {in_flight}: {refused} of {told.total()} commits were refused: overload")
    report.add("commit_p99_ms_64", p99_ms, "ms")


def _client(cluster: World) -> Child:
    cluster.create_topic(TOPIC, PARTITIONS)
    cluster.wait_balanced()
    groups = group_names("commits", GROUPS, cluster.shards)
    return Child("bench.commit_client", {"endpoints": cluster.endpoints, "groups": groups})


# ---- where the time goes

PLACES = {
    "coordinator, machine": ("/coordinator/machine/",),
    "coordinator, api": ("/coordinator/api/",),
    "coordinator, codec": ("/coordinator/codec",),
    "coordinator, the rest": ("/coordinator/",),
    "raft": ("/raft/",),
    "pysyncobj": ("/pysyncobj/",),
    "storage": ("/storage/", "Rdict", "WriteBatch", "rocksdict"),
    "protobuf": ("google/protobuf", "google._upb", "SerializeToString", "FromString"),
    "grpc": ("grpc",),
    "asyncio": ("/asyncio/", "_asyncio"),
    "sockets": ("'socket", "_socket"),
}
OURS = ("coordinator", "raft", "pysyncobj", "storage")
WAITING = ("select.epoll",)


class _Profiler(Equipment):
    """Every node runs under cProfile; its figures stand beside its log."""

    def prepare(self, node_id: int, data_dir: Path) -> None:  # noqa: ARG002
        self._folder = data_dir.parent

    def command(self, node_id: int, argv: list[str]) -> list[str]:
        """With the profiler around the module."""
        to = self._folder / f"node-{node_id}.profile"
        return [*argv[:2], "-m", "cProfile", "-o", str(to), *argv[2:]]


def _profile(report: Report, seconds: float) -> None:
    """One more run with every node under cProfile: self time by place and the longest functions."""
    with World(equipment=[_Profiler()]) as cluster:
        client = _client(cluster)
        try:
            client.ready(timeout_s=60)
            client.ask("closed", seconds + 30, in_flight=64, seconds=seconds)
        finally:
            client.close()
        files = []
        for node in cluster.nodes.values():
            cluster.stop(node.node_id)
            files.append(node.log_path.with_suffix(".profile"))
        stats = pstats.Stats(*map(str, files))
    _print_profile(report, stats)


def _print_profile(report: Report, stats: pstats.Stats) -> None:
    places: dict[str, float] = defaultdict(float)
    functions: list[tuple[float, int, str]] = []
    # The table is pstats' own: (file, line, name) -> (calls, calls, self s, cumulative s, callers).
    table = vars(stats)["stats"]
    for (file, line, name), (_, calls, self_s, _, _) in table.items():
        label = f"{file}:{line} {name}" if line else name
        if any(mark in label for mark in WAITING):
            continue
        place = next(
            (place for place, marks in PLACES.items() if any(mark in label for mark in marks)),
            "other",
        )
        places[place] += self_s
        functions.append((self_s, calls, label))
    total_s = sum(places.values())
    report.say(f"profile of the three nodes' loops at 64, {total_s:.1f} s of work, self time:")
    ours_s = sum(s for place, s in places.items() if place.startswith(OURS))
    report.say(
        f"  {ours_s / total_s:6.1%} ours: coordinator, raft, storage and the PySyncObj beneath"
    )
    for place, self_s in sorted(places.items(), key=lambda item: -item[1]):
        report.say(f"  {self_s / total_s:6.1%} {place}")
    for self_s, calls, label in sorted(functions, reverse=True)[:25]:
        report.say(f"  {self_s / total_s:6.1%} {calls:>9,} calls {_tail(label)}")


def _tail(label: str) -> str:
    return label if len(label) <= 70 else "..." + label[-67:]
