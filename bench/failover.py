"""Measures how long a group has no acknowledged commit when its coordinator's node dies.

Three nodes, 48 groups over six shards, each with a member of the public SDK in client processes of
their own: held heartbeat, one commit always in flight. Ten times the node that leads most shards is
killed with `kill -9` and restarted; ten times it is stopped with SIGSTOP and continued. For every
group that it led: the time from the signal to the first commit that a coordinator of a later term
acknowledged. For the other groups: their longest gap between two acknowledgements around the kill.

Limits are what timers wait, and so many times the median of a bare echo with 64 in flight, taken
while the members rest. Wished on a quiet machine: after a kill a median of 0.15 s, a p95 of 0.5 s
and no gap of others above 0.3 s; after SIGSTOP a median of 1 s.
"""

import argparse
import signal
import time
from collections.abc import Sequence
from typing import NamedTuple

from bench.raw import TOPIC, group_names, shard_of
from bench.report import Report, Yardstick, median, quantile
from bench.yardstick import Echo
from musterd.chaos.child import Child, ask_all, close_all
from musterd.chaos.world.world import World
from musterd.coordinator.node.loopback import ClusterError
from musterd.raft.settings import RaftSettings

GROUPS = 48
PARTITIONS = 4
CLIENTS = 8
WATCH_S = 3.0
"""How long after the signal a gap of a group that was not led there is looked for."""
CALM_S = 1.0
"""Commits flow this long before each signal."""
FIRST_COMMIT_MAX_S = 30.0

KILL_MEDIAN_ECHOES, KILL_P95_ECHOES, KILL_OTHERS_ECHOES = 25, 40, 30
STOP_MEDIAN_ECHOES = 30
RAFT = RaftSettings()
VOTE_S = RAFT.bystander_min_ms / 1000
VOTES_S = RAFT.bystander_max_ms / 1000
ELECTION_S = RAFT.election_max_ms / 1000


class Commit(NamedTuple):
    """One acknowledged commit, CLOCK_MONOTONIC seconds."""

    sent_s: float
    acknowledged_s: float
    term: int


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench failover")
    parser.add_argument("--rounds", type=int, default=10, help="kill -9 and restart")
    parser.add_argument("--stop-rounds", type=int, help="SIGSTOP and continue; default: as rounds")
    options = parser.parse_args(arguments)
    report = Report("failover", arguments)
    clients: list[Child] = []
    with World() as cluster:
        try:
            stops = options.rounds if options.stop_rounds is None else options.stop_rounds
            with Echo() as echo:
                _run(report, cluster, clients, echo, options.rounds, stops)
        finally:
            close_all(clients)
    return report.finish()


def _run(
    report: Report, cluster: World, clients: list[Child], echo: Echo, kills: int, stops: int
) -> None:
    cluster.create_topic(TOPIC, PARTITIONS)
    cluster.wait_balanced()
    names = group_names("failover", GROUPS, cluster.shards)
    bootstrap = ",".join(cluster.endpoints)
    for number in range(CLIENTS):
        config = {"bootstrap": bootstrap, "groups": names[number::CLIENTS], "name": f"c{number}"}
        clients.append(Child("bench.sdk_member", config))
    for client in clients:
        client.ready(timeout_s=60)
    cluster.wait(lambda: all_own(clients), 60.0, "every member owns its partitions")
    before = statuses(clients)
    _take(clients, echo)
    killed = _rounds(report, cluster, clients, signal.SIGKILL, kills)
    _take(clients, echo)
    stopped = _rounds(report, cluster, clients, signal.SIGSTOP, stops)
    _take(clients, echo)
    after = statuses(clients)
    report.add("kill9_first_commit_s", killed.first_s, "s")
    report.add("kill9_other_groups_gap_s", killed.gap_s, "s")
    report.add("sigstop_first_commit_s", stopped.first_s, "s")
    echo.add(report)
    _judge(report, killed, stopped, echo.latency())
    report.require(
        before == after,
        "no generation changed, nothing was lost, no commit raised "
        f"({[group for group in before if before[group] != after[group]]})",
    )


def _take(clients: list[Child], echo: Echo) -> None:
    """Measure the yardstick while no member commits."""
    ask_all(clients, "rest")
    echo.take()
    ask_all(clients, "go")


class Figures(NamedTuple):
    """Of all rounds of one signal: seconds."""

    first_s: list[float]
    gap_s: list[float]


def _rounds(
    report: Report, cluster: World, clients: list[Child], number: signal.Signals, rounds: int
) -> Figures:
    figures = Figures([], [])
    for count in range(rounds):
        got = one_round(cluster, clients, number)
        figures.first_s.extend(got.first_s)
        figures.gap_s.extend(got.gap_s)
        report.say(
            f"{number.name} {count + 1}: {len(got.first_s)} groups moved, first commit after "
            f"{min(got.first_s):.3f} / {median(got.first_s):.3f} / {max(got.first_s):.3f} s "
            f"(min, median, max); {_longest(got.gap_s)}"
        )
    return figures


def _longest(gaps_s: list[float]) -> str:
    """A node that led every shard leaves no others whose gap could be measured."""
    return f"longest gap of the others {max(gaps_s):.3f} s" if gaps_s else "it led all groups"


def one_round(
    cluster: World, clients: list[Child], number: signal.Signals, watch_s: float = WATCH_S
) -> Figures:
    """Signal the node that leads most; bring it back; wait until all is as before.

    The gaps of the other groups are looked for in the `watch_s` seconds after the signal.
    """
    commits_of(clients)
    time.sleep(CALM_S)
    terms = cluster.terms()  # before it is asked who leads: a hand-over in between is a move, too
    node_id, shards = cluster.leads_most()
    at_s = cluster.signal(node_id, number)
    commits: dict[str, list[Commit]] = {}
    moved: dict[str, float] = {}

    def all_moved() -> bool:
        for group, more in commits_of(clients).items():
            commits.setdefault(group, []).extend(more)
            shard = shard_of(group, cluster.shards)
            if shard in shards and group not in moved:
                later = [c for c in more if c.term > terms[shard] and c.acknowledged_s > at_s]
                if later:
                    moved[group] = later[0].acknowledged_s - at_s
        led = sum(shard_of(group, cluster.shards) in shards for group in commits)
        return len(moved) == led and time.monotonic() > at_s + watch_s

    # Asked rarely: the question costs CPU that the failover needs.
    try:
        cluster.wait(
            all_moved, FIRST_COMMIT_MAX_S, "a commit in every group that the node led", poll_s=0.5
        )
    except ClusterError as error:
        raise ClusterError(f"{_left_behind(clients, cluster, shards, moved)}\n{error}") from error
    if number == signal.SIGKILL:
        cluster.start(node_id)
    else:
        cluster.signal(node_id, signal.SIGCONT)
    cluster.wait_settled()
    others = [
        longest_gap_s(one, at_s, at_s + watch_s)
        for group, one in commits.items()
        if shard_of(group, cluster.shards) not in shards
    ]
    return Figures(list(moved.values()), others)


def _left_behind(
    clients: list[Child], cluster: World, shards: set[int], moved: dict[str, float]
) -> str:
    """Return what the members say whose groups did not move, and the nodes of their shards."""
    left = {
        group: (shard, status)
        for group, status in statuses(clients).items()
        if (shard := shard_of(group, cluster.shards)) in shards and group not in moved
    }
    wanted = {shard for shard, _ in left.values()}
    seen = {
        node_id: [
            (state.shard, state.role, state.term, state.leader_id, state.commit_index)
            for state in view.shard_states
            if state.shard in wanted
        ]
        for node_id, view in cluster.views().items()
    }
    return (
        f"{len(left)} groups (shard, status): {left}\n"
        f"as the nodes see these shards (shard, role, term, leader, commit index): {seen}"
    )


def longest_gap_s(commits: Sequence[Commit], from_s: float, to_s: float) -> float:
    """The longest time between two acknowledgements that overlaps [from_s, to_s].

    The end of the window counts as one: silence until there is a gap too.
    """
    longest = 0.0
    last_s = from_s
    for commit in commits:
        now_s = min(commit.acknowledged_s, to_s)
        if now_s > from_s:
            longest = max(longest, now_s - last_s)
        if commit.acknowledged_s > to_s:
            return longest
        last_s = commit.acknowledged_s
    return max(longest, to_s - last_s)


def commits_of(clients: list[Child]) -> dict[str, list[Commit]]:
    """What was acknowledged since the last such question, by group."""
    return {
        group: [Commit(*one) for one in commits]
        for answer in ask_all(clients, "commits")
        for group, commits in answer["commits"].items()
    }


def statuses(clients: list[Child]) -> dict[str, object]:
    """Of every group: its generation, assignments, losses and errors (bench/sdk_member.py)."""
    return {
        group: status
        for answer in ask_all(clients, "status")
        for group, status in answer["groups"].items()
    }


def all_own(clients: list[Child]) -> bool:
    """Whether every member has partitions."""
    return all(
        status["generation"] is not None
        for answer in ask_all(clients, "status")
        for status in answer["groups"].values()
    )


def _judge(report: Report, killed: Figures, stopped: Figures, echo: Yardstick) -> None:
    half, most = median(killed.first_s), quantile(killed.first_s, 0.95)
    report.at_most("kill -9: median", half, KILL_MEDIAN_ECHOES, echo, VOTE_S)
    report.at_most("kill -9: p95", most, KILL_P95_ECHOES, echo, VOTES_S)
    if killed.gap_s:
        what = "kill -9: the other groups' longest gap"
        report.at_most(what, max(killed.gap_s), KILL_OTHERS_ECHOES, echo)
    half = median(stopped.first_s)
    report.at_most("SIGSTOP: median", half, STOP_MEDIAN_ECHOES, echo, ELECTION_S)
