"""What docs/assignors.md says, and its worker, as they stand."""

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import muster
from bench.assignors import NAMES, play
from muster.assignors import FunctionAssignor, Subscriber, checked_shares, resolve
from muster.errors import InvalidAssignment
from tests.docs.block_runners import record_run
from tests.docs.walkthrough import blocks

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = DOCS / "colocation.py"


def load_example():
    """docs/colocation.py as a module."""
    spec = importlib.util.spec_from_file_location("colocation", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tasks_of(members, counts):
    """Member -> the numbers of its partitions, the same in each topic that has so many."""
    assignor = FunctionAssignor("co-locate", load_example().co_locate)
    shares = checked_shares(assignor, members, counts)
    found = {}
    for member_id, keys in shares.items():
        numbers = {key.partition for key in keys}
        wanted = {(t, n) for n in numbers for t, count in counts.items() if n < count}
        assert set(keys) == wanted, "not together"
        found[member_id] = sorted(numbers)
    return found


def test_the_example_keeps_partitions_of_one_number_together_and_near_their_state():
    """Evenly over the members, and to whom has the state where that is possible."""
    counts = {"orders": 6, "customers": 4}

    def member(name, user_data=b""):
        return Subscriber(name, ("orders", "customers"), user_data=user_data)

    assert tasks_of([member("b"), member("a")], counts) == {"a": [0, 2, 4], "b": [1, 3, 5]}
    with_state = [member("a", b"5 4"), member("b", b"0"), member("c")]
    assert tasks_of(with_state, counts) == {"a": [4, 5], "b": [0, 2], "c": [1, 3]}
    greedy = [member("a", b"0 1 2 3 4 5"), member("b")]
    assert tasks_of(greedy, counts) == {"a": [0, 1, 2], "b": [3, 4, 5]}
    for names in ("ab", "ba"):
        knows_all, knows_two = names
        members = [member(knows_all, b"0 1 2 3 4 5"), member(knows_two, b"1 2")]
        assert tasks_of(members, counts) == {knows_all: [0, 3, 4], knows_two: [1, 2, 5]}


async def start(cluster, state):
    """The example in a process of its own."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLE),
        cluster.bootstrap,
        str(state),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(DOCS.parent), "PYTHONUNBUFFERED": "1"},
    )


async def lines(worker, count):
    """So many lines that it prints, sorted."""
    return sorted([(await worker.stdout.readline()).decode().split() for _ in range(count)])


async def end(worker):
    """Drain it; what it printed beyond what was read."""
    worker.send_signal(signal.SIGTERM)
    rest, _ = await worker.communicate()
    assert worker.returncode == 0
    return rest.decode().split("\n")


async def test_the_example_runs(open_cluster, tmp_path):
    """Two workers; a third one that comes with the state of tasks 1 and 2 on its disk gets these.

    Nobody else's tasks are started again: it is cooperative.
    """
    async with open_cluster(1, topics={}) as (cluster, _):
        first = await start(cluster, tmp_path / "1")
        everything = sorted([t, str(n)] for t in ("orders", "customers") for n in range(4))
        assert await lines(first, 8) == everything
        state = tmp_path / "2"
        state.mkdir()
        (state / "1").touch()
        (state / "2").touch()
        second = await start(cluster, state)
        wanted = sorted([t, str(n)] for t in ("orders", "customers") for n in (1, 2))
        assert await lines(second, 4) == wanted
        assert await end(second) == [""]
        assert await lines(first, 4) == wanted, "what comes back is started again, no more"
        assert await end(first) == [""]


async def test_a_function_in_the_documentation_works(open_cluster):
    """The shortest one, through a group."""
    (text,) = (one.text for one in blocks(DOCS / "assignors.md") if one.kind == "python")
    async with open_cluster(1, topics={"orders": 3}) as (_, client):
        first, second = ({"muster": muster, "client": client} for _ in range(2))
        for names in (first, second):
            exec(text, names)
        record_run(text)
        first, second = first["group"], second["group"]
        await first.next_assignment()  # so that one round has both
        given = await asyncio.gather(first.next_assignment(), second.next_assignment())
        assert sorted(len(one.partitions) for one in given) == [0, 3]
        assert {one.protocol_name for one in given} == {"everything_to_the_first"}


async def test_a_function_that_fails_is_said_to_the_group_leader(open_cluster):
    """`run` and `next_assignment` raise; the member leaves."""

    def broken(members, partition_counts):
        raise LookupError("no such shelf")

    async with open_cluster(1) as (cluster, client):
        group = client.group("g", ["t"], assignor=broken)
        with pytest.raises(InvalidAssignment, match="broken: LookupError: no such shelf"):
            await group.next_assignment()
        await group.close()
        assert not cluster.groups["g"].members


async def test_user_data_and_rack_reach_the_function(open_cluster):
    """Asked before each Join; what it raises is raised by the group."""
    seen = []

    def look(members, partition_counts):
        seen.append(sorted((m.rack, m.user_data) for m in members))
        keys = [muster.TopicPartition(t, p) for t, n in partition_counts.items() for p in range(n)]
        return {min(m.member_id for m in members): keys}

    async with open_cluster(1) as (_, client):
        given = [b"two", b"one"]
        first = client.group("g", ["t"], assignor=look, rack="r1", user_data=given.pop)
        await first.next_assignment()
        second = client.group("g", ["t"], assignor=look, user_data=b"\x00\xff")
        await asyncio.gather(first.next_assignment(), second.next_assignment())
        assert seen == [[("r1", b"one")], [("", b"\x00\xff"), ("r1", b"two")]]
        await second.close()
        with pytest.raises(IndexError):
            await first.next_assignment()


def test_the_table_is_what_the_bench_prints():
    """Moved, least and stopped of each assignor, digit by digit."""
    text = (DOCS / "assignors.md").read_text()
    for name in NAMES:
        played = play(resolve(name)[0], 1000, seed=4)
        row = [f"{sum(column):,}" for column in (played.moved, played.least, played.stopped)]
        assert f"| {name} | {' | '.join(row)} |" in text
