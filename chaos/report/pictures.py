"""The pictures of a report: latency through each kind of fault, the memory of a soak."""

from collections.abc import Callable, Iterable, Sequence

from musterd import svg
from musterd.chaos.report.inputs import Soaked
from musterd.chaos.run.probes import hit_nodes
from musterd.chaos.run.result import FaultRun, ProbeTrack, RunResult
from musterd.svg import Picture, Scale, short_ms

NS_PER_MS = 1e6
BEFORE_S = 3.0
"""So much of the time before a fault is shown, and after it."""
ALONG_S = 60.0
"""More of one fault is not shown."""
FLOOR_MS = 1.0
CEILINGS_MS = (10_000.0, 100_000.0)
"""The axis ends with the first that is above every figure, or with the last."""
SLOW_MS = 100.0
"""From here on a commit is drawn as long as it took, not as a dot alone."""
PANEL = (380, 210)
WIDE = 1120
BUCKETS = 560


def panels(runs: Sequence[RunResult]) -> list[tuple[str, str, str]]:
    """Of each kind of fault, with words: the one with the longest time without a commit."""
    by_kind: dict[str, list[tuple[FaultRun, RunResult]]] = {}
    for run in runs:
        for fault in run.faults:
            if fault.injected and run.probes:
                by_kind.setdefault(fault.kind, []).append((fault, run))
    top_ms, found = ceiling(runs), []
    for kind, some in sorted(by_kind.items()):
        fault, run = max(some, key=lambda one: max(one[0].hit_ms or 0.0, one[0].other_ms or 0.0))
        found.append((kind, _caption(fault, len(some)), _panel(run, fault, top_ms)))
    return found


def ceiling(runs: Iterable[RunResult]) -> float:
    """Where the axis of latencies ends, in ms; the same in all pictures, so that they compare."""
    took = (ms for run in runs for probe in run.probes for ms in probe.latency_ms if ms is not None)
    longest = max(took, default=0.0)
    return next((end for end in CEILINGS_MS if longest < end), CEILINGS_MS[-1])


def led_by(probe: ProbeTrack, at_ms: float) -> int | None:
    """Who last answered the probe before that moment."""
    told = [node for since, node in probe.leaders if since <= at_ms]
    return told[-1] if told else None


def _panel(run: RunResult, fault: FaultRun, top_ms: float) -> str:
    zero = (fault.began_ns - run.began_ns) / NS_PER_MS
    healed_ns = fault.healed_ns or run.ended_ns
    healed_s = (healed_ns - fault.began_ns) / 1e9
    settled_s = ((fault.settled_ns or healed_ns) - fault.began_ns) / 1e9
    end_s = min(max(healed_s, settled_s) + BEFORE_S, ALONG_S)
    wide, high = PANEL
    x = Scale(-BEFORE_S, end_s, 46, wide - 14)  # half of the last word at the axis
    y = Scale(FLOOR_MS, top_ms, high - 24, 20, decades=True)
    picture = Picture(wide, high, f"latency of commits through {fault.kind}")
    picture.rect(x(0), y.end, x(min(healed_s, end_s)) - x(0), y.start - y.end, svg.SPAN)
    _rules(picture, x, y, _decade)
    for tick in x.ticks():
        picture.rule((x(tick), y.start), (x(tick), y.start + 4), svg.FAINT)
        picture.text((x(tick), y.start + 16), f"{tick:g} s", svg.FAINT, "middle")
    hit = hit_nodes(fault.targets)
    for probe in sorted(run.probes, key=lambda probe: led_by(probe, zero) in hit):
        colour = svg.HIT if led_by(probe, zero) in hit else svg.OTHER
        answered, silent = [], []
        for sent, took in zip(probe.sent_ms, probe.latency_ms, strict=True):
            at_s = (sent - zero) / 1000
            if -BEFORE_S <= at_s <= end_s:
                if took is None:
                    silent.append((x(at_s), y.end - 5))
                    continue
                answered.append((x(at_s), y(took)))
                if took > SLOW_MS:
                    end = (x(min(at_s + took / 1000, end_s)), y(took))
                    picture.curve([answered[-1], end], colour)
        picture.dots(answered, colour)
        picture.crosses(silent, svg.BAD)
    return picture.svg()


def _caption(fault: FaultRun, count: int) -> str:
    words = [f"the worst of {count}" if count > 1 else "once"]
    words.append(", ".join(fault.targets) or "no node by name")
    if fault.hit_ms is not None:
        words.append(f"hit {short_ms(fault.hit_ms)}")
    if fault.other_ms is not None:
        words.append(f"others {short_ms(fault.other_ms)}")
    if not fault.quorum:
        words.append("no majority")
    return "; ".join(words)


def _rules(picture: Picture, x: Scale, y: Scale, name: Callable[[float], str]) -> None:
    """Lines across the picture at the ticks of y, with what they stand for."""
    for tick in y.ticks():
        picture.rule((x.start, y(tick)), (x.end, y(tick)), svg.GRID)
        picture.text((x.start - 5, y(tick) + 4), name(tick), svg.FAINT, "end")


def _decade(value_ms: float) -> str:
    return f"{value_ms:g} ms" if value_ms < 1000 else f"{value_ms / 1000:g} s"  # noqa: PLR2004


def memory(soak: Soaked, kind: str) -> str:
    """Resident memory of all processes of a kind against time."""
    lines = [line for line in soak.lines if line.kind == kind and line.points]
    most = max((value for line in lines for _, value in line.points), default=1.0)
    picture = Picture(WIDE // 2 - 10, 240, f"memory of each {kind}")
    x = Scale(0, max(soak.minutes, 0.1), 52, picture.width - 70)
    y = Scale(0, most * 1.1, 214, 10)
    picture.rect(x(0), y.end, x(soak.warmup_minutes) - x(0), y.start - y.end, svg.SPAN)
    _rules(picture, x, y, "{:g} MiB".format)
    for tick in x.ticks():
        picture.text((x(tick), y.start + 16), f"{tick:g} min", svg.FAINT, "middle")
    free = y.end
    for number, line in enumerate(sorted(lines, key=lambda line: -line.points[-1][1])):
        colour = svg.SERIES[number % len(svg.SERIES)]
        thinned = [*line.points[:: max(1, len(line.points) // BUCKETS)], line.points[-1]]
        picture.curve([(x(at), y(value)) for at, value in thinned], colour)
        free = max(free + 12, y(line.points[-1][1]) + 4)
        if free < y.start:
            picture.text((x.end + 5, free), line.name, colour)
    return picture.svg()
