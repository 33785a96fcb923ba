"""`muster cluster backup` and `restore`: take a backup, verify one, begin a cluster with one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.errors import CommandError, ExitCode, note
from muster.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, Timeout
from muster.cli.output import Format, Result, Table, Value, show
from musterd.backup.told import told

if TYPE_CHECKING:
    from musterd.backup.folders import Folder
    from musterd.backup.manifest import Manifest, ShardCut

BACKUP_TIMEOUT_S = 1_800.0
"""A backup reads all that the cluster holds."""

INSTANT_MAX_S = 2**32 - 1
"""The last second, in 2106, that can be chosen for a restore."""

COLUMNS = ("SHARD", "INDEX", "GROUPS", "RECORDS", "BYTES", "DIGEST", "RESULT")

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="The folder of one backup: a path, or s3://BUCKET/FOLDER/NAME."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the family `cluster`, which the client's package has."""
    family = next(one.typer_instance for one in app.registered_groups if one.name == "cluster")
    if family is None:
        return
    backups = typer.Typer(help="Take a backup, or verify one.")
    backups.callback(invoke_without_command=True)(backup)
    backups.command("verify")(verify)
    family.add_typer(backups, name="backup")
    family.command("restore")(restore)


def backup(
    context: typer.Context,
    to: Annotated[
        str,
        typer.Option(
            metavar="URL", help="Where backups are kept: a directory, or s3://BUCKET/FOLDER."
        ),
    ] = "",
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = BACKUP_TIMEOUT_S,
) -> None:
    """Take a backup of all shards while the cluster serves, into a new folder at --to.

    It needs the cluster's admin secret, or the right to `admin` the cluster. `verify` loads one.
    """
    if context.invoked_subcommand is not None:
        return
    if not to:
        raise CommandError(
            "where shall the backup go?",
            next_step="give --to DIRECTORY or --to s3://BUCKET/FOLDER",
            exit_code=ExitCode.USAGE,
        )
    from muster.cli.connection import Connection  # noqa: PLC0415  # slow to load
    from musterd.backup.take import note_backup, take  # noqa: PLC0415
    from musterd.backup.urls import open_folder  # noqa: PLC0415

    with told("repeat it; what was written is no backup without its manifest"):
        root = open_folder(to)
        with Connection(bootstrap, timeout) as cluster:
            folder, manifest = take(cluster, root)
            try:
                note_backup(cluster, manifest)
            except CommandError as error:
                note(f"the backup is whole, and its age is not noted: {error.message}")
    items = [_cut_item(cut, None, "taken") for cut in manifest.shards]
    _show("muster.cluster.backup/v1", folder, manifest, items, output)


def verify(url: Url, output: Output = Format.TABLE) -> None:
    """Load a backup, recompute each digest and compare all hashes. Exits 5 where one differs."""
    from musterd.backup.archive import read_manifest  # noqa: PLC0415  # slow to load
    from musterd.backup.archive import verify as verified  # noqa: PLC0415
    from musterd.backup.urls import open_folder  # noqa: PLC0415

    with told("name another backup; `muster cluster backup --to URL` takes one", unsound=True):
        folder = open_folder(url)
        manifest = read_manifest(folder)
        verdicts = list(verified(folder, manifest))
    items = [_cut_item(one.cut, one.groups, "wrong" if one.wrong else "ok") for one in verdicts]
    _show("muster.cluster.backup.verify/v1", folder, manifest, items, output)
    wrong = [one.wrong for one in verdicts if one.wrong]
    if wrong:
        raise CommandError(
            "; ".join(wrong[:NAMED_MAX]),
            next_step="do not restore it; name another backup",
            exit_code=ExitCode.UNHEALTHY,
        )


def restore(
    url: Url,
    name: Annotated[
        str,
        typer.Option("--name", help="The new cluster's name; its id is this and a hash."),
    ],
    to: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the ticket goes that each node needs.")
    ],
    keep_tokens: Annotated[
        bool,
        typer.Option("--keep-tokens", help="Bearer tokens of the backup stay valid [all void]."),
    ] = False,
    instant: Annotated[
        int,
        typer.Option(
            metavar="SECOND",
            min=0,
            max=INSTANT_MAX_S,
            help="Restore as of this second since 1970, where it is after this clock; for clusters "
            "that were restored by a clock that ran ahead.",
        ),
    ] = 0,
    output: Output = Format.TABLE,
) -> None:
    """Verify a backup, and write the ticket with which nodes of a new cluster begin with it.

    Nothing runs yet, and the backup stays. `muster init --restore FILE` makes each node: members
    are removed, offsets and topics stay, and fencing tokens go on above all that were given out.
    """
    import time  # noqa: PLC0415

    from musterd.backup.folders import Directory  # noqa: PLC0415  # slow to load
    from musterd.backup.ticket import make_ticket  # noqa: PLC0415
    from musterd.backup.urls import open_folder  # noqa: PLC0415

    if to.exists():
        raise CommandError(
            f"{to} exists",
            next_step="name another file: a ticket is for one new cluster",
            exit_code=ExitCode.CONFLICT,
        )
    with told("nothing was restored: correct it and repeat it", unsound=True):
        now_s = max(int(time.time()), instant)
        ticket = make_ticket(open_folder(url), name, now_s, keep_tokens=keep_tokens)
        with Directory(to.parent).create(to.name) as file:
            file.write(ticket.encode())
    document: dict[str, Value] = {
        "cluster_id": ticket.cluster_id,
        "url": ticket.url,
        "instant_s": ticket.instant_s,
        "keep_tokens": ticket.keep_tokens,
        "shards": len(ticket.digests),
        "ticket": str(to),
    }
    columns = ("CLUSTER", "SHARDS", "BACKUP", "TICKET")
    row = [document[key] for key in ("cluster_id", "shards", "url", "ticket")]
    show(
        Result(
            schema="muster.cluster.restore/v1",
            document=document,
            tables=[Table(columns, [row])],
            items=[document],
            names=[str(to)],
        ),
        output,
    )


NAMED_MAX = 5
"""Files that are named in a message."""


def _cut_item(cut: "ShardCut", groups: int | None, result: str) -> dict[str, Value]:
    return {
        "shard": cut.shard,
        "index": cut.index,
        "groups": groups,
        "records": cut.records,
        "bytes": cut.bytes,
        "digest": cut.digest,
        "result": result,
    }


def _show(
    schema: str,
    folder: "Folder",
    manifest: "Manifest",
    items: list[dict[str, Value]],
    output: Format,
) -> None:
    """Show a backup: its shards, and its folder as its name."""
    if output is Format.TABLE:
        note(f"{folder.url} is a backup of cluster {manifest.cluster_id}")
    show(
        Result(
            schema=schema,
            document={
                "url": folder.url,
                "cluster_id": manifest.cluster_id,
                "build": manifest.build,
                "began_wall_ms": manifest.began_wall_ms,
                "finished_wall_ms": manifest.finished_wall_ms,
                "check": manifest.check,
                "shards": items,
            },
            tables=[Table(COLUMNS, [list(item.values()) for item in items])],
            items=items,
            names=[folder.url],
        ),
        output,
    )
