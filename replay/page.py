"""A summary as one HTML page with pictures, which needs nothing from elsewhere."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from muster.cli.output import Table, cell, line
from musterd import svg
from musterd.replay.summary import Cause, Round, Summary, Unowned
from musterd.svg import Picture, Scale, short_ms

WIDE, HIGH = 1120, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 30, 24
BAR = 22
FLOOR_MS = 1.0
STYLE = """body{font:14px/1.45 system-ui,sans-serif;color:#222}
body{max-width:1160px;margin:2em auto;padding:0 1em}
svg{width:100%;height:auto}table{border-collapse:collapse;margin:.6em 0 1.6em}
th,td{padding:.2em .9em .2em 0;text-align:left;border-bottom:1px solid #E3E6EA;vertical-align:top}
th{font-weight:600;color:#39424E}p.note{color:#7A8594}"""


def page(title: str, summary: Summary, tables: Sequence[Table]) -> str:
    """The page. Every word from the history is escaped."""
    parts = [f"<h1>{escape(line(title))}</h1>"]
    parts += _section(
        "Each rebalance, when it began and how long it took",
        timeline(summary.rounds),
        "Colours are causes. Where several of one cause fall on one point of the line, the longest"
        " is shown. Rounds that did not end, or began before the export, are not shown.",
    )
    parts += _section(
        "Rebalances by cause", causes(summary.by_cause), "The number of rounds that each opened."
    )
    parts += _section(
        "Partitions between two owners",
        unowned(summary.unowned),
        "Of each group the time of all its partitions together; the groups with most of it.",
    )
    parts += [_table(table) for table in tables if table.rows]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(line(title))}'
        f"</title>\n<style>{STYLE}</style>\n{body}\n</html>\n"
    )


def _section(heading: str, picture: str | None, note: str) -> list[str]:
    shown = picture or "<p>There was none.</p>"
    return [f"<h2>{heading}</h2>", shown, f'<p class="note">{note}</p>']


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell(value))}</td>' for value in row)}</tr>\n"
        for row in table.rows
    )
    return f"<table><tr>{head}</tr>\n{rows}</table>"


def _colours(triggers: Iterable[str]) -> dict[str, str]:
    names = sorted(set(triggers))
    return {name: svg.SERIES[number % len(svg.SERIES)] for number, name in enumerate(names)}


def timeline(rounds: Sequence[Round]) -> str | None:
    """A dot for each round; None where none has a start and an end."""
    known = [
        (one.started_ms, max(float(one.duration_ms), FLOOR_MS), one.trigger)
        for one in rounds
        if one.started_ms is not None and one.duration_ms is not None
    ]
    if not known:
        return None
    first, last = min(at for at, _, _ in known), max(at for at, _, _ in known)
    top_ms = 10.0
    while top_ms < max(ms for _, ms, _ in known):
        top_ms *= 10
    x = Scale(first, max(last, first + 1_000), LEFT, WIDE - RIGHT)
    y = Scale(FLOOR_MS, top_ms, HIGH - BOTTOM, TOP, decades=True)
    picture = Picture(WIDE, HIGH, "rebalances over time")
    for tick in y.ticks():
        picture.rule((x.start, y(tick)), (x.end, y(tick)), svg.GRID)
        picture.text((x.start - 5, y(tick) + 4), short_ms(tick), svg.FAINT, "end")
    for at, anchor in ((x.low, "start"), (x.high, "end")):
        picture.text((x(at), HIGH - 6), _moment(at), svg.FAINT, anchor)
    colours = _colours(trigger for _, _, trigger in known)
    worst: dict[tuple[str, int], tuple[float, float]] = {}
    for at, ms, trigger in known:
        key = (trigger, round(x(at)))
        worst[key] = min(worst.get(key, (x(at), y(ms))), (x(at), y(ms)), key=lambda dot: dot[1])
    at_px = float(LEFT)
    for trigger, colour in colours.items():
        picture.dots([dot for (name, _), dot in worst.items() if name == trigger], colour, 6)
        picture.rect(at_px, 8, 9, 9, colour)
        picture.text((at_px + 13, 16), trigger)
        at_px += 30 + 7 * len(trigger)
    return picture.svg()


def _moment(ms: float) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def causes(by_cause: Sequence[Cause]) -> str | None:
    """A bar for each cause."""
    colours = _colours(one.trigger for one in by_cause)
    bars = [(one.trigger, one.rounds, str(one.rounds), colours[one.trigger]) for one in by_cause]
    return _bars("rebalances by cause", bars)


def unowned(groups: Sequence[Unowned]) -> str | None:
    """A bar for each group."""
    bars = [(one.group, one.total_ms, short_ms(one.total_ms), svg.HIT) for one in groups]
    return _bars("unowned time by group", bars)


def _bars(title: str, bars: Sequence[tuple[str, int, str, str]]) -> str | None:
    if not bars:
        return None
    picture = Picture(WIDE, BAR * len(bars) + 4, title)
    x = Scale(0, max(value for _, value, _, _ in bars), 260, WIDE - 90)
    for number, (name, value, words, colour) in enumerate(bars):
        top = number * BAR + 3
        shown = name if len(name) <= 38 else f"{name[:18]}…{name[-18:]}"  # noqa: PLR2004 - fits
        picture.text((250, top + 12), shown, svg.INK, "end")
        picture.rect(x.start, top, x(value) - x.start, BAR - 6, colour)
        picture.text((x(value) + 6, top + 12), words)
    return picture.svg()
