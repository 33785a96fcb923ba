"""`muster topic`: the registry of topics and their partition counts."""

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
from muster.cli.output import Format, Result, Table, show
from muster.cli.refusals import refused
from muster.cli.watch import watchable
from muster.v1.admin_pb2 import (
    AddPartitionsRequest,
    CreateTopicRequest,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    ListTopicsRequest,
)
from muster.v1.errors_pb2 import ErrorCode

PARTITIONS_MAX = 2**31 - 1

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
Names = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of topics.")]
Partitions = Annotated[
    int,
    typer.Option("--partitions", "-p", min=1, max=PARTITIONS_MAX, help="How many partitions."),
]


def register(app: typer.Typer) -> None:
    """Add `muster topic`."""
    family = typer.Typer(help="Topics and their partition counts.", no_args_is_help=True)
    family.command("create")(create)
    family.command("alter")(alter)
    family.command("list")(watchable(list_topics))
    family.command("describe")(watchable(describe))
    app.add_typer(family, name="topic")


def create(
    name: Name,
    partitions: Partitions,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Create a topic. If it exists: success with the same count, exit 4 with another."""
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
            count = partitions
        else:
            request = CreateTopicRequest(name=name, partitions=partitions)
            answer = to.ask(lambda at, s: at.topics.CreateTopic(request, timeout=s))
            created, count = answer.created, answer.topic.partitions
    document = {"name": name, "partitions": count, "created": created, "dry_run": dry_run}
    show(
        Result(
            schema="muster.topic.create/v1",
            document=document,
            tables=[
                Table(("TOPIC", "PARTITIONS", "RESULT"), [(name, count, _word(created, dry_run))])
            ],
            items=[document],
            names=[name],
        ),
        output,
    )


def alter(
    name: Name,
    partitions: Annotated[
        int,
        typer.Option("--partitions", "-p", min=1, max=PARTITIONS_MAX, help="The new total."),
    ],
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Let a topic grow to a total. Groups that read it rebalance at once."""
    with Connection(bootstrap, timeout) as to:
        before = _described(to, [name]).results[0]
        if dry_run:
            if before.status.code != ErrorCode.NONE:
                raise refused(before.status.code, before.status.message)
            if before.topic.partitions > partitions:
                raise refused(
                    ErrorCode.INVALID_PARTITIONS,
                    f"{name} has {before.topic.partitions} partitions, and topics only grow",
                )
            count = partitions
        else:
            request = AddPartitionsRequest(name=name, partitions=partitions)
            answer = to.ask(lambda at, s: at.topics.AddPartitions(request, timeout=s))
            count = answer.topic.partitions
    word = "would be the total" if dry_run else "is the total"
    known = before.topic.partitions if before.status.code == ErrorCode.NONE else None
    document = {"name": name, "partitions": count, "before": known, "dry_run": dry_run}
    show(
        Result(
            schema="muster.topic.alter/v1",
            document=document,
            tables=[
                Table(("TOPIC", "PARTITIONS", "RESULT", "BEFORE"), [(name, count, word, known)])
            ],
            items=[document],
            names=[name],
        ),
        output,
    )


def list_topics(
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List all topics, by name."""
    with Connection(bootstrap, timeout) as to:
        answer = to.ask(lambda at, s: at.topics.ListTopics(ListTopicsRequest(), timeout=s))
    pairs = sorted((topic.name, topic.partitions) for topic in answer.topics)
    show(_topics("muster.topic.list/v1", pairs), output)


def describe(
    names: Names,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Describe topics. Exits 3 where one does not exist; the others are printed."""
    with Connection(bootstrap, timeout) as to:
        results = _described(to, names).results
    pairs = [(r.name, r.topic.partitions) for r in results if r.status.code == ErrorCode.NONE]
    show(_topics("muster.topic.describe/v1", pairs), output)
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


def _topics(schema: str, pairs: list[tuple[str, int]]) -> Result:
    items = [{"name": name, "partitions": count} for name, count in pairs]
    return Result(
        schema=schema,
        document={"topics": items},
        tables=[Table(("TOPIC", "PARTITIONS"), pairs)],
        items=items,
        names=[name for name, _ in pairs],
    )


def _word(created: bool, dry_run: bool) -> str:
    if created:
        return "would be created" if dry_run else "created"
    return "exists"
