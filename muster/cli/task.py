"""`muster task`: the tasks of task groups, who has them and how far they are."""

from typing import Any

import typer

from muster.cli.connection import Connection
from muster.cli.errors import CommandError, ExitCode
from muster.cli.group.read import Committed, Groups, committed, described, each
from muster.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Output,
    Timeout,
)
from muster.cli.output import Format, Result, Table, show
from muster.cli.watch import watchable
from muster.errors import MusterError
from muster.group.consumer_protocol import decode_assignment
from muster.group.group_kind import to_json
from muster.tasks.task_shares import TaskKind
from muster.tasks.task_store import (
    TASKS_MAX,
    Definition,
    decode,
    definition_key,
)
from muster.tasks.task_topics import PROGRESS
from muster.tasks.task_work import progress_of

COLUMNS = (
    *("GROUP", "TASK", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"),
    *("CONSUMER-ID", "HOST", "CLIENT-ID", "CONFIG"),
)


def register(app: typer.Typer) -> None:
    family = typer.Typer(help="Tasks of task groups.", no_args_is_help=True)
    family.command("list")(watchable(list_tasks))
    app.add_typer(family, name="task")


def list_tasks(
    groups: Groups,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the tasks of task groups by name: how far each is, who has it, its configuration."""
    with Connection(bootstrap, timeout) as to:
        found, failure = each(groups, lambda group_id: _items(to, group_id))
    items = [item for items in found for item in items]
    rows = [[*list(item.values())[:-1], to_json(item["config"])] for item in items]
    show(
        Result(
            schema="muster.task.list/v1",
            document={"tasks": items},
            tables=[Table(COLUMNS, rows)],
            items=items,
            names=[str(item["name"]) for item in items],
        ),
        output,
    )
    if failure:
        raise failure


def _items(to: Connection, group_id: str) -> list[dict[str, Any]]:
    group, stored = described(to, group_id), committed(to, group_id)
    tasks = _defined(group_id, stored)
    if not tasks and group.protocol_type != TaskKind.protocol_type:
        raise CommandError(
            f"group {group_id!r} is no task group: no task was ever defined in it",
            next_step="`muster group list --protocol-type tasks` shows those that have members",
            exit_code=ExitCode.NOT_FOUND,
        )
    owners = {
        key.partition: member
        for member in (group.members if group.protocol_type == TaskKind.protocol_type else ())
        for key in decode_assignment(member.assignment)
        if key.topic == PROGRESS
    }
    items: list[dict[str, Any]] = []
    for slot, task in sorted(tasks.items(), key=lambda one: one[1].name):
        owner, done = owners.get(slot), stored.get((PROGRESS, slot))
        if progress_of(done, task.since) is None:
            done = None
        end = done.end_offset if done and done.HasField("end_offset") else None
        items.append(
            {
                "group_id": group_id,
                "name": task.name,
                "current_offset": done.offset if done else None,
                "log_end_offset": end,
                "lag": None if done is None or end is None else max(0, end - done.offset),
                "consumer_id": owner.member_id if owner else None,
                "host": owner.host if owner else None,
                "client_id": owner.client_id if owner else None,
                "config": dict(task.config),
            }
        )
    return items


def _defined(group_id: str, stored: Committed) -> dict[int, Definition]:
    """The group's tasks by their slots."""
    tasks = {}
    for slot in range(TASKS_MAX):
        entry = stored.get(definition_key(slot))
        try:
            task = decode(entry)
        except MusterError as error:
            raise CommandError(
                f"group {group_id!r}: {error.message}",
                next_step="no SDK of muster's wrote this; see who commits to the group",
                exit_code=ExitCode.ERROR,
            ) from error
        if task is not None:
            tasks[slot] = task
    return tasks
