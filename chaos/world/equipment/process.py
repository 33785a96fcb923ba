"""The equipment process: it holds the disks of a run and tidies up when the run ends.

It is started as `python -m musterd.chaos.world.equipment.process`.

Disks are mounted in a mount namespace of its own, so they go when it goes, however that happens;
others reach them through `/proc/PID/root`. It ends when its stdin does, so also when the run is
killed: then it thaws what is frozen, unmounts, and removes the control groups it was told of.

Verbs, one JSON object per line: make (disk, size_mb), cut (disks), refuse (disks), remount (disks),
freeze (disks), thaw (disks), adopt (cgroup, lift). A disk is called by the path that it is
mounted at. A verb that fails is answered with "error".
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from musterd.chaos import child

EXT4_IOC_SHUTDOWN = 0x8004587D
FLUSH = 0
"""All that was written is synced first."""
NO_LOG_FLUSH = 2
"""Not even the journal is written: what was not synced is gone, as when power goes."""
FIFREEZE = 0xC0045877
FITHAW = 0xC0045878
CLONE_NEWNS = 0x20000
MS_REC_PRIVATE = (1 << 14) | (1 << 18)

BUSY_S_MAX = 10.0
"""How long a disk or a control group may stay in use after its processes were killed."""
COMMAND_S_MAX = 30.0
BUSY_POLL_S = 0.01
JOURNAL_COMMIT_S = 300
"""ext4 syncs its journal this seldom by itself: what nobody synced must not get there by luck."""


def private_mounts() -> None:
    """Give this process mounts of its own. Must be called before any thread is started."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        raise OSError(f"no mount namespace: {os.strerror(ctypes.get_errno())}")
    if libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) != 0:
        raise OSError(f"mounts cannot be private: {os.strerror(ctypes.get_errno())}")


def run(*argv: str) -> None:
    """Run a command. Raises OSError with what it said."""
    try:
        done = subprocess.run(argv, capture_output=True, check=False, timeout=COMMAND_S_MAX)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OSError(f"{argv[0]}: {error}") from error
    if done.returncode != 0:
        raise OSError(f"{' '.join(argv)}: {done.stderr.decode(errors='replace').strip()}")


def while_busy(attempt: Callable[[], None]) -> None:
    """Try again while something is in use. Raises what the last attempt raised."""
    deadline = time.monotonic() + BUSY_S_MAX
    while True:
        try:
            attempt()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(BUSY_POLL_S)
        else:
            return


class Disk:
    """One ext4 file system in a file that has no name any more, on a loop device."""

    def __init__(self, point: Path, size_mb: int) -> None:
        """Make and mount it at `point`, which is made, too. Raises OSError."""
        self.point = point
        image = point.with_suffix(".img")
        try:
            with image.open("wb") as file:
                file.truncate(size_mb * 1024 * 1024)
            tuning = "lazy_itable_init=0,lazy_journal_init=0,nodiscard"
            run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", tuning, str(image))
            point.mkdir()
            run("mount", "-t", "ext4", "-o", f"loop,{self._options}", str(image), str(point))
        finally:
            image.unlink(missing_ok=True)
        number = point.stat().st_dev
        self.device = f"{os.major(number)}:{os.minor(number)}"
        # Held open, the device outlives an unmount; the kernel frees it with its last user.
        self._block = f"/dev/{Path(f'/sys/dev/block/{self.device}').resolve().name}"
        self._held = os.open(self._block, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def _options(self) -> str:
        return f"noatime,nodev,nosuid,nodiscard,commit={JOURNAL_COMMIT_S}"

    def cut(self) -> None:
        """Cut its power: whatever was not synced is gone, and all that comes after gets EIO."""
        self._ioctl(EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH)

    def refuse(self) -> None:
        """Write what is unsynced; all that comes after gets EIO."""
        self._ioctl(EXT4_IOC_SHUTDOWN, FLUSH)

    def remount(self) -> None:
        """Unmount, once nobody uses it, and mount what is on the device."""
        while_busy(lambda: run("umount", str(self.point)))
        run("mount", "-t", "ext4", "-o", self._options, self._block, str(self.point))

    def freeze(self) -> None:
        """Whoever writes or syncs waits until `thaw`."""
        self._ioctl(FIFREEZE, 0)

    def thaw(self) -> None:
        """Let them write again; nothing where it is not frozen."""
        try:
            self._ioctl(FITHAW, 0)
        except OSError as error:
            # It was not frozen, or its power is cut.
            if error.errno not in {errno.EINVAL, errno.EIO}:
                raise

    def close(self) -> None:
        """Unmount it; the device is freed."""
        while_busy(lambda: run("umount", str(self.point)))
        os.close(self._held)
        self.point.rmdir()

    def _ioctl(self, request: int, argument: int) -> None:
        handle = os.open(self.point, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(handle, request, struct.pack("i", argument))
        finally:
            os.close(handle)


class EquipmentProcess:
    """Disks by path, and what else has to go at the end."""

    def __init__(self) -> None:
        self._disks: dict[str, Disk] = {}
        self._cgroups: list[Path] = []
        self._lift: list[tuple[Path, str]] = []

    def obey(self, message: dict[str, Any]) -> dict[str, object]:
        """Do what one line says; returns the answer. Raises OSError, KeyError."""
        verb = message["verb"]
        if verb == "make":
            disk = Disk(Path(message["disk"]), message["size_mb"])
            self._disks[message["disk"]] = disk
            return {"device": disk.device}
        if verb == "adopt":
            self._cgroups.append(Path(message["cgroup"]))
            self._lift += [(Path(file), what) for file, what in message["lift"].items()]
            return {"done": True}
        deeds: dict[str, Callable[[Disk], None]] = {
            "cut": Disk.cut,
            "refuse": Disk.refuse,
            "remount": Disk.remount,
            "freeze": Disk.freeze,
            "thaw": Disk.thaw,
        }
        for disk in [self._disks[name] for name in message["disks"]]:
            deeds[verb](disk)
        return {"done": True}

    def close(self) -> list[str]:
        """Remove everything; returns what could not be removed, and why."""
        # First nobody may wait any more: whoever was killed ends only then.
        steps: list[Callable[[], object]] = [
            partial(file.write_text, what) for file, what in self._lift if file.exists()
        ]
        steps += [disk.thaw for disk in self._disks.values()]
        steps += [disk.close for disk in self._disks.values()]
        steps += [partial(while_busy, partial(remove, path)) for path in self._cgroups]
        left = []
        for step in steps:
            try:
                step()
            except OSError as error:
                left.append(str(error))
        return left


def remove(cgroup: Path) -> None:
    """Remove a control group without processes; nothing where it is gone."""
    with contextlib.suppress(FileNotFoundError):
        cgroup.rmdir()


def main() -> None:
    """Serve until stdin ends, then tidy up; exit code 1 where something is left behind."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # sent to all of the run: its end ends this process
    try:
        private_mounts()
    except OSError as error:
        child.answer(error=str(error))
        sys.exit(1)
    equipment = EquipmentProcess()
    child.answer(ready=True)
    for line in sys.stdin:
        try:
            answer = equipment.obey(json.loads(line))
        except (OSError, KeyError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        try:
            child.answer(**answer)
        except BrokenPipeError:  # the run was killed meanwhile
            break
    left = equipment.close()
    for what in left:
        sys.stderr.write(f"left behind: {what}\n")
    sys.stderr.flush()
    os._exit(1 if left else 0)


if __name__ == "__main__":
    main()
