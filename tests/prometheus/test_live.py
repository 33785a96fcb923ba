"""Real Prometheus on a live cluster of three: every panel's query, every rule, idle and under load.

Load here includes faults: two nodes are killed, so that leaders move and shards lose theirs, and
started again. Each query must do what expected.py says of it, or stand in CONSTANT with the reason;
what stands there must not move.
"""

import json
import math
import re
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from musterd.coordinator.node.launcher import Cluster
from tests.prometheus.expected import CONSTANT, EXPECTED, Returns, Stays
from tests.prometheus.load import Load
from tests.prometheus.server import Prometheus, filled, wait_for

ROOT = Path(__file__).parents[2]
BOARD = json.loads((ROOT / "deploy" / "grafana" / "cluster.json").read_text())
TARGETS = {
    f"{panel['title']} / {target['refId']}": target["expr"]
    for panel in BOARD["panels"]
    for target in panel.get("targets", ())
}
WINDOW_S = 12
LEADERS = "max by (shard) (muster_raft_has_leader) == 1"
LOST = "count(max by (shard) (muster_raft_has_leader) == 0)"
NODES = 3
SHARDS = 16
STEADY = "min_over_time(up[15s]) == 1 and count_over_time(up[15s]) >= 10"
IDLE_WINDOWS_MAX = 10
LOST_S = 3
LATE = (
    "sum(increase(muster_turn_lag_seconds_count[15s])) - "
    'sum(increase(muster_turn_lag_seconds_bucket{le="0.064"}[15s]))'
)

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


class Observed:
    """A cluster that was watched while idle and under load."""

    def __init__(self, prometheus, cluster, idle, load, work):
        self.prometheus, self.cluster = prometheus, cluster
        self.idle, self.load, self.work = idle, load, work


@pytest.fixture(scope="module")
def observed(programs, tmp_path_factory):
    """Start three nodes and Prometheus, watch both windows, keep it all for the tests."""
    folder = tmp_path_factory.mktemp("live")
    with Cluster(folder / "cluster", nodes=NODES, shards=SHARDS) as cluster:
        cluster.wait_ready()
        pages = [node.metrics_endpoint for node in cluster.nodes.values()]
        with (
            Prometheus(programs / "prometheus", folder / "prometheus", pages) as prometheus,
            Load(cluster.bootstrap, quiet=True),
        ):
            idle = _idle(prometheus)
            began_s = time.time()
            with Load(cluster.bootstrap, quiet=False) as work:
                _watch(prometheus)
                _lose_the_majority(prometheus, cluster)
                _watch(prometheus)
                wait_for(
                    lambda: work.fenced and work.refused,
                    60,
                    lambda: f"{work.fenced} {work.refused}",
                )
                _watch(prometheus)
            yield Observed(prometheus, cluster, idle, (began_s, time.time()), work)


def _calm(prometheus):
    """The quiet group stands, every shard has a leader, and nothing has moved for a while.

    Not even a checkpoint is due then: those follow entries. Each node has been seen that long: of
    one that was not read yet, nothing is known that could move.
    """
    stable = prometheus.now('sum(muster_group_generation{group="quiet"}) > 0')
    led = prometheus.now(f"count({LEADERS}) == {SHARDS}")
    moved = prometheus.now("sum(changes(muster_raft_term[15s])) > 0")
    alive = prometheus.now(f"count({STEADY}) == {NODES}")
    applied = prometheus.now("sum(changes(muster_raft_applied_index[15s])) > 0")
    return bool(stable and led and alive and not moved and not applied)


def _idle(prometheus):
    """A window in which nothing moved; what the host does to the machine is tried again.

    The tests judge the last one in any case.
    """
    for _ in range(IDLE_WINDOWS_MAX):
        wait_for(lambda: _calm(prometheus), 120, lambda: "the cluster does not settle")
        window = _watch(prometheus)
        if _calm(prometheus) and not prometheus.now(f"{LATE} >= 1"):
            break
    return window


def _watch(prometheus, window_s=WINDOW_S):
    """Let Prometheus see `window_s` seconds; waits for its samples, not for the clock."""
    start_s = time.time()
    seen = f"min(timestamp(muster_turn_lag_seconds_count)) > {start_s + window_s}"
    wait_for(lambda: prometheus.now(seen), 60 + window_s, lambda: "Prometheus sees nothing new")
    return start_s, start_s + window_s


def _lose_the_majority(prometheus, cluster):
    """Kill two nodes until the third knows of no leader, start them again until all is well.

    Panels are judged by one value a second, so what they are to show stands for longer than that.
    """
    for node_id in (0, 1):
        assert cluster.kill(node_id)
    lost = f"{LOST} == {SHARDS} and count(muster_build_info) == 1"
    wait_for(lambda: prometheus.now(lost), 60, lambda: "the leaders stayed")
    _watch(prometheus, LOST_S)
    for node_id in (0, 1):
        cluster.start(node_id)
    cluster.wait_ready()
    healed = f"count(muster_build_info) == {NODES} and count({LEADERS}) == {SHARDS}"
    wait_for(lambda: prometheus.now(healed), 60, lambda: "the leaders did not come back")


def _seen(series):
    """Labels -> values of a window; NaN (nothing observed) counts as no value."""
    real = {key: [v for v in values if not math.isnan(v)] for key, values in series.items()}
    return {key: values for key, values in real.items() if values}


def _bounds(series):
    return {key: (min(values), max(values)) for key, values in series.items()}


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_panel_shows_something_and_tells_idle_from_load(observed, name):
    """A query without an answer, or one that does not follow the load, tells nobody anything."""
    expression = filled(TARGETS[name])
    assert "muster_" in expression
    idle = _seen(observed.prometheus.over(expression, observed.idle))
    load = _seen(observed.prometheus.over(expression, observed.load))
    assert load, f"no data: {expression}"
    both = f"idle {_bounds(idle)}, load {_bounds(load)}"
    if name in CONSTANT:
        assert _bounds(idle) == _bounds(load), f"listed as constant ({CONSTANT[name]}): {both}"
    else:
        assert EXPECTED[name].holds(idle, load), f"{EXPECTED[name]}: {both}"


MOVING = sorted(name for name, one in EXPECTED.items() if not isinstance(one, Stays | Returns))


@pytest.mark.parametrize("name", MOVING)
def test_two_idle_windows_do_not_pass_for_load(observed, name):
    """The bounds are not met by noise: half of the idle window against the other half fails."""
    start_s, end_s = observed.idle
    middle_s = (start_s + end_s) / 2
    expression = filled(TARGETS[name])
    first = _seen(observed.prometheus.over(expression, (start_s, middle_s)))
    second = _seen(observed.prometheus.over(expression, (middle_s, end_s)))
    assert not second or not EXPECTED[name].holds(first, second), (first, second)


def test_every_panel_has_one_expectation():
    """A panel that is new, renamed or removed is noticed."""
    assert not set(CONSTANT) & set(EXPECTED)
    assert set(CONSTANT) | set(EXPECTED) == set(TARGETS)
    assert all(len(reason) > 10 for reason in CONSTANT.values())


def test_every_rule_was_evaluated_without_error(observed):
    """Every recording and alert rule of deploy/prometheus is loaded and healthy."""
    groups = observed.prometheus.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    files = [(ROOT / "deploy/prometheus" / n).read_text() for n in ("alerts.yml", "recording.yml")]
    named = re.findall(r"- (?:alert|record): (\S+)", "\n".join(files))
    assert sorted(rule["name"] for rule in rules) == sorted(named)
    for rule in rules:
        assert rule["health"] == "ok", (rule["name"], rule.get("lastError"))


def test_every_recording_rule_records(observed):
    """A recorded series has values under load."""
    text = (ROOT / "deploy" / "prometheus" / "recording.yml").read_text()
    for name in re.findall(r"- record: (\S+)", text):
        assert observed.prometheus.over(name, observed.load), name


def _alerts(observed, window, state):
    found = observed.prometheus.over(f'ALERTS{{alertstate="{state}"}}', window)
    return {dict(key)["alertname"] for key in found}


def test_no_alert_is_up_while_the_cluster_is_idle(observed):
    """A healthy cluster is quiet: nothing fires, and nothing critical is about to."""
    assert _alerts(observed, observed.idle, "firing") == set()
    assert not _alerts(observed, observed.idle, "pending") & {
        "MusterNoLeader",
        "MusterProposalsStuck",
    }


def test_alerts_see_the_faults(observed):
    """Two killed nodes, lost leaders and a fenced zombie are seen within seconds."""
    pending = _alerts(observed, observed.load, "pending")
    assert {"MusterDown", "MusterInsufficientMembers", "MusterNoLeader"} <= pending
    assert _alerts(observed, observed.load, "firing") == {"MusterZombiesFenced"}


def test_the_page_passes_promtools_lint(observed, programs):
    """Promtool check metrics: types, help texts, units, nothing twice."""
    for node in observed.cluster.nodes.values():
        with urllib.request.urlopen(f"http://{node.metrics_endpoint}/metrics") as answer:
            page = answer.read()
        command = [programs / "promtool", "check", "metrics"]
        ran = subprocess.run(command, input=page, capture_output=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_load_was_real(observed):
    """Commits were acknowledged, a zombie was fenced, overload was refused."""
    assert observed.work.commits > 100
    assert observed.work.fenced > 0
    assert observed.work.refused > 0
