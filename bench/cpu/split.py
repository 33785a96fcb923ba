"""The CPU of one call by process and layer: clocks without a profiler, split by samples."""

import contextlib
import json
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from bench.cpu.layers import OTHER_THREADS, layer_of_thread
from bench.cpu.sampler import sampled
from bench.report import Report
from musterd.coordinator.node.launcher import Equipment

WRITTEN_S_MAX: Final = 30.0
PLACES_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Watched:
    """A process that runs under `bench.cpu.sampler`, and where that writes its samples."""

    pid: int
    file: Path


@dataclass(slots=True)
class Split:
    """Microseconds of CPU of one call in one process, by layer, and by place of its main thread."""

    total_us: float
    layers_us: dict[str, float]
    places_us: dict[str, float] = field(default_factory=dict)


class SampledNodes(Equipment):
    """Every node runs under the sampler, which counts nothing until it is told to."""

    def __init__(self) -> None:
        """Know no folder before the first node is prepared."""
        self._folder = Path()

    def prepare(self, node_id: int, data_dir: Path) -> None:  # noqa: ARG002
        self._folder = data_dir.parent

    def command(self, node_id: int, argv: list[str]) -> list[str]:
        """With the sampler around the module."""
        return sampled(argv, self.file(node_id))

    def file(self, node_id: int) -> Path:
        """Where the samples of a node will be."""
        return self._folder / f"node-{node_id}.samples"


def measure(
    processes: Mapping[str, Sequence[Watched]], run: Callable[[], int]
) -> dict[str, list[Split]]:
    """Run twice: by the clocks alone, then with samples, which split what the clocks said.

    `run` returns how many calls were answered. The result has the names of `processes`.
    """
    everyone = [one for some in processes.values() for one in some]
    before = {one.pid: _clocks(one.pid) for one in everyone}
    calls = run()
    after = {one.pid: _clocks(one.pid) for one in everyone}
    for one in everyone:
        one.file.unlink(missing_ok=True)
        os.kill(one.pid, signal.SIGUSR1)
    run()
    for one in everyone:
        os.kill(one.pid, signal.SIGUSR2)
    return {
        name: [split(one.pid, before[one.pid], after[one.pid], calls, read(one)) for one in some]
        for name, some in processes.items()
    }


@dataclass(frozen=True, slots=True)
class Clocks:
    """CPU seconds of a process and of its threads: id -> seconds, and the kernel's names."""

    process_s: float
    threads_s: dict[int, float]
    names: dict[int, str]


def _clocks(pid: int) -> Clocks:
    process = psutil.Process(pid)
    times = process.cpu_times()
    threads = {one.id: one.user_time + one.system_time for one in process.threads()}
    names = {}
    for thread in threads:
        with contextlib.suppress(OSError):  # it has ended
            names[thread] = Path(f"/proc/{pid}/task/{thread}/comm").read_text("utf-8").strip()
    return Clocks(times.user + times.system, threads, names)


def read(one: Watched) -> dict[str, Any]:
    """What the sampler writes. Raises TimeoutError."""
    end_s = time.monotonic() + WRITTEN_S_MAX
    while not one.file.exists():
        if time.monotonic() > end_s:
            raise TimeoutError(f"{one.file} was not written")
        time.sleep(0.05)
    told: dict[str, Any] = json.loads(one.file.read_text("utf-8"))
    return told


def split(pid: int, before: Clocks, after: Clocks, calls: int, told: Mapping[str, Any]) -> Split:
    """Share out what a process used between two looks, so that the layers are its sum.

    Samples are the main thread's, which is `pid`; every other thread has one layer.
    Raises ValueError where no call was answered or no sample taken.
    """
    numbers: Counter[str] = Counter()
    places: Counter[str] = Counter()
    for layer, place, number in told["samples"]:
        numbers[layer] += number
        places[place] += number
    if not calls or not numbers:
        raise ValueError("no calls, or no samples: nothing was measured")
    used_s = {
        thread: seconds - before.threads_s.get(thread, 0.0)
        for thread, seconds in after.threads_s.items()
    }
    main_s = used_s.pop(pid)
    layers_s: dict[str, float] = defaultdict(float)
    for layer, number in numbers.items():
        layers_s[layer] += main_s * number / numbers.total()
    for thread, seconds in used_s.items():
        name = told["threads"].get(str(thread)) or after.names.get(thread, "")
        layers_s[layer_of_thread(name)] += seconds
    total_s = after.process_s - before.process_s
    known_s = sum(layers_s.values())
    if known_s > total_s:  # the kernel's rounding of so many threads
        layers_s = {layer: seconds * total_s / known_s for layer, seconds in layers_s.items()}
    else:  # threads that have ended
        layers_s[OTHER_THREADS] += total_s - known_s
    us = 1e6 / calls
    return Split(
        total_s * us,
        {layer: seconds * us for layer, seconds in layers_s.items() if seconds > 0},
        {place: main_s * us * number / numbers.total() for place, number in places.items()},
    )


def mean(splits: Sequence[Split]) -> Split:
    """One process that stands for several of a kind."""
    layers: dict[str, float] = defaultdict(float)
    places: dict[str, float] = defaultdict(float)
    for one in splits:
        for layer, us in one.layers_us.items():
            layers[layer] += us / len(splits)
        for place, us in one.places_us.items():
            places[place] += us / len(splits)
    return Split(sum(one.total_us for one in splits) / len(splits), dict(layers), dict(places))


def table(splits: Mapping[str, Split]) -> list[str]:
    """Lines for people: a layer a row, a process a column, the sum last."""
    sums: dict[str, float] = defaultdict(float)
    for one in splits.values():
        for layer, us in one.layers_us.items():
            sums[layer] += us
    width = max(len(layer) for layer in sums)
    lines = [" " * width + "".join(f"{name:>18}" for name in splits)]
    for layer in sorted(sums, key=lambda layer: -sums[layer]):
        cells = (f"{one.layers_us.get(layer, 0.0):>18.1f}" for one in splits.values())
        lines.append(f"{layer:{width}}" + "".join(cells))
    totals = "".join(f"{one.total_us:>18.1f}" for one in splits.values())
    return [*lines, f"{'sum':{width}}{totals}"]


def say_places(report: Report, name: str, one: Split) -> None:
    """Print where the main thread of a process spends most."""
    report.say(f"{name}, us of its main thread by place:")
    for place, us in sorted(one.places_us.items(), key=lambda item: -item[1])[:PLACES_SHOWN]:
        report.say(f"  {us:8.1f} {place}")
