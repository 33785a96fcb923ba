"""`muster group config`: what counts for one group, and what of it is the group's own."""

from typing import Annotated

import typer

from muster.cli.connection import Connection, Stubs
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
from muster.v1.admin_pb2 import (
    AlterGroupConfigsRequest,
    AlterGroupConfigsResponse,
    DescribeGroupConfigsRequest,
    DescribeGroupConfigsResponse,
    GroupSetting,
)
from muster.v1.errors_pb2 import Status

COLUMNS = ("GROUP", "SETTING", "VALUE", "DEFAULT", "LOWEST", "HIGHEST", "SOURCE")
CHANGE_COLUMNS = ("GROUP", "SETTING", "BEFORE", "AFTER", "SOURCE", "RESULT")

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="The group's own value. May be repeated."),
]
Delete = Annotated[
    list[str] | None,
    typer.Option("--delete", metavar="NAME", help="Back to the default. May be repeated."),
]


class _OfGroup:
    """An answer about one group, with that group's outcome."""

    def __init__(
        self,
        status: Status,
        settings: list[GroupSetting],
        before: list[GroupSetting] | None = None,
    ) -> None:
        self.status = status
        self.settings = settings
        self.before = before or []


def config(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Id of a group; it may be new.")],
    set_: Set = None,
    delete: Delete = None,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the settings of a group, or change them: all that is asked for, or nothing."""
    wanted = [_pair(text) for text in set_ or ()]
    with Connection(bootstrap, timeout) as to:
        if not wanted and not delete:
            shown = _described(to, group)
            show(shown, output)
            return
        request = AlterGroupConfigsRequest(validate_only=dry_run)
        one = request.groups.add(group_id=group, removed=delete or ())
        for name, value in wanted:
            one.settings.add(name=name, value=value)
        altered = to.ask_coordinator(group, lambda at, s: _alter(at, request, s))
    show(_change(group, altered, dry_run=dry_run), output)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise CommandError(
            f"{text!r} is not NAME=VALUE",
            next_step="give `--set classic.max.size=50`; without --set the settings are listed",
            exit_code=ExitCode.USAGE,
        )
    return name, value


def _described(to: Connection, group_id: str) -> Result:
    request = DescribeGroupConfigsRequest(group_ids=[group_id])

    def call(at: Stubs, timeout_s: float) -> _OfGroup:
        answer: DescribeGroupConfigsResponse = at.admin.DescribeGroupConfigs(
            request, timeout=timeout_s
        )
        return _OfGroup(answer.groups[0].status, list(answer.groups[0].settings))

    found = to.ask_coordinator(group_id, call).settings
    items = [_item(group_id, one) for one in found]
    rows: list[list[Value]] = [[group_id, one.name, *_values(one), _source(one)] for one in found]
    return Result(
        schema="muster.group.config/v1",
        document={"group_id": group_id, "settings": items},
        tables=[Table(COLUMNS, rows)],
        items=items,
        names=[one.name for one in found],
    )


def _item(group_id: str, one: GroupSetting) -> dict[str, Value]:
    value, default, lowest, highest = _values(one)
    return {
        "group_id": group_id,
        "name": one.name,
        "value": value,
        "default": default,
        "lowest": lowest,
        "highest": highest,
        "overridden": one.overridden,
    }


def _values(one: GroupSetting) -> tuple[Value, Value, Value, Value]:
    """Return its value, its default and its bounds. A text has no bounds."""
    if one.HasField("text"):
        return one.text, one.default_text, None, None
    return one.value, one.default_value, one.lowest, one.highest


def _source(one: GroupSetting) -> str:
    return "group" if one.overridden else "default"


def _alter(at: Stubs, request: AlterGroupConfigsRequest, timeout_s: float) -> _OfGroup:
    answer: AlterGroupConfigsResponse = at.admin.AlterGroupConfigs(request, timeout=timeout_s)
    if not answer.results:
        return _OfGroup(answer.status, [])
    result = answer.results[0]
    return _OfGroup(result.status, list(result.after), list(result.before))


def _change(group_id: str, altered: _OfGroup, *, dry_run: bool) -> Result:
    """Before and after, of every setting that is or was the group's own."""
    rows: list[list[Value]] = []
    items: list[dict[str, Value]] = []
    for before, after in zip(altered.before, altered.settings, strict=True):
        if not before.overridden and not after.overridden:
            continue
        was, now = _values(before)[0], _values(after)[0]
        changed = (was, before.overridden) != (now, after.overridden)
        word = "would be changed" if dry_run else "changed"
        rows.append(
            [
                group_id,
                after.name,
                was,
                now,
                _source(after),
                word if changed else "as before",
            ]
        )
        items.append(
            {
                "group_id": group_id,
                "name": after.name,
                "before": was,
                "after": now,
                "overridden": after.overridden,
                "changed": changed,
            }
        )
    return Result(
        schema="muster.group.config-change/v1",
        document={"group_id": group_id, "settings": items, "dry_run": dry_run},
        tables=[Table(CHANGE_COLUMNS, rows)],
        items=items,
        names=[str(item["name"]) for item in items],
    )
