"""Exports made of FakeNodes, for the tests of export and replay."""

from muster.group.consumer_protocol import encode_subscription
from muster.types import TopicPartition as Owned
from musterd.coordinator.machine.commands import AddPartitions, CreateTopic, ReplaceNode, ShardLevel
from musterd.export.exporter import Exporter
from musterd.export.parquet_files import ParquetFiles
from musterd.export.settings import ExportSettings
from musterd.export.shard import Now
from musterd.levels import LEVEL
from tests.export.node import FakeNode, LiveView, Script

SMALL = ExportSettings(rotate_bytes=1 << 30, rotate_ms=1 << 40, slice_entries=7)


class Clock:
    """Both clocks, moved by hand."""

    def __init__(self):
        self.now = Now(0, 1_700_000_000_000)

    def __call__(self):
        return self.now

    def advance(self, ms):
        self.now = Now(self.now.mono_ms + ms, self.now.wall_ms + ms)


def open_exporter(node: FakeNode, root, data_dir, settings=SMALL, clock=None) -> Exporter:
    """An exporter that has started."""
    data_dir.mkdir(exist_ok=True)
    exporter = Exporter(LiveView(node), data_dir, root, settings, clock or Clock(), ParquetFiles())
    exporter.start()
    return exporter


def export_once(node: FakeNode, root, data_dir, settings=SMALL) -> Exporter:
    """Everything applied by now, as one run of the exporter."""
    exporter = open_exporter(node, root, data_dir, settings)
    exporter.drain()
    exporter.close()
    return exporter


def lively(node: FakeNode, shard=0) -> None:
    """Some history with everything in it.

    Rounds of all causes, commits, rewinds, late retries, topics, refusals.
    """
    node.run(CreateTopic("t", 6), shard=shard)
    orders = Script(node, "orders", shard)
    bills = Script(node, "bills", shard)
    a, b = orders.form("a", "b")
    node.raw(b"\x01", shard=shard)
    orders.commit(a, 10, partitions=(0, 2), end=15, meta="x")
    orders.commit(b, 5, partitions=(1,))
    node.checkpoint(shard)
    node.run(
        orders.commit_command(a, 20, partitions=(0,)),
        bills.commit_command("", 3),
        orders.commit_command(a, 8, partitions=(2,), end=9),
        shard=shard,
    )
    orders.commit(a, 11, partitions=(0,), seq=1)  # a late retry
    node.advance(500)
    c = orders.join("c")
    orders.rebalance()
    node.checkpoint(shard)
    orders.expire(b)
    orders.rejoin(a)
    node.term += 1
    node.raw(b"\x01", shard=shard)
    orders.fire()  # c does not come back
    orders.settle()
    opaque = Script(node, "opaque", shard, kind="connect")
    (d,) = opaque.form("d")
    opaque.leave(d)
    orders.commit("stranger", 1)  # refused
    node.run(AddPartitions("t", 8), shard=shard)
    node.run(ReplaceNode(2, "u-2"), shard=shard)
    node.checkpoint(shard)
    orders.leave(a, "shutdown")
    orders.join("e")
    assert c not in orders.group.members


def converted(node: FakeNode, shard=0, name="fleet") -> Script:
    """A classic group of two becomes a modern one, and a classic one again.

    Partitions are released and kept revoking across a Join, a static member changes its kind in the
    other direction, and someone is told to release when the last modern member goes.
    """
    node.run(ShardLevel(LEVEL), CreateTopic("t", 6), shard=shard)
    group = Script(node, name, shard)
    a = group.join("a", meta=b"")
    b = group.join("b", meta=b"", instance="i")
    group.close_round()
    group.settle()
    node.advance(1_000)
    group.hear("m", 0)
    group.assign()
    node.advance(500)
    keeps = encode_subscription((), owned=[Owned("t", n) for n in (0, 2, 4)], keeps_owned=True)
    group.rejoin(a, meta=keeps)
    node.advance(100)
    group.rejoin(a, meta=b"")
    node.advance(100)
    group.rejoin(b, meta=b"", instance="i")
    group.assign()
    node.advance(1_000)
    group.hear("n", 0, group_instance_id="i", holder_disconnected=True)
    group.assign()
    c = group.join("b", nonce=3, meta=b"", instance="i")
    group.assign()
    node.checkpoint(shard)
    group.hear("p", 0)
    group.assign()
    group.hear("p", -1, reason="deployed")
    node.advance(700)
    group.hear("m", -1, reason="enough")
    for member_id in (a, c):
        group.rejoin(member_id, meta=b"", instance="i" if member_id == c else "")
    group.close_round()
    group.settle()
    node.checkpoint(shard)
    return group
