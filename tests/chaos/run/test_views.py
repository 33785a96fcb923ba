"""A run that cannot go on keeps how each node stands: else nobody can say why it stuck."""

from types import SimpleNamespace

from musterd.chaos.run.runner import Runner
from musterd.chaos.run.target_cluster import OwnWorld


def test_each_node_that_answers_leaves_its_view_and_its_metrics_page(tmp_path):
    """Also where a node answers one of the two only; whoever is silent leaves nothing."""

    def metrics(node_id):
        if node_id == 1:
            raise OSError("no answer")
        return "muster_build_info 1\n"

    cluster = OwnWorld.__new__(OwnWorld)
    cluster.world = SimpleNamespace(views=lambda: {0: "view of 0", 1: "view of 1"}, metrics=metrics)
    cluster.keep_views(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "node-0.view.txt": "view of 0",
        "node-0.metrics.txt": "muster_build_info 1\n",
        "node-1.view.txt": "view of 1",
    }


def test_a_run_that_gives_up_asks_for_them(tmp_path):
    """Before the nodes are ended."""
    (tmp_path / "logs").mkdir()
    kept = []
    runner = Runner.__new__(Runner)
    runner.view = SimpleNamespace(say=lambda _: None)
    runner.folder = tmp_path
    runner.cluster = SimpleNamespace(keep_views=kept.append)
    runner.played = SimpleNamespace(ended="finished")
    runner._give_up(RuntimeError("not settled"))
    assert kept == [tmp_path / "logs"]
    assert (tmp_path / "logs" / "broken.txt").read_text() == "not settled\n"
