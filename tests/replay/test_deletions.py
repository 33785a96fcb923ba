"""A history in which a topic is deleted and made again replays and proves."""

from musterd.coordinator.machine.commands import (
    BeginDrop,
    CreateTopic,
    DeletedTopic,
    DeleteTopic,
    DropOffsets,
    EndDrop,
    ForgetDeletion,
    OffsetCommit,
    PartitionCommit,
)
from musterd.coordinator.machine.errors import Error
from tests.export.exports import export_once
from tests.export.node import FakeNode, Script
from tests.replay.results import replayed, table


def test_a_deletion_replays_to_the_same_digest_and_proves(tmp_path):
    """What the shard refused by what it knows of deletions is not proven, everything else is."""
    node = FakeNode()
    node.run(CreateTopic("t", 2))
    group = Script(node, "orders")
    members = group.form("a", "b")
    group.commit(members[0], 7)
    node.run(DeleteTopic("t"))
    version = node.state().deletions_version
    deleted = (DeletedTopic("t", version),)
    node.run(BeginDrop(deleted, version, 0))
    partitions = (PartitionCommit("t", 0, 8, "", None),)
    late = OffsetCommit("bills", "", -1, 0, partitions)
    (refused,) = node.run(late)
    assert refused.reply.error is Error.COORDINATOR_LOAD_IN_PROGRESS
    node.run(DropOffsets("orders", "t", version, tuple(range(8))))
    node.run(EndDrop(deleted))
    node.run(ForgetDeletion(deleted))
    node.run(CreateTopic("t", 2))
    node.run(OffsetCommit("bills", "", -1, 0, partitions, deletions_version=version))
    group.join("c")
    group.rebalance()
    node.checkpoint()
    export_once(node, tmp_path / "export", tmp_path / "data")
    report = replayed(tmp_path / "export", tmp_path / "out", prove=True)
    assert (report.sound, report.checkpoints, report.unproven) == (True, 1, 1)
    outcomes = [row["outcome"] for row in table(tmp_path / "out", "commits")]
    assert "topic_deleted" in outcomes
    found = [row for row in table(tmp_path / "out", "integrity") if row["result"] != "ok"]
    assert [(row["check"], row["result"]) for row in found] == [("proof", "marked")]
