"""The exporter's position in each log, in a small file; the log is not trimmed beyond it.

File: `<data dir>/export.cursor`, one line of JSON, replaced atomically: `{"format": 1,
"cluster_id": str, "node": int, "shards": {"<shard>": <last index that is safe in a segment>}}`. A
shard's log may be trimmed up to and including that index; beyond it the node keeps entries for the
exporter, at most `export_lag_bytes` of raft/settings.py a shard. No file, or one whose modification
time is older than `STALE_S`, holds nothing: an exporter that died must not fill the disk
(docs/replay.md, The cursor).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILE_NAME = "export.cursor"
FORMAT = 1
STALE_S = 600
"""An exporter renews the file at least every minute, so this is ten missed renewals."""
CURSOR_BYTES_MAX = 256 * 1024


class CursorError(Exception):
    """The file is not a cursor of this node.

    It holds nothing; the message is worth a line in the log.
    """


@dataclass(frozen=True, slots=True)
class Cursor:
    """Per shard the last index that is durable in a segment."""

    cluster_id: str
    node: int
    shards: Mapping[int, int]


def publish(data_dir: Path, cursor: Cursor) -> None:
    """Replace the file atomically. Not fsynced: an older cursor only keeps more log."""
    body = {
        "format": FORMAT,
        "cluster_id": cursor.cluster_id,
        "node": cursor.node,
        "shards": {str(shard): index for shard, index in sorted(cursor.shards.items())},
    }
    temporary = data_dir / f".{FILE_NAME}.{os.getpid()}"
    temporary.write_text(json.dumps(body) + "\n", "utf-8")
    temporary.replace(data_dir / FILE_NAME)


def read(data_dir: Path, now_s: float) -> Cursor | None:
    """The cursor that trimming must respect, or None where nothing is held.

    `now_s` is the wall clock (seconds since 1970), compared to the file's modification time. Raises
    `CursorError`.
    """
    path = data_dir / FILE_NAME
    try:
        status = path.stat()
        if now_s - status.st_mtime > STALE_S:
            return None
        if status.st_size > CURSOR_BYTES_MAX:
            raise CursorError(f"{path}: longer than {CURSOR_BYTES_MAX} bytes")
        body = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, OSError, RecursionError) as error:
        raise CursorError(f"{path}: {error}") from error
    return _decode(body, path)


def _decode(body: object, path: Path) -> Cursor:
    match body:
        case {
            "format": 1,
            "cluster_id": str(cluster_id),
            "node": int(node),
            "shards": dict(shards),
        } if all(type(number) is int for number in (node, *shards.values())):
            try:
                return Cursor(cluster_id, node, {int(key): index for key, index in shards.items()})
            except ValueError as error:
                raise CursorError(f"{path}: {error}") from error
        case _:
            raise CursorError(f"{path}: not a cursor of format {FORMAT}")
