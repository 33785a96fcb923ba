"""`muster quota`: how much principals and groups may do in a second, and how many members have."""

from collections.abc import Sequence
from typing import Annotated

import typer

from muster.cli.connection import Connection
from muster.cli.errors import CommandError, ExitCode
from muster.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    DryRun,
    Output,
    Timeout,
)
from muster.cli.output import Format, Result, Table, Value, show
from muster.cli.watch import watchable
from muster.v1.admin_pb2 import AlterClientQuotasRequest, DescribeClientQuotasRequest
from muster.v1.quota_pb2 import QuotaChange, QuotaEntity, QuotaKey

ENTITIES = {
    "principal": QuotaEntity.QUOTA_PRINCIPAL,
    "group": QuotaEntity.QUOTA_GROUP,
}
KEYS = {
    "joins_per_s": QuotaKey.QUOTA_JOINS,
    "commits_per_s": QuotaKey.QUOTA_COMMITS,
    "commit_bytes_per_s": QuotaKey.QUOTA_COMMIT_BYTES,
    "groups_per_s": QuotaKey.QUOTA_NEW_GROUPS,
    "members": QuotaKey.QUOTA_MEMBERS,
}
DEFAULT = "-default"

Entity = Annotated[
    str,
    typer.Argument(
        metavar="ENTITY",
        help="principal:NAME or group:NAME; principal-default or group-default for each of its "
        "kind without a value of its own.",
    ),
]


def register(app: typer.Typer) -> None:
    family = typer.Typer(help="Quotas of principals and groups.", no_args_is_help=True)
    family.command("list")(watchable(list_quotas))
    family.command("set")(set_quotas)
    family.command("delete")(delete)
    app.add_typer(family, name="quota")


def list_quotas(
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List all quotas."""
    with Connection(bootstrap, timeout) as to:
        items = [_item(one) for one in all_quotas(to)]
    show(
        Result(
            schema="muster.quota.list/v1",
            document={"quotas": items},
            tables=[Table(("ENTITY", "KEY", "VALUE"), [tuple(i.values()) for i in items])],
            items=items,
            names=[str(item["entity"]) for item in items],
        ),
        output,
    )


def set_quotas(
    entity: Entity,
    values: Annotated[
        list[str],
        typer.Argument(metavar="KEY=N...", help=f"KEY is {', '.join(KEYS)}."),
    ],
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Set quotas of one entity. They count at each node as soon as it knows them."""
    kind, name = _entity(entity)
    changes = []
    for value in values:
        key, _, number = value.partition("=")
        if not (number.isascii() and number.isdecimal() and int(number)):
            raise _usage(f"{value!r} is not KEY=N with N at least 1")
        changes.append(QuotaChange(entity=kind, name=name, key=_key(key), value=int(number)))
    with Connection(bootstrap, timeout) as to:
        _alter(to, changes, "muster.quota.set/v1", output, dry_run=dry_run)


def delete(
    entity: Entity,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY...]", help="Those alone; none: all of the entity."),
    ] = None,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete quotas of one entity; then its default counts, where there is one.

    Exits 3 where it has none.
    """
    kind, name = _entity(entity)
    wanted = [_key(key) for key in keys or KEYS]
    with Connection(bootstrap, timeout) as to:
        found = [
            QuotaChange(entity=kind, name=name, key=one.key)
            for one in all_quotas(to)
            if (one.entity, one.name) == (kind, name) and one.key in wanted
        ]
        if not found:
            raise CommandError(
                f"{entity} has no such quota",
                next_step="`muster quota list` shows them",
                exit_code=ExitCode.NOT_FOUND,
            )
        _alter(to, found, "muster.quota.delete/v1", output, dry_run=dry_run)


def all_quotas(to: Connection) -> Sequence[QuotaChange]:
    """All quotas of the cluster. Raises CommandError, also without the right to see them."""
    shown, request = to.operator(), DescribeClientQuotasRequest()
    return to.ask(
        lambda at, s: at.admin.DescribeClientQuotas(request, timeout=s, metadata=shown)
    ).quotas


def _alter(
    to: Connection, changes: list[QuotaChange], schema: str, output: Format, *, dry_run: bool
) -> None:
    if not dry_run:
        shown, request = to.operator(), AlterClientQuotasRequest(changes=changes)
        to.ask(lambda at, s: at.admin.AlterClientQuotas(request, timeout=s, metadata=shown))
    items = [_item(one) for one in changes]
    would = "would be " * dry_run
    rows = [
        (item["entity"], item["key"], item["value"] or "-", would + _word(item["value"]))
        for item in items
    ]
    show(
        Result(
            schema=schema,
            document={"quotas": items, "dry_run": dry_run},
            tables=[Table(("ENTITY", "KEY", "VALUE", "RESULT"), rows)],
            items=items,
            names=[str(item["entity"]) for item in items],
        ),
        output,
    )


def _item(one: QuotaChange) -> dict[str, Value]:
    kind = next((word for word, number in ENTITIES.items() if number == one.entity), "unknown")
    key = next((word for word, number in KEYS.items() if number == one.key), "unknown")
    return {
        "entity": f"{kind}:{one.name}" if one.name else kind + DEFAULT,
        "key": key,
        "value": one.value,
    }


def _word(value: Value) -> str:
    return "set" if value else "deleted"


def _entity(text: str) -> tuple[QuotaEntity.ValueType, str]:
    for word, kind in ENTITIES.items():
        if text == word + DEFAULT:
            return kind, ""
        if text.startswith(word + ":") and text != word + ":":
            return kind, text[len(word) + 1 :]
    raise _usage(f"{text!r} is no entity")


def _key(text: str) -> QuotaKey.ValueType:
    if text not in KEYS:
        raise _usage(f"{text!r} is no key")
    return KEYS[text]


def _usage(message: str) -> CommandError:
    return CommandError(
        message,
        next_step="`muster quota set group:billing commits_per_s=1000` is one that works",
        exit_code=ExitCode.USAGE,
    )
