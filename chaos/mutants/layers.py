"""All ways to hunt broken builds, by name."""

from musterd.chaos.mutants.hunt import Layer


def layers() -> dict[str, Layer]:
    """All of them by name."""
    from musterd.chaos.mutants.unit import LAYER as UNIT  # noqa: PLC0415 - its builds load all of muster
    from musterd.chaos.run.hunting import LAYER as PROCESS  # noqa: PLC0415 - grpc is slow to import
    from musterd.chaos.sim.hunt.sim_layer import LAYER as SIM  # noqa: PLC0415 - the simulator loads all of muster

    return {layer.name: layer for layer in (SIM, UNIT, PROCESS)}
