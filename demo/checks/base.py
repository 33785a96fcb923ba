"""The parts that all checks share: a line of the report, and offsets over time."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from musterd.demo.events import Offsets, Took
from musterd.demo.evidence import Evidence

Scalar = int | float | str | bool | None
Figure = Scalar | list[dict[str, Scalar]]

SHOWN = 5
"""Failures that a line names."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. `each` are lines below it."""

    name: str
    passed: bool
    detail: str
    figures: Mapping[str, Figure] = field(default_factory=dict)
    each: tuple[str, ...] = ()


class Series:
    """The highest offset of each partition up to a time. Add everything first, then ask."""

    def __init__(self) -> None:
        self._points: dict[int, list[tuple[int, int]]] = {}
        self._highest: dict[int, tuple[list[int], list[int]]] = {}

    def add(self, at_ns: int, offsets: Offsets) -> None:
        """These offsets were reached at this time."""
        for partition, offset in offsets.items():
            self._points.setdefault(partition, []).append((at_ns, offset))

    def up_to(self, partition: int, at_ns: int) -> int:
        """0 where there is none."""
        if partition not in self._highest:
            times, offsets, highest = [], [], 0
            for when, offset in sorted(self._points.get(partition, [])):
                highest = max(highest, offset)
                times.append(when)
                offsets.append(highest)
            self._highest[partition] = times, offsets
        times, offsets = self._highest[partition]
        place = bisect_right(times, at_ns)
        return offsets[place - 1] if place else 0


def members_of(evidence: Evidence) -> dict[str, str]:
    """Member id -> worker."""
    return {event.member: worker for worker, event in evidence.events if isinstance(event, Took)}


def first(bad: list[str]) -> str:
    """The first failures as a sentence; "" where there are none."""
    more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    return "; ".join(bad[:SHOWN]) + more
