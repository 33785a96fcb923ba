"""Watches how much room the node's disk and its state have left, and logs where that changes.

Free space is what another user than root may take. A mark is passed upwards with a tenth to spare,
so that what is freed and taken again at the mark does not change everything each time.
"""

from pathlib import Path
from shutil import disk_usage
from typing import Final

import structlog

from musterd.coordinator.runtime.growth import StateSize, warned
from musterd.raft.contract import Room
from musterd.raft.driver import Driver
from musterd.storage.rocks import SPARE_BYTES

log = structlog.get_logger()

NONE_SHARE: Final = 0.25
"""The share of the reserve below which there is no room: what RocksDB may write by itself (memory
to files, files to others) fits into it."""
NONE_BYTES_MIN: Final = 2 * SPARE_BYTES
"""The store writes nothing with less than that."""
SPARE: Final = 1.1
DISK_LOOK_S: Final = 0.1
STATE_LOOK_S: Final = 5.0


def room_for(free: int, reserve: int, before: Room) -> Room:
    """Return the room that so many free bytes make, where `before` was true until now."""
    none = max(reserve * NONE_SHARE, NONE_BYTES_MIN) if reserve else 0
    for room, mark in ((Room.NONE, none), (Room.LOW, reserve)):
        if free < mark * (SPARE if before >= room else 1):
            return room
    return Room.ENOUGH


class RoomWatch:
    """Looks at the disk ten times a second and tells the driver; at the state every 5 s."""

    def __init__(self, folder: Path, reserve: int, driver: Driver, state: StateSize) -> None:
        self._folder = folder
        self._reserve = reserve
        self._driver = driver
        self._state = state
        self._disk_at_s = self._state_at_s = 0.0
        self._warned: dict[str, bool] = {}

    def look(self, now_s: float) -> None:
        """Look at what is due. Raises OSError where the data directory is gone."""
        if now_s >= self._disk_at_s:
            self._disk_at_s = now_s + DISK_LOOK_S
            self._look_at_disk()
        if now_s >= self._state_at_s:
            self._state_at_s = now_s + STATE_LOOK_S
            self._look_at_state()

    def _look_at_disk(self) -> None:
        before, free = self._driver.room, disk_usage(self._folder).free
        room = room_for(free, self._reserve, before)
        if room is before:
            return
        self._driver.set_room(room)
        match room:
            case Room.ENOUGH:
                log.info(_ENOUGH, free_bytes=free, disk_reserve_bytes=self._reserve)
            case Room.LOW:
                log.warning(_LOW, free_bytes=free, disk_reserve_bytes=self._reserve)
            case Room.NONE:
                log.warning(_NONE, free_bytes=free, disk_reserve_bytes=self._reserve)

    def _look_at_state(self) -> None:
        sizes = [size() for size in self._state.shards]
        limits = self._state.limits
        self._note("node", sum(sizes), limits.node)
        self._note("shard", max(sizes, default=0), limits.shard)
        self._state.forget_far()
        for group_id in self._state.newly_near():
            log.warning(_NEAR, of="group", group=group_id, limit_bytes=limits.group)

    def _note(self, what: str, used: int, most: int) -> None:
        near = warned(used, most)
        if near != self._warned.get(what, False):
            self._warned[what] = near
            if near:
                log.warning(_NEAR, of=what, state_bytes=used, limit_bytes=most)
            else:
                log.info("the state is well below its limit again", of=what, state_bytes=used)


_NEAR: Final = "the state has come to 80 % of its limit: what grows it is refused at the limit"
_ENOUGH: Final = "the disk has room again"
_LOW: Final = "the disk is low: what grows the state is refused where a majority is low"
_NONE: Final = "the disk is full: this node takes no entry until there is room"
