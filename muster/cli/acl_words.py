"""Rules as people write them: `ann join,commit group billing-*`."""

from collections.abc import Mapping
from typing import Annotated, TypeVar

import typer

from muster.cli.connection import Connection
from muster.cli.errors import CommandError, ExitCode
from muster.v1.access_pb2 import AclOperation, AclPattern, AclResource, AclRule, TokenScope
from muster.v1.admin_pb2 import DescribeClusterRequest

T = TypeVar("T")

OPERATIONS = {
    name: AclOperation.Value(f"ACL_{name.upper()}")
    for name in ("join", "commit", "describe", "alter", "admin")
}
RESOURCES = {
    name: AclResource.Value(f"ACL_{name.upper()}") for name in ("group", "topic", "cluster")
}

Principal = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="Who; * is whoever has an identity.")
]
Operations = Annotated[
    str,
    typer.Argument(
        metavar="OPERATION,...",
        help="Some of join, commit, describe, alter, admin.",
    ),
]
Operation = Annotated[
    str, typer.Argument(metavar="OPERATION", help="join, commit, describe, alter or admin.")
]
Kind = Annotated[str, typer.Argument(metavar="RESOURCE", help="group, topic or cluster.")]
Name = Annotated[
    str,
    typer.Argument(
        metavar="[NAME]",
        help="Its name; one that ends in * is a prefix. The cluster has none.",
    ),
]
Wait = Annotated[
    bool,
    typer.Option("--wait", help="Return when all nodes have applied it; name those that have not."),
]


def operation_of(word: str) -> AclOperation.ValueType:
    """The operation of this name. Raises CommandError (usage)."""
    return _of(OPERATIONS, word, "operation")


def resource_of(word: str) -> AclResource.ValueType:
    """The kind of resource of this name. Raises CommandError (usage)."""
    return _of(RESOURCES, word, "resource")


def _of(known: Mapping[str, T], word: str, what: str) -> T:
    if word not in known:
        raise CommandError(
            f"{word!r} is no {what}",
            next_step=f"give one of {', '.join(known)}",
            exit_code=ExitCode.USAGE,
        )
    return known[word]


def pattern_of(name: str) -> tuple[AclPattern.ValueType, str]:
    """How a name is meant: a prefix where it ends in "*"."""
    if name.endswith("*"):
        return AclPattern.ACL_PREFIX, name.removesuffix("*")
    return AclPattern.ACL_LITERAL, name


def rules_of(
    principal: str, operations: str, resource: str, name: str, *, deny: bool
) -> list[AclRule]:
    """One rule for each of the operations. Raises CommandError (usage)."""
    pattern, rest = pattern_of(name)
    return [
        AclRule(
            principal=principal,
            operation=operation_of(word.strip()),
            resource=resource_of(resource),
            pattern=pattern,
            name=rest,
            deny=deny,
        )
        for word in operations.split(",")
    ]


def scope_of(text: str) -> TokenScope:
    """A scope written OPERATION:RESOURCE[:NAME]. Raises CommandError (usage)."""
    operation, _, rest = text.partition(":")
    resource, _, name = rest.partition(":")
    pattern, name = pattern_of(name)
    return TokenScope(
        operation=operation_of(operation),
        resource=resource_of(resource),
        pattern=pattern,
        name=name,
    )


def words_of(one: AclRule | TokenScope) -> tuple[str, str, str]:
    """Operation, resource and name, as they are written here."""
    name = one.name + "*" * (one.pattern == AclPattern.ACL_PREFIX)
    return (
        AclOperation.Name(one.operation).removeprefix("ACL_").lower(),
        AclResource.Name(one.resource).removeprefix("ACL_").lower(),
        name,
    )


def wait_for_all(to: Connection, version: int) -> None:
    """Return when every node has applied this version of the rules.

    Raises:
        CommandError: the time is over; it names the nodes that were not heard of.
    """
    late: list[str] = []
    while True:
        try:
            _, answers = to.ask_each(
                lambda at, s: at.admin.DescribeCluster(DescribeClusterRequest(), timeout=s)
            )
            late = [
                f"node {one.node_id} ({one.error or 'it has not applied it'})"
                for one in answers
                if one.answer is None or one.answer.access_version < version
            ]
        except CommandError:
            if not late:
                raise
            _raise_late(late)
        if not late:
            return
        if not to.pause():
            _raise_late(late)


def _raise_late(late: list[str]) -> None:
    raise CommandError(
        f"it is decided, and not heard of on {', '.join(late)}",
        next_step="a node that is down applies it before it serves again; `muster cluster status` "
        "shows the nodes",
        exit_code=ExitCode.TIMED_OUT,
    )
