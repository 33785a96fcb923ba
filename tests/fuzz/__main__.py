"""`python -m tests.fuzz`: feeds every decoder what nobody sends; the last line is JSON.

Exits 1 where one raised what it has not declared, ended its process, held it, or allocated more
than its bound. `--only NAME --number N` runs one input again, in this process.
"""

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tests.fuzz import client_port
from tests.fuzz.decoders import DECODERS
from tests.fuzz.hunt import Fault, child, hunt, hunt_here

CHILDREN = 2
EVER_S = 1e9


def main() -> int:
    """Run what the arguments say."""
    if sys.argv[1:2] == ["child"]:
        name, seed, first, last, seconds, note = sys.argv[2:]
        child(name, int(seed), int(first), int(last), float(seconds), note)
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=EVER_S, help="of all, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[*(one.name for one in DECODERS), client_port.NAME])
    parser.add_argument("--number", type=int, help="one input of --only, again")
    asked = parser.parse_args()
    chosen = [one for one in DECODERS if asked.only in (None, one.name)]
    if asked.number is not None:
        _, faults = hunt_here(chosen[0], asked.seed, iter((asked.number,)))
        return report({chosen[0].name: 1}, faults, asked.seed)
    with_client_port = asked.only in (None, client_port.NAME)
    shares = sum(one.share for one in chosen) + with_client_port * client_port.SHARE
    counts: dict[str, int] = {}
    faults: list[Fault] = []
    with tempfile.TemporaryDirectory(prefix="muster-fuzz-") as folder:

        def run(decoder: object) -> tuple[str, int, list[Fault]]:
            part = getattr(decoder, "share", client_port.SHARE) / shares
            inputs, seconds = round(part * asked.inputs), part * asked.seconds * CHILDREN
            if decoder is client_port:
                return (
                    client_port.NAME,
                    *client_port.hunt(asked.seed, inputs, seconds, Path(folder)),
                )
            return (decoder.name, *hunt(decoder, asked.seed, inputs, seconds, Path(folder)))

        with ThreadPoolExecutor(CHILDREN) as pool:
            for name, count, found in pool.map(
                run, [*([client_port] if with_client_port else []), *chosen]
            ):
                counts[name] = count
                faults += found
                print(f"{name}: {count} inputs, {len(found)} faults", flush=True)
    return report(counts, faults, asked.seed)


def report(counts: dict[str, int], faults: list[Fault], seed: int) -> int:
    """Print what was found; the exit code."""
    for one in faults:
        print(f"{one.decoder} --seed {seed} --number {one.number}: {one.what}\n  {one.data}")
    result = {"seed": seed, "inputs": sum(counts.values()), "by_decoder": counts}
    print(json.dumps({**result, "faults": [asdict(one) for one in faults]}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
