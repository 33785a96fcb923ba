"""`muster group reset-offsets`: a group without members goes on from other offsets.

Nothing is changed without `--execute`. What is written is compared and set (`reset_commit`): an
offset that somebody else changed since it was read is a conflict, and never written over.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.connection import Connection
from muster.cli.errors import CommandError, ExitCode, note
from muster.cli.group.offset_file import read_offsets, write_offsets
from muster.cli.group.offset_plan import (
    OFFSET_MAX,
    Known,
    Rule,
    Step,
    plan,
    shift_by,
    to_current,
    to_earliest,
    to_given,
    to_latest,
    to_offset,
)
from muster.cli.group.owners import Group, Partition
from muster.cli.group.partition_arguments import parse_place
from muster.cli.group.read import Committed, committed, described
from muster.cli.group.reset_commit import SLICE_PARTITIONS, Outcome, execute, in_use, slices
from muster.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Output,
    Timeout,
)
from muster.cli.output import Format, Result, Table, Value, show
from muster.cli.refusals import refused
from muster.v1.admin_pb2 import DescribeTopicsRequest, DescribeTopicsResponse
from muster.v1.errors_pb2 import ErrorCode

COLUMNS = ("GROUP", "TOPIC", "PARTITION", "PRIOR-OFFSET", "NEW-OFFSET", "RESULT")
NAMED_MAX = 5
"""So many partitions are named in a message, the others are counted."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a reset is asked for. No `topics`: all. `starts`: no stored offset is needed."""

    group_id: str
    topics: Sequence[str]
    offsets: dict[Partition, int] | None
    rule: Rule
    starts: bool
    export: Path | None
    execute: bool


def reset_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Id of a group.")],
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC[:PARTITION,...]", help="What to reset; repeatable."),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Every topic that the group has offsets of.")
    ] = False,
    earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the start that members reported.")
    ] = False,
    latest: Annotated[
        bool, typer.Option("--to-latest", help="To the end that members reported.")
    ] = False,
    current: Annotated[
        bool, typer.Option("--to-current", help="To where it is; with --export a copy of it.")
    ] = False,
    offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, max=OFFSET_MAX, help="To this offset.")
    ] = None,
    shift: Annotated[
        int | None,
        typer.Option(
            "--shift-by",
            help="So many further, or back: -5. Within the ends that members reported.",
        ),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="To the offsets in a CSV file, or .json.")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the new offsets to a file for --from-file."),
    ] = None,
    do: Annotated[bool, typer.Option("--execute", help="Do it.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: so it is without --execute.")
    ] = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Set committed offsets of a group without members. Changes nothing without --execute.

    Exits 4 where the group has members, a partition has no place to go to, or an offset has
    changed since it was read.
    """
    if do and dry_run:
        raise _usage("--execute and --dry-run exclude each other", "give one of them")
    _one_scope(topic, from_file, all_topics=all_topics)
    rules: list[Rule] = [
        *([to_earliest] if earliest else []),
        *([to_latest] if latest else []),
        *([to_current] if current else []),
        *([] if offset is None else [to_offset(offset)]),
        *([] if shift is None else [shift_by(shift)]),
    ]
    if len(rules) + (from_file is not None) != 1:
        raise _usage(
            "one place to go to is needed",
            "give one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by and "
            "--from-file",
        )
    offsets = None if from_file is None else read_offsets(from_file)
    asked = Asked(
        group_id=group,
        topics=topic or (),
        offsets=offsets,
        rule=rules[0] if offsets is None else to_given(offsets),
        starts=offset is not None or offsets is not None,
        export=export,
        execute=do,
    )
    with Connection(bootstrap, timeout) as to:
        result, failure = reset_group(to, asked)
    show(result, output)
    if failure:
        raise failure


def _one_scope(topic: list[str] | None, from_file: Path | None, *, all_topics: bool) -> None:
    if from_file is not None and (topic or all_topics):
        raise _usage("the file says which partitions", "leave out --topic and --all-topics")
    if from_file is None and bool(topic) == all_topics:
        raise _usage("which partitions?", "give --topic TOPIC[:0,1,3], repeatable, or --all-topics")


def reset_group(to: Connection, asked: Asked) -> tuple[Result, CommandError | None]:
    """Plan it, and carry it out where it is asked for."""
    group = _group(to, asked)
    members = group.members or group.state not in {"", "Empty"}
    refusal = in_use(asked.group_id, len(group.members)) if members else None
    if refusal is not None and asked.execute:
        raise refusal
    known = _known(committed(to, asked.group_id) if group.state else {})
    steps, without = plan(_wanted(to, asked, known), known, asked.rule)
    if without and asked.rule is not to_current:
        raise _no_place(without)
    if asked.export is not None:
        write_offsets(asked.export, {(step.topic, step.partition): step.new for step in steps})
    _notes(asked, group, steps, without)
    if asked.execute:
        outcome = execute(to, asked.group_id, group.generation, steps)
    else:
        # Nothing stands in the way of leaving all as it is: a copy of a running group is fine.
        outcome = Outcome(
            {
                (s.topic, s.partition): "unchanged" if s.prior == s.new else "would be reset"
                for s in steps
            },
            None if asked.rule is to_current else refusal,
        )
    return _result(asked, steps, outcome), outcome.failure


def _group(to: Connection, asked: Asked) -> Group:
    """The group; one that does not exist may start at offsets that are given: no state then."""
    try:
        return described(to, asked.group_id)
    except CommandError as error:
        if error.exit_code is not ExitCode.NOT_FOUND or not asked.starts:
            raise
        return Group(group_id=asked.group_id)


def _known(stored: Committed) -> dict[Partition, Known]:
    return {
        key: Known(
            offset=one.offset,
            start_offset=one.start_offset if one.HasField("start_offset") else None,
            end_offset=one.end_offset if one.HasField("end_offset") else None,
            metadata=one.metadata,
        )
        for key, one in stored.items()
    }


def _wanted(to: Connection, asked: Asked, known: dict[Partition, Known]) -> set[Partition]:
    """The partitions that are meant. Raises CommandError (not found) where one does not exist."""
    named: dict[str, set[int]] = {}
    whole: set[str] = set()
    if asked.offsets is not None:
        for name, number in asked.offsets:
            named.setdefault(name, set()).add(number)
    elif not asked.topics:
        whole = {name for name, _ in known}
    for text in asked.topics:
        name, numbers = parse_place(text)
        if numbers is None:
            whole.add(name)
        else:
            named.setdefault(name, set()).update(numbers)
    counts = _counts(to, sorted({*whole, *named}))
    for name, asked_for in named.items():
        missing = sorted(number for number in asked_for if number >= counts[name])
        if missing:
            raise refused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {name} has {counts[name]} partitions, from 0: there is no {missing[0]}",
            )
    wanted = {(name, number) for name, asked_for in named.items() for number in asked_for}
    return wanted | {(name, number) for name in whole for number in range(counts[name])}


def _counts(to: Connection, names: list[str]) -> dict[str, int]:
    """Topic -> its number of partitions."""
    counts: dict[str, int] = {}
    for start in range(0, len(names), SLICE_PARTITIONS):
        for result in _topics(to, names[start : start + SLICE_PARTITIONS]):
            if result.status.code != ErrorCode.NONE:
                text = result.status.message
                raise refused(result.status.code, f"{result.name}: {text}" if text else result.name)
            counts[result.name] = result.topic.partitions
    for name in names:
        if name not in counts:
            raise refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no node told of topic {name}")
    return counts


def _topics(to: Connection, names: list[str]) -> Iterable[DescribeTopicsResponse.Result]:
    request = DescribeTopicsRequest(names=names)
    return to.ask(lambda at, s: at.topics.DescribeTopics(request, timeout=s)).results


def _no_place(without: dict[Partition, str]) -> CommandError:
    why = next(iter(without.values()))
    keys = [key for key, reason in without.items() if reason == why]
    return CommandError(
        f"{why} of {_named(keys)}",
        next_step="name the other partitions with --topic TOPIC:0,1, or give --to-offset",
        exit_code=ExitCode.CONFLICT,
    )


def _notes(
    asked: Asked, group: Group, steps: Sequence[Step], without: dict[Partition, str]
) -> None:
    if not group.state:
        note(f"there is no group {asked.group_id!r} yet: its first offset creates it")
    if not steps and not without:
        note(f"no offset of {asked.group_id!r} is stored: there is nothing to reset")
    if without:
        note(f"no offset is stored of {_named(list(without))}: left out")
    cut = [(step.topic, step.partition) for step in steps if step.cut]
    if cut:
        note(f"cut to the ends that are known: {_named(cut)}")
    parts = len(slices(steps))
    if parts > 1:
        note(
            f"{len(steps)} partitions go in {parts} commits of at most {SLICE_PARTITIONS}: each is "
            "all or nothing, the whole is not"
        )


def _named(keys: Sequence[Partition]) -> str:
    text = ", ".join(f"{topic}/{number}" for topic, number in keys[:NAMED_MAX])
    more = len(keys) - NAMED_MAX
    return f"{text} and {more} more" if more > 0 else text


def _result(asked: Asked, steps: Sequence[Step], outcome: Outcome) -> Result:
    items: list[dict[str, Value]] = [
        {
            "group_id": asked.group_id,
            "topic": step.topic,
            "partition": step.partition,
            "prior_offset": step.prior,
            "new_offset": step.new,
            "result": outcome.words[step.topic, step.partition],
        }
        for step in steps
    ]
    return Result(
        schema="muster.group.reset-offsets/v1",
        document={"offsets": items, "dry_run": not asked.execute},
        tables=[Table(COLUMNS, [list(item.values()) for item in items])],
        items=items,
        names=[f"{step.topic}/{step.partition}" for step in steps],
    )


def _usage(message: str, next_step: str) -> CommandError:
    return CommandError(message, next_step=next_step, exit_code=ExitCode.USAGE)
