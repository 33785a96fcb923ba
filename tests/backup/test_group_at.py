"""What a group had at a time: the last backup before it, and the export from there on."""

import copy

import pytest

from muster.cli.errors import CommandError
from musterd.backup.errors import BackupError
from musterd.backup.folders import Directory
from musterd.backup.group_at import group_at
from musterd.backup.group_cli import parse_time
from musterd.coordinator.machine.commands import CreateTopic, DeleteGroup
from tests.backup.archives import fill_folder
from tests.export.exports import export_once
from tests.export.node import CLUSTER, WALL_MS, FakeNode, Script

STEP_MS = 1_000


@pytest.fixture
def node():
    """A node whose group commits 1, 2, 3, ... one a second; another group beside it."""
    node = FakeNode()
    node.run(CreateTopic("t", 2))
    return node


def commit(node, offset, group="g"):
    """A simple commit, a second after what was before."""
    node.advance(STEP_MS)
    Script(node, group, 0).commit("", offset, partitions=(0,))


def back_up(node, root, name):
    """A backup of the node's only shard, cut now."""
    folder = Directory(root).folder(name)
    index = node.replicas[0].last
    fill_folder(folder, [copy.deepcopy(node.state())], node.cluster_id, index, node.wall_ms)
    return folder


def test_the_offsets_of_each_moment_are_those_that_it_had(node, tmp_path):
    """Between two commits, at them, and of another group's alone."""
    root = tmp_path / "backups"
    commit(node, 1)
    commit(node, 7, "other")
    back_up(node, root, "a")
    cut_ms = node.wall_ms
    for offset in range(2, 12):
        commit(node, offset)
        commit(node, 100 + offset, "other")
    export_once(node, tmp_path / "export", tmp_path / "data")
    for at_ms in range(cut_ms, node.wall_ms + STEP_MS, STEP_MS // 2):
        found = group_at(Directory(root), tmp_path / "export", "g", at_ms, CLUSTER)
        past = (at_ms - cut_ms + STEP_MS) // (2 * STEP_MS)
        assert found.offsets == {("t", 0): min(11, 1 + past)}
        assert found.wall_ms <= at_ms


def test_the_last_backup_before_the_time_is_taken(node, tmp_path):
    """Later ones are not looked into, and unfinished ones are none."""
    root = tmp_path / "backups"
    for offset, name in ((1, "a"), (2, "b"), (3, "c")):
        commit(node, offset)
        back_up(node, root, name)
    Directory(root).folder("d").claim("shard-0000.records", b"unfinished")
    for at_ms, offset, name in (
        (node.wall_ms + 1, 3, "c"),
        (node.wall_ms - 1, 2, "b"),
        (node.wall_ms - STEP_MS, 2, "b"),
        (node.wall_ms - STEP_MS - 1, 1, "a"),
    ):
        found = group_at(Directory(root), None, "g", at_ms, CLUSTER)
        assert found.offsets == {("t", 0): offset}
        assert found.backup.endswith(name)
    with pytest.raises(BackupError, match=r"no backup of cluster c.* was cut"):
        group_at(Directory(root), None, "g", WALL_MS - 1, CLUSTER)


def test_a_backup_of_another_cluster_is_not_taken(node, tmp_path):
    """Not the last one of a folder, not one alone; what is there is named."""
    root = tmp_path / "backups"
    commit(node, 1)
    back_up(node, root, "a")
    other = FakeNode(cluster_id="staging")
    other.run(CreateTopic("t", 2))
    for _ in range(3):
        commit(other, 5)
    folder = back_up(other, root, "staging")
    now_ms = max(node.wall_ms, other.wall_ms)
    assert group_at(Directory(root), None, "g", now_ms, CLUSTER).offsets == {("t", 0): 1}
    assert group_at(Directory(root), None, "g", now_ms, "staging").offsets == {("t", 0): 5}
    with pytest.raises(BackupError, match=r"no backup of cluster .*some of staging: --of"):
        group_at(folder, None, "g", now_ms, CLUSTER)


def test_a_group_that_was_deleted_meanwhile_has_nothing(node, tmp_path):
    """And what it had before is there at a time before."""
    root = tmp_path / "backups"
    commit(node, 5)
    folder = back_up(node, root, "a")
    node.advance(STEP_MS)
    node.run(DeleteGroup("g"))
    export_once(node, tmp_path / "export", tmp_path / "data")
    assert group_at(folder, tmp_path / "export", "g", node.wall_ms, CLUSTER).offsets == {}
    assert group_at(folder, tmp_path / "export", "g", node.wall_ms - 1, CLUSTER).offsets == {
        ("t", 0): 5
    }


def test_a_gap_in_the_export_is_refused(node, tmp_path):
    """Nothing is guessed."""
    root = tmp_path / "backups"
    commit(node, 1)
    folder = back_up(node, root, "a")
    for offset in range(2, 5):
        commit(node, offset)
        export_once(node, tmp_path / "export", tmp_path / "data")
    [_, middle, _] = sorted((tmp_path / "export" / "shard=00").glob("part-*.json"))
    middle.unlink()
    with pytest.raises(BackupError, match=r"entries \d+ to \d+ are missing"):
        group_at(folder, tmp_path / "export", "g", node.wall_ms, CLUSTER)


def test_an_export_of_another_cluster_or_a_damaged_one_is_refused(node, tmp_path):
    """By the name of the file."""
    root = tmp_path / "backups"
    commit(node, 1)
    folder = back_up(node, root, "a")
    other = FakeNode(cluster_id="c2")
    other.run(CreateTopic("t", 2))
    export_once(other, tmp_path / "other", tmp_path / "data2")
    with pytest.raises(BackupError, match="of cluster c2"):
        group_at(folder, tmp_path / "other", "g", node.wall_ms, CLUSTER)
    commit(node, 2)
    export_once(node, tmp_path / "export", tmp_path / "data")
    [segment] = (tmp_path / "export" / "shard=00").glob("part-*.parquet")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    with pytest.raises(BackupError, match="damaged"):
        group_at(folder, tmp_path / "export", "g", node.wall_ms, CLUSTER)


def test_a_time_names_its_zone():
    """RFC 3339, to the millisecond."""
    assert parse_time("2026-01-31T12:00:00.250Z") == 1_769_860_800_250
    assert parse_time("2026-01-31T14:00:00+02:00") == 1_769_860_800_000
    for text in ("2026-01-31T12:00:00", "yesterday", "1769860800"):
        with pytest.raises(CommandError):
            parse_time(text)
