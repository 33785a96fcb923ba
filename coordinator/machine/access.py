"""Who may do what: rules and bearer tokens, as shard 0 keeps them, and the question asked of them.

A rule allows a principal an operation on a resource, or denies it. What no rule allows is refused,
and one that denies wins over all that allow. A cluster without any rule is open: whoever holds the
rules asks that first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

ANYBODY: Final = "*"
"""The principal of rules for whoever has an identity."""
ANONYMOUS: Final = "anonymous"
"""What callers are called whom nobody asked who they are."""
OPERATOR: Final = "operator"
"""What callers with the operators' secret are called."""
NODE_PREFIX: Final = "node:"
"""The names of nodes begin with it."""
JWT_PREFIX: Final = "jwt:"
"""Principals of JWTs begin with it, so that none is a token's or a certificate's."""


def is_reserved(principal: str) -> bool:
    """Whether muster itself gives this name, so that no token or client certificate may."""
    return principal in (ANONYMOUS, OPERATOR) or principal.startswith((NODE_PREFIX, JWT_PREFIX))


class Operation(IntEnum):
    """What is done to a resource."""

    JOIN = 1
    COMMIT = 2
    DESCRIBE = 3
    ALTER = 4
    ADMIN = 5


class Resource(IntEnum):
    """What something is done to. There is one cluster, whose name is ""."""

    GROUP = 1
    TOPIC = 2
    CLUSTER = 3


class Pattern(IntEnum):
    """How a rule names resources."""

    LITERAL = 1
    PREFIX = 2
    """All names that begin so: with "" all there are."""


IMPLIED_BY: Final = {
    Operation.JOIN: (Operation.JOIN, Operation.ADMIN),
    Operation.COMMIT: (Operation.COMMIT, Operation.ADMIN),
    Operation.DESCRIBE: tuple(Operation),
    Operation.ALTER: (Operation.ALTER, Operation.ADMIN),
    Operation.ADMIN: (Operation.ADMIN,),
}
"""For each operation those that allow it."""

DENIED_BY: Final = {one: tuple(dict.fromkeys((one, Operation.ADMIN))) for one in Operation}
"""For each operation those whose denial denies it: its own, and ADMIN, which is everything."""

OPERATIONS: Final = {
    Resource.GROUP: tuple(Operation),
    Resource.TOPIC: (Operation.DESCRIBE, Operation.ALTER, Operation.ADMIN),
    Resource.CLUSTER: (Operation.DESCRIBE, Operation.ALTER, Operation.ADMIN),
}
"""What there is to do to each kind of resource."""


@dataclass(frozen=True, slots=True)
class AclRule:
    """One rule: `principal` may do `operation` to what has the name, or with `deny` may not."""

    principal: str
    operation: Operation
    resource: Resource
    pattern: Pattern
    name: str
    deny: bool = False


@dataclass(frozen=True, slots=True)
class TokenScope:
    """What a token may be used for, where its principal is allowed it as well."""

    operation: Operation
    resource: Resource
    pattern: Pattern
    name: str

    def covers(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether the token may be used for this."""
        if resource is not self.resource or self.operation not in IMPLIED_BY[operation]:
            return False
        return name == self.name or (self.pattern is Pattern.PREFIX and name.startswith(self.name))


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token without its secret. `expires_wall_ms` 0: never."""

    principal: str
    secret_hash: bytes
    created_wall_ms: int
    expires_wall_ms: int
    scopes: tuple[TokenScope, ...] = ()

    def has_expired(self, wall_ms: int) -> bool:
        """Whether it is good no more at this time."""
        return 0 < self.expires_wall_ms <= wall_ms


_DENIED_SHIFT: Final = 8
"""By so many bits a mask has what is denied above what is allowed."""


def _bit(operation: Operation, *, deny: bool) -> int:
    return 1 << (operation + _DENIED_SHIFT * deny)


_ALLOWING: Final = {
    operation: sum(_bit(one, deny=False) for one in by) for operation, by in IMPLIED_BY.items()
}
_DENYING: Final = {
    operation: sum(_bit(one, deny=True) for one in by) for operation, by in DENIED_BY.items()
}


@dataclass(slots=True)
class _Patterns:
    """The rules of one principal about one kind of resource: for each name a mask of them."""

    literal: dict[str, int] = field(default_factory=dict)
    prefixes: dict[int, dict[str, int]] = field(default_factory=dict)
    """By their length: a question costs one look-up for each length there is."""

    def mask(self, name: str) -> int:
        found = self.literal.get(name, 0)
        for length, by_prefix in self.prefixes.items():
            if length <= len(name):
                found |= by_prefix.get(name[:length], 0)
        return found


@dataclass(slots=True)
class RuleIndex:
    """The rules by principal and kind of resource. It follows from the rules."""

    by_principal: dict[tuple[str, Resource], _Patterns] = field(default_factory=dict)

    def add(self, rule: AclRule) -> None:
        """Take in a rule that was not in it."""
        patterns = self.by_principal.setdefault((rule.principal, rule.resource), _Patterns())
        if rule.pattern is Pattern.LITERAL:
            masks = patterns.literal
        else:
            masks = patterns.prefixes.setdefault(len(rule.name), {})
        masks[rule.name] = masks.get(rule.name, 0) | _bit(rule.operation, deny=rule.deny)

    def remove(self, rule: AclRule) -> None:
        """Forget a rule that was in it."""
        key = (rule.principal, rule.resource)
        patterns = self.by_principal[key]
        literal = rule.pattern is Pattern.LITERAL
        masks = patterns.literal if literal else patterns.prefixes[len(rule.name)]
        masks[rule.name] &= ~_bit(rule.operation, deny=rule.deny)
        if not masks[rule.name]:
            del masks[rule.name]
        if not literal and not masks:
            del patterns.prefixes[len(rule.name)]
        if not patterns.literal and not patterns.prefixes:
            del self.by_principal[key]

    def mask(self, principal: str, resource: Resource, name: str) -> int:
        """All that the rules say of these: a bit each for what is allowed and what is denied."""
        found = 0
        for who in (principal, ANYBODY):
            patterns = self.by_principal.get((who, resource))
            if patterns is not None:
                found |= patterns.mask(name)
        return found


def authorize(
    index: RuleIndex, principal: str, operation: Operation, resource: Resource, name: str = ""
) -> bool:
    """Whether a rule allows this to `principal`, and none denies it.

    It costs a look-up for each length of a prefix in the rules of the principal and of anybody.
    """
    mask = index.mask(principal, resource, name)
    return bool(mask & _ALLOWING[operation]) and not mask & _DENYING[operation]


def deciding_rules(
    rules: Iterator[AclRule], principal: str, operation: Operation, resource: Resource, name: str
) -> tuple[AclRule, ...]:
    """Those of `rules` that speak of this, for people; it looks at each of them."""
    return tuple(
        rule
        for rule in rules
        if rule.principal in (principal, ANYBODY)
        and rule.resource is resource
        and rule.operation in (DENIED_BY if rule.deny else IMPLIED_BY)[operation]
        and (rule.name == name or (rule.pattern is Pattern.PREFIX and name.startswith(rule.name)))
    )
