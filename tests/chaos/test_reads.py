"""Reads at a node that is named: of one group, then of many groups in one call, in turn."""

import asyncio
from contextlib import aclosing
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from muster.v1 import admin_pb2
from musterd.chaos.history import Key, Operation, Outcome
from musterd.chaos.history_files import read_folder
from musterd.chaos.workloads.operation_log import OperationLog
from musterd.chaos.workloads.raw import RawNodes
from musterd.chaos.workloads.run_worker import KINDS
from musterd.coordinator.api.rpcs.offset_fetch import OffsetReads
from tests.chaos.briefs import brief
from tests.coordinator.local import local_node, until

NODE = 7
STEP_S = 60
ENOUGH = 10
SERVED, AWAY, NEXT = Key("a", "orders", 1), Key("b", "orders", 2), Key("e", "orders", 3)


W2 = {"clients": 1, "read_share": 0.0, "everywhere": True}


class Asked:
    """What every OffsetFetch asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[Any] = []
        fetch = OffsetReads.OffsetFetch

        @wraps(fetch)
        async def spied(service: OffsetReads, request: Any, context: Any) -> Any:
            self.requests.append(request)
            return await fetch(service, request, context)

        monkeypatch.setattr(OffsetReads, "OffsetFetch", spied)

    def all_forms(self) -> bool:
        """Groups a and b, each alone, and first and second of two."""
        seen = {(one.group_id, *(query.group_id for query in one.groups)) for one in self.requests}
        enough = len(self.requests) >= ENOUGH
        return enough and seen >= {("a",), ("b",), ("", "a", "b"), ("", "b", "a")}


async def _read_five_times(folder: Path) -> list[bool]:
    book = OperationLog(folder / "reads.history.jsonl", "reader")
    async with local_node() as node:
        await node.topics.CreateTopic(admin_pb2.CreateTopicRequest(name="orders", partitions=4))
        shards = {node.core.shard_for(key.group).number for key in (SERVED, AWAY, NEXT)}
        assert len(shards) == 3
        at = f"127.0.0.1:{node.port}"
        async with aclosing(RawNodes({at: NODE}, book)) as raw:
            assert await raw.commit(at, SERVED, 40)
            node.logs[node.core.shard_for(AWAY.group).number].follow()
            outcomes = [await raw.read(at, SERVED, [AWAY]) for _ in range(3)]
            outcomes.append(await raw.read(at, NEXT, [SERVED]))
            node.applying = False
            reading = asyncio.create_task(raw.read(at, SERVED, [NEXT]))
            await until(lambda: sum(len(log.reads) for log in node.logs) == 2)
            await node.server.stop(0)
            outcomes.append(await reading)
    book.close()
    return outcomes


def test_every_second_read_asks_for_many_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By count for each group at a node; each key is an operation with an outcome of its own."""
    asked = Asked(monkeypatch)
    ok, fail = Outcome.OK, Outcome.FAIL
    assert asyncio.run(_read_five_times(tmp_path)) == [True, True, True, True, False]
    assert [(one.group_id, [query.group_id for query in one.groups]) for one in asked.requests] == [
        ("a", []),
        ("", ["a", "b"]),
        ("a", []),
        ("e", []),
        ("", ["a", "e"]),
    ]
    reads = [one for one in read_folder(tmp_path).operations if one.kind == "read"]
    assert {one.node for one in reads} == {NODE}
    assert [_told(one) for one in reads] == [
        (SERVED, ok, 40, ""),
        (SERVED, ok, 40, ""),
        (AWAY, fail, None, "NOT_COORDINATOR"),
        (SERVED, ok, 40, ""),
        (NEXT, ok, -1, ""),
        (SERVED, fail, None, "GRPC_UNAVAILABLE"),
        (NEXT, fail, None, "GRPC_UNAVAILABLE"),
    ]


async def _work(kind: str, settings: dict[str, Any], folder: Path, asked: Asked) -> None:
    async with local_node() as node:
        await node.topics.CreateTopic(admin_pb2.CreateTopicRequest(name="orders", partitions=4))
        at = f"127.0.0.1:{node.port}"
        node.directory._own_endpoint = at
        settings = {**settings, "topic": "orders", "every_s": 0.01}
        worker = KINDS[kind](brief(kind, folder, at, node.node_id, settings))
        try:
            async with asyncio.timeout(STEP_S):
                await worker.start()
            await until(lambda: worker.failed.done() or asked.all_forms(), STEP_S)
        finally:
            await worker.stop()
            worker.close()
        if worker.failed.done():
            worker.failed.result()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (
            "simple",
            {"group": "a", "partitions": 4, "everywhere": True, "others": [("b", "orders", 4)]},
        ),
        ("pulse", {"groups": ["a", "b"]}),
    ],
)
def test_readers_ask_for_each_group_alone_and_with_others(
    kind: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W2, of its own keys and of others', and the pulse; all that is asked is in the history.

    None is refused or given up: what has no outcome there was under way at the end.
    """
    asked = Asked(monkeypatch)
    asyncio.run(_work(kind, settings, tmp_path, asked))
    reads = [one for one in read_folder(tmp_path).operations if one.kind == "read"]
    keys = [max(1, len(request.groups)) for request in asked.requests]
    assert len(reads) >= sum(keys)
    assert {one.key.group for one in reads if one.outcome is Outcome.OK} == {"a", "b"}
    wrong = [one for one in reads if one.outcome is not Outcome.OK and one.ended_ns is not None]
    assert not wrong


def _told(one: Operation) -> tuple[Key, Outcome, int | None, str]:
    return one.key, one.outcome, one.value, one.error
