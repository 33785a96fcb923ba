"""The measures that single benchmarks take: gaps, histogram quantiles, spread of groups."""

import math
import subprocess
import sys
import time
from contextlib import ExitStack

import psutil
import pytest

from bench.commits import synced_rate
from bench.failover import Commit, longest_gap_s
from bench.machine import rss_mib, together_mib
from bench.raw import RawError, group_names, shard_of
from bench.rebalance import evenly_shared
from bench.rejoin import turn_lag_p99_ms
from musterd.chaos.child import Child, ChildError
from musterd.coordinator.host import tied_command


def _acknowledged(*times_s: float) -> list[Commit]:
    return [Commit(time_s - 0.001, time_s, 1) for time_s in times_s]


@pytest.mark.parametrize(
    ("times_s", "gap_s"),
    [
        ((9.9, 10.2, 10.3, 13.5), 3.0 - 0.3),
        ((9.9, 10.2, 12.9, 13.1), 2.7),
        ((9.0, 10.5, 11.0, 12.0, 13.0), 1.5),
        ((9.9,), 3.1),
        ((), 3.0),
        ((5.0, 9.0, 9.9, 10.0, 11.0, 12.0, 13.0, 20.0), 1.0),
    ],
    ids=["to the end", "inside", "began before", "silent", "nothing at all", "outside ignored"],
)
def test_the_longest_gap_overlaps_the_window_and_silence_counts(times_s, gap_s) -> None:
    """Window 10 s to 13 s; a group that never commits again has a gap to the window's end."""
    assert longest_gap_s(_acknowledged(*times_s), 10.0, 13.0) == pytest.approx(gap_s)


def _page(*counts: int) -> str:
    bounds = ("0.001", "0.064", "0.128", "+Inf")
    lines = [
        f'muster_turn_lag_seconds_bucket{{le="{bound}"}} {number}.0'
        for bound, number in zip(bounds, counts, strict=True)
    ]
    return "\n".join(["# TYPE muster_turn_lag_seconds histogram", *lines, ""])


def test_turn_lag_is_taken_between_two_scrapes_and_interpolated() -> None:
    """Only what came after the first scrape counts."""
    before = _page(1000, 1000, 5000, 5000)
    after = _page(1000, 1090, 5100, 5100)
    # 100 turns: 90 at most 64 ms, 10 more at most 128 ms; the 99th is nine tenths into that bucket.
    assert turn_lag_p99_ms(before, after) == pytest.approx(64 + 64 * 0.9)


def test_turn_lag_without_turns_or_metric_is_an_error() -> None:
    """A renamed metric must not read as no lag."""
    with pytest.raises(ValueError, match="no turns"):
        turn_lag_p99_ms(_page(1, 2, 3, 4), _page(1, 2, 3, 4))
    with pytest.raises(ValueError, match="not on the metrics page"):
        turn_lag_p99_ms("", "")


def test_groups_are_spread_evenly_over_the_shards_asked_for() -> None:
    """48 over 16 are three each; over some shards only these are hit."""
    spread = [shard_of(name, 16) for name in group_names("g", 48, 16)]
    assert {spread.count(shard) for shard in range(16)} == {3}
    names = group_names("g", 7, 16, [3, 5])
    assert len(set(names)) == 7
    assert sorted(shard_of(name, 16) for name in names) == [3, 3, 3, 3, 5, 5, 5]
    with pytest.raises(RawError):
        group_names("g", 1, 16, [])


@pytest.mark.parametrize(
    ("shares", "even"),
    [
        ((5, 5), True),
        ((4, 3, 3), True),
        ((5, 5, 0), False),
        ((4, 4), False),
        ((6, 5), False),
        ((3, 3, 3, 1), False),
    ],
    ids=["alike", "one more", "has joined", "some are nobody's", "two owners", "uneven"],
)
def test_ten_partitions_are_shared_out_when_all_are_held_and_evenly(shares, even) -> None:
    """What a benchmark of groups whose coordinator assigns waits for."""
    assert evenly_shared(shares, 10) == even


@pytest.mark.processes
def test_a_child_dies_when_its_parent_is_killed() -> None:
    """`kill -9` of a benchmark leaves no node behind."""
    code = (
        "import subprocess, sys, time; from musterd.chaos.child import tied_command;"
        "child = subprocess.Popen(tied_command([sys.executable, '-c',"
        " 'import time; time.sleep(600)'])); print(child.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    psutil.wait_procs([child], timeout=20)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.processes
def test_a_child_that_ends_or_reports_an_error_is_an_error_of_the_benchmark() -> None:
    """It names the child instead of waiting for the time-out."""
    child = Child("bench.member_client", {"name": "broken"})  # no endpoints: a KeyError
    started_s = time.monotonic()
    with pytest.raises(ChildError, match=r"bench\.member_client broken ended with code 1"):
        child.read(timeout_s=60)
    assert time.monotonic() - started_s < 60
    child.close()


@pytest.mark.processes
def test_commits_per_second_are_counted_against_a_real_server() -> None:
    """The load client, closed and open loop, against the bare echo: everything is accounted for."""
    server = Child("bench.echo_server", {})
    client = Child("bench.commit_client", {"echo": server.ready()["endpoint"]})
    try:
        client.ready()
        closed = client.ask("closed", in_flight=8, seconds=0.5)
        assert list(closed["outcomes"]) == ["acknowledged"]
        assert len(closed["latencies_s"]) == closed["outcomes"]["acknowledged"] > 0
        opened = client.ask(
            "open", per_s=100.0, seconds=1.0, start_s=time.monotonic(), connections=2
        )
        assert opened["offered"] == 100
        assert opened["outcomes"].get("acknowledged", 0) + opened["never_sent"] == 100
        assert len(opened["acknowledged"]) == opened["outcomes"]["acknowledged"] > 0
        assert all(math.isfinite(latency_s) for _, latency_s in opened["acknowledged"])
    finally:
        client.close()
        server.close()


def test_a_page_of_a_library_that_two_processes_have_is_in_memory_once() -> None:
    """What each has for itself counts in full, as for one process alone."""
    code = "import ssl; own = bytearray(b'x' * (8 << 20)); print(flush=True); input()"
    with ExitStack() as stack:
        pids = []
        for _ in range(2):
            one = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            stack.enter_context(one)  # its input ends, so it ends
            assert one.stdout is not None
            assert one.stdout.readline()
            pids.append(one.pid)
        alone = [together_mib([pid]) for pid in pids]
        assert alone == pytest.approx([rss_mib(pid) for pid in pids], rel=0.02)
        together = together_mib(pids)
        assert max(alone) + 8 < together < sum(alone) - 1


def test_the_wrapper_runs_the_command_it_was_given() -> None:
    """Arguments and exit code are the command's own."""
    argv = [sys.executable, "-c", "import sys; sys.exit(len(sys.argv))", "x"]
    assert subprocess.run(tied_command(argv), check=False).returncode == 2


def test_commits_are_compared_with_an_echo_that_waits_for_the_same_disk() -> None:
    """One call of 1 ms and two fsyncs of 2 ms are 200 a second; a fast disk changes nothing."""
    assert synced_rate(1000.0, 1, 0.002) == pytest.approx(200)
    assert synced_rate(1000.0, 64, 0.0) == pytest.approx(1000)
    assert synced_rate(1000.0, 64, 0.032) == pytest.approx(500)
