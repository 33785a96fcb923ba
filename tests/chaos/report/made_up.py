"""Results as a run would write them, out of thin air: no cluster is needed to draw a report."""

import random

from pydantic import TypeAdapter

from musterd.chaos.mutants.hunt import Caught, Hunts
from musterd.chaos.run.result import (
    Counts,
    FaultClass,
    FaultRun,
    Machine,
    ProbeTrack,
    Rebalancing,
    RunResult,
    SkippedFault,
    Spread,
    WorkloadResult,
)
from musterd.chaos.verdict import Verdict, Violation

KINDS = {
    "asymmetric_cut": 800.0,
    "cpu_starvation": 140.0,
    "disk_full": 2_600.0,
    "isolate_leader": 950.0,
    "kill_leader": 110.0,
    "kill_two_then_restart": 6_200.0,
    "pause_leader": 620.0,
    "rolling_restart": 90.0,
}
PROBES = 4
MINUTES = 2.0


def write(path, document):
    """As the command that makes it does."""
    path.write_bytes(TypeAdapter(type(document)).dump_json(document))


def caught(name="a", seed=3, build=None):
    """The one hunt of a file."""
    return Hunts(build, [Caught(name, "sim", "fifo3", seed, "S1", 4, 1.0)], [])


def spread(*figures):
    """As the runner makes them."""
    return Spread.of(figures)


def verdict(invariant, *whats, looked_at=1_000, applies=True, note=""):
    """A checker's answer; `whats` are violations."""
    broken = tuple(Violation(invariant, what, 1_500_000_000) for what in whats)
    title = f"title of {invariant}"
    return Verdict(invariant, title, looked_at, broken, applies=applies, note=note)


def fault(kind, at_s, gap_ms, node=0):
    """One that was injected and healed after 4 s."""
    began = int(at_s * 1e9)
    return FaultRun(
        kind=kind,
        planned_s=at_s,
        injected=True,
        targets=[f"node-{node}"],
        quorum=kind != "kill_two_then_restart",
        began_ns=began,
        healed_ns=began + 4_000_000_000,
        settled_ns=began + 5_200_000_000,
        hit_ms=gap_ms,
        other_ms=gap_ms / 8,
        first_commit_ms=gap_ms,
        owned_ms=0.0,
        latency_before=spread(4.0, 6.0, 9.0),
        latency_during=spread(5.0, 8.0, gap_ms),
    )


def probe(number, faults, seed):
    """A commit each 100 ms; one that meets a fault of its leader hangs till the gap is over."""
    rng = random.Random(seed)
    leader = number % 3
    track = ProbeTrack(f"probe-{number}", number, [], [], [(0.0, leader)])
    at = 0.0
    while at < MINUTES * 60_000:
        took = rng.lognormvariate(1.6, 0.4)
        for one in faults:
            began = one.began_ns / 1e6
            if began <= at < began + one.hit_ms and f"node-{leader}" in one.targets:
                took = began + one.hit_ms - at
        dropped = took > 5_000
        track.sent_ms.append(at)
        track.latency_ms.append(None if dropped else took)
        at += max(100.0, 5_000.0 if dropped else took)
    return track


def run(*verdicts, **changes):
    """A run of two minutes with each kind of fault once."""
    faults = [
        fault(kind, 8.0 + 13 * number, gap, number % 3)
        for number, (kind, gap) in enumerate(KINDS.items())
    ]
    result = RunResult(
        version=2,
        seed=7,
        started_at="2026-11-22T01:02:03+00:00",
        began_ns=0,
        ended_ns=int(MINUTES * 60e9),
        minutes=MINUTES,
        nodes=3,
        shards=16,
        command=["muster", "chaos", "run", "--minutes", "2"],
        ended="finished",
        machine=Machine("a CPU", 2, 8_000, "5.10", "3.11.2", "0.1.0", "netns", "ext4 on loop"),
        workloads=[
            WorkloadResult("W1", "unique commits", 4, 8, {"commit": Counts(11_000, 20, 3)}),
        ],
        faults=faults,
        classes=[FaultClass(f.kind, 1, spread(f.hit_ms), spread(f.other_ms)) for f in faults],
        skipped=[SkippedFault("packet_loss", "the kernel has no nft numgen")],
        verdicts=list(verdicts) or [verdict(f"I{n}") for n in (1, 2, 3, 4, 6, 8, 10, 13, 15)],
        counts=Counts(20_000, 40, 7),
        commits=Counts(11_000, 20, 3),
        commits_per_s=183.4,
        commit_ms=spread(3.0, 5.0, 8.0, 700.0),
        commits_lost=0,
        rebalancing=Rebalancing(spread(40.0, 90.0), spread(30.0, 60.0), 31, {"JOINED": 31}, 90, 84),
        probes=[probe(number, faults, number) for number in range(PROBES)],
        checkpoints=60,
        checkpoints_compared=40,
        largest={"groups": 1_000, "members": 40, "partitions": 1_200},
        passed=True,
        reasons=[],
        limits=["One box, one kernel, one clock: times of processes can be compared."],
    )
    for name, value in changes.items():
        setattr(result, name, value)
    return result
