"""The spike behind docs/adr/0001-one-loop.md: where shall the coordinator's core run?

A grpc.aio server with the real OffsetCommit message decodes, checks and hands each commit to a core
that turns every 5 ms: a fixed piece of work (about 0.3 ms), then the commits, one RocksDB write for
all, one sync on a thread; each call is answered after the sync that covers it. Four arrangements of
that one program (bench/loops_server.py), three loads, rounds interleaved. What matters is how late
the core's turn begins while the front is flooded; the third load is a disk that stalls, because a
long sync releases hundreds of answers at once.
"""

import argparse
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench import machine
from bench.loops_core import TURN_MS, spin
from bench.report import Report, median, quantile
from musterd.chaos.child import Child, ask_all, close_all

WORK_MS = 0.3

ARRANGEMENTS = {
    "one_loop": "gRPC and core on one loop",
    "one_loop_sliced": "the same, answers of one sync released 32 per pass of the loop",
    "thread": "core on a loop in a thread of its own",
    "process": "core in a process of its own behind a Unix socket",
}


class Load(NamedTuple):
    """Closed loop: every answer is followed by the next call."""

    name: str
    clients: int
    in_flight: int
    stall_ms: int = 0


LOADS = (Load("1x4096", 1, 4096), Load("3x1024", 3, 1024), Load("1x4096_stall", 1, 4096, 300))


def main(arguments: Sequence[str]) -> int:
    """Run the spike; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench loops")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="measured per run")
    parser.add_argument("--warm-up", type=float, default=1.2, help="seconds before it")
    parser.add_argument("--load", choices=[load.name for load in LOADS], help="only this one")
    options = parser.parse_args(arguments)
    loads = [load for load in LOADS if options.load in (None, load.name)]
    report = Report("loops", arguments)
    work = calibrate()
    report.say(f"{work} rounds of work are {WORK_MS} ms; a turn every {TURN_MS} ms")
    kept: dict[str, list[float]] = defaultdict(list)
    for number in range(options.rounds):
        for load in loads:
            for arrangement in _rotated(list(ARRANGEMENTS), number):
                got = run(arrangement, load, work, options.warm_up, options.seconds)
                late = [got[f"turn_late_{part}_ms"] for part in ("p50", "p99", "max")]
                report.say(
                    f"round {number + 1} {load.name:12} {arrangement:15} "
                    f"late p50, p99, max {late[0]:6.2f} {late[1]:6.2f} {late[2]:6.2f} ms, "
                    f"{got['calls_per_s']:6.0f} calls/s, "
                    f"commit p99 {got['commit_p99_ms']:6.0f} ms, "
                    f"others {got['others_cores']:.2f} cores"
                )
                for what, value in got.items():
                    kept[f"{arrangement}_{load.name}_{what}"].append(value)
    for key, values in kept.items():
        report.add(key, values, _unit(key))
    _summary(report, loads, kept)
    return report.finish()


def calibrate() -> int:
    """How many rounds of `spin` take 0.3 ms on this machine when nobody interrupts."""
    rounds = 1000
    best = min(_timed(rounds) for _ in range(300))
    return max(1, round(rounds * WORK_MS / (best * 1000)))


def _timed(rounds: int) -> float:
    before = time.perf_counter()
    spin(rounds)
    return time.perf_counter() - before


def run(
    arrangement: str, load: Load, work: int, warm_up_s: float, seconds: float
) -> dict[str, float]:
    """One run of one arrangement under one load, in processes of its own."""
    folder = Path(tempfile.mkdtemp(prefix="muster-bench-"))
    servers: list[Child] = []
    clients: list[Child] = []
    try:
        config = {
            "arrangement": arrangement,
            "folder": str(folder),
            "work": work,
            "stall_ms": load.stall_ms,
        }
        if arrangement == "process":
            servers.append(Child("bench.loops_core", config))
            servers[0].ready()
        servers.append(Child("bench.loops_server", config))
        port = servers[-1].ready()["port"]
        clients = [
            Child("bench.loops_client", {"port": port, "in_flight": load.in_flight, "name": n})
            for n in range(load.clients)
        ]
        for client in clients:
            client.ready()
        pids = [child.pid for child in [*servers, *clients]]
        ask_all(clients, "start")
        time.sleep(warm_up_s)
        before = machine.busy(pids)
        ask_all([*servers, *clients], "mark")
        time.sleep(seconds)
        turns = servers[0].ask("turns")["late_s"]
        calls = ask_all(clients, "calls", timeout_s=60)
        after = machine.busy(pids)
    finally:
        close_all(clients)
        close_all(servers)
        shutil.rmtree(folder, ignore_errors=True)
    latencies = [latency for call in calls for latency in call["latencies_s"]]
    return {
        "turn_late_p50_ms": quantile(turns, 0.5) * 1e3,
        "turn_late_p99_ms": quantile(turns, 0.99) * 1e3,
        "turn_late_max_ms": max(turns) * 1e3,
        "calls_per_s": sum(len(call["latencies_s"]) / call["elapsed_s"] for call in calls),
        "commit_p99_ms": quantile(latencies, 0.99) * 1e3,
        "others_cores": machine.others_cores(before, after),
    }


def _rotated(names: list[str], by: int) -> list[str]:
    """Another one first in each round: nobody always runs after the same neighbour."""
    by %= len(names)
    return names[by:] + names[:by]


def _unit(key: str) -> str:
    if key.endswith("_ms"):
        return "ms"
    return "calls/s" if key.endswith("_per_s") else "cores"


def _summary(report: Report, loads: Sequence[Load], kept: dict[str, list[float]]) -> None:
    """The table of the ADR: median (min-max) over the rounds."""
    columns = [*(f"turn_late_{part}_ms" for part in ("p50", "p99", "max"))]
    columns += ["calls_per_s", "commit_p99_ms"]
    for load in loads:
        report.say(f"{load.name}: median (min-max) of {', '.join(columns)}")
        for arrangement, what in ARRANGEMENTS.items():
            cells = []
            for column in columns:
                values = kept[f"{arrangement}_{load.name}_{column}"]
                cells.append(f"{median(values):.4g} ({min(values):.4g}-{max(values):.4g})")
            report.say(f"  {arrangement:15} {' | '.join(cells)}   [{what}]")
