"""`muster version`: what is installed here. Loads neither parser, gRPC nor protobuf."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from muster.cli.output import Format, Result, Table, show

if TYPE_CHECKING:
    import typer

PACKAGES = ("muster-client", "muster-coordinator")


def register(app: "typer.Typer") -> None:
    from muster.cli.options import Output  # noqa: PLC0415  # brings the parser

    @app.command("version")
    def command(output: Output = Format.TABLE) -> None:
        """Print the versions installed here; `muster cluster status` has the nodes'."""
        print_versions(output)


def print_versions(form: Format = Format.TABLE) -> None:
    """Write the versions of the installed packages to stdout."""
    found = {name: installed(name) for name in PACKAGES}
    rows = [*found.items(), ("python", platform.python_version())]
    show(
        Result(
            schema="muster.version/v1",
            document={name.replace("-", "_"): value for name, value in rows},
            tables=[Table(("PACKAGE", "VERSION"), rows)],
            items=[{"package": name, "version": value} for name, value in rows],
            names=[f"{name} {value}" for name, value in rows if value],
        ),
        form,
    )


def installed(name: str) -> str | None:
    """The version of a package that is installed here."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
