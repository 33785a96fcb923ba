"""The Spark job and the local fold are the same function.

Same rows, same findings, same exit code.
"""

import os
from pathlib import Path

import pytest

from musterd.export.layout import manifest_path
from musterd.replay.job import run_spark
from musterd.replay.session import LOG_SETTINGS, start_session
from tests.export.exports import SMALL, converted, export_once, lively, open_exporter
from tests.export.node import FakeNode, Script
from tests.replay.results import flip, replayed, segments, tables
from tests.replay.test_summary import cooperative, queries

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def spark():
    """One session for the module, UI off, two shuffle partitions."""
    os.environ["JAVA_TOOL_OPTIONS"] = "-Dmuster.test=must-not-reach-the-jvm"
    try:
        session = start_session(shuffle_partitions=2)
        assert session.conf.get("spark.sql.shuffle.partitions") == "2"
        assert os.environ["JAVA_TOOL_OPTIONS"], "the caller's environment is put back"
    finally:
        del os.environ["JAVA_TOOL_OPTIONS"]
    yield session
    session.stop()


def both(spark, source, tmp_path, *, prove=True):
    """Reports of both engines; their tables must be equal row for row."""
    local = replayed(source, tmp_path / "local", prove=prove)
    by_spark = run_spark(source, tmp_path / "spark", prove=prove, say=lambda _: None, session=spark)
    expected = tables(tmp_path / "local")
    found = tables(tmp_path / "spark")
    for name, rows in expected.items():
        assert found[name] == rows, name
    assert dict(by_spark.counts) == dict(local.counts)
    assert sorted(map(repr, by_spark.failed)) == sorted(map(repr, local.failed))
    assert (by_spark.checkpoints, by_spark.proven) == (local.checkpoints, local.proven)
    return local


def test_spark_and_local_give_the_same_tables_and_digests(spark, tmp_path):
    """Three shards with everything in them, two nodes, several segments: row for row."""
    node = FakeNode(shards=3)
    root = tmp_path / "export"
    first = open_exporter(node, root, tmp_path / "data1", SMALL)
    for shard in range(3):
        lively(node, shard)
        first.drain()
        for _, exporter in first._shards.values():
            exporter.close(first._clock())
        Script(node, "late", shard).form("x", "y")
        converted(node, shard)
    first.drain()
    first.close()
    export_once(node.follower(2), root, tmp_path / "data2")
    report = both(spark, root, tmp_path)
    assert report.sound, report.failed
    assert report.checkpoints == 15
    assert report.proven > 100
    assert all(report.counts[name] for name in report.counts)


def test_spark_and_local_agree_on_a_history_with_a_base_a_gap_and_damage(spark, tmp_path):
    """A late start, a trimmed log, a flipped byte: both say the same of it."""
    node = FakeNode(shards=2)
    root = tmp_path / "export"
    lively(node, 0)
    lively(node, 1)
    node.trim(10, shard=0)
    exporter = open_exporter(node, root, tmp_path / "data", SMALL)
    exporter.drain()
    for _, shard in exporter._shards.values():
        shard.close(exporter._clock())
    other = Script(node, "other", 0)
    other.form("p", "q")
    node.trim(node.replicas[0].last, shard=0)
    other.rebalance() if other.group.phase == "PreparingRebalance" else other.join("r")
    exporter.drain()
    other.rebalance()
    node.checkpoint(0)
    Script(node, "more", 1).form("x")
    node.checkpoint(1)
    exporter.drain()
    exporter.close()
    report = both(spark, root, tmp_path)
    assert report.sound, report.failed
    assert {row.check for row in report.marked} >= {"gap"}

    flip(segments(root, 1)[0], 60)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    report = both(spark, root, damaged)
    assert {row.check for row in report.failed} >= {"checksum", "gap", "start", "group"}


def test_an_export_without_a_row_has_empty_tables_in_both_engines(spark, tmp_path):
    """A base alone: members with an unknown start, nothing else."""
    node = FakeNode()
    Script(node, "g").form("a")
    node.trim(node.replicas[0].last - 1)
    root = tmp_path / "export"
    export_once(node, root, tmp_path / "data")
    assert segments(root) == []
    report = both(spark, root, tmp_path)
    assert report.sound
    assert dict(report.counts) | {"integrity": 0} == {
        "rebalances": 0,
        "member_sessions": 1,
        "ownership": 6,
        "moves": 0,
        "conversions": 0,
        "commits": 0,
        "integrity": 0,
    }


def test_a_lost_manifest_is_the_same_finding_in_both_engines(spark, tmp_path):
    """No sound file at all: still tables, still findings, no crash."""
    node = FakeNode()
    lively(node)
    root = tmp_path / "export"
    export_once(node, root, tmp_path / "data")
    manifest_path(segments(root)[0]).write_text("{}")
    report = both(spark, root, tmp_path)
    assert [row.check for row in report.failed] == ["manifest"]
    assert sum(report.counts[name] for name in report.counts if name != "integrity") == 0


def test_the_spark_queries_of_the_docs_give_what_they_promise(spark, tmp_path):
    """As docs/replay.md has them, but for the folder: Spark takes it from where it was started."""
    node = FakeNode()
    lively(node)
    cooperative(node)
    export_once(node, tmp_path / "export", tmp_path / "data")
    replayed(tmp_path / "export", tmp_path / "history")
    here = f"`file://{tmp_path}/history/"
    slow, gaps = (
        spark.sql(query.replace("`history/", here)).collect() for query in queries("spark")
    )
    assert slow[0]["slowest_member_ms"] >= 60_000
    unowned = {row["partition"]: row["unowned_ms"] for row in gaps if row["group"] == "<coop>"}
    assert unowned == {0: 40, 1: 40, 2: 740, 3: 740}


def test_a_session_of_its_own_logs_errors_alone_from_its_first_line_on(spark):
    """A loopback host name and a missing native library are normal; Spark warned of both."""
    context = spark._jvm.org.apache.logging.log4j.LogManager.getContext(False)
    configuration = context.getConfiguration()
    location = configuration.getConfigurationSource().getLocation()
    assert Path(location).samefile(LOG_SETTINGS.removeprefix("file://"))
    assert configuration.getRootLogger().getLevel().toString() == "ERROR"
