"""Shrinks a run of the simulator: on the shipped build, or on a broken one."""

from musterd.chaos.sim.checks.shard_checks import Violation
from musterd.chaos.sim.faults.schedule import Schedule
from musterd.chaos.sim.hunt.build_worlds import MUTANTS, Mutant
from musterd.chaos.sim.hunt.shrink import Shrunk, shrink
from musterd.chaos.sim.scenarios import named
from musterd.chaos.sim.simulation import Result, Simulation


def run_schedule(schedule: Schedule, mutant: Mutant | None) -> Result:
    """Run a schedule on the shipped build or a broken one. Raises KeyError: no such scenario."""
    worlds = {one.scenario.name: one.scenario for one in MUTANTS.values()}
    scenario = worlds.get(schedule.scenario) or named(schedule.scenario)
    if mutant is None:
        return Simulation(scenario, schedule.seed, schedule).run()
    with mutant.installed():
        return Simulation(scenario, schedule.seed, schedule).run()


def named_by(violation: Violation) -> str:
    """By what a shorter run counts as failing the same way; plainly where that is little."""
    about = ", ".join(f"{name} {value}" for name, value in violation.about)
    if violation.kind.startswith("X-"):
        return f"{violation.kind}, in any place: what raised tells of none"
    return f"{violation.kind} of {about or 'anything: it names no shard, group or partition'}"


def shrink_result(result: Result, mutant: Mutant | None, seconds: float) -> Shrunk:
    """Shorten a run that broke something, keeping what it broke first: the kind, and of what.

    Raises ValueError where it broke nothing.
    """
    if not result.violations:
        raise ValueError(f"{result.scenario}:{result.seed} broke nothing")
    first = result.violations[0]
    wanted = (first.kind, first.about)

    def fails(schedule: Schedule) -> float | None:
        broken = run_schedule(schedule, mutant).violations
        return next((one.at_s for one in broken if (one.kind, one.about) == wanted), None)

    return shrink(fails, result.schedule, len(result.triggered), seconds)
