"""Measures what TLS costs: throughput, catch-up and failover beside a plain cluster, in one run.

Two clusters of three nodes stand at the same time. One talks plainly; in the other nodes and
clients use TLS with certificates on both sides (docs/secure.md). They take turns at each
measurement, each first every other time, while the other one rests: its members only heartbeat.
Each ratio and difference is of one such pair.

Throughput: acknowledged commits with 64 in flight, from a process with raw stubs. Catch-up: a node
is killed, the others commit so many MiB, it is started; the time until it has applied them all,
the start of its process included, which is measured, too. Failover: `kill -9` of the node that
leads most, the median over the groups that it led of the time until the first commit at a later
term, as `bench failover` has it.
"""

import argparse
import itertools
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field

from bench.failover import all_own, one_round, statuses
from bench.flood import ACKNOWLEDGED
from bench.raw import PARTITIONS, TOPIC, group_names
from bench.report import Report, Yardstick, median
from musterd.chaos.child import Child, ask_all, close_all
from musterd.chaos.world.equipment.certificates import Certificates
from musterd.chaos.world.world import World

IN_FLIGHT = 64
GROUPS = 48
CLIENTS = 4
MIB_OF_GROUP = 3
"""A group takes almost 4 MiB of `fill`."""
LATE = 2
"""The node that catches up. What is committed meanwhile is of shards that it does not lead."""
POLL_S = 0.02

COMMITS_RATIO_MIN = 0.85
FAILOVER_EXTRA_MAX = 0.3
"""Of the plain cluster's time in the same run. Wished on a quiet machine: 20 ms."""


@dataclass
class Side:
    """One of both clusters, with what loads it."""

    name: str
    cluster: World
    load: Child
    filler: Child
    members: list[Child]
    figures: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench tls")
    parser.add_argument("--rounds", type=int, default=5, help="of throughput, and of catch-up")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured per round")
    parser.add_argument("--mib", type=int, default=48, help="that a node has missed")
    parser.add_argument("--kills", type=int, default=20, help="of each cluster")
    parser.add_argument("--shards", type=int, help="as many as `muster init` gives unless told")
    options = parser.parse_args(arguments)
    report = Report("tls", arguments)
    with ExitStack() as stack:
        worlds = {
            "plain": World(shards=options.shards),
            "tls": World(shards=options.shards, equipment=[Certificates("chaos")]),
        }
        sides = [_side(stack, name, world, options.mib) for name, world in worlds.items()]
        report.say("both clusters serve")
        _measure(report, sides, options)
    _judge(report, *sides)
    return report.finish()


def _side(stack: ExitStack, name: str, cluster: World, mib: int) -> Side:
    stack.enter_context(cluster)
    cluster.create_topic(TOPIC, PARTITIONS)
    cluster.wait_balanced()
    tls = {} if cluster.client_tls is None else {"tls": asdict(cluster.client_tls)}
    shards = cluster.shards
    others = {shard for shard in range(shards) if shard % len(cluster.nodes) != LATE}
    raw = {"endpoints": cluster.endpoints, **tls}
    children: list[Child] = []
    stack.callback(close_all, children)
    load = Child(
        "bench.commit_client",
        raw | {"groups": group_names("commits", GROUPS, shards), "name": name},
    )
    children.append(load)
    groups = group_names("big", mib // MIB_OF_GROUP + 1, shards, others)
    filler = Child("bench.commit_client", raw | {"groups": groups, "simple": True, "name": name})
    children.append(filler)
    names = group_names("failover", GROUPS, shards)
    members = []
    for number in range(CLIENTS):
        config = {"bootstrap": cluster.bootstrap, "groups": names[number::CLIENTS], **tls}
        members.append(Child("bench.sdk_member", config | {"name": f"{name}-{number}"}))
        children.append(members[-1])
    for child in children:
        child.ready(timeout_s=60)
    cluster.wait(lambda: all_own(members), 60.0, "every member owns its partitions")
    ask_all(members, "rest")
    return Side(name, cluster, load, filler, members)


def _measure(report: Report, sides: list[Side], options: argparse.Namespace) -> None:
    before = [statuses(side.members) for side in sides]

    def commits(side: Side) -> None:
        got = side.load.ask(
            "closed", options.seconds + 30, in_flight=IN_FLIGHT, seconds=options.seconds
        )
        rate = got["outcomes"].get(ACKNOWLEDGED, 0) / got["elapsed_s"]
        side.figures["commits_per_s_64"].append(rate)

    _in_turn(report, sides, "commits_per_s_64", commits, options.rounds)
    catch_up = "catch_up_s"
    _in_turn(report, sides, catch_up, lambda side: _catch_up(side, options.mib), options.rounds)
    _in_turn(report, sides, "first_commit_s", _failover, options.kills)
    after = [statuses(side.members) for side in sides]
    report.require(before == after, "no generation changed, nothing was lost, no commit raised")


def _in_turn(
    report: Report, sides: list[Side], key: str, one: Callable[[Side], None], rounds: int
) -> None:
    for number in range(rounds):
        for side in sides if number % 2 else reversed(sides):
            one(side)
        told = ", ".join(f"{side.name} {side.figures[key][-1]:.4g}" for side in sides)
        report.say(f"{key}, {number + 1} of {rounds}: {told}")


def _catch_up(side: Side, mib: int) -> None:
    cluster = side.cluster
    cluster.signal(LATE, signal.SIGKILL)
    cluster.wait_settled()
    side.filler.ask("fill", timeout_s=300, mib=mib)
    goal = _committed(cluster)
    start_s = time.monotonic()
    cluster.start(LATE)
    cluster.wait(lambda: cluster.describe(LATE) is not None, 60.0, "it answers", POLL_S)
    side.figures["start_s"].append(time.monotonic() - start_s)
    cluster.wait(lambda: _has(cluster, goal), 300.0, "it has applied everything", POLL_S)
    side.figures["catch_up_s"].append(time.monotonic() - start_s)
    cluster.wait_settled()
    cluster.wait_balanced()


def _committed(cluster: World) -> dict[int, int]:
    """Shard -> the highest index that a node knows to be committed."""
    found: dict[int, int] = defaultdict(int)
    for state in itertools.chain(*(view.shard_states for view in cluster.views().values())):
        found[state.shard] = max(found[state.shard], state.commit_index)
    return found


def _has(cluster: World, goal: dict[int, int]) -> bool:
    view = cluster.describe(LATE)
    if view is None:
        return False
    applied = {state.shard: state.applied_index for state in view.shard_states}
    return all(applied.get(shard, 0) >= index for shard, index in goal.items())


def _failover(side: Side) -> None:
    ask_all(side.members, "go")
    got = one_round(side.cluster, side.members, signal.SIGKILL, watch_s=0.0)
    ask_all(side.members, "rest")
    side.figures["first_commit_s"].append(median(got.first_s))


def _judge(report: Report, plain: Side, tls: Side) -> None:
    units = {"commits_per_s_64": "1/s", "catch_up_s": "s", "start_s": "s", "first_commit_s": "s"}
    for key, unit in units.items():
        for side in (plain, tls):
            report.add(f"{side.name}_{key}", side.figures[key], unit)

    def pairs(key: str) -> list[tuple[float, float]]:
        return list(zip(plain.figures[key], tls.figures[key], strict=True))

    commits = [ours / bare for bare, ours in pairs("commits_per_s_64")]
    report.add("tls_commits_64_ratio", commits, "ratio")
    report.add("tls_catch_up_ratio", [bare / ours for bare, ours in pairs("catch_up_s")], "ratio")
    extra_ms = [(ours - bare) * 1e3 for bare, ours in pairs("first_commit_s")]
    report.add("tls_failover_extra_ms", extra_ms, "ms")
    report.require(
        median(commits) >= COMMITS_RATIO_MIN,
        f"commits by TLS: median {median(commits):.3f} of plain, at least {COMMITS_RATIO_MIN}",
    )
    bare_ms = 1e3 * median(plain.figures["first_commit_s"])
    report.at_most(
        "failover by TLS: median of what it takes more",
        *(median(extra_ms), FAILOVER_EXTRA_MAX, Yardstick(bare_ms, "ms", "the plain cluster's")),
    )
