"""Options that are added to commands: each command is written without them."""

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Annotated

import typer
from typer.models import CommandInfo, TyperInfo

from muster.cli.output import wide_tables
from muster.net.bearer_token import FILE_VARIABLE

Wide = Annotated[
    bool, typer.Option("--wide", help="Tables on a terminal with whole ids, wider than it is.")
]


Add = Callable[[Callable[..., None]], Callable[..., None]]
"""Makes of a command the same with one more option."""


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


def _add(app: typer.Typer, name: str, to: Callable[[Callable[..., None]], bool], how: Add) -> None:
    """Give the option `name` to every command `to` which it belongs, also to those of groups.

    Once: a family may be of a module that is loaded already.
    """
    infos: list[CommandInfo | TyperInfo] = list(app.registered_commands)
    if app.registered_callback:
        infos.append(app.registered_callback)
    for one in infos:
        command = one.callback
        if command and name not in command.__annotations__ and to(command):
            one.callback = how(command)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _add(group.typer_instance, name, to, how)


def add_wide(app: typer.Typer) -> None:
    """Give `--wide` to every command that prints tables: to all that have `--output`."""
    _add(app, "wide", lambda command: "output" in command.__annotations__, _widened)


TokenFile = Annotated[
    str,
    typer.Option(
        "--token-file",
        envvar=FILE_VARIABLE,
        metavar="FILE",
        help="A file with the bearer token that says who asks.",
    ),
]


CLIENTS = ("muster.cli.", "musterd.backup.", "musterd.coordinator.node.cli")
"""The modules of commands that ask a cluster as a client does."""


def add_token_file(app: typer.Typer) -> None:
    """Give `--token-file` to every command that asks a cluster: to all that have `--bootstrap`."""
    _add(
        app,
        "token_file",
        lambda command: (
            command.__module__.startswith(CLIENTS) and "bootstrap" in command.__annotations__
        ),
        _with_token_file,
    )


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
