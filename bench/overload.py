"""Three times one node's capacity, offered for a minute, while 200 members heartbeat through it.

Three nodes, raw stubs. First the capacity C of the node that leads most shards: closed loop at
concurrency 64, groups of its shards only. Then 3 C in open loop over 20 connections to the same
node, which also coordinates 10 groups of 20 members in 20 client processes. Calls that the load
process could not send when due are reported apart.

What was admitted may take what a call may wait to be taken, and so many times the median of a bare
echo with 64 in flight, taken at rest before and after; so may a heartbeat beyond its interval.
Wished on a quiet machine: under 1 s each.
"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence

from bench import machine
from bench.flood import ACKNOWLEDGED
from bench.raw import PARTITIONS, TOPIC, group_names
from bench.report import Report, Yardstick, median, quantile
from bench.yardstick import Echo
from musterd.chaos.child import Child, Message, ask_all, close_all
from musterd.chaos.world.world import World
from musterd.coordinator.runtime.timeouts import WAIT_MS_MAX

PROCESSES = 20
MEMBER_GROUPS = 10
SESSION_MS = 10_000
COMMIT_GROUPS = 24
WINDOW_S = 10.0
ADMITTED_P99_ECHOES = 75
ADMISSION_S = WAIT_MS_MAX / 1000
HEARTBEAT_ECHOES = 100
GOODPUT_MIN = 0.5
SENT_MIN = 0.95
"""Of what was to be offered; less would prove nothing."""


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench overload")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--factor", type=float, default=3.0)
    parser.add_argument("--connections", type=int, default=20)
    options = parser.parse_args(arguments)
    report = Report("overload", arguments)
    children: list[Child] = []
    with World() as cluster:
        try:
            with Echo() as echo:
                _run(report, cluster, children, echo, options)
        finally:
            close_all(children)
    return report.finish()


def _run(
    report: Report,
    cluster: World,
    children: list[Child],
    echo: Echo,
    options: argparse.Namespace,
) -> None:
    cluster.create_topic(TOPIC, PARTITIONS)
    cluster.wait_balanced()
    node_id, shards = cluster.leads_most()
    load = Child(
        "bench.commit_client",
        {
            "endpoints": cluster.endpoints,
            "groups": group_names("overload", COMMIT_GROUPS, cluster.shards, shards),
            "name": "load",
        },
    )
    children.append(load)
    load.ready(timeout_s=60)
    echo.take()
    grace_s = HEARTBEAT_ECHOES * echo.latency().value
    capacity = _capacity(report, load)
    members = start_members(
        cluster,
        [group_names("members", MEMBER_GROUPS, cluster.shards, shards)] * PROCESSES,
        SESSION_MS,
        children,
        grace_s,
    )
    report.say(f"node {node_id} leads {len(shards)} shards; 200 members are stable")
    before = _Before(cluster, members)
    pids = [child.pid for child in children] + [node.pid for node in cluster.nodes.values()]
    busy = machine.busy(pids)
    got = load.ask(
        "open",
        options.seconds + 60,
        per_s=options.factor * capacity,
        seconds=options.seconds,
        start_s=time.monotonic() + 0.5,
        connections=options.connections,
    )
    others = machine.others_cores(busy, machine.busy(pids))
    report.say(f"other work kept {others:.2f} cores busy meanwhile")
    echo.take()
    echo.add(report)
    _judge_load(report, got, capacity, options, echo.latency())
    before.judge(report, cluster, members, grace_s)


def _capacity(report: Report, client: Child) -> float:
    """C: the median of three closed-loop runs at concurrency 64, acknowledged commits/s."""
    rates = []
    for _ in range(3):
        got = client.ask("closed", 60, in_flight=64, seconds=4.0)
        rates.append(got["outcomes"].get(ACKNOWLEDGED, 0) / got["elapsed_s"])
    report.say(f"capacity of one node: {', '.join(f'{rate:,.0f}' for rate in rates)} commits/s")
    return median(rates)


def _judge_load(
    report: Report,
    got: Message,
    capacity: float,
    options: argparse.Namespace,
    echo: Yardstick,
) -> None:
    outcomes: Counter[str] = Counter(got["outcomes"])
    offered, never_sent = got["offered"], got["never_sent"]
    goodput = outcomes[ACKNOWLEDGED] / options.seconds
    sent = (offered - never_sent) / options.seconds / capacity
    report.say(
        f"offered {offered:,} calls, {never_sent:,} of them were never sent: {sent:.2f} C went out"
    )
    report.require(
        sent >= SENT_MIN * options.factor, f"at least {SENT_MIN * options.factor:.2f} C went out"
    )
    report.say(f"answers: {dict(outcomes)}; goodput {goodput:,.0f}/s is {goodput / capacity:.2f} C")
    acknowledged = got["acknowledged"]
    windows: dict[int, list[float]] = {}
    for due_s, latency_s in acknowledged:
        windows.setdefault(int(due_s // WINDOW_S), []).append(latency_s)
    report.add("admitted_p99_s", [quantile(one, 0.99) for one in windows.values()], "s")
    p99_s = quantile((latency_s for _, latency_s in acknowledged), 0.99)
    report.at_most("admitted: p99", p99_s, ADMITTED_P99_ECHOES, echo, ADMISSION_S)
    wrong = {
        what: number
        for what, number in outcomes.items()
        if what not in (ACKNOWLEDGED, "RESOURCE_EXHAUSTED")
    }
    report.require(not wrong, f"every other answer is RESOURCE_EXHAUSTED (not so: {wrong})")
    report.require(
        goodput >= GOODPUT_MIN * capacity, f"goodput is at least {GOODPUT_MIN} C ({capacity:,.0f})"
    )


class _Before:
    """The terms and members before the load, which it must not change."""

    def __init__(self, cluster: World, members: list[Child]) -> None:
        self.terms = cluster.terms()
        self.members = [one["generations"] for one in ask_all(members, "status")]
        ask_all(members, "begin")

    def judge(self, report: Report, cluster: World, members: list[Child], grace_s: float) -> None:
        """Compare with now; adds leader_changes and heartbeats_failed."""
        got = ask_all(members, "report")
        after = cluster.terms()
        changes = sum(after[shard] - term for shard, term in self.terms.items())
        report.add_count("leader_changes", changes)
        report.require(changes == 0, "no shard changed its leader")
        failures: Counter[str] = Counter()
        for one in got:
            failures.update(one["failures"])
        report.add_count("heartbeats_failed", sum(failures.values()))
        answered = sum(one["answered"] for one in got)
        late_s = [late_s for one in got for late_s in one["over_interval_s"]]
        report.say(
            f"{answered:,} heartbeats answered, at most {max(late_s):.2f} s over their interval"
        )
        report.require(
            not failures and min(len(one["over_interval_s"]) for one in got) > 0,
            f"every heartbeat was answered within its interval and {grace_s:.2f} s, "
            f"{HEARTBEAT_ECHOES} times a bare echo's median ({dict(failures)})",
        )
        report.require(
            [one["generations"] for one in got] == self.members, "nobody expired or rejoined"
        )


def start_members(
    cluster: World,
    groups: list[list[str]],
    session_ms: int,
    children: list[Child],
    grace_s: float,
) -> list[Child]:
    """One client process per list of groups, joined at once; waits until all share a generation.

    A heartbeat that is not answered `grace_s` after its interval has failed.
    """
    members = [
        Child(
            "bench.member_client",
            {
                "endpoints": cluster.endpoints,
                "groups": own,
                "session_timeout_ms": session_ms,
                "grace_s": grace_s,
                "name": f"client-{number}",
            },
        )
        for number, own in enumerate(groups)
    ]
    children += members
    for member in members:
        member.ready(timeout_s=60)
    ask_all(members, "join", timeout_s=120)

    def stable() -> bool:
        seen: dict[str, set[int | None]] = {}
        for one in ask_all(members, "status"):
            for group, generation in one["generations"]:
                seen.setdefault(group, set()).add(generation)
        return all(len(each) == 1 and None not in each for each in seen.values())

    cluster.wait(stable, 60.0, "all members in one generation of their group")
    return members
