"""The `muster` command.

Command families come from the entry-point group `muster.cli`: an entry point's name is the
command's name, its value a function `register(app: typer.Typer) -> None`. Only the family that is
asked for is imported, however many the server's packages add; they may add to one of the client's,
which is registered before. `muster.cli.errors` has the exit
codes, `muster.cli.output` and `muster.cli.options` the conventions that all families share.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

    import typer

GROUP = "muster.cli"
HELP = (
    "Consumer groups as a service. Results go to stdout, everything else to stderr; "
    "exit codes: 0 ok, 1 error, 2 usage, 3 not found, 4 conflict or fenced, 5 unhealthy, "
    "6 no connection or no leader, 7 not permitted, 124 timed out."
)


class Register(Protocol):
    """An entry point of the group `muster.cli`: it adds its commands to the app."""

    def __call__(self, app: "typer.Typer") -> None:
        """Add the family to `app`."""
        ...


def families(args: Sequence[str]) -> "list[EntryPoint]":
    """Those installed here that `args` needs."""
    from importlib.metadata import entry_points  # noqa: PLC0415  # 3 MiB, and a node imports muster.cli

    return wanted(entry_points(group=GROUP), args)


def wanted(found: "EntryPoints", args: Sequence[str]) -> "list[EntryPoint]":
    """The entry points to import: the family that is named, or all (help, completion)."""
    command = next((arg for arg in args if not arg.startswith("-")), None)
    points = sorted(found, key=lambda point: (point.name, point.value))
    return [point for point in points if point.name == command] or points


def of_client(points: "Sequence[EntryPoint]") -> bool:
    """Whether these families start no server, whose log shall have the lines of gRPC's core."""
    return all(point.value.startswith(("muster.cli.", "musterd.backup.")) for point in points)


def build(points: "Sequence[EntryPoint]") -> "typer.Typer":
    """The app with these families."""
    import typer  # noqa: PLC0415  # importing muster.cli for its conventions must not load the parser

    from muster.cli.more_options import add_token_file, add_wide  # noqa: PLC0415  # as above

    app = typer.Typer(
        name="muster",
        help=HELP,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    def end_with_versions(given: bool) -> None:
        if given:
            _print_versions()
            raise typer.Exit

    @app.callback()
    def root(
        version: bool = typer.Option(  # its callback does the work
            False,
            "--version",
            help="Print the versions installed here and exit.",
            is_eager=True,
            callback=end_with_versions,
        ),
    ) -> None:
        """Keep `muster COMMAND` a group even where a single family is loaded."""

    root.__doc__ = HELP
    loaded: set[object] = set()
    for point in points:
        register = cast("Register", point.load())
        if register not in loaded:  # one function may stand behind several commands
            loaded.add(register)
            register(app)
    add_wide(app)
    add_token_file(app)
    return app


def main(args: Sequence[str] | None = None) -> None:
    """Run `muster`; ends the process with an exit code of `muster.cli.errors.ExitCode`."""
    from muster.cli.errors import CommandError, report  # noqa: PLC0415

    given = sys.argv[1:] if args is None else list(args)
    if given in (["version"], ["--version"]):  # without the parser, whose imports take 0.15 s
        _print_versions()
        return
    points = families(given)
    if args is None and of_client(points):
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else gRPC's core writes to stderr, too
    try:
        build(points)(args=given, prog_name="muster")
    except CommandError as error:
        report(error)
        sys.exit(int(error.exit_code))


def _print_versions() -> None:
    from muster.cli.version import print_versions  # noqa: PLC0415

    print_versions()
