"""Prometheus' rules, judged without promtool; tests/prometheus runs them."""

import re
from pathlib import Path

import pytest

from musterd.coordinator.metrics.catalog import CATALOG

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
ALERTS = (FOLDER / "alerts.yml").read_text()
RECORDING = (FOLDER / "recording.yml").read_text()
UNIT_TESTS = (ROOT / "tests" / "prometheus" / "alerts_test.yml").read_text()
NAMES = re.findall(r"^      - alert: (\w+)$", ALERTS, re.MULTILINE)


def _alert(name):
    return re.search(rf"- alert: {name}\n(.*?)(?=\n      - alert: |\Z)", ALERTS, re.DOTALL)[1]


def test_alerts_have_one_name_each():
    """Two alerts of one name cannot be told apart."""
    assert len(NAMES) == len(set(NAMES)) > 0


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_says_how_bad_what_and_what_to_do(name):
    """for, severity, summary, description, and a chapter of docs/alerts.md that exists."""
    text = _alert(name)
    assert re.search(r"^        for: \d+[ms]$", text, re.MULTILINE)
    assert re.search(r"severity: (critical|warning|info)$", text, re.MULTILINE)
    assert "summary: " in text
    assert "description: " in text
    page, anchor = re.search(r"runbook: (docs/alerts\.md)#(\w+)$", text, re.MULTILINE).groups()
    chapters = re.findall(r"^## (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in {word.lower() for title in chapters for word in title.split(", ")}


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_has_a_firing_and_a_quiet_case(name):
    """alerts_test.yml proves that it fires, and that it does not fire without cause."""
    cases = re.findall(rf"alertname: {name}\n\s+exp_alerts:(.*)", UNIT_TESTS)
    assert any(case.strip() == "[]" for case in cases), "no quiet case"
    assert any(case.strip() == "" for case in cases), "no firing case"


def test_rules_name_metrics_that_exist():
    """A renamed metric would silence its alert for ever."""
    known = set(CATALOG) | {
        f"{name}_bucket" for name, spec in CATALOG.items() if spec.kind == "histogram"
    }
    recorded = set(re.findall(r"- record: (\S+)", RECORDING))
    for expression in re.findall(r"expr: (.*)", ALERTS + RECORDING):
        plain = expression
        for name in re.findall(r"[a-z_]+:muster_[a-z0-9_:]+", expression):
            assert name in recorded, name
            plain = plain.replace(name, "")
        assert set(re.findall(r"\bmuster_\w+", plain)) <= known, expression


def test_recorded_series_are_named_by_level_metric_operation():
    """level:metric:operations, as Prometheus advises."""
    names = re.findall(r"- record: (\S+)", RECORDING)
    assert names
    for name in names:
        assert re.fullmatch(r"[a-z_]+:muster_[a-z_]+:[a-z0-9_]+", name)
