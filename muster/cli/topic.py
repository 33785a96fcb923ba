"""`muster topic`: the registry of topics and their partition counts."""

import time
from typing import Annotated

import typer

from muster import timeouts
from muster.admin.zones import zones_of, zones_text
from muster.cli.connection import Connection, Removal, Stubs
from muster.cli.errors import CommandError, ExitCode
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
from muster.cli.output import Format, Result, Table, rfc3339, show
from muster.cli.refusals import refused
from muster.cli.watch import watchable
from muster.errors import InvalidRequest
from muster.tasks import task_topics
from muster.v1.admin_pb2 import (
    AddPartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    DeleteTopicResponse,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    ListTopicsRequest,
    SetTopicZonesRequest,
    Topic,
)
from muster.v1.errors_pb2 import ErrorCode

PARTITIONS_MAX = 2**31 - 1

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
Names = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of topics.")]
Partitions = Annotated[
    int,
    typer.Option("--partitions", "-p", min=1, max=PARTITIONS_MAX, help="How many partitions."),
]


Zones = Annotated[
    str | None,
    typer.Option(
        "--zones",
        metavar="a,b;b,c",
        help="In which zones the partitions are: commas between zones, semicolons between "
        'partitions; the lists repeat, so one is for all. "" for none.',
    ),
]

ZONES_SHOWN = 40
"""Characters of a topic's zones in a table."""


def register(app: typer.Typer) -> None:
    family = typer.Typer(help="Topics and their partition counts.", no_args_is_help=True)
    family.command("create")(create)
    family.command("alter")(alter)
    family.command("delete")(delete)
    family.command("list")(watchable(list_topics))
    family.command("describe")(watchable(describe))
    app.add_typer(family, name="topic")


def create(
    name: Name,
    partitions: Partitions,
    zones: Zones = None,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Create a topic. If it exists: success with the same count, exit 4 with another.

    With --zones, where it exists in other zones: exit 2.
    """
    with Connection(bootstrap, timeout) as to:
        if dry_run:
            before = _described(to, [name]).results[0]
            created = before.status.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if not created and before.status.code != ErrorCode.NONE:
                raise refused(before.status.code, before.status.message)
            if not created and before.topic.partitions != partitions:
                raise refused(
                    ErrorCode.INVALID_PARTITIONS,
                    f"{name} exists with {before.topic.partitions} partitions",
                )
            wanted = _normal(zones or "")
            if not created and wanted not in ("", before.topic.zones):
                raise refused(ErrorCode.INVALID_REQUEST, f"{name} exists in other zones")
            count, text = partitions, wanted or before.topic.zones
        else:
            request = CreateTopicRequest(name=name, partitions=partitions, zones=zones or "")
            answer = to.ask(lambda at, s: at.topics.CreateTopic(request, timeout=s))
            created, count, text = answer.created, answer.topic.partitions, answer.topic.zones
    document = {
        "name": name,
        "partitions": count,
        "zones": zones_of(text),
        "created": created,
        "dry_run": dry_run,
    }
    show(
        Result(
            schema="muster.topic.create/v1",
            document=document,
            tables=[
                Table(
                    ("TOPIC", "PARTITIONS", "ZONES", "RESULT"),
                    [(name, count, _shown(text), _word(created, dry_run))],
                )
            ],
            items=[document],
            names=[name],
        ),
        output,
    )


def alter(
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, max=PARTITIONS_MAX, help="The new total."),
    ] = None,
    zones: Zones = None,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Let a topic grow to a total, or say in which zones its partitions are.

    Groups that read it rebalance at once; of zones those whose coordinator assigns take notice.
    """
    if partitions is None and zones is None:
        raise CommandError(
            "nothing to alter", next_step="give --partitions or --zones", exit_code=ExitCode.USAGE
        )
    with Connection(bootstrap, timeout) as to:
        before = _described(to, [name]).results[0]
        has = before.topic.partitions
        if partitions is not None and before.status.code == ErrorCode.NONE and has > partitions:
            raise CommandError(
                f"INVALID_PARTITIONS: {name} has {has} partitions, and topics only grow",
                next_step=f"--partitions is the new total: give more than {has}",
                exit_code=ExitCode.CONFLICT,
            )
        if dry_run:
            if before.status.code != ErrorCode.NONE:
                raise refused(before.status.code, before.status.message)
            after = Topic(partitions=partitions or has)
            after.zones = before.topic.zones if zones is None else _normal(zones)
        else:
            after = _altered(to, name, partitions, zones)
    known = before.topic if before.status.code == ErrorCode.NONE else None
    is_same = known is not None and (after.partitions, after.zones) == (has, known.zones)
    word = "unchanged" if is_same else "would be altered" if dry_run else "altered"
    count_before = None if known is None else has
    document = {
        "name": name,
        "partitions": after.partitions,
        "zones": zones_of(after.zones),
        "before": count_before,
        "dry_run": dry_run,
    }
    row = (name, after.partitions, _shown(after.zones), word, count_before)
    show(
        Result(
            schema="muster.topic.alter/v1",
            document=document,
            tables=[Table(("TOPIC", "PARTITIONS", "ZONES", "RESULT", "BEFORE"), [row])],
            items=[document],
            names=[name],
        ),
        output,
    )


def _altered(to: Connection, name: str, partitions: int | None, zones: str | None) -> Topic:
    """Grow first, so that no zones are of partitions that are yet to come."""
    topic = Topic()
    if partitions is not None:
        more = AddPartitionsRequest(name=name, partitions=partitions)
        topic = to.ask(lambda at, s: at.topics.AddPartitions(more, timeout=s)).topic
    if zones is not None:
        request = SetTopicZonesRequest(name=name, zones=zones)
        topic = to.ask(lambda at, s: at.topics.SetTopicZones(request, timeout=s)).topic
    return topic


def _normal(zones: str) -> str:
    """Return the zones as the registry would have them, for a dry run."""
    try:
        return zones_text(zones_of(zones))
    except InvalidRequest as error:
        raise refused(ErrorCode.INVALID_REQUEST, error.message) from None


def _shown(zones: str) -> str:
    """The zones as text, in so far as a table has room."""
    return zones if len(zones) <= ZONES_SHOWN else zones[: ZONES_SHOWN - 3] + "..."


def delete(
    name: Name,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete a topic and all offsets that groups have of it. Groups that read it rebalance.

    Exits 2 for the two topics that keep the tasks of task groups, 3 where there is no such topic, 6
    where not all of its offsets are gone in time.
    """
    if why := task_topics.why_kept(name):
        raise CommandError(why, next_step=task_topics.INSTEAD, exit_code=ExitCode.USAGE)
    if not dry_run:
        confirm(f"Delete topic {name} with all committed offsets?", yes=yes)
    plan = DeleteTopicRequest(name=name, validate_only=True)
    with Connection(bootstrap, timeout) as to:
        found = to.ask(lambda at, s: at.topics.DeleteTopic(plan, timeout=s))
        if not dry_run:
            _delete(to, found.topic)
    word = "would be deleted" if dry_run else "deleted"
    document = {
        "name": name,
        "partitions": found.topic.partitions,
        "offsets": found.offsets,
        "groups": found.groups,
        "reading_groups": found.reading_groups,
        "reading_group_ids": list(found.reading_group_ids),
        "dry_run": dry_run,
    }
    row = (name, found.topic.partitions, found.offsets, found.groups, found.reading_groups, word)
    columns = ("TOPIC", "PARTITIONS", "OFFSETS", "GROUPS", "READING-GROUPS", "RESULT")
    show(
        Result(
            schema="muster.topic.delete/v1",
            document=document,
            tables=[Table(columns, [row])],
            items=[document],
            names=[name],
        ),
        output,
    )


def _delete(to: Connection, topic: Topic) -> None:
    """Returns once no shard has offsets of it. Raises CommandError where the time is over."""
    name = topic.name
    request = DeleteTopicRequest(name=name, creation_version=topic.creation_version)

    def call(at: Stubs, timeout_s: float) -> DeleteTopicResponse:
        answer: DeleteTopicResponse = at.topics.DeleteTopic(request, timeout=timeout_s)
        return answer

    removal, version, unknown = Removal(call), 0, False
    try:
        version = to.ask(removal).topics_version
    except CommandError as error:
        unknown = error.exit_code is ExitCode.NOT_FOUND
        if not unknown or not removal.in_doubt:
            raise
    try:
        while True:
            seen = _described(to, [name])
            (result,) = seen.results
            told = not unknown or result.status.code != ErrorCode.NONE
            told = told or result.topic.creation_version != topic.creation_version
            if told and seen.topics_version >= version and not result.deleting:
                return
            time.sleep(min(timeouts.DELETION_POLL_MS / 1000, to.remaining_s()))
    except CommandError as error:
        raise CommandError(
            f"topic {name} is deleted, but not seen to be without offsets: {error.message}",
            next_step="`muster cluster status` shows shards without a leader: they drop the "
            "offsets once they have one, and until then the name cannot be used again",
            exit_code=ExitCode.UNREACHABLE,
        ) from error


def list_topics(
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List all topics, by name."""
    with Connection(bootstrap, timeout) as to:
        answer = to.ask(lambda at, s: at.topics.ListTopics(ListTopicsRequest(), timeout=s))
    topics = sorted(answer.topics, key=lambda topic: topic.name)
    show(_topics("muster.topic.list/v1", topics), output)


def describe(
    names: Names,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Describe topics. Exits 3 where one does not exist; the others are printed."""
    with Connection(bootstrap, timeout) as to:
        results = _described(to, names).results
    topics = [result.topic for result in results if result.status.code == ErrorCode.NONE]
    show(_topics("muster.topic.describe/v1", topics), output)
    for result in results:
        if result.status.code != ErrorCode.NONE:
            raise refused(result.status.code, result.status.message or f"topic {result.name}")


def _described(to: Connection, names: list[str]) -> DescribeTopicsResponse:
    request = DescribeTopicsRequest(names=names)
    answer = to.ask(lambda at, s: at.topics.DescribeTopics(request, timeout=s))
    if len(answer.results) != len(names):
        raise CommandError(
            f"the node answered {len(answer.results)} of {len(names)} topics",
            next_step="compare `muster version` with the node's version",
            exit_code=ExitCode.ERROR,
        )
    return answer


def _topics(schema: str, topics: list[Topic]) -> Result:
    items = [
        {
            "name": topic.name,
            "partitions": topic.partitions,
            "zones": zones_of(topic.zones),
            "created_at": rfc3339(topic.created_wall_ms),
        }
        for topic in topics
    ]
    rows = [
        (topic.name, topic.partitions, _shown(topic.zones), rfc3339(topic.created_wall_ms))
        for topic in topics
    ]
    return Result(
        schema=schema,
        document={"topics": items},
        tables=[Table(("TOPIC", "PARTITIONS", "ZONES", "CREATED"), rows)],
        items=items,
        names=[topic.name for topic in topics],
    )


def _word(created: bool, dry_run: bool) -> str:
    if created:
        return "would be created" if dry_run else "created"
    return "exists"
