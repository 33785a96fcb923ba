"""`muster group delete`, `muster group delete-offsets`: what goes for good, so both ask first."""

from collections.abc import Callable
from typing import Annotated

import typer

from muster.cli.connection import Connection, Removal, Stubs, next_page
from muster.cli.errors import CommandError, ExitCode
from muster.cli.group.owners import Group
from muster.cli.group.partition_arguments import parse_place
from muster.cli.group.read import described
from muster.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    DryRun,
    Output,
    Timeout,
    Yes,
    confirm,
)
from muster.cli.output import Format, Result, Table, Value, show
from muster.cli.refusals import refused
from muster.v1.admin_pb2 import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    OffsetDeleteRequest,
)
from muster.v1.errors_pb2 import ErrorCode, Status
from muster.v1.group_pb2 import OffsetFetchRequest

PARTITIONS_MAX = 1_000
CONSUMER = "consumer"
"""The protocol type whose members read topics."""

Groups = Annotated[list[str], typer.Argument(metavar="GROUP...", help="Ids of groups.")]
Places = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC[:PARTITION,...]...", help="A topic, or some of its partitions."),
]


class _OfGroup:
    """An answer about one group, with that group's outcome."""

    def __init__(self, status: Status) -> None:
        self.status = status


# ---- groups


def delete(
    groups: Groups,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete groups without members, and their offsets. The others are left, and told apart.

    Exits 3 where a group does not exist, 4 where one has members.
    """
    wanted = list(dict.fromkeys(groups))
    if not dry_run:
        confirm(f"Delete {', '.join(wanted)} with all committed offsets?", yes=yes)
    items: list[dict[str, Value]] = []
    failure: CommandError | None = None
    with Connection(bootstrap, timeout) as to:
        for group_id in wanted:
            try:
                error = _why_not(to, group_id) if dry_run else _delete(to, group_id)
            except CommandError as ended:
                if not items:
                    raise
                items += _not_done(wanted[len(items) :], ended)
                failure = ended
                break
            failure = failure or error
            items.append(_item({"group_id": group_id}, error, dry_run=dry_run))
    show(
        Result(
            schema="muster.group.delete/v1",
            document={"groups": items, "dry_run": dry_run},
            tables=[Table(("GROUP", "RESULT"), [(i["group_id"], i["result"]) for i in items])],
            items=items,
            names=wanted,
        ),
        output,
    )
    if failure:
        raise failure


def _delete(to: Connection, group_id: str) -> CommandError | None:
    request = DeleteGroupsRequest(group_ids=[group_id])

    def call(at: Stubs, timeout_s: float) -> _OfGroup:
        answer: DeleteGroupsResponse = at.admin.DeleteGroups(request, timeout=timeout_s)
        return _OfGroup(answer.results[0].status if answer.results else answer.status)

    removal = Removal(call)
    error = _refusal(lambda: to.ask_coordinator(group_id, removal))
    if error is not None and error.exit_code is ExitCode.NOT_FOUND and removal.in_doubt:
        return None
    return error


def _why_not(to: Connection, group_id: str) -> CommandError | None:
    """Return the error that would refuse the deletion now."""
    found: list[Group] = []
    failure = _refusal(lambda: found.append(described(to, group_id)))
    if failure is None and found[0].members:
        message = f"Group {group_id!r} has {len(found[0].members)} members: stop them first."
        return refused(ErrorCode.NON_EMPTY_GROUP, message)
    return failure


def _refusal(ask: Callable[[], object]) -> CommandError | None:
    """A group's own refusal; whatever concerns the whole command is raised."""
    try:
        ask()
    except CommandError as error:
        if error.exit_code in {ExitCode.NOT_FOUND, ExitCode.CONFLICT, ExitCode.USAGE}:
            return error
        raise
    return None


def _item(
    names: dict[str, Value], error: CommandError | None, *, dry_run: bool
) -> dict[str, Value]:
    word = "would be deleted" if dry_run else "deleted"
    if error is not None:
        word = "not found" if error.exit_code is ExitCode.NOT_FOUND else "kept"
    return names | {"result": word, "error": None if error is None else error.message}


def _not_done(group_ids: list[str], ended: CommandError) -> list[dict[str, Value]]:
    """The group at which the command ended, and those that it did not come to."""
    word = "kept" if ended.exit_code is ExitCode.NOT_PERMITTED else "unknown"
    first, *others = group_ids
    items: list[dict[str, Value]] = [{"group_id": first, "result": word, "error": ended.message}]
    items += [
        {"group_id": one, "result": "kept", "error": "the command ended before"} for one in others
    ]
    return items


# ---- offsets


def delete_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Id of a group.")],
    topics: Places,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete committed offsets of topics that no member of the group subscribes to.

    A topic alone means all of its offsets. Exits 4 where a member subscribes to one.
    """
    with Connection(bootstrap, timeout) as to:
        stored = _stored(to, group)
        wanted = sorted({key for text in topics for key in _places(text, stored)})
        named = [f"{topic}/{number}" for topic, number in wanted]
        errors: dict[tuple[str, int], CommandError] = {}
        if wanted and not dry_run:
            confirm(f"Delete {len(wanted)} committed offsets of {group}?", yes=yes)
            for start in range(0, len(wanted), PARTITIONS_MAX):
                errors |= _delete_offsets(to, group, wanted[start : start + PARTITIONS_MAX])
        elif wanted:
            errors = _in_use(described(to, group), wanted)
        failure = next(iter(errors.values()), None)
    items = [
        _item(
            {"group_id": group, "topic": key[0], "partition": key[1], "offset": stored.get(key)},
            errors.get(key),
            dry_run=dry_run,
        )
        for key in wanted
    ]
    keys = ("group_id", "topic", "partition", "offset", "result")
    show(
        Result(
            schema="muster.group.delete-offsets/v1",
            document={"offsets": items, "dry_run": dry_run},
            tables=[
                Table(
                    ("GROUP", "TOPIC", "PARTITION", "OFFSET", "RESULT"),
                    [[item[key] for key in keys] for item in items],
                )
            ],
            items=items,
            names=named,
        ),
        output,
    )
    if failure:
        raise failure


def _stored(to: Connection, group_id: str) -> dict[tuple[str, int], int]:
    """Return the offsets that are committed now; the group must exist."""
    missing = _exists(to, group_id)
    if missing is not None:
        raise missing
    found: dict[tuple[str, int], int] = {}
    request = OffsetFetchRequest(group_id=group_id, all=True)
    while True:
        page = to.ask_coordinator(group_id, lambda at, s: at.groups.OffsetFetch(request, timeout=s))
        found |= {(one.topic, one.partition): one.offset for one in page.partitions}
        if not page.more:
            return found
        last = next_page(page.partitions)
        request.after.topic, request.after.partition = last.topic, last.partition


def _exists(to: Connection, group_id: str) -> CommandError | None:
    failure = _why_not(to, group_id)
    return failure if failure is not None and failure.exit_code is ExitCode.NOT_FOUND else None


def _places(text: str, stored: dict[tuple[str, int], int]) -> list[tuple[str, int]]:
    """The stored partitions that TOPIC names, or exactly those of TOPIC:0,1,2."""
    topic, numbers = parse_place(text)
    if numbers is None:
        return [key for key in stored if key[0] == topic]
    return [(topic, number) for number in numbers]


def _in_use(group: Group, wanted: list[tuple[str, int]]) -> dict[tuple[str, int], CommandError]:
    """Return the errors that would refuse the deletion now, by the coordinator's own rule."""
    if group.members and group.protocol_type != CONSUMER:
        text = f"Group {group.group_id!r} has members, and what they read is not known here."
        raise refused(ErrorCode.NON_EMPTY_GROUP, text)
    any_topic = not all(member.subscribed_topics for member in group.members)
    read = {topic for member in group.members for topic in member.subscribed_topics}
    return {
        (topic, number): refused(
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            f"The group subscribes to {topic!r}: stop the members that read it first.",
        )
        for topic, number in wanted
        if any_topic or topic in read
    }


def _delete_offsets(
    to: Connection, group_id: str, wanted: list[tuple[str, int]]
) -> dict[tuple[str, int], CommandError]:
    request = OffsetDeleteRequest(group_id=group_id)
    for topic, partition in wanted:
        request.partitions.add(topic=topic, partition=partition)
    answer = to.ask_coordinator(group_id, lambda at, s: at.admin.OffsetDelete(request, timeout=s))
    return {
        (one.topic, one.partition): refused(one.status.code, one.status.message)
        for one in answer.partitions
        if one.status.code != ErrorCode.NONE
    }
