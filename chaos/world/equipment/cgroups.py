"""Control groups of Linux, version 1 or 2, whichever this machine has a controller in."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PREFIX = "muster-chaos-"
"""Name of every group that is made here; the pid of the run and the node follow."""


@dataclass(frozen=True, slots=True)
class Controller:
    """One controller and where its groups are made."""

    name: str
    version: int
    base: Path
    """The group below which new ones are made."""

    def make(self, name: str) -> Path:
        """A new group, `PREFIX` + pid of this process + `name`. Raises OSError."""
        if self.version == 2:  # noqa: PLR2004  # where a controller is handed on to children
            switch = self.base / "cgroup.subtree_control"
            if self.name not in switch.read_text().split():
                switch.write_text(f"+{self.name}")
        path = self.base / f"{PREFIX}{os.getpid()}-{name}"
        path.mkdir(exist_ok=True)
        return path


def find(name: str, *, proc: Path = Path("/proc")) -> Controller | None:
    """The controller (`cpu`, `memory`, `blkio`, which is `io` in version 2), or None.

    In version 1 new groups go below this process' own, so its limits go on to hold; in version 2,
    where a group with processes can have no limited children, below the root.
    """
    v1, v2 = _mounted(name, proc)
    if v1 is not None:
        return Controller(name, 1, v1 / _own(name, proc))
    if v2 is not None:
        called = "io" if name == "blkio" else name
        known = (v2 / "cgroup.controllers").read_text().split()
        if called in known:
            return Controller(called, 2, v2)
    return None


def _mounted(name: str, proc: Path) -> tuple[Path | None, Path | None]:
    """Where the controller's version 1 hierarchy, and version 2, are mounted."""
    v1 = v2 = None
    for line in (proc / "self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup" and name in options.split(","):
            v1 = Path(where)
        elif kind == "cgroup2":
            v2 = Path(where)
    return v1, v2


def _own(name: str, proc: Path) -> str:
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if name in controllers.split(","):
            return path.lstrip("/")
    return ""


def counters(path: Path) -> Mapping[str, int]:
    """A file of "name number" lines. Raises OSError."""
    pairs = (line.split() for line in path.read_text().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}  # noqa: PLR2004
