"""What a worker process is told, for tests that run its kind in their own process."""

from pathlib import Path
from typing import Any

from musterd.chaos.workloads.base import Brief


def brief(kind: str, folder: Path, at: str, node: int, settings: dict[str, Any]) -> Brief:
    """Of one node; the files are `{kind}.history.jsonl` and `{kind}.track.jsonl`."""
    return Brief(
        name=kind,
        kind=kind,
        number=0,
        bootstrap=[at],
        nodes={at: node},
        seed=1,
        history=folder / f"{kind}.history.jsonl",
        track=folder / f"{kind}.track.jsonl",
        settings=settings,
    )
