"""`python -m musterd.chaos.mutants`: hunt all broken builds; the last line is `caught N of N`.

N is of hunts: a build that is hunted in the simulator and as real processes counts twice; the line
before says how many there were of each kind, those by unit tests among them.

Exit code 1 where one survived, or where the shipped build fails a seed that a hunt used; 2 where a
name is no broken build.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from musterd.chaos import build
from musterd.chaos.mutants.hunt import (
    HUNTED_SEEDS,
    HUNTS,
    Caught,
    Hunts,
    Layer,
    Skipped,
    by_promise,
    due,
)
from musterd.chaos.mutants.unit import LAYER as UNIT
from musterd.chaos.run.hunt import LAYER as PROCESS
from musterd.chaos.sim.hunt.sim_layer import LAYER as SIM
from musterd.chaos.sim.run import begin_process

LAYERS: dict[str, Layer] = {layer.name: layer for layer in (SIM, UNIT, PROCESS)}
"""All ways to hunt broken builds, by name."""


def main(arguments: list[str] | None = None) -> int:
    """Parse, hunt, print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m musterd.chaos.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--layer", choices=sorted(LAYERS), help="only this layer")
    parser.add_argument("--seeds", type=int, default=HUNTED_SEEDS, help="at most, of each")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--cold",
        action="store_true",
        help="only builds with a known seed, from seed 0 on: how long a new bug would take",
    )
    parser.add_argument(
        "--turn",
        type=int,
        metavar="N",
        help="in each layer only every fifth build, another fifth with each N",
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write all as JSON, too")
    chosen = parser.parse_args(arguments)
    wanted = [layer for layer in LAYERS.values() if chosen.layer in (None, layer.name)]
    names = {name for layer in wanted for name in layer.sought}
    strange = sorted(set(chosen.names) - names)
    if strange:
        parser.error(f"no such build: {', '.join(strange)}; there are {', '.join(sorted(names))}")
    jobs = [
        (layer, name)
        for layer in wanted
        # A hunt on real processes takes half a minute, the others some ten seconds.
        for name in (layer.sought if chosen.turn is None else due([*layer.sought], chosen.turn))
        if (not chosen.names or name in chosen.names)
        # A cold hunt of a build without a known seed is the same as any other.
        and (not chosen.cold or layer.sought[name].seed is not None)
    ]
    skipped = [Skipped(name, layer.name, why) for layer, name in jobs if (why := layer.lacks(name))]
    lacking = {(one.layer, one.name) for one in skipped}
    jobs = [(layer, name) for layer, name in jobs if (layer.name, name) not in lacking]
    stamp = build.here()
    ended: list[Caught] = []
    for one in _hunted(jobs, chosen.seeds, chosen.processes, cold=chosen.cold):
        ended.append(one)
        say(one.line())
    for lack in skipped:
        say(f"{lack.name:<20} skipped in {lack.layer}: {lack.reason}")
    caught = [one for one in ended if one.seed is not None]
    for (layer_name, promise), builds in by_promise(caught).items():
        say(f"{promise} ({layer_name}) caught {', '.join(builds)}")
    if chosen.report is not None:
        chosen.report.parent.mkdir(parents=True, exist_ok=True)
        ended.sort(key=lambda one: (one.layer, one.name))
        hunts = Hunts(stamp, ended, skipped, chosen.cold)
        chosen.report.write_bytes(HUNTS.dump_json(hunts, indent=2) + b"\n")
    say(_counted(jobs))
    say(f"caught {len(caught)} of {len(jobs)}")
    return 0 if len(caught) == len(jobs) else 1


def _hunted(
    jobs: list[tuple[Layer, str]], seeds: int, processes: int, *, cold: bool
) -> Iterator[Caught]:
    """All hunts, those that share the processors first; each when it has ended."""
    shared = [(layer, name) for layer, name in jobs if not layer.alone]
    with ProcessPoolExecutor(processes, initializer=begin_process, initargs=(os.getpid(),)) as pool:
        futures = [pool.submit(_hunt, layer.name, name, seeds, cold=cold) for layer, name in shared]
        for future in as_completed(futures):
            yield future.result()
    for layer, name in jobs:
        if layer.alone:
            yield layer.hunt(name, seeds, cold=cold)


def _hunt(layer: str, name: str, seeds: int, *, cold: bool) -> Caught:
    return LAYERS[layer].hunt(name, seeds, cold=cold)


def _counted(jobs: list[tuple[Layer, str]]) -> str:
    """How many hunts there were, of how many builds: one may be hunted in each layer."""
    words = [
        f"{count} {layer.done}"
        for layer in LAYERS.values()
        if (count := sum(one.name == layer.name for one, _ in jobs))
    ]
    hunts, builds = len(jobs), len({name for _, name in jobs})
    return (
        f"{hunts} hunt{'s' if hunts != 1 else ''} of {builds} build{'s' if builds != 1 else ''}: "
        f"{', '.join(words) or 'none'}"
    )


def say(line: str) -> None:
    """Print at once: a hunt takes a while."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
