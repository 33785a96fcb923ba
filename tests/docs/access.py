"""Writes the tables of docs/access.md: `python -m tests.docs.access`.

They are made of `RULES`; that of each call of some rules for some principals, too, and each of its
cells is tried with a real call: tests/coordinator/api/test_access_table.py in one process, and
tests/e2e/test_guarded.py on three nodes with TLS.
"""

from pathlib import Path

from musterd.coordinator.api.frame.rpc_rules import RULES
from musterd.coordinator.machine.access import (
    AclRule,
    Operation,
    Pattern,
    Resource,
    RuleIndex,
    authorize,
)

PAGE = Path(__file__).parents[2] / "docs" / "access.md"
BEGIN, END = "<!-- the table: python -m tests.docs.access -->\n", "<!-- the end of the table -->\n"
SECRETS = "<!-- operators' calls: python -m tests.docs.access -->\n"
SECRETS_END = "<!-- the end of operators' calls -->\n"
GROUP, TOPIC, CLUSTER = Resource.GROUP, Resource.TOPIC, Resource.CLUSTER

MINE, OTHERS = "mine-1", "other"
"""A name that the rules below speak of, and one that they do not."""


def _rule(who: str, operation: Operation, resource: Resource, name: str = "") -> AclRule:
    pattern = Pattern.PREFIX if name.endswith("*") else Pattern.LITERAL
    return AclRule(who, operation, resource, pattern, name.removesuffix("*"))


GRANTED: dict[str, tuple[AclRule, ...]] = {
    "guest": (),
    "worker": (
        _rule("worker", Operation.JOIN, GROUP, "mine-*"),
        _rule("worker", Operation.COMMIT, GROUP, "mine-*"),
        _rule("worker", Operation.DESCRIBE, TOPIC, "mine-*"),
    ),
    "owner": (
        _rule("owner", Operation.ADMIN, GROUP, "mine-*"),
        _rule("owner", Operation.ADMIN, TOPIC, "mine-*"),
    ),
    "watcher": (
        _rule("watcher", Operation.DESCRIBE, GROUP, "*"),
        _rule("watcher", Operation.DESCRIBE, TOPIC, "*"),
        _rule("watcher", Operation.DESCRIBE, CLUSTER),
    ),
    "admin": (_rule("admin", Operation.ADMIN, CLUSTER),),
}
"""The rules of each principal; `guest` has a token and no rule."""

ROOT = "root"
"""The superuser."""

PRINCIPALS = (*GRANTED, ROOT)

OF_NODES = {"RecordAudit"}
"""What is taken from nodes and the operator alone, who show a certificate or the admin secret."""


COMMANDS = {
    "ReplaceNode": ("cluster replace-node",),
    "FinalizeLevel": ("cluster upgrade",),
    "DescribeClientQuotas": ("quota list", "quota set", "quota delete"),
    "AlterClientQuotas": ("quota set", "quota delete"),
    "AcceptLoss": ("cluster accept-loss",),
    "TransferLeader": ("cluster transfer-leader",),
    "RecordAudit": (),
    "DescribeAudit": ("audit tail", "audit query", "audit verify"),
    "NoteBackup": ("cluster backup",),
    "ReadBackup": ("cluster backup",),
    "AlterAcls": ("acl grant", "acl revoke"),
    "DescribeAcls": ("acl list",),
    "TestAccess": ("acl test",),
    "CreateToken": ("token create",),
    "ListTokens": ("token list",),
    "RevokeToken": ("token revoke",),
}
"""The commands that call the operators' RPCs."""


def names_of(rpc: str) -> tuple[str, ...]:
    """The resources that an RPC is tried on, by name."""
    return ("",) if RULES[rpc].resource is CLUSTER else (MINE, OTHERS)


def is_allowed(principal: str, rpc: str, name: str) -> bool:
    """Whether the rules above allow the call; of a group's topics it names one of the same name."""
    index = RuleIndex()
    for rules in GRANTED.values():
        for rule in rules:
            index.add(rule)
    rule = RULES[rpc]
    if rpc in OF_NODES:
        return False
    if principal == ROOT:
        return True
    allowed = authorize(index, principal, rule.operation, rule.resource, name)
    if rule.topics:
        allowed = allowed and authorize(index, principal, Operation.DESCRIBE, TOPIC, name)
    return allowed


def table() -> str:
    """The table in Markdown."""
    lines = [
        f"| RPC | needs | on | {' | '.join(PRINCIPALS)} |",
        f"|---|---|---|{'---|' * len(PRINCIPALS)}",
    ]
    for rpc, rule in RULES.items():
        needs = f"{rule.operation.name.lower()} {rule.resource.name.lower()}"
        if rpc in OF_NODES:
            needs = "a node's certificate, or the admin secret"
        if rule.topics:
            needs += ", describe topic"
        for name in names_of(rpc):
            cells = ["yes" if is_allowed(who, rpc, name) else "-" for who in PRINCIPALS]
            on = f"`{name}`" if name else "the cluster"
            lines.append(f"| {rpc} | {needs} | {on} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def of_operators() -> str:
    """The RPCs that ask who calls also where there are no rules, with their commands."""
    lines = ["| command | RPC |", "|---|---|"]
    for rpc, rule in RULES.items():
        if rule.by_operator:
            commands = ", ".join(f"`{name}`" for name in COMMANDS[rpc])
            lines.append(f"| {commands or 'none: nodes call each other'} | {rpc} |")
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    """The page with its tables as they have to be."""
    for begin, end, made in ((BEGIN, END, table()), (SECRETS, SECRETS_END, of_operators())):
        before, _, rest = text.partition(begin)
        after = rest.partition(end)[2]
        text = f"{before}{begin}{made}{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
