"""`muster group restore`: a group goes on from what it had at a time, by a backup and an export."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.errors import CommandError, ExitCode, note
from muster.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    DryRun,
    Output,
    Timeout,
)
from muster.cli.output import Format, show
from musterd.backup.told import told

MS = 1_000


def register(app: typer.Typer) -> None:
    """Add the command to the family `group`, which the client's package has."""
    family = next(one.typer_instance for one in app.registered_groups if one.name == "group")
    if family is not None:
        family.command("restore")(restore)


def restore(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Id of a group.")],
    at: Annotated[
        str, typer.Option("--at", metavar="TIME", help="RFC 3339: 2026-01-31T12:00:00Z.")
    ],
    backup: Annotated[
        str, typer.Option("--backup", metavar="URL", help="A backup, or the folder of backups.")
    ],
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A folder of `muster export`: what happened after the backup."
        ),
    ] = None,
    of: Annotated[
        str,
        typer.Option(
            metavar="CLUSTER",
            help="Take backups of the cluster with this id [the one that is asked]: a restored one "
            "has another id than its backup.",
        ),
    ] = "",
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="These alone; repeatable [all].")
    ] = None,
    do: Annotated[bool, typer.Option("--execute", help="Do it.")] = False,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Set a group's offsets back to what they were at a time. Changes nothing without --execute.

    As `group reset-offsets`: refused while the group has members. Partitions that had no offset
    then keep theirs.
    """
    if do and dry_run:
        raise _usage("--execute and --dry-run exclude each other", "give one of them")
    from muster.cli.connection import Connection  # noqa: PLC0415  # slow to load
    from muster.cli.group.offset_plan import to_given  # noqa: PLC0415
    from muster.cli.group.reset import Asked, reset_group  # noqa: PLC0415
    from musterd.backup.urls import open_folder  # noqa: PLC0415

    at_ms = parse_time(at)
    try:
        from musterd.backup.group_at import group_at  # noqa: PLC0415  # pyarrow is an extra
    except ModuleNotFoundError as error:
        raise CommandError(
            f"{error.name} is not installed",
            next_step="pip install 'muster-coordinator[export]'",
            exit_code=ExitCode.ERROR,
        ) from error
    cluster_id = of
    if not cluster_id:
        with Connection(bootstrap, timeout) as asked_first:
            cluster_id = asked_first.cluster().cluster_id
    with told("name another backup, or an export without gaps", unsound=True):
        found = group_at(open_folder(backup), export, group, at_ms, cluster_id)
    sure = datetime.fromtimestamp(found.wall_ms / MS, UTC).isoformat(timespec="milliseconds")
    note(f"as of {sure} (entry {found.index}), by {found.backup}")
    offsets = {key: offset for key, offset in found.offsets.items() if not topic or key[0] in topic}
    if not offsets:
        raise CommandError(
            f"group {group!r} had no such offset at that time",
            next_step="give another --at or --topic",
            exit_code=ExitCode.NOT_FOUND,
        )
    asked = Asked(
        group_id=group,
        topics=(),
        offsets=offsets,
        rule=to_given(offsets),
        starts=True,
        export=None,
        execute=do,
    )
    with Connection(bootstrap, timeout) as to:
        result, failure = reset_group(to, asked)
    show(result, output)
    if failure:
        raise failure


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of an RFC 3339 time. Raises CommandError (usage)."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise _usage(f"--at {text!r} is no time: {error}", "give 2026-01-31T12:00:00Z") from error
    if moment.tzinfo is None:
        raise _usage(f"--at {text!r} names no time zone", "end it with Z for UTC, or +02:00")
    return round(moment.timestamp() * MS)


def _usage(message: str, next_step: str) -> CommandError:
    return CommandError(message, next_step=next_step, exit_code=ExitCode.USAGE)
