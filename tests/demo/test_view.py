"""What people see while a run goes on."""

import io

import pytest
from rich.console import Console

from musterd.demo.view import LiveView, NodeScene, PlainView, Scene, WorkerScene, make_view
from musterd.demo.watch import GroupView

SCENE = Scene(
    percent=42.0,
    shares=(0.1, 0.4, 0.8, 1.0),
    group=GroupView(1, 7, 5, "Stable", 3, 2),
    nodes={0: NodeScene(None, None), 1: NodeScene(4711, 9), 2: NodeScene(4712, 7)},
    workers={
        "worker-1": WorkerScene("killed", 0, ()),
        "worker-2": WorkerScene("running", 3, (0, 1, 3)),
        "worker-3": WorkerScene("running", 3, (2,)),
    },
    acknowledged=120,
    compared=6,
)


def test_plain_lines_are_written_where_there_is_no_terminal(capsys):
    """One per event, and one per tenth of the work: not one per tick."""
    view = make_view()
    assert isinstance(view, PlainView)
    view.say("a node was killed")
    for percent in (3.0, 9.9, 10.2, 10.4, 19.0, 37.0, 39.0):
        view.update(Scene(percent=percent, group=SCENE.group, workers=SCENE.workers))
    view.close()
    lines = [line.split(" s  ")[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "a node was killed",
        "10 % counted by 3 workers, node 1 leads in term 7, generation 3",
        "37 % counted by 3 workers, node 1 leads in term 7, generation 3",
    ]


@pytest.fixture
def picture():
    """The live view's picture of the scene, as text."""
    console = Console(file=io.StringIO(), width=140, force_terminal=True)
    view = LiveView(console)
    view.update(SCENE)
    for number in range(20):
        view.say(f"event {number}")
    with console.capture() as captured:
        console.print(view.draw())
    view.close()
    return captured.get()


def test_the_live_view_shows_nodes_leaders_members_partitions_and_progress(picture):
    """Everything of the scene has its place."""
    for wanted in (
        "killed",
        "4712",
        "coordinates: shard 5, term 7, generation 3, Stable",
        "worker-2",
        "0-1 3",
        "42.0 %",
        "120 commits, 6 reads after a change of leader",
    ):
        assert wanted in picture


def test_the_live_view_keeps_the_last_lines_only(picture):
    """It must fit a screen."""
    assert "event 19" in picture
    assert "event 11" not in picture
