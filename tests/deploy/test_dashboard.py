"""The dashboard's shape, without Grafana: what would break or mislead when it is imported."""

import importlib.util
import json
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from musterd.coordinator.metrics.catalog import CATALOG

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "grafana" / "cluster.json"
MAKER = ROOT / "deploy" / "grafana" / "dashboards.py"
UNITS = {"short", "s", "bytes", "ops", "reqps"}
OTHERS = {"grpc_server_started_total", "grpc_server_handled_total"}
OTHERS |= {"grpc_server_handling_seconds_bucket"}
OTHERS |= {"process_cpu_seconds_total", "process_resident_memory_bytes"}


@pytest.fixture(scope="module")
def board():
    """The file that is imported."""
    return json.loads(FILE.read_text())


def _drawn(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def _targets(board):
    return [(panel, target) for panel in _drawn(board) for target in panel["targets"]]


def test_the_file_is_what_the_maker_makes():
    """Nobody edits the JSON by hand: it would be lost."""
    subprocess.run([sys.executable, MAKER, "--check"], check=True)


def test_the_check_finds_a_stale_file(tmp_path, monkeypatch):
    """--check fails where the file differs by one character."""
    spec = importlib.util.spec_from_file_location("dashboards", MAKER)
    maker = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "dashboards", maker)
    spec.loader.exec_module(maker)
    monkeypatch.setattr(maker, "OUTPUT", tmp_path / "cluster.json")
    monkeypatch.setattr(sys, "argv", ["dashboards.py", "--check"])
    maker.OUTPUT.write_text(maker.render() + " ")
    with pytest.raises(SystemExit) as end:
        maker.main()
    assert end.value.code
    maker.OUTPUT.write_text(maker.render())
    maker.main()


def test_ids_are_unique(board):
    """Grafana drops or mixes up panels with one id."""
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    assert board["uid"]
    for panel in _drawn(board):
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs)), panel["title"]


def test_panels_do_not_overlap_and_fit_the_grid(board):
    """No panel hides another; none reaches beyond 24 columns."""
    places = [(panel["title"], panel["gridPos"]) for panel in board["panels"]]
    for title, at in places:
        assert at["x"] >= 0
        assert at["x"] + at["w"] <= 24, title
    for (one, a), (other, b) in combinations(places, 2):
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart, (one, other)


def test_every_panel_explains_itself(board):
    """Title, unit, and a description that says what bad looks like."""
    titles = [panel["title"] for panel in _drawn(board)]
    assert len(titles) == len(set(titles))
    for panel in _drawn(board):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert "Bad: " in panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["targets"], panel["title"]


def test_every_query_uses_the_datasource_variable(board):
    """A dashboard bound to somebody's data source cannot be imported elsewhere."""
    for panel, target in _targets(board):
        for source in (panel["datasource"], target["datasource"]):
            assert source == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]


def test_every_variable_is_used_and_every_use_is_defined(board):
    """A variable without effect misleads; one that is not defined breaks the query."""
    defined = {variable["name"] for variable in board["templating"]["list"]}
    text = json.dumps([board["panels"], board["templating"]])
    used = set(re.findall(r"\$\{?(\w+)\}?", text)) - {"__rate_interval", "__range"}
    assert used == defined == {"datasource", "cluster", "job", "instance", "group"}


def test_every_query_names_a_metric_of_muster_that_exists(board):
    """A renamed metric is found here, not by an empty panel."""
    known = set(CATALOG)
    known |= {
        f"{name}_{part}"
        for name, spec in CATALOG.items()
        if spec.kind == "histogram"
        for part in ("bucket", "sum", "count")
    }
    for panel, target in _targets(board):
        named = set(re.findall(r"\b(?:muster|grpc|process)_\w+(?=[{\[])", target["expr"]))
        assert any(name.startswith("muster_") for name in named), panel["title"]
        assert named <= known | OTHERS, panel["title"]


def test_labels_in_queries_exist(board):
    """What a query groups by is a label of the metric it asks for."""
    for panel, target in _targets(board):
        for metric, braces in re.findall(r"\b(muster_\w+)\{([^}]*)\}", target["expr"]):
            spec = CATALOG.get(metric) or CATALOG[re.sub(r"_(bucket|sum|count)$", "", metric)]
            allowed = {*spec.labels, "le", "cluster", "job", "instance"}
            asked = set(re.findall(r"(\w+)(?:=|!)", braces))
            grouped = set()
            if len(re.findall(r"\b(?:muster|grpc|process)_", target["expr"])) == 1:
                for inside in re.findall(r"by \(([^)]*)\)", target["expr"]):
                    grouped |= {label.strip() for label in inside.split(",")}
            assert asked | grouped <= allowed, (panel["title"], asked | grouped)


def test_rates_use_the_interval_that_grafana_knows(board):
    """A fixed range shorter than two scrapes gives empty panels."""
    for panel, target in _targets(board):
        ranges = re.findall(r"\[([^\]]+)\]", target["expr"])
        assert set(ranges) <= {"$__rate_interval", "1h"}, panel["title"]


def test_legends_name_labels_of_the_result(board):
    """A legend with a label that the query drops shows nothing."""
    for panel, target in _targets(board):
        named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))
        assert named <= kept, panel["title"]
