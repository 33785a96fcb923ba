"""The two subjects of every flaw script."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.raft.flaws.hand import Group, Options
from tests.raft.flaws.hand_replica import ReplicaGroup
from tests.raft.flaws.hand_stock import StockGroup

SUBJECTS: dict[str, Callable[..., Group]] = {"stock": StockGroup, "replica": ReplicaGroup}


@pytest.fixture(params=sorted(SUBJECTS))
def make(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., Group]]:
    """Make the subject of this run; keyword arguments are those of `Options`."""
    groups: list[Group] = []

    def build(**options: Any) -> Group:
        groups.append(SUBJECTS[request.param](Options(tmp=tmp_path, **options), monkeypatch))
        return groups[-1]

    yield build
    for group in groups:
        group.close()
