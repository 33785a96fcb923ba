"""A fault that broke nothing says so, and its run does not count it."""

from random import Random
from types import SimpleNamespace

import pytest

from chaos.faults import clock, disk
from chaos.faults.contract import FaultError, create
from chaos.run.stage import OwnWorld
from chaos.world.loopback import Loopback

HELD_S = 8.0


class Clocks:
    """Three nodes' clocks, of which some drift and some do not."""

    probed = frozenset()

    def __init__(self, ahead_s):
        self._ahead_s = ahead_s

    def running(self):
        return [0, 1, 2]

    def equipped(self, _kind):
        return self

    def drift(self, _nodes, _rate):
        return SimpleNamespace(close=lambda: None)

    def ahead_s(self, node_id):
        return self._ahead_s[node_id]

    def set(self, _node_id, _to):
        pass


@pytest.mark.parametrize(
    ("kind", "ahead_s", "real"),
    [
        ("clock_slow", -HELD_S / 2, True),
        ("clock_slow", 0.0, False),
        ("clock_slow", HELD_S / 2, False),
        ("clock_fast", 2 * HELD_S, True),
        ("clock_fast", HELD_S, True),
        ("clock_fast", 0.01, False),
    ],
)
def test_clocks_that_went_as_fast_as_ever_are_noticed(kind, ahead_s, real, monkeypatch):
    """Seen by a process that has them, just before they are set right."""
    now = [100.0]
    monkeypatch.setattr(clock.time, "monotonic", lambda: now[0])
    world = Clocks([ahead_s] * 3)
    fault = create(kind)
    fault.inject(world, Random(1))
    now[0] += HELD_S
    fault.heal(world)
    assert (fault.unreal() == "") is real
    stage = OwnWorld(3, Loopback(), ["kill_leader"])
    stage._fault = fault
    assert (stage.heal() == "") is real
    assert stage.heal() == ""


def test_a_torn_write_that_tore_nothing_was_not_injected(monkeypatch):
    """There was nothing that was not synced."""
    nothing = SimpleNamespace(limit=lambda *_, **__: None, lift=lambda _: None)
    disks = SimpleNamespace(cut=lambda _: None, remount=lambda _: None)
    world = SimpleNamespace(
        running=lambda: [0, 1, 2],
        probed=frozenset(),
        nodes={n: SimpleNamespace(folder=None, running=False) for n in range(3)},
        equipped=lambda kind: disks if kind is disk.LoopDisks else nothing,
    )
    monkeypatch.setattr(disk, "UNSYNCED_S_MAX", 0.0)
    monkeypatch.setattr(disk.damage, "written", lambda _: 5)
    monkeypatch.setattr(disk.damage, "half_written", lambda *_: None)
    monkeypatch.setattr(disk.TornWrite, "_power_off", lambda *_: None)
    with pytest.raises(FaultError, match="nothing was unsynced"):
        create("torn_write").inject(world, Random(1))
