"""promtool on the rules and the configuration: they parse, and alerts do what they promise."""

import json
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"


def _promtool(programs, *args, text=None):
    return subprocess.run(
        [programs / "promtool", *args], input=text, capture_output=True, text=True, check=False
    )


def test_rules_and_configuration_are_valid(programs):
    """Promtool reads every file, with the rules that the configuration names."""
    for args in (
        ("check", "rules", FOLDER / "alerts.yml", FOLDER / "recording.yml"),
        ("check", "config", FOLDER / "prometheus.yml"),
    ):
        ran = _promtool(programs, *args)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_fires_and_stays_quiet_as_promised(programs):
    """The unit tests of alerts_test.yml: a firing and a quiet case for each."""
    ran = _promtool(programs, "test", "rules", ROOT / "tests" / "prometheus" / "alerts_test.yml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_wrong_expectation_is_noticed(programs, tmp_path):
    """The unit tests can fail: an alert that is expected in vain is an error."""
    text = (ROOT / "tests" / "prometheus" / "alerts_test.yml").read_text()
    head, *cases = re.split(
        r"(?=\n  - name:)", text.replace("../../deploy/prometheus", str(FOLDER))
    )
    quiet = next(case for case in cases if "exp_alerts: []" in case)
    in_vain = quiet.replace("exp_alerts: []", "exp_alerts: [{exp_labels: {a: b}}]")
    for case, is_right in ((quiet, True), (in_vain, False)):
        (tmp_path / "alerts_test.yml").write_text(head + case)
        ran = _promtool(programs, "test", "rules", tmp_path / "alerts_test.yml")
        assert (ran.returncode == 0) is is_right, ran.stdout + ran.stderr


def test_every_panel_query_parses(programs, tmp_path):
    """Each query of the dashboard as a recording rule: promtool has the real parser."""
    board = json.loads((ROOT / "deploy" / "grafana" / "cluster.json").read_text())
    rules = [
        {"record": f"panel:{panel['id']}:{target['refId'].lower()}", "expr": filled(target["expr"])}
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]
    assert len(rules) > 40
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "p", "rules": rules}]}))
    ran = _promtool(programs, "check", "rules", tmp_path / "panels.yml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def filled(expression):
    """A panel's query with its variables replaced."""
    for name, value in (
        ("$__rate_interval", "5m"),
        ("$cluster", "muster"),
        ("$job", "muster"),
        ("$instance", ".*"),
        ("$group", ".*"),
    ):
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression
