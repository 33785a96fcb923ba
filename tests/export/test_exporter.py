"""What the exporter writes, where it begins, how it goes on, and when it stops."""

import json
import shutil
import sys
from itertools import pairwise

import pyarrow.parquet as pq
import pytest

from musterd.coordinator.codec import decode_command, decode_events
from musterd.coordinator.machine.commands import OffsetCommit
from musterd.coordinator.machine.evolve import evolve as evolve_function
from musterd.coordinator.machine.shard_state import load_state
from musterd.export.errors import DigestDiffersError, ExportError
from musterd.export.layout import Gap, manifest_path, read_manifest, sha256_of
from musterd.export.parquet_files import COLUMNS, read_records
from musterd.export.settings import ExportSettings
from musterd.invariant import InvariantError
from musterd.levels import LAST_UNNAMED
from musterd.storage import keys
from musterd.storage.export_cursor import Cursor, CursorError, publish, read
from musterd.storage.store import Family
from tests.export.exports import SMALL, Clock, export_once, lively, open_exporter
from tests.export.node import CLUSTER, FakeNode, Script

evolve_module = sys.modules[evolve_function.__module__]


@pytest.fixture
def node():
    """One shard."""
    return FakeNode()


def rows_of(root, shard=0):
    """All rows of a shard, in the files' order."""
    files = sorted((root / f"shard={shard:02d}").glob("part-*.parquet"))
    return [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]


def manifests(root, kind="part", shard=0):
    """Manifests of one kind, in order."""
    return [
        read_manifest(path) for path in sorted((root / f"shard={shard:02d}").glob(f"{kind}-*.json"))
    ]


def test_every_entry_has_a_row_and_every_command_its_events(node, tmp_path):
    """From entry 1 to the applied index without a hole.

    What a row holds decodes to what was run.
    """
    lively(node)
    results = node.run(Script(node, "g").commit_command("", 7))
    exporter = export_once(node, tmp_path / "e", tmp_path / "d")
    rows = rows_of(tmp_path / "e")
    last = node.replicas[0].last
    assert sorted({row["index"] for row in rows}) == list(range(1, last + 1))
    assert exporter.progress[0].rows == len(rows)
    assert pq.ParquetFile(
        next((tmp_path / "e" / "shard=00").glob("*.parquet"))
    ).schema_arrow.equals(COLUMNS)
    final = rows[-1]
    assert (final["group"], final["kind"], final["error"]) == ("g", "offset_commit", None)
    assert decode_command(final["command"]) == results[0].command
    assert isinstance(decode_command(final["command"]), OffsetCommit)
    assert decode_events(final["events"]) == results[0].events
    assert (final["time_ms"], final["wall_ms"]) == (node.time_ms, node.wall_ms)
    assert (final["cluster_id"], final["shard"]) == (CLUSTER, 0)
    assert final["rules_version"] == LAST_UNNAMED


def test_a_no_op_has_a_row_without_a_command_and_a_refusal_an_error(node, tmp_path):
    """So that a missing index is a gap and nothing else."""
    group = Script(node, "g")
    group.form("a")
    node.raw(b"\x01")
    node.raw(b"\x03admitted")
    group.commit("nobody", 1)
    export_once(node, tmp_path / "e", tmp_path / "d")
    noop, admitted, refused = rows_of(tmp_path / "e")[-3:]
    assert (noop["kind"], noop["sub"], noop["command"], noop["events"]) == ("noop", 0, None, None)
    assert admitted["kind"] == "noop"
    assert (refused["error"], decode_events(refused["events"])) == ("UNKNOWN_MEMBER_ID", ())


def test_a_segment_is_finished_by_size_by_age_and_at_the_end(node, tmp_path):
    """Each finished segment has a manifest that fits, and they follow each other."""
    clock = Clock()
    settings = ExportSettings(rotate_bytes=2_000, rotate_ms=1_000, slice_entries=1)
    exporter = open_exporter(node, tmp_path / "e", tmp_path / "d", settings, clock)
    group = Script(node, "g")
    group.form("a")
    for offset in range(80):
        group.commit(group.member("a"), offset, meta=f"{offset * 7919:x}" * 20)
    exporter.drain()
    by_size = len(manifests(tmp_path / "e"))
    assert by_size >= 2
    group.commit(group.member("a"), 99)
    exporter.drain()
    assert len(manifests(tmp_path / "e")) == by_size
    clock.advance(999)
    exporter.drain()
    assert len(manifests(tmp_path / "e")) == by_size
    clock.advance(1)
    exporter.drain()
    assert len(manifests(tmp_path / "e")) == by_size + 1
    clock.advance(10_000)
    exporter.drain()
    assert len(manifests(tmp_path / "e")) == by_size + 1, "an empty segment is not written"
    group.commit(group.member("a"), 100)
    exporter.drain()
    exporter.close()
    found = manifests(tmp_path / "e")
    assert len(found) == by_size + 2
    assert found[0].first == 1
    assert found[-1].last == node.replicas[0].last
    for before, after in pairwise(found):
        assert after.first == before.last + 1
    for manifest in found:
        path = tmp_path / "e" / "shard=00" / manifest.file
        assert manifest.sha256 == sha256_of(path)
        assert manifest.rows == pq.ParquetFile(path).metadata.num_rows


def test_the_manifest_holds_the_digest_that_the_node_stored(node, tmp_path):
    """The last checkpoint of the segment, byte for byte as it stands under meta."""
    lively(node)
    export_once(node, tmp_path / "e", tmp_path / "d")
    (manifest,) = manifests(tmp_path / "e")
    recorded = node.replicas[0].persist.checkpoints[-1]
    assert (manifest.checkpoint.index, manifest.checkpoint.digest) == (
        recorded.index,
        recorded.digest.hex(),
    )


def test_a_node_whose_digest_differs_stops_the_export_with_one_line(node, tmp_path):
    """Nothing of the open segment is published: it must not be believed."""
    group = Script(node, "g")
    group.form("a")
    node.checkpoint()
    index = node.replicas[0].last
    key = keys.shard_meta_prefix(0) + b"checkpoint/" + index.to_bytes(8, "big")
    node.store.batch.put(Family.META, key, b"\x00" * 16)
    node.store.write()
    exporter = open_exporter(node, tmp_path / "e", tmp_path / "d")
    with pytest.raises(DigestDiffersError) as caught:
        exporter.drain()
    exporter.abandon()
    message = str(caught.value)
    assert f"shard 0, checkpoint at entry {index}" in message
    assert "\n" not in message
    assert list((tmp_path / "e" / "shard=00").iterdir()) == []


def test_an_altered_state_of_the_exporter_is_found_at_the_next_checkpoint(node, tmp_path):
    """The comparison really depends on the exporter's own state."""
    group = Script(node, "g")
    (a,) = group.form("a")
    exporter = open_exporter(node, tmp_path / "e", tmp_path / "d")
    exporter.drain()
    exporter._shards[0][1].state.digest ^= 1
    group.commit(a, 1)
    node.checkpoint()
    with pytest.raises(DigestDiffersError):
        exporter.drain()
    exporter.abandon()


def test_a_checkpoint_that_the_node_has_forgotten_is_not_compared(node, tmp_path):
    """Only the last hundred are kept; an exporter that lags has fewer comparisons, not an error."""
    Script(node, "g").form("a")
    for _ in range(103):
        node.checkpoint()
    exporter = export_once(node, tmp_path / "e", tmp_path / "d")
    assert exporter.progress[0].checkpoints == 100


def test_an_export_that_begins_late_starts_from_a_base_and_says_what_is_missing(node, tmp_path):
    """The node's state at one applied index, and the gap in the manifests."""
    lively(node)
    before = node.replicas[0].last
    node.trim(before - 2)
    exporter = open_exporter(node, tmp_path / "e", tmp_path / "d")
    exporter.drain()
    Script(node, "new").form("a")
    node.checkpoint()
    exporter.drain()
    exporter.close()
    (base,) = manifests(tmp_path / "e", "base")
    assert (base.first, base.gap.first, base.gap.last) == (before, 1, before)
    (segment,) = manifests(tmp_path / "e")
    assert (segment.first, segment.gap) == (before + 1, base.gap)
    state = load_state(read_records(tmp_path / "e" / "shard=00" / base.file))
    assert f"{state.digest:032x}" == base.digest
    assert exporter.progress[0].checkpoints == 1


@pytest.mark.parametrize("how", ["trimmed", "snapshot"])
def test_missing_entries_lead_to_a_new_base_and_a_recorded_gap(node, tmp_path, how):
    """The log was trimmed behind a slow exporter, or a snapshot replaced log and state."""
    group = Script(node, "g")
    (a,) = group.form("a")
    exporter = open_exporter(node, tmp_path / "e", tmp_path / "d")
    exporter.drain()
    seen = node.replicas[0].last
    for offset in range(4):
        group.commit(a, offset)
    node.trim(seen + 2)
    last = node.replicas[0].last
    if how == "snapshot":
        _install_snapshot(node)
    exporter.drain()
    group.commit(a, 9)
    node.checkpoint()
    exporter.drain()
    exporter.close()
    assert exporter.progress[0].gaps == 1
    assert exporter.progress[0].checkpoints == 1
    (base,) = manifests(tmp_path / "e", "base")
    before, after = manifests(tmp_path / "e")
    assert (before.last, base.first, after.first) == (seen, last, last + 1)
    assert after.gap == Gap(seen + 1, last, base.gap.reason)


def _install_snapshot(node):
    """State under another snapshot id, the old one gone, the log cut down to its anchor."""
    store, replica = node.store, node.replicas[0]
    start, end = keys.state_range(0, 1)
    for key, value in list(store.scan(Family.STATE, start, end)):
        record = key[len(keys.state_prefix(0, 1)) :]
        store.batch.put(Family.STATE, keys.state_prefix(0, 2) + record, value)
    store.batch.delete_range(Family.STATE, start, end)
    store.batch.put(Family.META, keys.snapshot_id_key(0), (2).to_bytes(8, "big"))
    store.write()
    replica.snapshot_id = 2
    node.trim(replica.last - 1)


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
def test_a_restart_goes_on_where_the_last_finished_segment_ends(node, tmp_path, crash):
    """After a crash the unfinished rows are read again; no key is missing, none is there twice."""
    group = Script(node, "g")
    (a,) = group.form("a")
    settings = ExportSettings(rotate_bytes=1, slice_entries=5)
    first = open_exporter(node, tmp_path / "e", tmp_path / "d", settings)
    first.drain()
    finished = manifests(tmp_path / "e")[-1].last
    group.commit(a, 1)
    first._settings = first._shards[0][1]._settings = SMALL
    first.drain()
    root = tmp_path / "after"
    if crash:
        shutil.copytree(tmp_path / "e", root)
        leftover = root / "shard=00" / ".tmp-part-1.parquet"
        leftover.write_bytes(b"the first row group")
        first.abandon()
    else:
        first.close()
        shutil.copytree(tmp_path / "e", root)
    group.commit(a, 2)
    node.checkpoint()
    second = export_once(node, root, tmp_path / "d")
    if crash:
        assert not leftover.exists()
    assert second.progress[0].first == (finished + 1 if crash else finished + 2)
    assert second.progress[0].checkpoints == 1
    keys_seen = [(row["index"], row["sub"]) for row in rows_of(root)]
    assert keys_seen == sorted(set(keys_seen))
    assert keys_seen[-1][0] == node.replicas[0].last


def test_a_segment_whose_manifest_was_not_written_is_done_again(node, tmp_path):
    """A crash between the two renames."""
    Script(node, "g").form("a")
    export_once(node, tmp_path / "e", tmp_path / "d")
    (path,) = (tmp_path / "e" / "shard=00").glob("part-*.parquet")
    content = path.read_bytes()
    manifest_path(path).unlink()
    export_once(node, tmp_path / "e", tmp_path / "d")
    assert path.read_bytes() == content
    assert manifest_path(path).exists()


@pytest.mark.parametrize("harm", ["flipped", "gone", "hole"])
def test_a_restart_on_damaged_segments_says_so(node, tmp_path, harm):
    """Going on from a wrong state would be worse than stopping."""
    group = Script(node, "g")
    exporter = open_exporter(
        node, tmp_path / "e", tmp_path / "d", ExportSettings(rotate_bytes=1, slice_entries=3)
    )
    group.form("a", "b")
    exporter.drain()
    exporter.close()
    path = sorted((tmp_path / "e" / "shard=00").glob("part-*.parquet"))[1]
    if harm == "flipped":
        content = bytearray(path.read_bytes())
        content[50] ^= 4
        path.write_bytes(bytes(content))
    else:
        path.unlink()
        if harm == "hole":
            manifest_path(path).unlink()
    with pytest.raises(ExportError, match="shard=00"):
        open_exporter(node, tmp_path / "e", tmp_path / "d")


def test_a_restart_from_a_base_needs_only_what_is_behind_it(node, tmp_path):
    """After enough bytes a base is written; the segments before it are not read again."""
    settings = ExportSettings(rotate_bytes=1, slice_entries=4, base_bytes=1)
    group = Script(node, "g")
    first = open_exporter(node, tmp_path / "e", tmp_path / "d", settings)
    group.form("a", "b")
    first.drain()
    first.close()
    assert first.progress[0].bases >= 2
    oldest = min((tmp_path / "e" / "shard=00").glob("part-*.parquet"))
    oldest.unlink()
    manifest_path(oldest).unlink()
    group.join("c")
    node.checkpoint()
    second = export_once(node, tmp_path / "e", tmp_path / "d")
    assert second.progress[0].checkpoints == 1


def test_an_entry_of_a_later_release_stops_the_export_by_name(node, tmp_path):
    """Nothing is skipped."""
    entry = b"\x00" + b"\x08\x02\x10\x01\x28\x01"  # format 2
    node.raw(entry)
    exporter = open_exporter(node, tmp_path / "e", tmp_path / "d")
    with pytest.raises(ExportError, match=r"shard 0, entry 2: an entry of format 2"):
        exporter.drain()
    exporter.abandon()


def test_a_broken_invariant_stops_the_export_with_one_line(node, tmp_path, monkeypatch):
    """The entry is named; nothing of the open segment is published."""
    Script(node, "g").form("a")
    exporter = open_exporter(node, tmp_path / "e", tmp_path / "d")
    monkeypatch.setattr(evolve_module, "_apply", _break)
    with pytest.raises(ExportError, match=r"shard 0, entry 2 does not fit .*: broken on purpose"):
        exporter.drain()
    exporter.abandon()
    assert list((tmp_path / "e" / "shard=00").iterdir()) == []


def _break(group, event):
    raise InvariantError("broken on purpose")


def test_two_exporters_of_one_node_do_not_share_a_folder(node, tmp_path):
    """The second one says so; after the first has closed it may."""
    first = open_exporter(node, tmp_path / "e", tmp_path / "d")
    with pytest.raises(ExportError, match="another exporter of node 1"):
        open_exporter(node, tmp_path / "e", tmp_path / "d")
    first.close()
    open_exporter(node, tmp_path / "e", tmp_path / "d").close()


def test_another_cluster_s_folder_is_refused(node, tmp_path):
    """Segments of two clusters never mix by accident."""
    Script(node, "g").form("a")
    export_once(node, tmp_path / "e", tmp_path / "d")
    with pytest.raises(ExportError, match="is of cluster c1, the node is of c2"):
        open_exporter(FakeNode(cluster_id="c2"), tmp_path / "e", tmp_path / "d")


def test_the_cursor_says_what_is_safe_and_never_more(node, tmp_path):
    """Rows in an open segment are not safe: the node must keep their entries."""
    clock = Clock()
    group = Script(node, "g")
    (a,) = group.form("a")
    exporter = open_exporter(node, tmp_path / "e", tmp_path / "d", SMALL, clock)
    now = (tmp_path / "d").stat().st_mtime
    exporter.drain()
    assert read(tmp_path / "d", now).shards == {0: 0}
    exporter._shards[0][1].close(clock())
    exporter.drain()
    safe = node.replicas[0].last
    assert read(tmp_path / "d", now) == Cursor(CLUSTER, 1, {0: safe})
    group.commit(a, 1)
    exporter.drain()
    assert read(tmp_path / "d", now).shards == {0: safe}
    exporter.close()
    assert read(tmp_path / "d", now).shards == {0: safe + 1}


def test_an_idle_exporter_renews_its_cursor(node, tmp_path):
    """Else the node would take it for dead after ten minutes."""
    clock = Clock()
    exporter = open_exporter(node, tmp_path / "e", tmp_path / "d", SMALL, clock)
    exporter.drain()
    path = tmp_path / "d" / "export.cursor"
    path.unlink()
    clock.advance(SMALL.cursor_ms - 1)
    exporter.drain()
    exporter._housekeeping()
    assert not path.exists()
    clock.advance(1)
    exporter._housekeeping()
    assert path.exists()
    exporter.close()


def test_a_cursor_that_is_missing_or_stale_holds_nothing(tmp_path):
    """A dead exporter must not fill the disk."""
    assert read(tmp_path, 0.0) is None
    publish(tmp_path, Cursor("c", 1, {0: 5, 15: 7}))
    written = (tmp_path / "export.cursor").stat().st_mtime
    assert read(tmp_path, written + 600).shards == {0: 5, 15: 7}
    assert read(tmp_path, written + 601) is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "[" * 200_000,
        '{"format": 2}',
        '{"format": 1, "cluster_id": "c", "node": 1, "shards": {"x": 1}}',
        '{"format": 1, "cluster_id": "c", "node": 1, "shards": {"0": true}}',
    ],
    ids=["empty", "list", "deep", "format", "name", "bool"],
)
def test_a_cursor_that_is_none_is_an_error_with_the_path(tmp_path, content):
    """The caller logs it and trims as if there were none."""
    (tmp_path / "export.cursor").write_text(content)
    with pytest.raises(CursorError, match=r"export\.cursor"):
        read(tmp_path, 0.0)


def test_the_cursor_file_is_as_documented(tmp_path):
    """Other programs may read it."""
    publish(tmp_path, Cursor("c", 3, {1: 9, 0: 4}))
    assert json.loads((tmp_path / "export.cursor").read_text()) == {
        "format": 1,
        "cluster_id": "c",
        "node": 3,
        "shards": {"0": 4, "1": 9},
    }
