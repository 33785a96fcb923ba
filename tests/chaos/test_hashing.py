"""Each process of a run has a hash seed of its own."""

from pathlib import Path

from musterd.chaos import hashing
from musterd.chaos.world.cluster import Cluster


def test_each_process_has_its_own_seed_and_the_run_draws_it_again(monkeypatch):
    """Whatever the caller has set; without a run's seed Python draws one itself."""
    monkeypatch.setenv(hashing.NAME, "0")
    names = ("node-0", "node-1", "W1")
    drawn = [hashing.environment(7, name)[hashing.NAME] for name in names]
    assert len({*drawn, "0"}) == 4
    assert drawn == [hashing.environment(7, name)[hashing.NAME] for name in names]
    assert hashing.environment(8, "node-0")[hashing.NAME] != drawn[0]
    assert hashing.NAME not in hashing.environment(None, "node-0")


def test_nodes_run_with_it(monkeypatch):
    """As the kernel says of their processes."""
    monkeypatch.setenv(hashing.NAME, "0")
    with Cluster(nodes=3, shards=1, seed=7) as cluster:
        pids = [node.pid for node in cluster.nodes.values()]
        found = {
            word
            for pid in pids
            for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if word.startswith(hashing.NAME.encode())
        }
    assert len(found) == 3
    assert b"PYTHONHASHSEED=0" not in found
