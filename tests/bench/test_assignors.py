"""The churn that `python -m bench assignors` plays, and its theoretical minimum."""

import itertools
import json
import random

import pytest

from bench.__main__ import NAMES
from bench.assignors import COUNTS, least_moves, main, memberships, play
from muster.assignors import resolve

CHANGES = 1000


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_1000_random_membership_changes_move_the_theoretical_minimum(name):
    """sc-N07, identical subscriptions: each single change moves the least possible, never more.

    The loads stay within one of each other all the while; cooperative takes two rounds at most.
    """
    played = play(resolve(name)[0], CHANGES, seed=4)
    assert len(played.moved) == CHANGES
    assert played.moved == played.least
    assert max(played.spread) <= 1
    assert max(played.rounds) <= (2 if name == "cooperative-sticky" else 1)


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_the_minimum_is_one_that_others_miss(name):
    """A minimum that everybody reaches would measure nothing."""
    played = play(resolve(name)[0], CHANGES // 10, seed=4)
    assert sum(played.moved) > 3 * sum(played.least)


def test_cooperative_stops_only_what_moves():
    """With the same moves, eager stops every partition in every round."""
    eager, cooperative = (
        play(resolve(n)[0], 100, seed=1) for n in ("sticky", "cooperative-sticky")
    )
    assert sum(eager.stopped) == 100 * sum(COUNTS.values())
    assert cooperative.stopped == cooperative.moved


def test_the_changes_are_of_both_kinds():
    """Members join and leave, and never all of them."""
    sizes = [len(members) for members in memberships(CHANGES, seed=4)]
    steps = [b - a for a, b in itertools.pairwise(sizes)]
    assert min(steps) < -1
    assert max(steps) > 1
    assert min(sizes) >= 1


def test_the_minimum_is_that_of_trying_everything():
    """Against every balanced assignment there is, for all small groups."""
    rng = random.Random(0)
    for _ in range(60):
        members, partitions = rng.randint(1, 4), rng.randint(0, 6)
        gone = members  # an owner that has left
        owners = [rng.randint(0, gone) for _ in range(partitions)]
        sizes = [owners.count(m) for m in range(members)]
        best = min(
            sum(a != b for a, b in zip(owners, chosen, strict=True))
            for chosen in itertools.product(range(members), repeat=partitions)
            if max(map(chosen.count, range(members))) - min(map(chosen.count, range(members))) <= 1
        )
        assert least_moves(sizes, partitions) == best


def test_the_bench_prints_all_four_and_ends_in_json(capsys):
    """A short run; its conditions hold."""
    assert "assignors" in NAMES
    small = ["--plan-members", "20", "--plan-topics", "10", "--plan-rounds", "1"]
    assert main(["--changes", "20", *small]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    table = [line.split()[0] for line in lines if line[:1].isalpha()]
    assert {"range", "roundrobin", "sticky", "cooperative-sticky"} <= set(table)
    figures = json.loads(last)["figures"]
    assert figures["sticky_moved_sum"] == figures["sticky_least_sum"]
    assert figures["plan_uniform_alike_leave_moved"]["max"] == 500 // 20
    assert figures["plan_weighted_unlike_fresh_cpu"]["n"] == 1
    assert figures["range_moved_sum"]["max"] > figures["range_least_sum"]["max"]
