"""Pictures as SVG text: a scale, a few shapes, and nothing that a browser would have to fetch.

Colours are Okabe and Ito's, which colour-blind people tell apart. Lengths are pixels.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

from muster.cli.output import line

HIT = "#D55E00"
OTHER = "#0072B2"
SPAN = "#F3E3C3"
GRID = "#E3E6EA"
INK = "#39424E"
FAINT = "#7A8594"
BAD = "#B3261E"
SERIES = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#F0E442",
)
SMALL = 11


@dataclass(frozen=True, slots=True)
class Scale:
    """From figures to pixels, linear or by decades."""

    low: float
    high: float
    start: float
    end: float
    decades: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of `value`; what lies outside is put on the edge."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.decades:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        return self.start + (self.end - self.start) * (at - low) / (high - low)

    def ticks(self, wanted: int = 6) -> list[float]:
        """Round figures to write at the axis, about `wanted` of them."""
        if self.decades:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            return [10.0**power for power in range(first, last + 1)]
        rough = (self.high - self.low) / wanted
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        first = math.ceil(self.low / step)
        return [n * step for n in range(first, math.floor(self.high / step) + 1)]


@dataclass(slots=True)
class Picture:
    """One SVG element under construction."""

    width: int
    height: int
    title: str
    """Said to who cannot see it."""
    parts: list[str] = field(default_factory=list)

    def rect(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        """A filled rectangle."""
        box = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}"'
        self.parts.append(f'<rect {box} fill="{fill}"/>')

    def rule(self, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
        """A thin straight line."""
        ends = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
        self.parts.append(f'<line {ends} stroke="{colour}" stroke-width="1"/>')

    def curve(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        """A line through points."""
        if points:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            style = f'fill="none" stroke="{colour}" stroke-width="1.4" stroke-linejoin="round"'
            self.parts.append(f'<polyline points="{path}" {style}/>')

    def dots(self, points: Iterable[tuple[float, float]], colour: str, size: float = 2.6) -> None:
        """A dot at each point."""
        path = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in points)
        if path:
            style = f'stroke="{colour}" stroke-width="{size}" stroke-linecap="round"'
            self.parts.append(f'<path d="{path}" {style}/>')

    def crosses(self, points: Iterable[tuple[float, float]], colour: str) -> None:
        """A small cross at each point."""
        arm = 3
        path = "".join(
            f"M{x - arm:.1f} {y - arm:.1f}l{2 * arm} {2 * arm}m0 {-2 * arm}l{-2 * arm} {2 * arm}"
            for x, y in points
        )
        if path:
            self.parts.append(
                f'<path d="{path}" stroke="{colour}" stroke-width="1.3" fill="none"/>'
            )

    def text(
        self, at: tuple[float, float], words: str, colour: str = INK, anchor: str = "start"
    ) -> None:
        """Words on one line; `anchor` is start, middle or end."""
        style = f'fill="{colour}" font-size="{SMALL}" text-anchor="{anchor}"'
        self.parts.append(
            f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" {style}>{escape(line(words))}</text>'
        )

    def svg(self) -> str:
        """The element."""
        box = f'viewBox="0 0 {self.width} {self.height}"'
        name = quoteattr(line(self.title))
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label={name}>'
        return "\n".join((head, *self.parts, "</svg>"))


def short_ms(value_ms: float) -> str:
    """A duration for people: 3 ms, 0.45 s, 12 s, 25 min, 3.5 h."""
    if value_ms < 100:  # noqa: PLR2004 - below, ms say more
        return f"{value_ms:.3g} ms"
    seconds = value_ms / 1000
    if seconds < 10:  # noqa: PLR2004 - below, hundredths say more
        return f"{seconds:.2f} s"
    if seconds < 600:  # noqa: PLR2004 - ten minutes
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"  # noqa: PLR2004
