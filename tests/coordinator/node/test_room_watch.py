"""When a disk counts as low or full, and that it comes back with a little to spare."""

from types import SimpleNamespace

import pytest

from musterd.coordinator.machine.limits import MIB
from musterd.coordinator.node import room_watch
from musterd.coordinator.node.room_watch import RoomWatch, room_for
from musterd.coordinator.runtime.growth import StateSize
from musterd.coordinator.runtime.state_limits import StateLimits
from musterd.raft.contract import Room

RESERVE = 100 * MIB


@pytest.mark.parametrize(
    ("free", "before", "now"),
    [
        (100, Room.ENOUGH, Room.ENOUGH),
        (99, Room.ENOUGH, Room.LOW),
        (105, Room.LOW, Room.LOW),
        (111, Room.LOW, Room.ENOUGH),
        (25, Room.LOW, Room.LOW),
        (24, Room.ENOUGH, Room.NONE),
        (26, Room.NONE, Room.NONE),
        (28, Room.NONE, Room.LOW),
        (200, Room.NONE, Room.ENOUGH),
    ],
)
def test_marks(free, before, now):
    """Of a reserve of 100 MiB."""
    assert room_for(free * MIB, RESERVE, before) is now


def test_without_a_reserve_nothing_is_low():
    """It is switched off."""
    assert room_for(0, 0, Room.ENOUGH) is Room.ENOUGH


def test_a_small_reserve_leaves_what_the_store_needs():
    """Below two MiB no entry is taken, whatever the reserve."""
    assert room_for(2 * MIB - 1, MIB, Room.ENOUGH) is Room.NONE


def test_changes_are_told_and_logged_once(tmp_path, monkeypatch):
    """To the driver, and to who reads the log."""
    told, logged = [], []
    driver = SimpleNamespace(room=Room.ENOUGH)

    def set_room(now):
        driver.room = now
        told.append(now)

    driver.set_room = set_room
    for level in ("warning", "info"):
        monkeypatch.setattr(room_watch.log, level, lambda text, **_: logged.append(text))
    state = StateSize(StateLimits(group=MIB, shard=100, node=1_000))
    watch = RoomWatch(tmp_path, RESERVE, driver, state)
    for now_s, free in ((1.0, 99 * MIB), (1.01, 200 * MIB), (1.2, 98 * MIB), (1.4, 200 * MIB)):
        monkeypatch.setattr(
            room_watch, "disk_usage", lambda _, free=free: SimpleNamespace(free=free)
        )
        watch.look(now_s)  # at 1.01 it is too early
    assert told == [Room.LOW, Room.ENOUGH]
    assert len(logged) == 2


def test_80_percent_of_a_limit_are_logged_and_that_it_is_over(tmp_path, monkeypatch):
    """Of the node, of its largest shard; of a group when it asks to grow."""
    logged = []
    monkeypatch.setattr(room_watch.log, "warning", lambda _, **what: logged.append(what["of"]))
    monkeypatch.setattr(room_watch.log, "info", lambda _, **what: logged.append(f"no {what['of']}"))
    state, sizes = StateSize(StateLimits(group=1_000, shard=100, node=1_000)), [0, 0]
    state.shards += [lambda: sizes[0], lambda: sizes[1]]
    driver = SimpleNamespace(room=Room.ENOUGH)
    watch = RoomWatch(tmp_path, 0, driver, state)
    for number, (first, second) in enumerate([(79, 0), (80, 0), (81, 0), (10, 0)]):
        sizes[:] = first, second
        watch.look(10.0 * (number + 1))
    assert logged == ["shard", "no shard"]
    held = {"g": 800}
    state.groups.append(lambda group_id: held.get(group_id, 0))
    state.note("g", 800)
    watch.look(100.0)
    watch.look(200.0)
    assert logged[2:] == ["group"]
    assert state.near == 1
    state.note("g", 700)
    assert state.near == 0


@pytest.mark.parametrize(("held", "near"), [(800, 1), (721, 1), (719, 0), (0, 0)])
def test_a_group_that_is_deleted_or_led_elsewhere_is_near_its_limit_no_more(held, near, tmp_path):
    """Nobody asks it to grow any more; one that has just come below the mark stays."""
    state = StateSize(StateLimits(group=1_000))
    state.groups += [lambda _: 0, lambda _: held]
    state.note("g", 800)
    RoomWatch(tmp_path, 0, SimpleNamespace(room=Room.ENOUGH), state).look(1.0)
    assert state.near == near
