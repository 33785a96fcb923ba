"""The chaos suite on clusters of two builds: at each start a node has the other one.

So nodes are upgraded and put back in changing order, through most mixtures of the two builds, while
others are killed, paused and restarted, all at a time, too; and the runs are judged as any other.
Logs are short, so that snapshots of either build's leaders go to the other's nodes.
"""

import pytest

from musterd.chaos.interrupts import Interrupts
from musterd.chaos.run.runner import FINISHED, Pace
from musterd.chaos.run.schedule import Schedule, Step
from musterd.chaos.run.target_cluster import OwnWorld
from musterd.chaos.run.view import Lines
from musterd.chaos.run.whole import run_whole
from musterd.chaos.workloads.catalog import plan
from musterd.chaos.world.networks.network import Network
from tests.upgrade import builds

pytestmark = [
    pytest.mark.upgrade(weight=3),
    pytest.mark.processes,
    pytest.mark.timeout(600),
]

NODES = 3
SEED = 11
STEPS = (
    ("kill_leader", 2.0),
    ("rolling_restart", 0.5),
    ("pause_leader", 3.0),
    ("kill_follower", 2.0),
    ("transfer_leadership", 0.5),
    ("whole_disk_lost", 2.0),
    ("restart_all", 0.5),
    ("older_copy", 2.0),
    ("kill_two_then_restart", 2.0),
    ("stop_leader", 2.0),
)
MIXTURES_MIN = 6
"""Of eight, with those of one build alone: some nodes are hit as the leaders fall."""
LOOKED_AT = {"I1", "I2", "I3", "I5", "I6", "I10", "I13"}
WORKLOADS = ("W1", "W4", "W8")


@pytest.fixture
def pair(tmp_path, name):
    """(old build, new build) of a pair, which keep little of their logs."""
    made = tmp_path / "builds"
    old, new = {
        "former": (builds.former, builds.today),
        "next": (builds.today, builds.next_one),
    }[name]
    return tuple(
        builds.edited(make(made / age), builds.SHORT_LOGS)
        for age, make in (("old", old), ("new", new))
    )


@pytest.mark.parametrize("name", ["former", "next"])
def test_mixed_builds_keep_every_promise_of_the_chaos_suite(tmp_path, pair):
    """No invariant is violated, and each was looked at."""
    kit = builds.Alternating(*pair)
    kinds = [kind for kind, _ in STEPS]
    cluster = OwnWorld(NODES, Network(), kinds, SEED, (kit,))
    steps = tuple(Step(1.0 + at, kind, hold_s, SEED) for at, (kind, hold_s) in enumerate(STEPS))
    view = Lines()
    with Interrupts(view.say) as interrupts:
        result = run_whole(
            cluster,
            tmp_path / "run",
            SEED,
            ["tests/upgrade"],
            lambda _: Schedule(SEED, NODES, steps[-1].at_s / 60, steps),
            lambda setting: plan(WORKLOADS, setting),
            view,
            interrupts,
            Pace(warm_s=1.0, quiet_s=0.0, replay=False),
        )
    assert result.ended == FINISHED
    assert [fault.error for fault in result.faults] == [""] * len(STEPS)
    assert [one.invariant for one in result.verdicts if one.violations_count] == []
    assert {one.invariant for one in result.verdicts if one.looked_at} >= LOOKED_AT
    logs = "".join(path.read_text() for path in (tmp_path / "run" / "logs").glob("node-*.log"))
    assert "snapshot installed" in logs
    assert len(kit.mixtures) >= MIXTURES_MIN, kit.mixtures
