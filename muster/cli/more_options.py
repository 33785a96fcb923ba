"""Options that are added to commands: each command is written without them."""

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from muster.cli.output import wide_tables
from muster.net.bearer_token import FILE_VARIABLE

Wide = Annotated[
    bool, typer.Option("--wide", help="Tables on a terminal with whole ids, wider than it is.")
]


def with_options(
    run: Callable[..., None],
    command: Callable[..., None],
    added: Mapping[str, tuple[object, object]],
) -> Callable[..., None]:
    """`run`, which takes `command`'s options and those added: a name -> its kind and default."""
    signature = inspect.signature(command)
    own = [p.replace(kind=p.KEYWORD_ONLY) for p in signature.parameters.values()]
    new = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in added.items()
    ]
    run.__signature__ = signature.replace(parameters=[*own, *new])  # type: ignore[attr-defined]
    run.__annotations__ = {
        **command.__annotations__,
        **{name: kind for name, (kind, _) in added.items()},
    }
    return run


def add_wide(app: typer.Typer) -> None:
    """Give `--wide` to every command that prints tables: to all that have `--output`.

    Once: a family may be of a module that is loaded already.
    """
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_wide(group.typer_instance)
    for command in app.registered_commands:
        options = command.callback.__annotations__ if command.callback else {}
        if command.callback and "output" in options and "wide" not in options:
            command.callback = _widened(command.callback)


TokenFile = Annotated[
    str,
    typer.Option(
        "--token-file",
        envvar=FILE_VARIABLE,
        metavar="FILE",
        help="A file with the bearer token that says who asks.",
    ),
]


CLIENTS = ("muster.cli.", "musterd.backup.")
"""The modules of commands that ask a cluster as a client does."""


def add_token_file(app: typer.Typer) -> None:
    """Give `--token-file` to every command that asks a cluster: to all that have `--bootstrap`."""
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_token_file(group.typer_instance)
    for command in app.registered_commands:
        options = command.callback.__annotations__ if command.callback else {}
        if command.callback is None or not command.callback.__module__.startswith(CLIENTS):
            continue
        if "bootstrap" in options and "token_file" not in options:
            command.callback = _with_token_file(command.callback)


def _with_token_file(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def run(*args: object, token_file: str = "", **options: object) -> None:
        os.environ[FILE_VARIABLE] = token_file  # where every connection of the process reads it
        command(*args, **options)

    return with_options(run, command, {"token_file": (TokenFile, "")})


def _widened(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def run(*args: object, wide: bool = False, **options: object) -> None:
        with wide_tables(wide):
            command(*args, **options)

    return with_options(run, command, {"wide": (Wide, False)})
