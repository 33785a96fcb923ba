"""Our verdict and porcupine's on the same registers: `make cross-check`, in CI.

    python -m tests.chaos.porcupine PROGRAM [FOLDER...] [--histories 6000] [--runs]

PROGRAM is main.go, built. Compared are generated histories, good and bad, and every key of the runs
(`muster chaos run --to FOLDER`). The last line is JSON; the exit code is 1 where a verdict differs,
where too much is left undecided, or where too few of either kind were compared. With `--runs`, as
`make cross-check` calls it, it is 2 where no run is given.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

from musterd.chaos.check.register import FOREVER, Access, Register, registers
from musterd.chaos.check.search import UndecidedError
from musterd.chaos.history import History, Operation, Outcome
from musterd.chaos.history_files import read_folder
from tests.chaos.check.brute import is_explained
from tests.chaos.check.generated import generated

ACCESSES_MAX = 10_000
"""Of one key: porcupine keeps a bit for each with every state. Of a longer one its beginning."""
SHARE_MIN = 0.2
"""So many of the generated ones must be linearizable, and so many not."""
LENGTHS = (4, 6, 8, 12, 16, 24, 32)
"""Of generated ones, in operations; with long bad ones porcupine takes minutes."""
UNDECIDED_SHARE_MAX = 0.01
"""What porcupine may leave open, but one in any case; muster nothing."""
WAIT_S = 600


def say(text: str) -> None:
    """One line for whoever started it."""
    sys.stdout.write(f"{text}\n")


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--histories", type=int, default=6000)
    parser.add_argument("--runs", action="store_true", help="an error where there is no FOLDER")
    given = parser.parse_args(arguments)
    if given.runs and not given.folders:
        parser.error("there is no run to compare: `make chaos-short` makes one, RUNS names others")
    began = time.monotonic()
    made = {f"seed {n}": one for n, one in enumerate(generated_registers(given.histories))}
    real = {
        f"{folder}: {key}": register
        for folder in given.folders
        for key, register in registers(shortened(read_folder(folder / "history"))).items()
        if register.reads
    }
    ok, figures = compared(given.program, made)
    ok_real, figures_real = compared(given.program, real)
    for verdict in ("yes", "no"):
        if figures[f"linearizable_{verdict}"] < SHARE_MIN * given.histories:
            say(f"cross-check: too few generated histories are linearizable: {verdict}")
            ok = False
    if given.folders and not figures_real["compared"]:
        say("cross-check: no key of the runs was compared")
        ok = False
    seconds = round(time.monotonic() - began, 1)
    say(json.dumps({"generated": figures, "runs": figures_real, "seconds": seconds}))
    return 0 if ok and ok_real else 1


def generated_registers(count: int) -> Iterator[Register]:
    """Short and long, one writer per value or several, good and bent."""
    for seed in range(count):
        rng = Random(seed)
        length = rng.choice(LENGTHS)
        made = generated(rng, length, shared=seed % 2 == 0, bent=seed % 3 > 0)
        (register,) = registers(History(operations=made)).values()
        yield register


def shortened(history: History) -> History:
    """Of each key the first operations; what they did not see the end of is unknown."""
    counts: Counter[object] = Counter()
    kept: list[Operation] = []
    cuts: dict[object, int] = {}
    for one in history.operations:
        counts[one.key] += 1
        if counts[one.key] > ACCESSES_MAX:
            cuts.setdefault(one.key, one.began_ns)
    for one in history.operations:
        cut = cuts.get(one.key)
        if cut is None or (one.ended_ns is not None and one.ended_ns < cut):
            kept.append(one)
        elif one.began_ns < cut and one.kind != "read" and one.outcome is not Outcome.FAIL:
            kept.append(unanswered(one))
    return History(operations=kept)


def unanswered(one: Operation) -> Operation:
    """A write whose answer is not looked at."""
    return Operation(one.client, one.kind, one.key, one.began_ns, None, Outcome.UNKNOWN, one.value)


def compared(program: Path, mine: dict[str, Register]) -> tuple[bool, dict[str, int]]:
    """Whether all verdicts are equal, and how many there were of each kind."""
    lines = [
        json.dumps({"id": number, "operations": [*written(register)]})
        for number, register in enumerate(mine.values())
    ]
    done = subprocess.run(
        [program.resolve()],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    if done.returncode:
        sys.exit(f"cross-check: {done.stderr}")
    theirs = dict(line.split() for line in done.stdout.splitlines())
    counts: Counter[str] = Counter(compared=0, linearizable_yes=0, linearizable_no=0, undecided=0)
    ok = True
    for number, (name, register) in enumerate(mine.items()):
        verdict, other = said(register), theirs[str(number)]
        if "timeout" in {verdict, other}:
            say(f"cross-check: {name}: undecided: muster {verdict}, porcupine {other}")
            counts["undecided"] += 1
            ok = ok and verdict != "timeout"
            continue
        counts["compared"] += 1
        counts[f"linearizable_{other}"] += 1
        if verdict != other:
            say(f"cross-check: {name}: muster says {verdict}, porcupine {other}: {lines[number]}")
            ok = False
    ok = ok and counts["undecided"] <= max(1, UNDECIDED_SHARE_MAX * len(mine))
    return ok, dict(counts)


def said(register: Register) -> str:
    """Our verdict."""
    try:
        return "yes" if is_explained(register) else "no"
    except UndecidedError:
        return "timeout"


def written(register: Register) -> Iterator[tuple[str, int, int, int]]:
    """A register as porcupine's side reads it: every write, also what nobody read."""
    for access in register.writes:
        yield ("w" if access.certain else "m", *_times(access))
    for access in register.reads:
        yield ("r", *_times(access))


def _times(access: Access) -> tuple[int, int, int]:
    return access.value, access.begin, min(access.end, FOREVER)


if __name__ == "__main__":
    sys.exit(main())
