"""What is deleted, when, and that a fold can always start."""

from dataclasses import replace

import pytest

from musterd.export.retention import DAY_MS
from musterd.export.settings import ExportSettings
from musterd.replay.local import run_local
from tests.export.exports import Clock, open_exporter
from tests.export.node import FakeNode, Script
from tests.export.test_exporter import manifests

CUT = ExportSettings(rotate_bytes=1, slice_entries=4, base_bytes=1, retention_ms=0)
"""A segment and a base for every four entries."""


@pytest.fixture
def busy(tmp_path):
    """A node and a function that exports with these settings until nothing is new."""
    node, clock = FakeNode(), Clock()
    group = Script(node, "g")
    group.form("a", "b")

    def export(settings, more=0, days=0):
        for offset in range(more):
            group.commit(group.member("a"), offset)
        node.checkpoint()
        clock.advance(days * DAY_MS)
        exporter = open_exporter(node, tmp_path / "e", tmp_path / "d", settings, clock)
        exporter.drain()
        exporter.close()
        return exporter

    return export


def check(tmp_path, name):
    """Replay what is left; it must be sound."""
    report = run_local(tmp_path / "e", tmp_path / name, prove=True, say=lambda _: None)
    assert report.sound, report.failed
    return report


def test_old_segments_go_up_to_a_base_and_their_manifests_stay(busy, tmp_path):
    """Thirty days later the first days are gone, and a replay of the rest is sound."""
    busy(CUT, more=20)
    before = manifests(tmp_path / "e")
    assert not any(manifest.deleted for manifest in before)
    exporter = busy(CUT, more=20, days=31)
    after = manifests(tmp_path / "e")
    gone = [manifest for manifest in after if manifest.deleted]
    assert [m.first for m in gone] == [m.first for m in before]
    assert exporter.deleted.segments == len(before)
    for manifest in after:
        assert (tmp_path / "e" / "shard=00" / manifest.file).exists() is not manifest.deleted
    report = check(tmp_path, "out")
    assert report.marked == ()
    assert report.checkpoints >= 1
    bases = manifests(tmp_path / "e", "base")
    assert bases[0].first == gone[-1].last, "what is left starts at a base, older bases are gone"


def test_segments_beyond_the_size_go_oldest_first(busy, tmp_path):
    """What is left fits, and not more than needed went."""
    busy(CUT, more=40)
    sizes = [manifest.bytes for manifest in manifests(tmp_path / "e")]
    limit = sum(sizes) // 2
    busy(replace(CUT, keep_bytes=limit, keep_days=0), more=1)
    left = [manifest for manifest in manifests(tmp_path / "e") if not manifest.deleted]
    assert 0 < sum(manifest.bytes for manifest in left) <= limit
    assert sum(m.bytes for m in left) + max(sizes) > limit * 0.5
    firsts = [manifest.first for manifest in manifests(tmp_path / "e") if manifest.deleted]
    assert firsts == sorted(firsts)
    assert max(firsts) < min(manifest.first for manifest in left)
    check(tmp_path, "out")


def test_zero_keeps_everything(busy, tmp_path):
    """Neither age nor size."""
    busy(replace(CUT, keep_days=0, keep_bytes=0), more=20)
    busy(replace(CUT, keep_days=0, keep_bytes=0), more=20, days=4_000)
    assert not any(manifest.deleted for manifest in manifests(tmp_path / "e"))


def test_before_an_old_segment_goes_a_base_is_written(busy, tmp_path):
    """Where no base stands behind it yet, the exporter writes one first."""
    settings = replace(CUT, base_bytes=1 << 40, base_ms=1 << 60)
    busy(settings, more=20)
    assert manifests(tmp_path / "e", "base") == []
    busy(settings, more=0, days=31)
    (base,) = manifests(tmp_path / "e", "base")
    left = [manifest for manifest in manifests(tmp_path / "e") if not manifest.deleted]
    assert all(manifest.first > base.first for manifest in left)
    check(tmp_path, "out")


def test_an_exporter_resumes_after_its_oldest_segments_were_deleted(busy, tmp_path):
    """Its state comes from the base; digests still agree with the node's."""
    busy(CUT, more=20)
    busy(CUT, more=5, days=31)
    exporter = busy(CUT, more=5)
    assert exporter.progress[0].checkpoints == 1
    assert exporter.progress[0].gaps == 0
