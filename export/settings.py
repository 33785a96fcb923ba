"""Every number of the exporter. Durations are whole milliseconds or days, sizes bytes."""

from dataclasses import dataclass

MIB = 1024 * 1024
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """The limits at which segments are finished and deleted (docs/replay.md, The exporter)."""

    rotate_bytes: int = 32 * MIB
    """A segment is finished once it holds so much, compressed."""
    rotate_ms: int = 10 * 60 * 1000
    """... or once it has been open for so long and is not empty."""
    keep_days: int = 30
    """Segments older than this are deleted; 0 keeps them."""
    keep_bytes: int = 10 * GIB
    """Bytes of one node's segments, over all shards: beyond it the oldest are deleted; 0 keeps
    them."""
    base_bytes: int = 64 * MIB
    """A base is written after so many bytes of segments, or four times the last base if more."""
    base_ms: int = 24 * 60 * 60 * 1000
    """...

    or, where anything was written since the last base, after a day; retention deletes up to a base.
    """
    slice_entries: int = 2_000
    """Entries of one shard before the next shard has its turn."""
    poll_ms: int = 1_000
    """How often the node's database is asked for more while there is nothing new."""
    cursor_ms: int = 60_000
    """The cursor file is renewed at least so often."""
    retention_ms: int = 60_000
