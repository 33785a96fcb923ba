"""Runs inputs against one decoder in a process of its own, and says what broke.

The child notes the number of each input in a shared file before it runs it, so that one that ends
the process, or holds it, is known. Its address space is limited, and of some inputs each
allocation of Python is counted.
"""

import json
import mmap
import os
import resource
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from tests.fuzz.decoders import DECODERS, MIB, Decoder
from tests.fuzz.planted import PLANTED

ROOT = Path(__file__).parents[2]
ADDRESS_SPACE_BYTES = 1024 * MIB
"""A child may take so much beyond what it has when it begins: 16 MiB is the longest input."""
HELD_S = 60.0
"""An input that is not done after so long holds the process."""
MEASURED_EACH = 64
LONG_BYTES = 16 * 1024
FAULTS_MAX = 20
"""A decoder's hunt ends with so many."""


@dataclass(frozen=True)
class Fault:
    """What one input did that its decoder has not promised."""

    decoder: str
    number: int
    what: str
    data: str
    """The input, in hex; the beginning of a long one."""


def input_of(decoder: Decoder, seed: int, number: int, corpus: list[bytes]) -> bytes:
    """The input with this number: the corpus comes first as it is."""
    if number < len(corpus):
        return decoder.whole(corpus[number])
    return decoder.make(Random(f"{decoder.name} {seed} {number}"), corpus)


def run_one(decoder: Decoder, data: bytes, *, measured: bool) -> str:
    """What is wrong with how the decoder took it; nothing where all is well."""
    bound = decoder.at_least + decoder.per_byte * len(data)
    if measured:
        tracemalloc.start(1)
    try:
        decoder.decode(data)
    except decoder.declared:
        pass
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it was not promised
        return f"{type(error).__name__}: {error}"[:300]
    finally:
        if measured:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
    if measured and peak > bound:
        return f"allocated {peak} bytes for {len(data)}; {bound} at most"
    return ""


def hunt_here(
    decoder: Decoder,
    seed: int,
    numbers: Iterator[int],
    note: Callable[[int], None] = lambda _number: None,
) -> tuple[int, list[Fault]]:
    """Run these inputs in this process; how many were run, and what broke."""
    corpus, faults, count = decoder.corpus(), [], 0
    for number in numbers:
        note(number)
        data = input_of(decoder, seed, number, corpus)
        measured = number % MEASURED_EACH == 0 or len(data) > LONG_BYTES
        what = run_one(decoder, data, measured=measured)
        if what.startswith("allocated"):  # once it may be a table of the interpreter that grew
            what = run_one(decoder, data, measured=True)
        count += 1
        if what:
            faults.append(Fault(decoder.name, number, what, data[:2000].hex()))
            if len(faults) >= FAULTS_MAX:
                break
    return count, faults


def child(name: str, seed: int, first: int, last: int, seconds: float, note: str) -> None:
    """Run inputs [first, last), for so many seconds at most; prints JSON."""
    decoder = next(one for one in (*DECODERS, *PLANTED) if one.name == name)
    hunt_here(decoder, seed, iter(range(1)))  # what is imported late is there now
    now = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (now + ADDRESS_SPACE_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end = time.monotonic() + seconds

    def numbers() -> Iterator[int]:
        for number in range(first, last):
            if number % 16 == 0 and time.monotonic() > end:
                return
            yield number

    with Path(note).open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:

        def write(number: int) -> None:
            shared[:] = number.to_bytes(8, "big")

        count, faults = hunt_here(decoder, seed, numbers(), write)
    print(json.dumps({"count": count, "faults": [asdict(one) for one in faults]}))


def hunt(
    decoder: Decoder,
    seed: int,
    inputs: int,
    seconds: float,
    folder: Path,
    held_s: float = HELD_S,
) -> tuple[int, list[Fault]]:
    """Run so many inputs in a child; one that ends the child is skipped by the next child."""
    first, faults, count = 0, [], 0
    end = time.monotonic() + seconds
    note = folder / f"{decoder.name}.note"
    while first < inputs and len(faults) < FAULTS_MAX:
        note.write_bytes((first).to_bytes(8, "big"))
        left = max(0.0, end - time.monotonic())
        if first and not left:
            break
        arguments = ["child", decoder.name, seed, first, inputs, left, note]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz", *map(str, arguments)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={k: v for k, v in os.environ.items() if not k.startswith(("MUSTER_", "MUSTERD_"))},
        )
        out, held = _until_done(process, note, held_s)
        number = int.from_bytes(note.read_bytes(), "big")
        if process.returncode == 0:
            found = json.loads(out)
            count += found["count"]
            faults += [Fault(**one) for one in found["faults"]]
            break
        what = f"held the process for {held_s} s" if held else f"ended it: {process.returncode}"
        data = input_of(decoder, seed, number, decoder.corpus())
        faults.append(Fault(decoder.name, number, what, data[:2000].hex()))
        count += number - first + 1
        first = number + 1
    return count, faults


def _until_done(
    process: "subprocess.Popen[bytes]", note: Path, held_s: float
) -> tuple[bytes, bool]:
    """What it printed, and whether it had to be ended since one input held it."""
    at, since = b"", time.monotonic()
    while True:
        try:
            return process.communicate(timeout=1.0)[0], False
        except subprocess.TimeoutExpired:
            now = note.read_bytes()
            if now != at:
                at, since = now, time.monotonic()
            elif time.monotonic() - since > held_s:
                process.kill()
                return process.communicate()[0], True
