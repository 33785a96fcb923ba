"""How real processes hunt a broken build: a short fixed schedule that the shipped build passes.

A run catches it only by an invariant that is named for the build, by all of those that are
demanded of it, in one run or several; `drills` has the schedules.

Nodes are `muster serve` processes without one rule (`musterd.chaos.mutants.serve`); the conductor
breaks them as in any run, and the checkers judge what the clients saw.
"""

import tempfile
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from musterd.chaos.interrupts import Interrupts
from musterd.chaos.mutants.builds import PROCESS_BUILDS
from musterd.chaos.mutants.hunt import Caught, Layer
from musterd.chaos.mutants.installed import BrokenBuild
from musterd.chaos.run.conductor import FINISHED, INTERRUPTED, Conductor, Pace, prepare
from musterd.chaos.run.drills import DEMANDED, DRILLS, PROMISES, Drill
from musterd.chaos.run.judgement import RunRequest, judge
from musterd.chaos.run.result import Judgement, RunResult
from musterd.chaos.run.target_cluster import OwnWorld
from musterd.chaos.run.view import View
from musterd.chaos.workloads.catalog import Setting
from musterd.chaos.world.equipment.clock import NodeClocks
from musterd.chaos.world.equipment.disk import SIZE_MB, LoopDisks
from musterd.chaos.world.equipment.keeper_client import KeeperClient
from musterd.chaos.world.networks.netns import Netns
from musterd.chaos.world.networks.network import Network
from musterd.coordinator.node.loopback import ClusterError

ATTEMPTS_MAX = 5
"""A build that so many runs of its schedule do not catch has survived."""
PACE = Pace(warm_s=1.0, quiet_s=0.0, replay=False)
BROKEN_PACE = replace(PACE, settle_s=15.0)
"""Many a broken build never settles, and has given itself away long before."""


def lacks(name: str) -> str:
    """Why this machine cannot hunt a build; "" where it can."""
    drill = DRILLS[name]
    reasons = (
        Netns().lacks() if drill.needs_links else "",
        LoopDisks(KeeperClient(), SIZE_MB).lacks() if drill.needs_disks else "",
        NodeClocks().lacks() if drill.needs_clocks else "",
    )
    return next(filter(None, reasons), "")


def hunt(name: str, seeds: int) -> Caught:
    """Play a build's schedule until it is caught, `ATTEMPTS_MAX` times at most.

    Called from the main thread. Raises KeyError where no build has this name, KeyboardInterrupt.
    """
    drill = DRILLS[name]
    began, tried, what = time.monotonic(), 0, ""
    own: dict[str, Judgement] = {}

    def ended(seed: int | None, what: str, promises: tuple[str, ...] = ()) -> Caught:
        seconds = time.monotonic() - began
        return Caught(name, LAYER.name, drill.name, seed, what, tried, seconds, promises)

    for seed in range(1, min(seeds, ATTEMPTS_MAX) + 1):
        tried += 1
        shipped = play_shipped(drill, seed)
        if shipped.broke:
            return ended(None, f"the shipped build fails seed {seed}: {shipped.broke}")
        if shipped.missing:  # a machine that stood still, say: this seed shows nothing
            what = f"the shipped build's run of seed {seed} is of no use: {shipped.missing}"
            continue
        try:
            result = play(drill, seed, name)
        except ClusterError as error:  # a build that cannot even start has broken no promise
            what = str(error).partition("\n")[0]
            continue
        own |= {one.invariant: one for one in broken(result) if one.invariant in PROMISES[name]}
        if own and own.keys() >= set(DEMANDED.get(name, ())):
            return ended(seed, in_words(list(own.values())), tuple(own))
        missed = [one for one in DEMANDED.get(name, ()) if one not in own]
        wanted = f"{' and '.join(missed) or ' or '.join(PROMISES[name])} was not broken"
        what = "; ".join([wanted, *result.reasons])
    return ended(None, what)


@dataclass(frozen=True, slots=True)
class Shipped:
    """A run of the shipped build; what is "" is as it should be."""

    broke: str
    """The promises that it broke: no hunt can go on."""
    missing: str
    """Why the run says nothing of another build's, though none was broken."""


@cache
def play_shipped(drill: Drill, seed: int) -> Shipped:
    """Played once."""
    try:
        result = play(drill, seed)
    except ClusterError as error:
        return Shipped("", str(error).partition("\n")[0])
    looked = {one.invariant for one in result.verdicts if one.looked_at}
    wrong = []
    if result.ended != FINISHED:
        wrong.append(result.ended)
    if result.keys_unread:
        wrong.append(f"{result.keys_unread} keys were not read at the end")
    wrong += [f"{one.kind}: {one.error}" for one in result.faults if one.error]
    if len(result.faults) != len(drill.steps):
        wrong.append(f"{len(result.faults)} of {len(drill.steps)} faults were reached")
    if missing := sorted(drill.looks - looked):
        wrong.append(f"nothing was looked at for {', '.join(missing)}")
    return Shipped(in_words(broken(result)) if broken(result) else "", "; ".join(wrong))


def broken(result: RunResult) -> list[Judgement]:
    """The promises that a run saw broken.

    Keys that nobody could read at the end are no lost commits: a cluster that fell apart has them.
    """
    return [
        one
        for one in result.verdicts
        if one.violations_count and (one.invariant != "I1" or result.commits_lost)
    ]


def in_words(some: list[Judgement]) -> str:
    """Some promises, and the first of them in words."""
    return f"{', '.join(one.invariant for one in some)} ({some[0].title})"


def play(drill: Drill, seed: int, build: str = "") -> RunResult:
    """One run of a schedule; `build` "": of the shipped build. Raises ClusterError."""
    kits = (BrokenBuild(build),) if build else ()
    kinds = sorted({kind for kind, _ in drill.steps})
    network = Netns(seed=seed) if drill.needs_links else Network()
    cluster = OwnWorld(drill.nodes, network, kinds, seed, kits)
    schedule, view = drill.schedule(seed), View()
    with (
        Interrupts(view.say),
        tempfile.TemporaryDirectory(prefix="muster-hunt-") as name,
    ):
        folder = Path(name)
        prepare(folder)
        try:
            cluster.open()
            made = drill.work(
                Setting("muster-hunt", "muster-hunt", drill.nodes, cluster.shards, folder)
            )
            command = ["python", "-m", "musterd.chaos.mutants", build]
            request = RunRequest.of(cluster, datetime.now(UTC), seed, command)
            pace = replace(BROKEN_PACE if build else PACE, quiet_s=drill.quiet_s)
            played = Conductor(cluster, made, schedule, folder, seed, view, pace).play()
        finally:
            cluster.close()
        if played.ended == INTERRUPTED:
            raise KeyboardInterrupt
        return judge(request, made, schedule, played, folder)


LAYER = Layer(
    "process",
    "as processes",
    {name: PROCESS_BUILDS[name].rule for name in DRILLS},
    hunt,
    lacks,
    alone=True,
)
