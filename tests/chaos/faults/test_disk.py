"""Disks of their own: what is lost, what is kept, who waits, and that nothing is left behind."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from musterd.chaos.child import ChildError
from musterd.chaos.faults.disk import PowerLossAll
from musterd.chaos.world.equipment.client import EquipmentClient
from musterd.chaos.world.equipment.disk import LoopDisks
from musterd.chaos.world.world import World

pytestmark = [pytest.mark.processes, pytest.mark.faults]

OWNER = """
import json, sys
from pathlib import Path
from musterd.chaos.world.equipment.disk import LoopDisks
from musterd.chaos.world.equipment.client import EquipmentClient
from musterd.chaos.world.equipment.limits import Limits
client = EquipmentClient()
disks = LoopDisks(client, 64)
disks.prepare(0, Path(sys.argv[1]) / "node-0")
limits = Limits(client)
limits.started(0, int(sys.argv[2]))
groups = [str(path) for path in limits._groups.get(0, {}).values()]
if sys.argv[3] == "frozen":
    disks.freeze(0)
place = disks.place(0)
print(json.dumps({"process": client._process.pid, "device": place.device, "groups": groups}))
sys.stdout.flush()
sys.stdin.read()
"""


def appended(path: Path, data: bytes, *, sync: bool) -> None:
    """Write to the end of a file."""
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def test_a_power_cut_takes_exactly_what_was_not_synced(disks, tmp_path) -> None:
    """On the disks that were cut; the other one keeps its unsynced bytes."""
    for node_id in range(2):
        appended(tmp_path / f"node-{node_id}/file", b"synced", sync=True)
        appended(tmp_path / f"node-{node_id}/file", b" and not", sync=False)
        appended(tmp_path / f"node-{node_id}/new", b"never synced", sync=False)
    disks.cut([0])
    disks.remount([0])
    assert (tmp_path / "node-0/file").read_bytes() == b"synced"
    assert not (tmp_path / "node-0/new").exists()
    assert (tmp_path / "node-1/file").read_bytes() == b"synced and not"


def test_a_disk_that_refuses_keeps_what_was_written(disks, tmp_path) -> None:
    """Nobody was told that something is on the disk and finds it gone: EIO alone is the fault."""
    appended(tmp_path / "node-0/file", b"not synced", sync=False)
    disks.refuse([0])
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        appended(tmp_path / "node-0/file", b" after", sync=True)
    assert disks.dead(0)
    disks.remount([0])
    assert (tmp_path / "node-0/file").read_bytes() == b"not synced"


class _Power:
    """A world that notes what is done to it, and in which order."""

    def __init__(self, running: list[int]) -> None:
        self.nodes = {
            n: SimpleNamespace(running=n in running, data_dir=Path("nowhere")) for n in range(3)
        }
        self.done: list[object] = []

    def pause(self, node_id: int) -> None:
        self.done.append(("pause", node_id))

    def kill(self, node_id: int) -> None:
        self.done.append(("kill", node_id))

    def running(self) -> list[int]:
        return [n for n, node in self.nodes.items() if node.running]

    def equipped(self, _kind: type) -> SimpleNamespace:
        return SimpleNamespace(cut=lambda nodes: self.done.append(("cut", *nodes)))


def test_power_goes_while_the_nodes_stand() -> None:
    """A sync may say that it succeeded while the power is cut: nobody goes on and tells others."""
    world = _Power([0, 2])
    PowerLossAll().inject(cast("World", world), Random(1))
    cut = world.done.index(("cut", 0, 2))
    assert world.done[:cut] == [("pause", 0), ("pause", 2)]
    assert world.done[cut + 1 :] == [("kill", 0), ("kill", 2)]


def test_a_cut_disk_refuses_every_write_and_sync_until_it_is_mounted_again(disks, tmp_path) -> None:
    """EIO for a file that was open before, too."""
    handle = os.open(tmp_path / "node-0/file", os.O_CREAT | os.O_WRONLY)
    try:
        os.write(handle, b"before")
        disks.cut([0])
        for attempt in (lambda: os.write(handle, b"after"), lambda: os.fsync(handle)):
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                attempt()
    finally:
        os.close(handle)
    assert disks.dead(0)
    assert not disks.dead(1)
    disks.remount([0])
    assert not disks.dead(0)


def test_whoever_writes_to_a_frozen_disk_waits_until_it_is_thawed(disks, tmp_path) -> None:
    """And not for the other disk."""
    disks.freeze(0)
    done = threading.Event()

    def write() -> None:
        appended(tmp_path / "node-0/file", b"late", sync=False)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    appended(tmp_path / "node-1/file", b"now", sync=True)
    assert not done.wait(0.2)
    disks.thaw(0)
    assert done.wait(10.0)
    writer.join()
    disks.thaw(0)  # twice is fine


def test_a_filled_disk_has_no_room_until_it_is_freed(disks, tmp_path) -> None:
    """ENOSPC for one more block."""
    assert disks.fill(0) > 0
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        appended(tmp_path / "node-0/file", bytes(1 << 20), sync=True)
    disks.free(0)
    appended(tmp_path / "node-0/file", bytes(1 << 20), sync=True)


def test_a_disk_in_use_cannot_be_mounted_again(disks, tmp_path, monkeypatch) -> None:
    """An error that says so, and no disk that seems to be back."""
    with (tmp_path / "node-0/file").open("wb"):
        disks.cut([0])
        with pytest.raises(ChildError, match="busy"):
            disks.remount([0])
    disks.remount([0])


def test_a_disk_too_small_for_a_node_is_refused() -> None:
    """Before anything is made."""
    with pytest.raises(ValueError, match="64 at least"):
        LoopDisks(EquipmentClient(), 16)


@pytest.mark.parametrize("state", ["frozen", "signalled"])
def test_nothing_is_left_of_a_run_that_is_killed(tmp_path, disks, state) -> None:
    """No process, no loop device, no control group, no image; also where all of it got SIGTERM."""
    with subprocess.Popen(["sleep", "60"]) as bystander:  # lives in the control groups meanwhile
        argv = [sys.executable, "-c", OWNER, str(tmp_path / "own"), str(bystander.pid), state]
        (tmp_path / "own").mkdir()
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
            told = json.loads(owner.stdout.readline())
            backing = Path(f"/sys/dev/block/{told['device']}/loop/backing_file")
            assert backing.exists()
            if state == "signalled":
                os.kill(told["process"], signal.SIGTERM)
            owner.send_signal(signal.SIGKILL)
        bystander.kill()
        bystander.wait()
    deadline = time.monotonic() + 30.0
    remains = [Path(f"/proc/{told['process']}"), backing, *map(Path, told["groups"])]
    while any(one.exists() for one in remains):
        assert time.monotonic() < deadline, [one for one in remains if one.exists()]
        time.sleep(0.02)
    assert {one.name for one in (tmp_path / "own").iterdir()} <= {"node-0"}  # a dead link
