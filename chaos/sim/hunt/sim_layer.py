"""Tries a broken build in the simulator, on a seed that the shipped build passes."""

from musterd.chaos.mutants.builds import BUILDS
from musterd.chaos.mutants.hunt import Layer, Try
from musterd.chaos.sim.hunt.sought_builds import SOUGHT
from musterd.chaos.sim.scenarios import named
from musterd.chaos.sim.simulation import Simulation


class SimLayer(Layer):
    """Hunts builds in simulated worlds."""

    name = "sim"
    done = "simulated"

    def attempt(self, name: str, seed: int) -> Try:
        """Kinds of violations are what is broken."""
        scenario = named(self.sought[name].world)
        if clean := _kinds(Simulation(scenario, seed)):
            return Try(shipped=", ".join(clean))
        with self.builds[name].installed():
            return Try(broken=_kinds(Simulation(scenario, seed)))


def _kinds(simulation: Simulation) -> tuple[str, ...]:
    return tuple(dict.fromkeys(violation.invariant for violation in simulation.run().violations))


LAYER = SimLayer(SOUGHT, BUILDS)
