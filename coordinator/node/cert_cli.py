"""`muster cert`: a small certificate authority, for tests and small installations."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from muster.cli.errors import CommandError, ExitCode
from muster.cli.options import Output
from muster.cli.output import Format, Result, Table, Value, rfc3339, show

if TYPE_CHECKING:
    from musterd.coordinator.node.authority import Made

T = TypeVar("T")
DAYS_MAX = 36_500

Folder = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="The authority's folder; keep it to yourself.")
]
Days = Annotated[
    int, typer.Option("--days", min=1, max=DAYS_MAX, help="How long the certificate is valid.")
]


def register(app: typer.Typer) -> None:
    """Add `cert` to `muster`."""
    family = typer.Typer(help="Certificates of nodes and clients.", no_args_is_help=True)
    family.command("ca")(make_authority)
    family.command("node")(make_node)
    family.command("client")(make_client)
    family.command("renew")(renew)
    app.add_typer(family, name="cert")


def make_authority(
    cluster_id: Annotated[
        str, typer.Option("--cluster-id", help="As `muster init` has it; certificates name it.")
    ],
    folder: Folder = Path("certs"),
    days: Days = 3_650,
    output: Output = Format.TABLE,
) -> None:
    """Make the authority of one cluster: ca.pem, which all trust, and ca.key, which signs."""
    from musterd.coordinator.node.authority import Authority  # noqa: PLC0415  # slow to import

    made = _told(lambda: Authority.create(folder, cluster_id, days))
    _show([(cluster_id, folder, made.valid_until)], output)


def make_node(
    node_id: Annotated[int, typer.Argument(min=0, metavar="ID", help="The node's id.")],
    hosts: Annotated[
        list[str],
        typer.Option(
            "--host",
            metavar="HOST",
            help="A name or address by which clients reach it; repeatable.",
        ),
    ],
    folder: Folder = Path("certs"),
    days: Days = 90,
    output: Output = Format.TABLE,
) -> None:
    """Make DIR/node-ID with cert.pem, key.pem and ca.pem: what `muster serve --tls-dir` reads."""
    from musterd.coordinator.node.authority import Authority  # noqa: PLC0415  # slow to import

    _show_made([_told(lambda: Authority.read(folder).node(node_id, hosts, days))], output)


def make_client(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who the client is.")],
    folder: Folder = Path("certs"),
    days: Days = 90,
    output: Output = Format.TABLE,
) -> None:
    """Make DIR/client-NAME with cert.pem, key.pem and ca.pem, for MUSTER_TLS_DIR."""
    from musterd.coordinator.node.authority import Authority  # noqa: PLC0415  # slow to import

    _show_made([_told(lambda: Authority.read(folder).client(name, days))], output)


def renew(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="What `node` or `client` made.")
    ],
    folder: Folder = Path("certs"),
    days: Days = 90,
    output: Output = Format.TABLE,
) -> None:
    """Make certificates anew, with new keys and the same names. Nodes read them by themselves."""
    from musterd.coordinator.node.authority import Authority  # noqa: PLC0415  # slow to import

    authority = _told(lambda: Authority.read(folder))
    _show_made([_told(partial(authority.renew, one, days)) for one in folders], output)


def _told(make: Callable[[], T]) -> T:
    """What `make` returns. Raises CommandError."""
    from musterd.coordinator.node.authority import AuthorityError  # noqa: PLC0415  # as above

    try:
        return make()
    except AuthorityError as error:
        raise CommandError(
            str(error), next_step="`muster cert --help`", exit_code=ExitCode.USAGE
        ) from error
    except OSError as error:
        raise CommandError(str(error), next_step="", exit_code=ExitCode.ERROR) from error


def _show_made(made: "list[Made]", output: Format) -> None:
    _show([(one.subject, one.folder, one.valid_until) for one in made], output)


def _show(made: list[tuple[str, Path, datetime]], output: Format) -> None:
    rows: list[list[Value]] = [
        [subject, str(folder), rfc3339(int(until.timestamp() * 1_000))]
        for subject, folder, until in made
    ]
    items: list[dict[str, Value]] = [
        {"subject": row[0], "folder": row[1], "valid_until": row[2]} for row in rows
    ]
    show(
        Result(
            schema="muster.cert/v1",
            document={"certificates": items},
            tables=[Table(("SUBJECT", "FOLDER", "VALID-UNTIL"), rows)],
            items=items,
            names=[str(row[1]) for row in rows],
        ),
        output,
    )
