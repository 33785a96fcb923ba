"""Options that are added to commands: each command is written without them."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from muster.cli.output import wide_tables

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


def _widened(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def run(*args: object, wide: bool = False, **options: object) -> None:
        with wide_tables(wide):
            command(*args, **options)

    return with_options(run, command, {"wide": (Wide, False)})
