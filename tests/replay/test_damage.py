"""What is wrong with an export is found, named, and not folded: nothing is guessed."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from musterd.coordinator.codec import decode_events, encode_events
from musterd.coordinator.machine.events import OffsetCommitted
from musterd.export.layout import LATER_COLUMNS, SCHEMA_VERSION, manifest_path, write_manifest
from musterd.export.parquet_files import read_rows
from musterd.replay.checks import InputError
from tests.export.exports import SMALL, export_once, lively, open_exporter
from tests.export.node import FakeNode, Script
from tests.replay.results import (
    failures,
    flip,
    forge,
    manifest_of,
    replayed,
    reseal,
    segments,
    table,
)


@pytest.fixture
def root(tmp_path):
    """One shard in three segments, with a checkpoint in each."""
    node = FakeNode()
    exporter = open_exporter(node, tmp_path / "export", tmp_path / "data", SMALL)
    group, other = Script(node, "orders"), Script(node, "bills")
    members = group.form("a", "b")
    for part in range(3):
        for offset in range(5):
            group.commit(members[0], 10 * part + offset)
        if part == 1:
            other.commit("", 7)
        node.checkpoint()
        exporter.drain()
        if part < 2:
            for _, shard in exporter._shards.values():
                shard.close(exporter._clock())
    exporter.close()
    assert len(segments(tmp_path / "export")) == 3
    return tmp_path / "export"


def test_a_sound_export_has_no_finding_but_ok(root, tmp_path):
    """The baseline of this file: three segments, three checkpoints, all equal."""
    report = replayed(root, tmp_path / "out", prove=True)
    assert (report.sound, report.marked, report.checkpoints) == (True, (), 3)
    assert [f"{one.digest:032x}" for one in report.reached] == recorded(root)
    assert report.unproven == 0
    assert {row["result"] for row in table(tmp_path / "out", "integrity")} == {"ok"}


def recorded(root):
    """The digests that the node stored, one in each segment."""
    return [manifest_of(path).checkpoint.digest for path in segments(root)]


@pytest.mark.parametrize("place", ["start", "middle", "end"])
def test_one_changed_byte_is_found_and_its_file_named(root, tmp_path, place):
    """Wherever it is, the checksum tells, and what hung on the segment is named too."""
    path = segments(root)[1]
    flip(path, {"start": 4, "middle": path.stat().st_size // 2, "end": -5}[place])
    label = f"shard=00/{path.name}"
    report = replayed(root, tmp_path / "out")
    assert ("checksum", 0, None, label) in failures(report)
    assert ("gap", 0, None, None) in failures(report)
    assert ("group", 0, "orders", None) in failures(report)
    first = manifest_of(path).first
    assert all(row["index"] < first for row in table(tmp_path / "out", "commits"))


def test_a_truncated_segment_is_found(root, tmp_path):
    """Half a file is no file."""
    path = segments(root)[2]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    report = replayed(root, tmp_path / "out")
    assert ("checksum", 0, None, f"shard=00/{path.name}") in failures(report)


def test_a_truncated_segment_with_a_fitting_checksum_is_found(root, tmp_path):
    """The manifest's SHA-256 is not the only check."""
    path = segments(root)[2]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    reseal(path)
    report = replayed(root, tmp_path / "out")
    assert ("content", 0, None, f"shard=00/{path.name}") in failures(report)


def test_every_byte_of_a_manifest_counts(root, tmp_path):
    """A flipped byte is refused, or names another file; it is never read as something else."""
    path = manifest_path(segments(root)[1])
    content = path.read_bytes()
    sound = replayed(root, tmp_path / "sound").failed
    assert not sound
    for offset in range(0, len(content), 7):
        flip(path, offset)
        report = replayed(root, tmp_path / f"out-{offset}")
        assert any(row.check == "manifest" for row in report.failed), content[offset : offset + 8]
        path.write_bytes(content)


def test_a_missing_segment_is_a_gap_and_its_groups_are_named(root, tmp_path):
    """Entries after a hole have no known start: they are not folded."""
    path = segments(root)[1]
    manifest = manifest_of(path)
    path.unlink()
    manifest_path(path).unlink()
    report = replayed(root, tmp_path / "out")
    (gap,) = [row for row in report.failed if row.check == "gap"]
    assert (gap.first_index, gap.last_index) == (manifest.first, manifest.last)
    (start,) = [row for row in report.failed if row.check == "start"]
    assert start.first_index == manifest.last + 1
    assert ("group", 0, "orders", None) in failures(report)


def test_a_segment_whose_file_alone_is_gone_is_named(root, tmp_path):
    """Its manifest does not say that it was deleted."""
    path = segments(root)[0]
    path.unlink()
    report = replayed(root, tmp_path / "out")
    assert ("manifest", 0, None, f"shard=00/{manifest_path(path).name}") in failures(report)


def test_a_segment_without_a_manifest_is_not_read(root, tmp_path):
    """It was not finished, or its manifest was lost."""
    path = segments(root)[2]
    manifest_path(path).unlink()
    report = replayed(root, tmp_path / "out")
    assert report.sound
    (row,) = report.marked
    assert (row.check, row.file) == ("manifest", f"shard=00/{path.name}")


def test_a_forged_event_breaks_the_digest_between_two_checkpoints(root, tmp_path):
    """Checksums fit, the digest does not: the stretch and its groups are named, the rest stands."""

    def change(row):
        events = decode_events(row["events"] or b"")
        if row["group"] == "orders" and events and isinstance(events[0], OffsetCommitted):
            events = (events[0]._replace(metadata="forged"),)
            row["events"] = encode_events(events)
        return row

    path = segments(root)[1]
    forge(path, change)
    report = replayed(root, tmp_path / "out")
    (broken,) = [row for row in report.failed if row.check == "digest"]
    manifest = manifest_of(path)
    assert broken.last_index == manifest.last
    assert broken.first_index == manifest.first - 1
    assert ("group", 0, "orders", None) in failures(report)
    reached = [f"{one.digest:032x}" for one in report.reached]
    same = [mine == stored for mine, stored in zip(reached, recorded(root), strict=True)]
    assert same == [True, False, True], "what is reached is told, right or wrong"
    assert report.checkpoints == 2, "the third stretch overwrites the forged offset"


def test_a_forged_event_is_found_by_the_proof_too(root, tmp_path):
    """`--prove` decides the command again."""

    def change(row):
        events = decode_events(row["events"] or b"")
        if row["group"] == "bills":
            row["events"] = encode_events((events[0]._replace(offset=8),))
        return row

    forge(segments(root)[1], change)
    report = replayed(root, tmp_path / "out", prove=True)
    assert ("proof", 0, "bills", None) in failures(report)
    assert ("proof", 0, "orders", None) not in failures(report)
    (broken,) = [row for row in report.failed if row.check == "digest"]
    assert broken.last_index == manifest_of(segments(root)[1]).last
    (still,) = [row for row in report.marked if row.check == "digest"]
    assert still.last_index == manifest_of(segments(root)[2]).last
    assert report.checkpoints == 1


def test_an_event_that_does_not_fit_ends_that_group_alone(root, tmp_path):
    """The group is named with the entry; the others are folded on."""

    def change(row):
        if row["group"] == "bills":
            row["events"] = b"\xff\xff\xff"
        return row

    forge(segments(root)[1], change)
    report = replayed(root, tmp_path / "out")
    assert ("fold", 0, "bills", None) in failures(report)
    groups = {row["group"] for row in table(tmp_path / "out", "commits")}
    assert groups == {"orders"}


def test_a_manifest_with_another_node_digest_is_found(root, tmp_path):
    """What the node recorded and what the segment holds must be the same."""
    path = segments(root)[1]
    mark = manifest_of(path).checkpoint
    reseal(path, checkpoint=replace(mark, digest="0" * 32))
    report = replayed(root, tmp_path / "out")
    assert failures(report) == {("node_digest", 0, None, f"shard=00/{path.name}")}


def test_a_hole_inside_a_segment_is_found(root, tmp_path):
    """A forger who drops a row and reseals the file is found by the order of the rows."""
    path = segments(root)[1]
    index = manifest_of(path).first + 1

    def change(row):
        if row["index"] > index:
            row["index"] += 1
        return row

    forge(path, change)
    report = replayed(root, tmp_path / "out")
    assert ("gap", 0, None, f"shard=00/{path.name}") in failures(report)


def test_a_newer_schema_is_refused_by_name(root, tmp_path):
    """A later release wrote it; nothing is skipped silently."""
    path = segments(root)[1]
    write_manifest(path.parent, replace(manifest_of(path), schema_version=SCHEMA_VERSION + 1))
    report = replayed(root, tmp_path / "out")
    (row,) = [row for row in report.failed if row.check == "manifest"]
    assert f"schema version {SCHEMA_VERSION + 1}" in row.detail


@pytest.mark.parametrize("version", [1, 2])
def test_segments_of_a_schema_before_are_read(root, tmp_path, version):
    """They lack columns, which were 0; the fold and the digests are the same."""
    for path in segments(root):
        rows = list(read_rows(path))
        older = pq.read_table(path).drop_columns(LATER_COLUMNS[version - 1 :])
        pq.write_table(older, path, compression="zstd")
        reseal(path, schema_version=version)
        assert list(read_rows(path)) == rows
    assert not failures(replayed(root, tmp_path / "out"))


def test_two_clusters_in_one_folder_are_refused(root, tmp_path):
    """Their shards have nothing to do with each other."""
    export_once(FakeNode(2, cluster_id="c2"), root, tmp_path / "data2")
    with pytest.raises(InputError, match="several clusters"):
        replayed(root, tmp_path / "out")


def test_an_empty_input_and_a_full_output_are_refused(root, tmp_path):
    """Nothing is overwritten, and nothing is taken for a history."""
    with pytest.raises(InputError, match="no segments"):
        replayed(tmp_path / "data", tmp_path / "out")
    with pytest.raises(InputError, match="not empty"):
        replayed(root, root)
    with pytest.raises(InputError, match="not a folder"):
        replayed(tmp_path / "none", tmp_path / "out")


@pytest.fixture
def copies(tmp_path):
    """The same entries exported by two nodes, cut at different places."""
    node = FakeNode(1)
    lively(node)
    other = node.follower(2)
    root = tmp_path / "export"
    export_once(node, root, tmp_path / "data1")
    exporter = open_exporter(other, root, tmp_path / "data2")
    _, shard = exporter._shards[0]
    shard.step(exporter._shards[0][0], exporter._clock())
    shard.close(exporter._clock())
    exporter.drain()
    exporter.close()
    assert len(segments(root, node=2)) == 2
    return root


def test_equal_copies_count_once(copies, tmp_path):
    """Two nodes exported the same range: the tables are those of one."""
    report = replayed(copies, tmp_path / "out", prove=True)
    assert report.sound, report.failed
    for path in segments(copies, node=2):
        path.unlink()
        manifest_path(path).unlink()
    assert replayed(copies, tmp_path / "one").sound
    for name in ("rebalances", "member_sessions", "ownership", "commits"):
        assert table(tmp_path / "out", name) == table(tmp_path / "one", name)


def test_a_damaged_copy_is_named_and_the_other_one_is_used(copies, tmp_path):
    """The history is whole; trust in the file is not."""
    (path,) = segments(copies)
    sound = replayed(copies, tmp_path / "sound")
    flip(path, 100)
    report = replayed(copies, tmp_path / "out")
    assert failures(report) == {("checksum", 0, None, f"shard=00/{path.name}")}
    assert report.checkpoints == sound.checkpoints == 3
    assert table(tmp_path / "out", "commits") == table(tmp_path / "sound", "commits")


@pytest.mark.parametrize("column", ["events", "command", "wall_ms", "group", "error"])
def test_copies_that_differ_are_named_and_their_group_stops_there(copies, tmp_path, column):
    """Which of the two is right is not for replay to guess."""
    path = segments(copies, node=2)[-1]
    touched = []

    def change(row):
        if row["group"] == "orders" and row["kind"] == "offset_commit" and not touched:
            touched.append(row["index"])
            row[column] = {
                "events": b"",
                "command": b"",
                "wall_ms": 5,
                "group": "bills",
                "error": "INVALID_REQUEST",
            }[column]
        return row

    forge(path, change)
    report = replayed(copies, tmp_path / "out")
    (conflict,) = [row for row in report.failed if row.check == "copies" and row.group is None]
    assert conflict.first_index == touched[0]
    assert path.name in conflict.file
    assert ("copies", 0, "orders", None) in failures(report)
    commits = table(tmp_path / "out", "commits")
    assert all(row["index"] < touched[0] for row in commits if row["group"] == "orders")
    assert any(row.check == "digest" for row in report.marked)
