"""A node that cannot start on what is in its directory says why, whatever goes wrong after that."""

import asyncio
from types import SimpleNamespace

import pytest

import musterd.coordinator.node.node
from musterd.coordinator.node.node import Node
from musterd.storage.store import CorruptStoreError, StoreError


def test_the_damage_is_what_is_said_also_where_the_database_cannot_be_closed(monkeypatch, tmp_path):
    """`muster serve` prints the first line of it and what to do; the rest is a note."""

    def found(_node):
        raise CorruptStoreError("a block is damaged")

    def close():
        raise StoreError("the database cannot be closed")

    store = SimpleNamespace(close=close)
    monkeypatch.setattr(musterd.coordinator.node.node, "RocksStore", lambda *_: store)
    monkeypatch.setattr(musterd.coordinator.node.node, "calm_collector", lambda: None)
    monkeypatch.setattr(Node, "_assemble", found)

    async def start():
        Node(SimpleNamespace(data_dir=tmp_path))

    with pytest.raises(CorruptStoreError, match="a block is damaged") as caught:
        asyncio.run(start())
    assert caught.value.__notes__ == ["the database cannot be closed"]
