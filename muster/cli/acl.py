"""`muster acl`: the rules of who may do what."""

from typing import Annotated

import typer

from muster.cli.acl_words import (
    Kind,
    Name,
    Operation,
    Operations,
    Principal,
    Wait,
    operation_of,
    resource_of,
    rules_of,
    wait_for_all,
    words_of,
)
from muster.cli.connection import Connection
from muster.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Output, Timeout
from muster.cli.output import Format, Result, Table, Value, show
from muster.v1.access_pb2 import (
    AclRule,
    AlterAclsRequest,
    DescribeAclsRequest,
    TestAccessRequest,
)

COLUMNS = ("PRINCIPAL", "RIGHT", "OPERATION", "RESOURCE", "NAME")

Deny = Annotated[bool, typer.Option("--deny", help="A rule that denies: it wins over all others.")]


def register(app: typer.Typer) -> None:
    family = typer.Typer(help="Rules of who may do what.", no_args_is_help=True)
    family.command("list")(list_rules)
    family.command("grant")(grant)
    family.command("revoke")(revoke)
    family.command("test")(ask)
    app.add_typer(family, name="acl")


def list_rules(
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List all rules, by principal. Without any the cluster is open to everybody."""
    with Connection(bootstrap, timeout) as to:
        request = DescribeAclsRequest()
        answer = to.ask(
            lambda at, s: at.access.DescribeAcls(request, timeout=s, metadata=to.operator())
        )
        rules = list(answer.rules)
    items = [_item(rule) for rule in rules]
    document: dict[str, object] = {
        "rules": items,
        "open": not items,
        "access_version": answer.access_version,
    }
    show(
        Result(
            schema="muster.acl.list/v1",
            document=document,
            tables=[Table(COLUMNS, [tuple(item.values()) for item in items])],
            items=items,
            names=[" ".join(str(value) for value in item.values()) for item in items],
        ),
        output,
    )


def grant(
    principal: Principal,
    operations: Operations,
    resource: Kind,
    name: Name = "",
    deny: Deny = False,
    wait: Wait = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Add rules, one for each operation. With the first one the cluster is open no more."""
    rules = rules_of(principal, operations, resource, name, deny=deny)
    _alter(AlterAclsRequest(added=rules), rules, "granted", wait, output, bootstrap, timeout)


def revoke(
    principal: Principal,
    operations: Operations,
    resource: Kind,
    name: Name = "",
    deny: Deny = False,
    opens: Annotated[
        bool, typer.Option("--opens", help="It may be the last rule: the cluster is then open.")
    ] = False,
    wait: Wait = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Remove rules, as they were granted. Calls that wait under them end."""
    rules = rules_of(principal, operations, resource, name, deny=deny)
    request = AlterAclsRequest(removed=rules, opens=opens)
    _alter(request, rules, "revoked", wait, output, bootstrap, timeout)


def _alter(
    request: AlterAclsRequest,
    rules: list[AclRule],
    word: str,
    wait: bool,
    output: Format,
    bootstrap: str,
    timeout: float,
) -> None:
    with Connection(bootstrap, timeout) as to:
        answer = to.ask(
            lambda at, s: at.access.AlterAcls(request, timeout=s, metadata=to.operator())
        )
        if wait:
            wait_for_all(to, answer.access_version)
    result = word if answer.changed else "unchanged"
    items = [{**_item(rule), "result": result} for rule in rules]
    show(
        Result(
            schema=f"muster.acl.{word}/v1",
            document={"rules": items, "access_version": answer.access_version},
            tables=[Table((*COLUMNS, "RESULT"), [tuple(item.values()) for item in items])],
            items=items,
            names=list(dict.fromkeys(rule.principal for rule in rules)),
        ),
        output,
    )


def ask(
    principal: Principal,
    operation: Operation,
    resource: Kind,
    name: Name = "",
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Say whether the rules allow this to a principal, and why."""
    request = TestAccessRequest(
        principal=principal,
        operation=operation_of(operation),
        resource=resource_of(resource),
        name=name,
    )
    with Connection(bootstrap, timeout) as to:
        answer = to.ask(
            lambda at, s: at.access.TestAccess(request, timeout=s, metadata=to.operator())
        )
    document: dict[str, Value] = {
        "principal": principal,
        "operation": operation,
        "resource": resource,
        "name": name,
        "allowed": answer.allowed,
        "reason": answer.reason,
    }
    word = "allowed" if answer.allowed else "denied"
    row = (principal, operation, resource, name, word, answer.reason)
    show(
        Result(
            schema="muster.acl.test/v1",
            document=document,
            tables=[
                Table(("PRINCIPAL", "OPERATION", "RESOURCE", "NAME", "RESULT", "REASON"), [row])
            ],
            items=[document],
            names=[word],
        ),
        output,
    )


def _item(rule: AclRule) -> dict[str, Value]:
    operation, resource, name = words_of(rule)
    return {
        "principal": rule.principal,
        "right": "deny" if rule.deny else "allow",
        "operation": operation,
        "resource": resource,
        "name": name,
    }
