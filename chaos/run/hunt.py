"""Hunts a broken build on real servers, in a scenario that the shipped build passes.

`hunt_scenarios` has the scenarios, and the invariants that are named for each build.

Nodes are `muster serve` processes without one rule (`musterd.chaos.mutants.serve`); the runner
breaks them as in any run, and the checkers judge what the clients saw.
"""

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from musterd.chaos.interrupts import Interrupts
from musterd.chaos.mutants.builds import PROCESS_BUILDS
from musterd.chaos.mutants.hunt import Layer, Try
from musterd.chaos.mutants.installed import BrokenBuild
from musterd.chaos.run.hunt_scenarios import SCENARIOS, SOUGHT, HuntScenario
from musterd.chaos.run.result import RunResult
from musterd.chaos.run.runner import FINISHED, Pace
from musterd.chaos.run.target_cluster import OwnWorld
from musterd.chaos.run.view import View
from musterd.chaos.run.whole import run_whole
from musterd.chaos.world.equipment.client import EquipmentClient
from musterd.chaos.world.equipment.clock import NodeClocks
from musterd.chaos.world.equipment.disk import SIZE_MB, LoopDisks
from musterd.chaos.world.networks.netns import Netns
from musterd.chaos.world.networks.network import Network
from musterd.coordinator.node.loopback import ClusterError

PREFIX = "muster-hunt"
ATTEMPTS_MAX = 5
"""A build that so many runs of its schedule do not catch has survived."""
PACE = Pace(warm_s=1.0, quiet_s=0.0, replay=False)
BROKEN_PACE = replace(PACE, settle_s=15.0)
"""Many a broken build never settles, and has given itself away long before."""


class ProcessLayer(Layer):
    """Hunts builds as real servers."""

    name = "process"
    done = "as processes"
    alone = True
    seeds = range(1, ATTEMPTS_MAX + 1)

    def attempt(self, name: str, seed: int) -> Try:
        """Play its schedule. Raises KeyboardInterrupt."""
        scenario = SCENARIOS[name]
        shipped = try_shipped(scenario, seed)
        if shipped.shipped or shipped.seen:
            return shipped
        try:
            result = play(scenario, seed, name)
        except ClusterError as error:  # a build that cannot even start has broken no promise
            return Try(seen=_first_line(error))
        return Try(broken=broken(result), seen="; ".join(result.reasons))

    def lacks(self, name: str) -> str:
        """Some scenarios need disks, clocks or links of their own."""
        scenario = SCENARIOS[name]
        reasons = (
            Netns().lacks() if scenario.needs_links else "",
            LoopDisks(EquipmentClient(), SIZE_MB).lacks() if scenario.needs_disks else "",
            NodeClocks().lacks() if scenario.needs_clocks else "",
        )
        return next(filter(None, reasons), "")


@cache
def try_shipped(scenario: HuntScenario, seed: int) -> Try:
    """A run of the shipped build, played once.

    `seen`: why it says nothing of another build's, though it broke nothing: a machine that stood
    still, say.
    """
    try:
        result = play(scenario, seed)
    except ClusterError as error:
        return Try(seen=_first_line(error))
    looked = {one.invariant for one in result.verdicts if one.looked_at}
    wrong = []
    if result.ended != FINISHED:
        wrong.append(result.ended)
    if result.keys_unread:
        wrong.append(f"{result.keys_unread} keys were not read at the end")
    wrong += [f"{one.kind}: {one.error}" for one in result.faults if one.error]
    if len(result.faults) != len(scenario.steps):
        wrong.append(f"{len(result.faults)} of {len(scenario.steps)} faults were reached")
    if missing := sorted(scenario.looks - looked):
        wrong.append(f"nothing was looked at for {', '.join(missing)}")
    useless = f"the shipped build's run of it is of no use: {'; '.join(wrong)}" if wrong else ""
    return Try(shipped=", ".join(broken(result)), seen=useless)


def broken(result: RunResult) -> tuple[str, ...]:
    """The promises that a run saw broken.

    Keys that nobody could read at the end are no lost commits: a cluster that fell apart has them.
    """
    return tuple(
        one.invariant
        for one in result.verdicts
        if one.violations_count and (one.invariant != "I1" or result.commits_lost)
    )


def _first_line(error: ClusterError) -> str:
    return str(error).partition("\n")[0]


def play(scenario: HuntScenario, seed: int, build: str = "") -> RunResult:
    """One run of a schedule; `build` "": of the shipped build. Raises ClusterError."""
    kits = (BrokenBuild(build),) if build else ()
    kinds = sorted({kind for kind, _ in scenario.steps})
    network = Netns(seed=seed) if scenario.needs_links else Network()
    cluster = OwnWorld(scenario.nodes, network, kinds, seed, kits)
    command = ["python", "-m", "musterd.chaos.mutants", build]
    pace, view = replace(BROKEN_PACE if build else PACE, quiet_s=scenario.quiet_s), View()
    with (
        Interrupts(view.say) as interrupts,
        tempfile.TemporaryDirectory(prefix=f"{PREFIX}-") as name,
    ):
        result = run_whole(
            cluster,
            Path(name),
            seed,
            command,
            lambda _: scenario.schedule(seed),
            lambda setting: scenario.work(replace(setting, prefix=PREFIX, topics=PREFIX)),
            view,
            interrupts,
            pace,
        )
        if interrupts.count:
            raise KeyboardInterrupt
    return result


LAYER = ProcessLayer(SOUGHT, PROCESS_BUILDS)
