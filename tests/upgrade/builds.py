"""The builds of an upgrade: the former release, today's, and one of a level above today's.

Each is a tree that a node's process imports before the installed one.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from musterd.coordinator.node.launcher import Equipment

ROOT = Path(__file__).parents[2]
FORMER = "a24e4743"
"""The last commit whose builds name no level."""

ROOMS = ("backup", "coordinator", "export", "muster", "musterd", "raft", "replay", "storage")
"""What a server's process imports."""

EDITS = {
    "musterd/levels.py": [
        ("LEVEL: Final = 6\n", "LEVEL: Final = 7\n"),
        ("        6: (\n", '        7: ("what a test changes",),\n        6: (\n'),
    ],
    # an outcome: when a topic was made
    "coordinator/machine/decide/shard.py": [
        ("noted_ms = wall_ms if level >= 4 else 0", "noted_ms = wall_ms + (level >= 7)"),
    ],
    # an entry: its format
    "coordinator/codec.py": [("<= message.format <= FORMAT:", "<= message.format <= FORMAT + 1:")],
    "coordinator/runtime/proposer.py": [
        ("format=FORMAT,", "format=FORMAT + (self._level() >= 7),"),
    ],
    # a record: the level's has a byte more
    "coordinator/machine/records/shard_records.py": [
        (
            "return put_number(state.level) if state.level else None",
            'return put_number(state.level) + b"x" * (state.level >= 7) if state.level else None',
        ),
        (
            "    level = take_number(value)\n    if level > LEVEL",
            "    level = take_number(value[:9])\n    if level > LEVEL",
        ),
    ],
    # a frame: it has a field that today's build hangs up on
    "raft/codec.py": [
        (
            '    """Whether clients reach its node."""\n',
            '    """Whether clients reach its node."""\n    form: int = 0\n',
        ),
        ("    return _sealed(frame)\n", "    return _sealed(frame, sender.form)\n"),
        (
            "def _sealed(message: pb.Frame | pb.Hello) -> bytes:\n",
            "def _sealed(message: pb.Frame | pb.Hello, form: int = 0) -> bytes:\n",
        ),
        (
            "    return sealed(message.SerializeToString())\n",
            "    return sealed(message.SerializeToString() + b'\\xf8\\x07\\x01' * (form >= 7))\n",
        ),
        ("into.ByteSize() != len(body)", "len(body) - into.ByteSize() not in (0, 3)"),
    ],
    "raft/driver.py": [
        ("self.room, self.reach)", "self.room, self.reach, self.levels.own.active)"),
    ],
}
"""What makes the next build of today's: each place has to be found once."""

SHORT_LOGS = {
    "raft/settings.py": [
        ("log_disk_bytes: int = 64 * MIB\n", "log_disk_bytes: int = 16384\n"),
        ("log_trim_bytes: int = 4 * MIB\n", "log_trim_bytes: int = 4096\n"),
    ],
}
"""What has a build keep little of its logs: who was away, or lost its disk, gets snapshots."""


def former(folder: Path) -> Path:
    """Unpack the former release's tree; raises CalledProcessError without its history."""
    return _unpacked(folder, ["git", "-C", str(ROOT), "archive", FORMER])


def today(folder: Path) -> Path:
    """Copy today's tree as it is."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", *ROOMS], check=True, capture_output=True
    ).stdout
    for name in listed.decode().rstrip("\0").split("\0"):
        to = folder / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to, follow_symlinks=False)
    return folder


def next_one(folder: Path) -> Path:
    """Copy today's tree, and edit it to a level above today's."""
    return edited(today(folder), EDITS)


def edited(folder: Path, edits: Mapping[str, list[tuple[str, str]]]) -> Path:
    """Edit a build's tree: by file, what is there once, and what takes its place."""
    for name, changes in edits.items():
        path = folder / name
        text = path.read_text("utf-8")
        for old, new in changes:
            assert text.count(old) == 1, f"{name}: {old}"
            text = text.replace(old, new)
        path.write_text(text, "utf-8")
    return folder


def _unpacked(folder: Path, command: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], check=True, input=archive)
    return folder


def init(
    build: Path, data_dir: Path, node: int, nodes: list[int], shards: int, name: str = "upgraded"
) -> None:
    """Give a node its identity by that build."""
    made = "from pathlib import Path; from musterd.coordinator.node.init import initialise; "
    made += f"initialise(Path({str(data_dir)!r}), {name!r}, {node}, {nodes}, {shards})"
    environment = {**os.environ, "PYTHONPATH": str(build)}
    subprocess.run([sys.executable, "-P", "-c", made], check=True, env=environment)


class Builds(Equipment):
    """Which build each node starts with; may be changed while it is stopped."""

    def __init__(self, build: Path) -> None:
        self.of: dict[int, Path] = {}
        self._first = build

    def environment(self, node_id: int) -> Mapping[str, str]:
        """Its tree comes before the installed one."""
        return {"PYTHONPATH": str(self.of.get(node_id, self._first))}


class Alternating(Equipment):
    """At each start a node gets the other one of two builds; no two begin alike in a row."""

    def __init__(self, former: Path, later: Path) -> None:
        self._builds = (former, later)
        self.starts: dict[int, int] = {}
        """How often each node was started."""
        self.mixtures: set[tuple[int, ...]] = set()
        """Which nodes had which build at a time: 0 the former, 1 the later."""
        self._has: dict[int, int] = {}

    def environment(self, node_id: int) -> Mapping[str, str]:
        """Its tree comes before the installed one."""
        started = self.starts.get(node_id, 0)
        self.starts[node_id] = started + 1
        self._has[node_id] = (node_id + started) % 2
        self.mixtures.add(tuple(self._has[one] for one in sorted(self._has)))
        return {"PYTHONPATH": str(self._builds[self._has[node_id]])}
