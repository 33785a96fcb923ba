"""`muster audit`: what operators asked the cluster for, and whether the trail was changed."""

import datetime as dt
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from muster.admin.audit import NO_HASH, AuditEntry, chained
from muster.cli.connection import Connection, Stubs
from muster.cli.errors import CommandError, ExitCode
from muster.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Output,
    Timeout,
)
from muster.cli.output import Format, Result, Table, Value, rfc3339, show
from muster.cli.watch import watchable
from muster.v1.admin_pb2 import DescribeAuditRequest, DescribeAuditResponse
from muster.v1.log_pb2 import EventList

COLUMNS = ("NUMBER", "TIME", "NODE", "PRINCIPAL", "PEER", "METHOD", "RESULT", "DETAIL")
SHARD_0 = "shard=00"

Number = Annotated[int, typer.Option("--number", "-n", min=1, max=1000, help="So many.")]
Principal = Annotated[str, typer.Option("--principal", help="Of this principal alone.")]
Method = Annotated[str, typer.Option("--method", help="Calls of this RPC, such as DeleteTopic.")]
ResultName = Annotated[str, typer.Option("--result", help="With this result: OK, or an error.")]
Since = Annotated[str, typer.Option("--since", metavar="TIME", help="Not before (RFC 3339).")]
Until = Annotated[str, typer.Option("--until", metavar="TIME", help="Not after (RFC 3339).")]
ExportDir = Annotated[
    Path | None,
    typer.Option("--export", metavar="DIR", help="Also the entries that `muster export` wrote."),
]


def register(app: typer.Typer) -> None:
    family = typer.Typer(help="What operators asked the cluster for.", no_args_is_help=True)
    family.command("tail")(watchable(tail))
    family.command("query")(watchable(query))
    family.command("verify")(verify)
    app.add_typer(family, name="audit")


def tail(
    number: Number = 20,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the latest entries of the audit trail, the oldest of them first."""
    with Connection(bootstrap, timeout) as to:
        entries = [one for one, _ in _read(to)[1]]
    show(_result("muster.audit.tail/v1", entries[-number:]), output)


def query(
    principal: Principal = "",
    method: Method = "",
    result: ResultName = "",
    since: Since = "",
    until: Until = "",
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the entries that the cluster keeps and that all options say; without one, all."""
    first_ms, last_ms = _milliseconds(since, 0), _milliseconds(until, 2**63 - 1)
    with Connection(bootstrap, timeout) as to:
        entries = [one for one, _ in _read(to)[1]]
    found = [
        one
        for one in entries
        if first_ms <= one.wall_ms <= last_ms
        and principal in ("", one.principal)
        and method in ("", one.method)
        and result in ("", one.result)
    ]
    show(_result("muster.audit.query/v1", found), output)


def verify(
    export: ExportDir = None,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Compute the chain of hashes anew; exit 5 where an entry was changed or is missing.

    With an export, its entries are in the chain, too: only their beginning may be missing.
    """
    # The export first: the cluster knows each entry that is in it.
    exported, wrong = ([], []) if export is None else _exported(export)
    with Connection(bootstrap, timeout) as to:
        answer, kept = _read(to)
    wrong += _wrong(answer, kept, exported)
    first = exported[0][0].number if exported else answer.kept
    checked_from = min(answer.kept, first + bool(first))  # none is known before the first one
    document = {
        "entries": len(kept),
        "exported": len(exported),
        "checked_from": checked_from,
        "next": answer.next,
        "head": answer.head,
        "wrong": wrong,
    }
    rows: list[Sequence[Value]] = [
        (len(kept), len(exported), checked_from, answer.head[:16], wrong[0] if wrong else None)
    ]
    show(
        Result(
            schema="muster.audit.verify/v1",
            document=document,
            tables=[Table(("ENTRIES", "EXPORTED", "FROM", "HEAD", "WRONG"), rows)],
            items=[document],
            names=[answer.head],
        ),
        output,
    )
    if wrong:
        raise CommandError(
            f"the audit trail is not whole: {wrong[0]}",
            next_step="compare with `muster cluster verify`, and with other nodes' exports",
            exit_code=ExitCode.UNHEALTHY,
        )


Hashed = list[tuple[AuditEntry, str]]
"""Entries, each with the hash that is said to be its."""


def _read(to: Connection) -> tuple[DescribeAuditResponse, Hashed]:
    """All that shard 0 keeps; the last answer, and the entries."""
    entries: Hashed = []
    first, shown = 0, to.operator()
    while True:
        request = DescribeAuditRequest(first=first)
        answer = to.ask(_asking(request, shown))
        entries += [(_entry(one.number, one), one.hash) for one in answer.entries]
        if not answer.more or not answer.entries:
            break
        first = answer.entries[-1].number + 1
    return answer, [one for one in entries if one[0].number >= answer.kept]


def _asking(
    request: DescribeAuditRequest, shown: tuple[tuple[str, bytes], ...]
) -> Callable[[Stubs, float], DescribeAuditResponse]:
    return lambda at, s: at.admin.DescribeAudit(request, timeout=s, metadata=shown)


def _entry(number: int, one: Any) -> AuditEntry:
    return AuditEntry(
        number,
        one.wall_ms,
        one.node_id,
        one.principal,
        one.peer,
        one.method,
        one.request_id,
        one.result,
        one.detail,
    )


def _exported(folder: Path) -> tuple[Hashed, list[str]]:
    """Every entry in an export, of any node, by number, and what does not fit among them.

    Raises CommandError for a damaged file.
    """
    try:
        from pyarrow import parquet  # noqa: PLC0415  # of the extra `export`
    except ImportError as error:
        raise CommandError(
            "an export cannot be read without pyarrow",
            next_step="pip install 'muster-coordinator[export]'",
            exit_code=ExitCode.USAGE,
        ) from error
    files = sorted((folder / SHARD_0).glob("part-*.parquet"))
    if not files:
        raise CommandError(
            f"{folder} has no segment of shard 0",
            next_step="name the folder that `muster export --to` wrote",
            exit_code=ExitCode.USAGE,
        )
    found: dict[int, tuple[AuditEntry, str]] = {}
    twice: dict[int, str] = {}
    for file in files:
        try:
            kinds = [("kind", "=", "record_audit")]
            rows = parquet.read_table(file, columns=["events", "kind"], filters=kinds)
            for events in rows.column("events").to_pylist():
                for event in EventList.FromString(events or b"").events:
                    made = event.audit_recorded
                    each = zip(made.entries, made.hashes, strict=True)
                    for number, (told, said) in enumerate(each, made.first):
                        one = _entry(number, told), said
                        if found.setdefault(number, one) != one:
                            twice[number] = f"the export has two entries {number}"
        except Exception as error:
            raise CommandError(
                f"{file} cannot be read: {error}",
                next_step="`muster replay` names what is damaged",
                exit_code=ExitCode.UNHEALTHY,
            ) from error
    return [found[number] for number in sorted(found)], list(twice.values())


def _wrong(answer: DescribeAuditResponse, kept: Hashed, exported: Hashed) -> list[str]:
    """What does not fit, the first place first."""
    numbers = [one.number for one, _ in kept]
    if numbers != list(range(answer.kept, answer.next)):
        return [f"entries {answer.kept} to {answer.next - 1} are not all there"]
    known = {-1: NO_HASH, answer.kept - 1: answer.base} | {one.number: said for one, said in kept}
    wrong = [*_unchained(exported, known, "export")]
    if exported and (last := exported[-1][0].number) < answer.kept - 1:
        wrong.append(f"neither export nor cluster has {_range(last + 1, answer.kept)}")
    wrong += _unchained(kept, known, "cluster")
    if (kept[-1][1] if kept else answer.base) != answer.head:
        wrong.append(f"the hash of entry {answer.next - 1} is not the last one")
    both = {one.number: (one, said) for one, said in kept}
    for one, said in exported:
        number = one.number
        if number >= answer.next:
            wrong.append(f"entry {number} of the export is unknown to the cluster")
        elif both.get(number, (one, said)) != (one, said) or known.get(number, said) != said:
            wrong.append(f"entry {number} is another one in the export")
    return wrong


def _unchained(entries: Hashed, known: Mapping[int, str], where: str) -> Iterator[str]:
    """Entries whose hash is not that of what they say behind the entry before them, and holes.

    Of the first one, and behind a hole, the hash before is the one of `known`. Where the cluster
    does not keep it, whether the first one is what it was cannot be told.
    """
    number, before = -1, ""
    for one, said in entries:
        if one.number != number:
            if number >= 0:
                yield f"the {where} lacks {_range(number, one.number)}"
            before = known.get(one.number - 1, "")
        if before and chained(before, one) != said:
            yield f"entry {one.number} of the {where} is not what it was"
        before, number = said, one.number + 1


def _range(first: int, end: int) -> str:
    return f"entry {first}" if end == first + 1 else f"entries {first} to {end - 1}"


def _milliseconds(text: str, default: int) -> int:
    if not text:
        return default
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandError(
            f"{text!r} is no time",
            next_step="give one such as 2026-01-31T12:00:00Z",
            exit_code=ExitCode.USAGE,
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return int(moment.timestamp() * 1000)


def _result(schema: str, entries: Sequence[AuditEntry]) -> Result:
    items = [_item(one) for one in entries]
    return Result(
        schema=schema,
        document={"entries": items},
        tables=[Table(COLUMNS, [_row(one) for one in entries])],
        items=items,
        names=[str(one.number) for one in entries],
    )


def _row(one: AuditEntry) -> list[Value]:
    return [
        one.number,
        rfc3339(one.wall_ms),
        one.node_id,
        one.principal or None,
        one.peer or None,
        one.method,
        one.result,
        one.detail,
    ]


def _item(one: AuditEntry) -> dict[str, object]:
    try:
        detail = json.loads(one.detail)
    except ValueError:
        detail = one.detail
    return {**asdict(one), "time": rfc3339(one.wall_ms), "detail": detail}
