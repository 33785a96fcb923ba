"""`python -m chaos.mutants`: hunt all broken builds; the last line is `caught N of N`.

Exit code 1 where one survived, or where the shipped build fails a seed that a hunt used; 2 where a
name is no broken build.
"""

import argparse
import json
import logging
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from chaos.mutants.hunt import HUNTED_SEEDS, Caught, layers


def main(arguments: list[str] | None = None) -> int:
    """Parse, hunt, print; returns the exit code."""
    known = layers()
    parser = argparse.ArgumentParser(prog="python -m chaos.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--layer", choices=sorted(known), help="only this layer")
    parser.add_argument("--seeds", type=int, default=HUNTED_SEEDS, help="at most, of each")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--report", type=Path, metavar="FILE", help="write all as JSON, too")
    chosen = parser.parse_args(arguments)
    wanted = [layer for layer in known.values() if chosen.layer in (None, layer.name)]
    names = {name for layer in wanted for name in layer.rules}
    strange = sorted(set(chosen.names) - names)
    if strange:
        parser.error(f"no such build: {', '.join(strange)}; there are {', '.join(sorted(names))}")
    jobs = [
        (layer, name)
        for layer in wanted
        for name in layer.rules
        if not chosen.names or name in chosen.names
    ]
    ended: list[Caught] = []
    with ProcessPoolExecutor(chosen.processes, initializer=be_quiet) as pool:
        futures = [pool.submit(layer.hunt, name, chosen.seeds) for layer, name in jobs]
        for future in as_completed(futures):
            ended.append(future.result())
            say(ended[-1].line())
    caught = [one for one in ended if one.seed is not None]
    if caught:
        slowest = max(caught, key=lambda one: (one.tried, one.seconds))
        say(f"longest hunt: {slowest.line()}")
    if chosen.report is not None:
        rules = {name: layer.rules[name] for layer, name in jobs}
        documents = [{**asdict(one), "rule": rules[one.name]} for one in ended]
        document = {"schema": "muster.chaos.mutants/v1", "mutants": documents}
        chosen.report.write_text(json.dumps(document, indent=2) + "\n")
    say(f"caught {len(caught)} of {len(jobs)}")
    return 0 if len(caught) == len(jobs) else 1


def be_quiet() -> None:
    """Broken builds make PySyncObj shout."""
    logging.getLogger("pysyncobj").setLevel(logging.CRITICAL + 1)


def say(line: str) -> None:
    """Print at once: a hunt takes a while."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
