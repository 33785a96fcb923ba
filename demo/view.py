"""Shows a run while it goes on: a live view on a terminal, plain lines anywhere else."""

import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from musterd.demo.watch import GroupView

LINES_SHOWN = 8
STEP_PERCENT = 10
_BARS = "▁▂▃▄▅▆▇█"
_PER_SECOND = 4


@dataclass(frozen=True, slots=True)
class NodeScene:
    """One node. `led` is None while it does not answer, `pid` while it does not run."""

    pid: int | None
    led: int | None


@dataclass(frozen=True, slots=True)
class WorkerScene:
    """One worker; partitions under its latest assignment."""

    state: str
    generation: int
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """One moment of a run."""

    percent: float = 0.0
    shares: tuple[float, ...] = ()
    """How much of each partition is done, 0 to 1."""
    group: GroupView | None = None
    nodes: Mapping[int, NodeScene] = field(default_factory=dict)
    workers: Mapping[str, WorkerScene] = field(default_factory=dict)
    acknowledged: int = 0
    compared: int = 0


class View(Protocol):
    """A display of a run."""

    def say(self, line: str) -> None: ...

    def update(self, scene: Scene) -> None:
        """This is how it stands."""

    def close(self) -> None: ...


def make_view() -> View:
    """On stderr, as fits it."""
    return LiveView() if sys.stderr.isatty() else PlainView()


class PlainView:
    """A line for each thing that happens, and one for each tenth of the work."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next_percent = STEP_PERCENT

    def say(self, line: str) -> None:
        """With the seconds since the start."""
        sys.stderr.write(f"{time.monotonic() - self._began:6.1f} s  {line}\n")
        sys.stderr.flush()

    def update(self, scene: Scene) -> None:
        """Print a line at every tenth of the work."""
        if scene.percent >= self._next_percent:
            self._next_percent = int(scene.percent // STEP_PERCENT + 1) * STEP_PERCENT
            where = ""
            if scene.group is not None:
                where = (
                    f", node {scene.group.node_id} leads in term {scene.group.term}, "
                    f"generation {scene.group.generation}"
                )
            self.say(f"{scene.percent:.0f} % counted by {len(scene.workers)} workers{where}")

    def close(self) -> None: ...


class LiveView:
    """Tables that are drawn again four times a second."""

    def __init__(self, console: Console | None = None) -> None:
        self._began = time.monotonic()
        self._said: deque[str] = deque(maxlen=LINES_SHOWN)
        self._scene = Scene()
        self._live = Live(
            console=console or Console(stderr=True),
            refresh_per_second=_PER_SECOND,
            get_renderable=self.draw,
        )
        self._live.start()

    def say(self, line: str) -> None:
        """Into the lines below the tables."""
        self._said.append(f"{time.monotonic() - self._began:6.1f} s  {line}")

    def update(self, scene: Scene) -> None:
        """Drawn with the next refresh."""
        self._scene = scene

    def close(self) -> None:
        self._live.stop()

    def draw(self) -> Group:
        """The picture of this moment."""
        scene = self._scene
        progress = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=100, completed=scene.percent, width=50)
        told = f"{scene.acknowledged} commits, {scene.compared} reads after a change of leader"
        progress.add_row(bar, f"{scene.percent:5.1f} %", told)
        return Group(_nodes(scene), _workers(scene), progress, *(Text(line) for line in self._said))


def _nodes(scene: Scene) -> Table:
    group = scene.group
    table = Table("node", "pid", "shards led", "the group", title_justify="left", box=None)
    for node_id, node in scene.nodes.items():
        role = ""
        if group is not None and group.node_id == node_id:
            role = (
                f"coordinates: shard {group.shard}, term {group.term}, "
                f"generation {group.generation}, {group.state}"
            )
        led = "-" if node.led is None else str(node.led)
        style = "red" if node.pid is None else "bold green" if role else ""
        table.add_row(str(node_id), str(node.pid or "killed"), led, role, style=style)
    return table


def _workers(scene: Scene) -> Table:
    table = Table("worker", "state", "generation", "partitions", "progress of each", box=None)
    for name, worker in scene.workers.items():
        bars = "".join(_bar(scene.shares[number]) for number in worker.partitions)
        style = "red" if worker.state == "killed" else ""
        table.add_row(
            name,
            worker.state,
            str(worker.generation),
            _ranges(worker.partitions),
            bars,
            style=style,
        )
    return table


def _bar(share: float) -> str:
    return _BARS[min(int(share * len(_BARS)), len(_BARS) - 1)]


def _ranges(numbers: tuple[int, ...]) -> str:
    """The numbers in short form, such as "0-3 7"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return " ".join(f"{a}-{b}" if a != b else str(a) for a, b in parts)
