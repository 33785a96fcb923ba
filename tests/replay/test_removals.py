"""Groups that were deleted, offsets that expired: replay folds them, and the digests agree."""

from musterd.coordinator.machine.commands import (
    DeleteGroup,
    ExpireOffsets,
    OffsetDelete,
    TopicPartition,
)
from tests.export.exports import export_once, open_exporter
from tests.export.node import WALL_MS, FakeNode, Script
from tests.replay.results import replayed, table


def removing(node: FakeNode) -> None:
    """Two groups with generations are deleted, one comes back, one expires; between checkpoints."""
    first, second = Script(node, "first"), Script(node, "second")
    for group in (first, second):
        (member,) = group.form("a")
        group.commit(member, 5)
        group.leave(member)
    node.checkpoint()
    node.run(OffsetDelete("first", (TopicPartition("t", 0),)))
    node.run(DeleteGroup("first"))
    node.checkpoint()
    (back,) = Script(node, "first").form("b")
    assert node.state().groups["first"].generation == 3
    late_ms = WALL_MS + 10**9
    node.run(ExpireOffsets("second", late_ms, 1, (TopicPartition("t", 0),)), DeleteGroup("nope"))
    assert "second" not in node.state().groups
    node.checkpoint()
    assert back


def test_deletions_fold_and_prove(tmp_path):
    """Every digest is that of the replicas; deciding again gives the same events."""
    node = FakeNode()
    removing(node)
    export_once(node, tmp_path / "export", tmp_path / "data")
    report = replayed(tmp_path / "export", tmp_path / "out", prove=True)
    assert report.sound, report.failed
    rows = table(tmp_path / "out", "rebalances")
    assert ("first", 3, "published") in [(r["group"], r["generation"], r["outcome"]) for r in rows]
    commits = table(tmp_path / "out", "commits")
    removed = [r for r in commits if r["outcome"] not in ("committed", "superseded")]
    assert [(r["group"], r["outcome"], r["offset"], r["rewind"]) for r in removed] == [
        ("first", "deleted", 5, False),
        ("second", "expired", 5, False),
    ]
    (compared,) = [r for r in table(tmp_path / "out", "integrity") if r["check"] == "digest"]
    assert compared["detail"].startswith("equal at 3 checkpoints"), compared


def test_offsets_that_go_with_their_group_are_rows_too(tmp_path):
    """A row for each; the group had no members, so nothing else ends."""
    node = FakeNode()
    Script(node, "simple").commit("", 7)
    node.run(DeleteGroup("simple"))
    export_once(node, tmp_path / "export", tmp_path / "data")
    replayed(tmp_path / "export", tmp_path / "out")
    rows = table(tmp_path / "out", "commits")
    assert [(r["outcome"], r["offset"]) for r in rows] == [("committed", 7), ("deleted", 7)]


def test_a_fold_from_a_base_with_a_floor_reaches_the_same_digests(tmp_path):
    """The floor is in the base's digest and no group's; it rises again after the base."""
    node = FakeNode()
    removing(node)
    node.trim(node.replicas[0].last)
    exporter = open_exporter(node, tmp_path / "export", tmp_path / "data")
    exporter.drain()
    third = Script(node, "third")
    (member,) = third.form("c")
    third.leave(member)
    node.checkpoint()
    node.run(DeleteGroup("third"))
    node.checkpoint()
    exporter.drain()
    exporter.close()
    report = replayed(tmp_path / "export", tmp_path / "out", prove=True)
    assert report.sound, report.failed
    assert node.state().generation_floor == 4
