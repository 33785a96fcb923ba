"""Shrinks a run of the simulator: on the shipped build, or on a broken one."""

from chaos.sim.mutants import MUTANTS, Mutant
from chaos.sim.scenarios import SCENARIOS
from chaos.sim.schedule import Schedule
from chaos.sim.shrink import Shrunk, shrink
from chaos.sim.simulation import Result, Simulation


def run_schedule(schedule: Schedule, mutant: Mutant | None) -> Result:
    """Run a schedule on the shipped build or a broken one. Raises KeyError: no such scenario."""
    worlds = SCENARIOS | {one.scenario.name: one.scenario for one in MUTANTS.values()}
    scenario = worlds[schedule.scenario]
    if mutant is None:
        return Simulation(scenario, schedule.seed, schedule).run()
    with mutant.installed():
        return Simulation(scenario, schedule.seed, schedule).run()


def shrink_result(result: Result, mutant: Mutant | None, seconds: float) -> Shrunk:
    """Shorten a run that broke something, keeping the first kind of what it broke.

    Raises ValueError where it broke nothing.
    """
    if not result.violations:
        raise ValueError(f"{result.scenario}:{result.seed} broke nothing")
    kind = result.violations[0].kind

    def fails(schedule: Schedule) -> float | None:
        broken = run_schedule(schedule, mutant).violations
        return next((violation.at_s for violation in broken if violation.kind == kind), None)

    return shrink(fails, result.schedule, len(result.triggered), seconds)
