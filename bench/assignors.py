"""Measures what each assignor moves and stops while members come and go; pure, no cluster.

The same random membership changes are played to every assignor; all members have the same topics.
Beside what moved stands the least that any assignment so balanced could have moved, given what the
members owned before. `stopped` counts the partitions whose work was interrupted: with the eager
protocol every partition is, in every round; with the cooperative one those that move.

The server's planner is measured in CPU time, from nothing, after one of the members has left and
after it is back: where all members have the same topics, and where each has half of them. What it
plans from is copied from the group first, which counts. Beside it stands the longest slice, in
which nothing else runs.
"""

import argparse
import gc
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.report import Report
from muster.assignors import (
    Assignor,
    Subscriber,
    checked_shares,
    is_cooperative,
    resolve,
    wants_owned,
    withheld,
)
from muster.types import TopicPartition
from musterd.coordinator.machine.commands import NO_OWNER
from musterd.coordinator.machine.events import Subscription
from musterd.coordinator.machine.modern.group import Consumer, ModernGroup, derive
from musterd.coordinator.machine.modern.spec import specifying
from musterd.coordinator.machine.plan import Assignor as ServerAssignor
from musterd.coordinator.machine.plan import TargetPlan, planning
from musterd.coordinator.machine.plan.spec import Owners
from musterd.coordinator.machine.state import Group, Phase

NAMES = ("range", "roundrobin", "sticky", "cooperative-sticky")
COUNTS = {"orders": 48, "payments": 30, "refunds": 7}
MEMBERS_MAX = 60
TOGETHER_MAX = 3
ROUNDS_MAX = 10

Owned = dict[str, tuple[TopicPartition, ...]]


@dataclass(slots=True)
class Played:
    """The effects of the changes on one assignor's members, one entry per change."""

    moved: list[int] = field(default_factory=list)
    least: list[int] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    spread: list[int] = field(default_factory=list)  # most loaded minus least loaded


def memberships(changes: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Who is in the group at first and after each change: some join, some leave."""
    rng = random.Random(seed)
    members = [f"m-{rng.getrandbits(64):016x}" for _ in range(10)]
    yield tuple(members)
    for _ in range(changes):
        for _ in range(rng.randint(1, TOGETHER_MAX)):
            leaves = len(members) > 1 and rng.random() < len(members) / MEMBERS_MAX
            if leaves:
                members.pop(rng.randrange(len(members)))
            else:
                members.append(f"m-{rng.getrandbits(64):016x}")
        yield tuple(members)


def least_moves(sizes: Sequence[int], partitions: int) -> int:
    """The fewest partitions that change hands in a balanced assignment.

    Args:
        sizes: how many of the partitions each member owns now, one entry per member, 0 included.
        partitions: how many had an owner before, whether it is still there or not; all of them.

    With q = partitions div members, all keep q at most, and partitions mod members of them q + 1.
    """
    quota, extras = divmod(partitions, len(sizes))
    kept = sum(min(size, quota) for size in sizes)
    return partitions - kept - min(extras, sum(size > quota for size in sizes))


def rebalance(
    assignor: Assignor,
    members: Sequence[str],
    topics: Sequence[str],
    counts: Mapping[str, int],
    before: Owned,
    generation: int,
) -> tuple[Owned, int]:
    """Rounds until nothing waits for another: what members own then, and how many it took."""
    owned = {m: before.get(m, ()) for m in members}
    keeps = is_cooperative([assignor])
    for rounds in range(1, ROUNDS_MAX + 1):
        subscribers = [
            Subscriber(
                m,
                tuple(topics),
                owned[m] if wants_owned(assignor) else (),
                generation + rounds if owned[m] else -1,
                keeps_owned=keeps,
            )
            for m in members
        ]
        shares = checked_shares(assignor, subscribers, counts)
        waits = withheld(shares, subscribers)
        owned = {m: tuple(key for key in share if key not in waits) for m, share in shares.items()}
        if not waits:
            return owned, rounds
    raise RuntimeError(f"{assignor.name}: still moving after {ROUNDS_MAX} rounds")


def play(assignor: Assignor, changes: int, seed: int) -> Played:
    """All changes, one after the other."""
    played = Played()
    total = sum(COUNTS.values())
    history = memberships(changes, seed)
    owned, _ = rebalance(assignor, next(history), tuple(COUNTS), COUNTS, {}, 0)
    for number, members in enumerate(history, start=1):
        before = {key: m for m, keys in owned.items() for key in keys}
        sizes = [len(owned.get(m, ())) for m in members]
        owned, rounds = rebalance(
            assignor, members, tuple(COUNTS), COUNTS, owned, number * ROUNDS_MAX
        )
        moved = sum(before[key] != m for m, keys in owned.items() for key in keys)
        load = Counter({m: len(keys) for m, keys in owned.items()})
        played.moved.append(moved)
        played.least.append(least_moves(sizes, total))
        played.stopped.append(moved if is_cooperative([assignor]) else total)
        played.rounds.append(rounds)
        played.spread.append(max(load.values()) - min(load.values()))
    return played


@dataclass(slots=True)
class Planned:
    """What the planner took, one entry per plan: CPU time in all and of the longest slice, in s."""

    cpu_s: list[float] = field(default_factory=list)
    slice_s: list[float] = field(default_factory=list)

    def take(self, group: Group) -> TargetPlan:
        """Plan, and note what it took. Without the garbage collector, which has its own time."""
        longest = 0.0
        found: list[TargetPlan] = []

        def noted() -> Iterator[None]:
            spec = yield from specifying(group)
            found.append((yield from planning(spec)))

        gc.collect()
        gc.disable()
        began = before = time.process_time()
        for _ in noted():
            now = time.process_time()
            longest, before = max(longest, now - before), now
        ended = time.process_time()
        gc.enable()
        self.cpu_s.append(ended - began)
        self.slice_s.append(max(longest, ended - before))
        return found[0]


def group_of(
    members: Mapping[str, tuple[str, ...]], counts: Mapping[str, int], last: Owners, assignor: str
) -> Group:
    """Return a group with these members, by id with the topics they read, and a target."""
    seqs = {member_id: seq for seq, member_id in enumerate(members)}
    modern = ModernGroup(next_join_seq=len(members))
    for member_id, topics in members.items():
        said = Subscription("c", "h", 45_000, 60_000, tuple(sorted(topics)), assignor=assignor)
        modern.members[member_id] = Consumer(member_id, "", said, seqs[member_id], 1, 1, 0, "")
    for topic, owners in last.items():
        modern.target[topic] = [seqs.get(owner, NO_OWNER) for owner in owners]
    derive(modern)
    modern.topics = dict(counts)
    return Group("g", phase=Phase.MODERN, generation=1, modern=modern)


def planned(members: int, topics: int, per_topic: int, rounds: int, report: Report) -> None:
    """Measure the planner: each assignor, members with equal topics and with different ones."""
    counts = {f"t{n:05}": per_topic for n in range(topics)}
    for alike in (True, False):
        rng = random.Random(1)
        everybody = {
            f"m{n:05}": tuple(counts) if alike else tuple(rng.sample([*counts], topics // 2 or 1))
            for n in range(members)
        }
        leaver = f"m{members - 1:05}"
        others = {one: read for one, read in everybody.items() if one != leaver}
        for assignor in ServerAssignor:
            fresh, leave, join = Planned(), Planned(), Planned()
            for _ in range(rounds):
                first = fresh.take(group_of(everybody, counts, {}, assignor))
                second = leave.take(group_of(others, counts, first.target, assignor))
                third = join.take(group_of(everybody, counts, second.target, assignor))
            key = f"plan_{assignor}_{'alike' if alike else 'unlike'}"
            for what, took in (("fresh", fresh), ("leave", leave), ("join", join)):
                report.add(f"{key}_{what}_cpu", took.cpu_s, "s")
            slices = [*fresh.slice_s, *leave.slice_s, *join.slice_s]
            report.add(f"{key}_slice", [1000 * one for one in slices], "ms")
            report.add_count(f"{key}_leave_moved", len(second.changes), "partitions")
            report.add_count(f"{key}_join_moved", len(third.changes), "partitions")
            if alike and assignor is ServerAssignor.UNIFORM:
                lost = sum(list(row).count(leaver) for row in first.target.values())
                report.require(len(second.changes) == lost, "only what a member had moves")


def main(arguments: Sequence[str]) -> int:
    """Play, print a table, and last one JSON line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench assignors", description=__doc__)
    parser.add_argument("--changes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--plan-members", type=int, default=1000)
    parser.add_argument("--plan-topics", type=int, default=1000)
    parser.add_argument("--plan-partitions", type=int, default=50, help="of each topic")
    parser.add_argument("--plan-rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    report = Report("assignors", arguments)
    partitions = sum(COUNTS.values())
    report.say(f"{given.changes} membership changes, {partitions} partitions, seed {given.seed}")
    print(f"{'':20}{'moved':>9}{'least':>9}{'stopped':>10}{'rounds':>8}{'spread':>8}")
    results = {name: play(resolve(name)[0], given.changes, given.seed) for name in NAMES}
    for name, played in results.items():
        sums = (sum(played.moved), sum(played.least), sum(played.stopped))
        rounds, spread = max(played.rounds), max(played.spread)
        print(f"{name:20}{sums[0]:9,}{sums[1]:9,}{sums[2]:10,}{rounds:8}{spread:8}")
        key = name.replace("-", "_")
        report.add(f"{key}_moved", played.moved, "partitions")
        report.add(f"{key}_stopped", played.stopped, "partitions")
        report.add_count(f"{key}_moved_sum", sums[0], "partitions")
        report.add_count(f"{key}_least_sum", sums[1], "partitions")
    for name in ("sticky", "cooperative-sticky"):
        played = results[name]
        report.require(played.moved == played.least, f"{name} moves the least in each change")
        report.require(max(played.spread) <= 1, f"{name} keeps the loads within one of each other")
    rounds = max(results["cooperative-sticky"].rounds)
    report.require(rounds <= 2, "cooperative-sticky takes two rounds at most")
    members, topics = given.plan_members, given.plan_topics
    report.say(
        f"plans of {members} members, {topics} topics, {given.plan_partitions} partitions each"
    )
    planned(members, topics, given.plan_partitions, given.plan_rounds, report)
    return report.finish()
