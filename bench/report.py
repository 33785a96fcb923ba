"""The report of a benchmark: lines for people, then one line of JSON for machines."""

import json
import math
import os
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict


class Yardstick(NamedTuple):
    """A quantity of the run itself, of which a limit is a multiple."""

    value: float
    unit: str
    name: str


class Figure(TypedDict):
    """One measured quantity. `p95` is the nearest rank, so it is always a measured value."""

    n: int
    min: float
    median: float
    p95: float
    max: float
    unit: str


def quantile(values: Iterable[float], q: float) -> float:
    """The nearest-rank quantile, `0 < q <= 1`, of at least one value."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values: nothing was measured")
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two middle ones."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values: nothing was measured")
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def figure(values: Sequence[float], unit: str) -> Figure:
    """Sum up repeated measurements of one quantity; raises ValueError where there are none."""
    return {
        "n": len(values),
        "min": _short(min(values, default=math.nan)),
        "median": _short(median(values)),
        "p95": _short(quantile(values, 0.95)),
        "max": _short(max(values)),
        "unit": unit,
    }


def count(value: int, unit: str = "count") -> Figure:
    """A plain count, taken once: all four numbers are it."""
    return {"n": 1, "min": value, "median": value, "p95": value, "max": value, "unit": unit}


def cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0))


@dataclass
class Report:
    """Collects a benchmark's figures and conditions, and prints them."""

    name: str
    arguments: Sequence[str] = ()
    figures: dict[str, Figure] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """A line for people, with the seconds since the start."""
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", flush=True)

    def add(self, key: str, values: Sequence[float], unit: str) -> Figure:
        """Keep repeated measurements under `key`."""
        self.figures[key] = figure(values, unit)
        return self.figures[key]

    def add_count(self, key: str, value: int, unit: str = "count") -> None:
        """Keep a count under `key`."""
        self.figures[key] = count(value, unit)

    def require(self, holds: bool, what: str) -> None:
        """State a condition of the benchmark; one that does not hold makes `finish` return 1."""
        self.say(f"{'holds' if holds else 'FAILS'}: {what}")
        if not holds:
            self.failed.append(what)

    def at_most(
        self, what: str, value: float, times: float, of: Yardstick, waits: float = 0.0
    ) -> None:
        """State that a figure is at most a multiple of a yardstick, beyond what timers wait.

        `value` and `waits` have the unit of the yardstick. A slow machine is slow for both.
        """
        limit = waits + times * of.value
        timers = f"{_plain(waits)} {of.unit} of timers and " if waits else ""
        self.require(
            value <= limit,
            f"{what} {_plain(value)} {of.unit}, at most {_plain(limit)}: {timers}{times:g} times "
            f"{of.name} ({_plain(of.value)})",
        )

    def table(self) -> None:
        """Print the figures for people."""
        width = max((len(key) for key in self.figures), default=3)
        print(f"{'figure':{width}} {'n':>6} {'min':>10} {'median':>10} {'p95':>10} {'max':>10}")
        for key, got in self.figures.items():
            numbers = " ".join(
                f"{_plain(got[part]):>10}" for part in ("min", "median", "p95", "max")
            )
            print(f"{key:{width}} {got['n']:>6} {numbers} {got['unit']}")

    def finish(self) -> int:
        """Print table, failed conditions and, last, the JSON object. Returns the exit code."""
        self.table()
        for what in self.failed:
            print(f"FAILS: {what}", file=sys.stderr)
        sys.stderr.flush()
        print(
            json.dumps(
                {
                    "name": self.name,
                    "command": shlex.join(["python", "-m", "bench", self.name, *self.arguments]),
                    "cores": cores(),
                    "figures": self.figures,
                }
            ),
            flush=True,
        )
        return 1 if self.failed else 0


def _short(value: float) -> float:
    """Four significant digits are more than any run repeats; whole numbers above that stay."""
    if value == 0 or not math.isfinite(value):
        return value
    digits = 3 - math.floor(math.log10(abs(value)))
    return round(value, max(digits, 0))


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
