"""The report as one HTML file and one JSON file. The page fetches nothing and runs nothing."""

import json
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from muster.cli.output import line
from musterd.chaos.report import pictures
from musterd.chaos.report.bugs import LAYERS, by_finder
from musterd.chaos.report.figures import RANKS, Figure, Report
from musterd.chaos.run.result import Spread
from musterd.svg import short_ms

NONE = "not measured in this run"


def html(report: Report) -> str:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters |= {
        "ms": _ms,
        "number": number,
        "spread": spread,
        "figure": figure,
        "code": _code,
    }
    source = files("musterd.chaos.report").joinpath("page.html.j2").read_text("utf-8")
    return environment.from_string(source).render(
        report=report,
        figures={one.key: one for one in report.figures},
        groups=_groups(report),
        panels=[
            (kind, words, _drawn(picture))
            for kind, words, picture in pictures.panels([run for _, run in report.runs])
        ],
        memories=[
            (soak, [_drawn(pictures.memory(soak, kind)) for kind in ("node", "worker")])
            for soak in report.soaks
        ],
        finders=by_finder(report.bugs),
        layers=[(LAYERS[key], [b for b in report.bugs if b.layer == key]) for key in LAYERS],
    )


def document(report: Report) -> str:
    """The JSON: everything but single commits and samples."""
    told = asdict(report)
    told["figures"] = {
        one.key: {"value": one.value, "unit": one.unit, "label": one.label}
        for one in report.figures
    }
    for kind in ("runs", "simulations"):
        told[kind] = [{"name": name, **one} for name, one in told[kind]]
    for run in told["runs"]:
        del run["probes"]
    for line_ in (line_ for soak in told["soaks"] for line_ in soak["lines"]):
        del line_["points"]
    return json.dumps(told, indent=1, sort_keys=False) + "\n"


def write(report: Report, page: Path) -> Path:
    """Write the page, and the JSON beside it; returns the path of the JSON. Raises OSError."""
    page.parent.mkdir(parents=True, exist_ok=True)
    beside = page.with_suffix(".json")
    for path, text in ((page, html(report)), (beside, document(report))):
        part = path.with_name(path.name + ".part")
        part.write_text(text, "utf-8")
        part.replace(path)
    return beside


_GROUPS = (
    ("What was done", (
        "runs", "real_hours", "seeds", "simulated_hours", "operations_ok", "operations_fail",
        "operations_unknown", "faults_injected", "simulated_faults",
    )),
    ("What was broken", (
        "commits_lost", "keys_unread", "violations", "simulated_violations", "mutants_planted",
        "mutants_hunted", "mutants_caught",
    )),
    ("Longest time without a commit, per fault", ("gap_hit_ms", "gap_other_ms", "gap_calm_ms")),
    ("After kill -9 of a leader", ("kill_first_commit_ms", "kill_owned_ms", "kill_unowned")),
    ("Members that come and go", (
        "join_to_assigned_ms", "leave_to_reassigned_ms", "rebalances", "moved", "moved_minimum",
    )),
    ("Load", (
        "commits_per_s", "commit_ms", "largest_members", "largest_groups", "largest_partitions",
    )),
    ("Soak", (
        "soak_minutes", "rss_node_mib", "rss_node_slope", "rss_worker_mib", "rss_worker_slope",
    )),
)  # fmt: skip
Row = tuple[str, str, bool]


def _groups(report: Report) -> list[tuple[str, list[Row]]]:
    """Cards of (label, value, whether it is known); ranks of one spread share a row."""
    return [(title, [_card_row(report, key) for key in keys]) for title, keys in _GROUPS]


def _card_row(report: Report, key: str) -> Row:
    found = [one for one in report.figures if one.key in (key, *(f"{key}_{r}" for r in RANKS))]
    known = any(one.value is not None for one in found)
    if len(found) == 1:
        return found[0].label, figure(found[0]), known
    label = found[0].label.rpartition(",")[0]
    ranks = " / ".join(RANKS[one.key.rpartition("_")[2]] for one in found)
    return f"{label}: {ranks}", " / ".join(figure(one) for one in found) if known else NONE, known


def _drawn(svg: str) -> Markup:
    return Markup(svg)  # noqa: S704 - svg.py escapes every word that it is given


def _code(words: str) -> Markup:
    """Return the words between backticks as code."""
    parts = enumerate(str(escape(line(words))).split("`"))
    marked = (f"<code>{part}</code>" if number % 2 else part for number, part in parts)
    return Markup("".join(marked))  # noqa: S704 - escaped above


def _visible(value: object) -> object:
    """Control characters, bidi marks and half surrogates of a name as escapes."""
    return line(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def number(value: float | None) -> str:
    """A count or a figure for people; what was not measured is said to be so."""
    if value is None:
        return NONE
    if isinstance(value, int) or value.is_integer():
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004


def figure(one: Figure) -> str:
    """A figure with its unit."""
    if one.value is None:
        return NONE
    if one.unit == "ms":
        return short_ms(one.value)
    if one.unit == "h" and one.value < 1:
        return f"{number(one.value * 60)} min"
    return f"{number(one.value)} {one.unit}".rstrip()


def spread(one: Spread) -> str:
    """Median / p95 / longest; a dash where there is nothing."""
    if not one.count or one.p50 is None or one.p95 is None or one.max is None:
        return "-"
    if one.count == 1:
        return short_ms(one.max)
    return " / ".join(short_ms(value) for value in (one.p50, one.p95, one.max))


def _ms(value: float | None) -> str:
    return "-" if value is None else short_ms(value)
