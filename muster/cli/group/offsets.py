"""`muster group offsets`: what is committed, and who owns each partition."""

from muster.cli.connection import Connection
from muster.cli.errors import note
from muster.cli.group.owners import owners
from muster.cli.group.read import Groups, committed, described, each
from muster.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Output,
    Timeout,
)
from muster.cli.output import Format, Result, Table, Value, rfc3339, show

OFFSET_COLUMNS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
)
START_COLUMN = "LOG-START-OFFSET"
"""Only where a member reported one."""


def offsets(
    groups: Groups,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show committed offsets, read linearizably, and who owns each partition.

    LOG-END-OFFSET and LAG are `-` where members do not report the end with their commits.
    """
    without: list[str] = []

    def one(group_id: str) -> list[dict[str, Value]]:
        items = offset_items(to, group_id)
        if not items:
            without.append(group_id)
        return items

    with Connection(bootstrap, timeout) as to:
        found, failure = each(groups, one)
    items = [item for items in found for item in items]
    show(
        Result(
            schema="muster.group.offsets/v1",
            document={"offsets": items},
            tables=[offset_table(items)],
            items=items,
            names=[f"{item['topic']}/{item['partition']}" for item in items],
        ),
        output,
    )
    for group_id in without:
        note(f"no offset of {group_id!r} is stored, and nobody owns a partition")
    if failure:
        raise failure


def offset_items(to: Connection, group_id: str) -> list[dict[str, Value]]:
    """One item per partition that has an offset or an owner, by topic and number."""
    group = described(to, group_id)
    stored = committed(to, group_id)
    owned = owners(group)
    items: list[dict[str, Value]] = []
    for key in sorted({*stored, *owned}):
        entry, owner = stored.get(key), owned.get(key)
        end = entry.end_offset if entry and entry.HasField("end_offset") else None
        start = entry.start_offset if entry and entry.HasField("start_offset") else None
        items.append(
            {
                "group_id": group_id,
                "topic": key[0],
                "partition": key[1],
                "current_offset": entry.offset if entry else None,
                "log_start_offset": start,
                "log_end_offset": end,
                "lag": None if entry is None or end is None else max(0, end - entry.offset),
                "consumer_id": owner.member_id if owner else None,
                "host": owner.host if owner else None,
                "client_id": owner.client_id if owner else None,
                "metadata": entry.metadata if entry else None,
                "generation": entry.generation if entry else None,
                "committed_at": rfc3339(entry.wall_ms) if entry else None,
            }
        )
    return items


def offset_table(items: list[dict[str, Value]]) -> Table:
    """Kafka's columns, and where each partition starts if that is known of any."""
    started = any(item["log_start_offset"] is not None for item in items)
    extra = [START_COLUMN] if started else []
    rows = [[*_row(item), *([item["log_start_offset"]] if started else [])] for item in items]
    return Table([*OFFSET_COLUMNS, *extra], rows)


def _row(item: dict[str, Value]) -> list[Value]:
    return [
        item[key]
        for key in (
            "group_id",
            "topic",
            "partition",
            "current_offset",
            "log_end_offset",
            "lag",
            "consumer_id",
            "host",
            "client_id",
        )
    ]
