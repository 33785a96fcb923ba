"""Each process of a run has a hash seed of its own."""

from pathlib import Path

from musterd.chaos.hash_seeds import NAME, hash_seed
from musterd.chaos.world.world import World


def test_each_process_has_its_own_seed_and_the_run_draws_it_again():
    """Without a run's seed Python draws one itself."""
    names = ("node-0", "node-1", "W1")
    drawn = [hash_seed(7, name)[NAME] for name in names]
    assert len({*drawn, "0"}) == 4
    assert drawn == [hash_seed(7, name)[NAME] for name in names]
    assert hash_seed(8, "node-0")[NAME] != drawn[0]
    assert hash_seed(None, "node-0") == {NAME: "random"}


def test_nodes_run_with_it(monkeypatch):
    """As the kernel says of their processes."""
    monkeypatch.setenv(NAME, "0")
    with World(nodes=3, shards=1, seed=7) as cluster:
        pids = [node.pid for node in cluster.nodes.values()]
        found = {
            word
            for pid in pids
            for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if word.startswith(NAME.encode())
        }
    assert len(found) == 3
    assert b"PYTHONHASHSEED=0" not in found
