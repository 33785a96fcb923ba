"""Makes the pictures of this folder, in headless Chromium (Debian's package `chromium`).

    python -m docs.images.screenshots [CHAOS_REPORT.html]

The report is one of `muster chaos report`; without one its pictures stay as they are. Prometheus is
the one of `make test-prometheus`; it watches two minutes of load and a killed node. Grafana is not
needed: the panels are drawn from the dashboard's own queries. The last picture is of the same
cluster's replay. dashboard.txt has the titles of the page that the dashboard's picture begins.
"""

import json
import math
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path
from typing import Any

from musterd import svg
from musterd.coordinator.node.launcher import Cluster
from musterd.svg import Picture, Scale
from tests.prometheus.load import Load
from tests.prometheus.server import Prometheus, filled, wait_for

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BOARD = json.loads((ROOT / "deploy" / "grafana" / "cluster.json").read_text("utf-8"))
ROWS = {"Overview", "Term", "Durability", "Groups"}
UNITS = {"ops": "/s", "s": " s"}
TITLES = HERE / "dashboard.txt"
HEIGHT = 1292
"""Pixels of the dashboard that the picture shows; the page goes on below."""
WATCHED_S = 60
"""Before the node is killed, and again after it is back."""
STYLE = """body{font:13px system-ui,sans-serif;color:#39424E;margin:10px;background:#F4F5F7}
main{display:grid;grid-template-columns:repeat(24,1fr);gap:6px}
section{background:#fff;border:1px solid #E3E6EA;padding:5px 7px}svg{width:100%;display:block}
h1{font-size:17px;margin:2px}h2{grid-column:1/-1;font-size:14px;margin:6px 0 0}
h3{font-size:12px;margin:0}b{display:block;font-size:30px;text-align:center;margin-top:12px}"""


def shoot(page: Path, name: str, height: int) -> None:
    """Write `name`.png: the upper `height` pixels of a page."""
    flags = ("--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size=1200,{height}")
    picture = HERE / f"{name}.png"
    command = ("chromium", *flags, f"--screenshot={picture}", page.resolve().as_uri())
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603


def figure(value: float, unit: str) -> str:
    """A value with its unit, in few characters."""
    if unit == "bytes":
        return f"{value / 2**20:.4g} MiB"
    return f"{value:.3g}{UNITS.get(unit, '')}"


def curves(series: list[tuple[str, list[tuple[float, float]]]], unit: str) -> str:
    """A panel of lines over time, and what each is."""
    picture = Picture(380, 170, "")
    seen = [point for _, points in series for point in points]
    if not seen:
        return "<p>No data</p>"
    x = Scale(min(at for at, _ in seen), max(at for at, _ in seen), 58, 374)
    y = Scale(0, max(value for _, value in seen) * 1.05 or 1, 128, 8)
    for tick in y.ticks(4):
        picture.rule((x.start, y(tick)), (x.end, y(tick)), svg.GRID)
        picture.text((x.start - 4, y(tick) + 4), figure(tick, unit), svg.FAINT, "end")
    for at, anchor in ((x.low, "start"), (x.high, "end")):
        words = time.strftime("%H:%M:%S", time.gmtime(at))
        picture.text((x(at), 142), words, svg.FAINT, anchor)
    left = x.start
    for number, (name, points) in enumerate(series):
        colour = svg.SERIES[number % len(svg.SERIES)]
        picture.curve([(x(at), y(value)) for at, value in points], colour)
        if left + 6 * len(name) < x.end - 20:
            picture.rect(left, 154, 8, 8, colour)
            picture.text((left + 11, 162), name)
            left += 24 + 6 * len(name)
        else:
            picture.text((x.end, 162), "…", svg.FAINT, "end")
            left = x.end
    return picture.svg()


def legend(form: str, labels: dict[str, str]) -> str:
    """What Grafana makes of a legend's form."""
    for label, value in labels.items():
        form = form.replace(f"{{{{{label}}}}}", value)
    return form


def panel(prometheus: Any, one: dict[str, Any], start_s: float, end_s: float) -> str:
    """A panel as Grafana would lay it out."""
    unit = one["fieldConfig"]["defaults"]["unit"]
    place = f"grid-column:span {one['gridPos']['w']}"
    if one["type"] == "stat":
        [value] = prometheus.now(filled(one["targets"][0]["expr"])).values()
        inside = f"<b>{figure(value, unit)}</b>"
    else:
        series = [
            (
                legend(target["legendFormat"], found["metric"]),
                [(at, float(v)) for at, v in found["values"] if math.isfinite(float(v))],
            )
            for target in one["targets"]
            for found in prometheus.ask(
                "query_range", query=filled(target["expr"]), start=start_s, end=end_s, step=1
            )["result"]
        ]
        inside = curves(series, unit)
    return f'<section style="{place}"><h3>{escape(one["title"])}</h3>{inside}</section>'


def shown_panels() -> list[dict[str, Any]]:
    """Return the rows that are named above, each before its panels."""
    found, shown = [], False
    for one in BOARD["panels"]:
        if one["type"] == "row":
            shown = one["title"] in ROWS
        if shown:
            found.append(one)
    return found


def dashboard(prometheus: Any, start_s: float, end_s: float) -> str:
    """The page: rows that are named above, panel by panel."""
    parts = [
        f"<h2>{one['title']}</h2>"
        if one["type"] == "row"
        else panel(prometheus, one, start_s, end_s)
        for one in shown_panels()
    ]
    head = f"{escape(BOARD['title'])} · drawn without Grafana, from the dashboard's queries (UTC)"
    return (
        f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style><h1>{head}</h1>'
        f"<main>{''.join(parts)}</main>"
    )


def muster(folder: Path, *arguments: object) -> None:
    """Run a command of `muster` in a folder."""
    command = (sys.executable, "-m", "muster.cli", *map(str, arguments))
    subprocess.run(command, check=True, cwd=folder)  # noqa: S603


def shoot_report(report: Path) -> None:
    """Make those of a chaos report."""
    shoot(report, "chaos-report", 895)
    head, _, rest = report.read_text("utf-8").partition("<main>")
    pictures = rest[rest.index('<h2 id="pictures">') : rest.index('<h2 id="runs">')]
    with tempfile.TemporaryDirectory() as temporary:
        page = Path(temporary) / "latency.html"
        page.write_text(f"{head}<main>{pictures}", "utf-8")
        shoot(page, "chaos-latency", 805)


def shoot_cluster() -> None:
    """Make those of a cluster that is watched."""
    program = ROOT / ".venv" / "prometheus" / "usr" / "bin" / "prometheus"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with Cluster(folder / "cluster") as cluster:
            cluster.wait_ready()
            pages = [node.metrics_endpoint for node in cluster.nodes.values()]
            with Prometheus(program, folder / "prometheus", pages) as prometheus:

                def watch() -> None:
                    seen = f"min(timestamp(muster_build_info)) > {time.time() + WATCHED_S}"
                    wait_for(lambda: prometheus.now(seen), 3 * WATCHED_S)

                start_s = time.time()
                with Load(cluster.bootstrap, quiet=False):
                    watch()
                    cluster.kill(0)
                    cluster.start(0)
                    cluster.wait_ready()
                    watch()
                    drawn = dashboard(prometheus, start_s, time.time())
            page = folder / "dashboard.html"
            page.write_text(drawn, "utf-8")
            shoot(page, "dashboard", HEIGHT)
            TITLES.write_text("".join(f"{one['title']}\n" for one in shown_panels()), "utf-8")
            data = cluster.nodes[1].data_dir
        muster(folder, "export", "--data-dir", data, "--to", "segments")
        page = folder / "replay.html"
        muster(folder, "replay", "--input", "segments", "--to", "history", "--html", page)
        shoot(page, "replay", 830)


if __name__ == "__main__":
    for given in sys.argv[1:]:
        shoot_report(Path(given))
    shoot_cluster()
