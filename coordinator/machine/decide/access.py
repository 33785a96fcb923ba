"""Commands about rules and tokens (docs/adr/0027). All of them are shard 0's."""

from collections.abc import Iterable, Sequence
from typing import Final

from musterd.coordinator.machine.access import (
    OPERATIONS,
    AclRule,
    Pattern,
    Resource,
    Token,
    TokenScope,
    is_reserved,
)
from musterd.coordinator.machine.commands import AlterAcls, CreateToken, RevokeToken
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import AclsAltered, TokenCreated, TokensRemoved
from musterd.coordinator.machine.limits import Limits
from musterd.coordinator.machine.records.shard_records import ShardState
from musterd.coordinator.machine.replies import Done, Refused
from musterd.invariant import invariant

AccessEvent = AclsAltered | TokenCreated | TokensRemoved

HASH_BYTES: Final = 32
TOKEN_ID_CHARS: Final = 16
EXPIRED_AT_ONCE: Final = 100
"""Expired tokens that go when one is made."""
_HEX: Final = "0123456789abcdef"

Decided = tuple[tuple[AccessEvent, ...], Done | Refused]


def decide_acls(state: ShardState, command: AlterAcls, limits: Limits) -> Decided:
    """All changes or none. Rules that stand, or do not, are no change."""
    refused = _refuse_rules((*command.added, *command.removed), limits)
    if refused is not None:
        return (), refused
    removed = tuple(
        rule
        for rule in dict.fromkeys(command.removed)
        if rule in state.rules and rule not in command.added
    )
    added = tuple(rule for rule in dict.fromkeys(command.added) if rule not in state.rules)
    if not added and not removed:
        return (), Done(changed=False)
    left = len(state.rules) + len(added) - len(removed)
    if left > limits.max_acl_rules:
        return (), _invalid(f"The cluster has {limits.max_acl_rules} rules at most.")
    if not left and not command.opens:
        return (), _invalid(
            "No rule would be left, and the cluster open to everybody whom its ports take: say so "
            "(`--opens`) if that is meant."
        )
    return (AclsAltered(added, removed, state.access_version + 1),), Done()


def decide_token(state: ShardState, command: CreateToken, limits: Limits, wall_ms: int) -> Decided:
    """A token that is made again, as it was, is a success. What has expired makes room."""
    refused = _refuse_token(command, limits)
    if refused is not None:
        return (), refused
    known = state.tokens.get(command.token_id)
    if known is not None:
        if known.secret_hash == command.secret_hash:
            return (), Done(changed=False)
        return (), _invalid("There is a token of this id.")
    if 0 < command.expires_wall_ms <= wall_ms:
        return (), _invalid("The token would have expired already.")
    gone = [token_id for token_id, one in state.tokens.items() if one.has_expired(wall_ms)]
    gone = sorted(gone)[:EXPIRED_AT_ONCE]
    if len(state.tokens) - len(gone) >= limits.max_tokens:
        return (), _invalid(f"The cluster has {limits.max_tokens} tokens at most: revoke some.")
    version = state.access_version
    events: tuple[AccessEvent, ...] = ()
    if gone:
        version += 1
        events = (TokensRemoved(tuple(gone), version),)
    made = TokenCreated(
        command.token_id,
        command.principal,
        command.secret_hash,
        wall_ms,
        command.expires_wall_ms,
        command.scopes,
        version + 1,
    )
    return (*events, made), Done()


def decide_revocation(state: ShardState, command: RevokeToken) -> Decided:
    """A token that is not there is no error: it is good no more."""
    if command.token_id not in state.tokens:
        return (), Done(changed=False)
    return (TokensRemoved((command.token_id,), state.access_version + 1),), Done()


def evolve_access(state: ShardState, event: AccessEvent) -> None:
    """Apply one event; mutates `state`."""
    invariant(event.access_version == state.access_version + 1, "another version of the rules")
    state.access_version = event.access_version
    match event:
        case AclsAltered():
            for rule in event.removed:
                invariant(rule in state.rules, "a rule is removed that stands")
                del state.rules[rule]
                state.rule_index.remove(rule)
            for rule in event.added:
                invariant(rule not in state.rules, "a rule is added once")
                state.rules[rule] = event.access_version
                state.rule_index.add(rule)
        case TokenCreated():
            invariant(event.token_id not in state.tokens, "a token is made once")
            state.tokens[event.token_id] = Token(
                event.principal,
                event.secret_hash,
                event.created_wall_ms,
                event.expires_wall_ms,
                event.scopes,
            )
        case TokensRemoved():
            for token_id in event.token_ids:
                invariant(token_id in state.tokens, "a token is removed that is there")
                del state.tokens[token_id]


def _invalid(message: str) -> Refused:
    return Refused(Error.INVALID_REQUEST, message)


def _refuse_rules(rules: Sequence[AclRule], limits: Limits) -> Refused | None:
    most = limits.alter_acls_max_rules
    if not 0 < len(rules) <= most:
        return _invalid(f"1 to {most} rules change at once; here are {len(rules)}.")
    for rule in rules:
        refused = refuse_principal(rule.principal, limits) or _refuse_scope(rule, limits)
        if refused is not None:
            return refused
    return None


def refuse_principal(principal: str, limits: Limits) -> Refused | None:
    """Why nobody can have this name, or None."""
    if 0 < len(principal.encode()) <= limits.id_max_bytes and _is_plain(principal):
        return None
    most = limits.id_max_bytes
    return _invalid(f"A principal has 1 to {most} bytes, and no control characters.")


def _is_plain(text: str) -> bool:
    return not any(char < " " or char == "\x7f" for char in text)


def _refuse_scope(asked: AclRule | TokenScope, limits: Limits) -> Refused | None:
    """Return what is wrong with operation, resource and name, or None."""
    if asked.operation not in OPERATIONS[asked.resource]:
        return _invalid("join and commit are done to groups alone.")
    if asked.resource is Resource.CLUSTER:
        if asked.name or asked.pattern is not Pattern.LITERAL:
            return _invalid("The cluster has no name: give none, and no prefix.")
        return None
    if len(asked.name.encode()) > limits.id_max_bytes:
        return _invalid(f"A name has at most {limits.id_max_bytes} bytes.")
    if not asked.name and asked.pattern is Pattern.LITERAL:
        return _invalid('A rule needs a name, or the prefix "", which is every name.')
    return None


def _refuse_token(command: CreateToken, limits: Limits) -> Refused | None:
    refused = refuse_principal(command.principal, limits)
    if refused is not None:
        return refused
    if command.principal == "*":
        return _invalid("A token is one principal's, not everybody's.")
    if is_reserved(command.principal):
        return _invalid(
            "anonymous, operator and what begins with node: or jwt: are names that muster gives: "
            "no token has them."
        )
    if len(command.token_id) != TOKEN_ID_CHARS or not _is_hex(command.token_id):
        return _invalid("A token's id has 16 hex digits.")
    if len(command.secret_hash) != HASH_BYTES:
        return _invalid("A token's hash has 32 bytes.")
    if command.expires_wall_ms < 0:
        return _invalid("A token expires at a time after 1970, or never (0).")
    most = limits.token_max_scopes
    if len(command.scopes) > most:
        return _invalid(f"A token has at most {most} scopes; this one has {len(command.scopes)}.")
    refusals = (_refuse_scope(scope, limits) for scope in command.scopes)
    return next((one for one in refusals if one is not None), None)


def _is_hex(text: Iterable[str]) -> bool:
    return all(char in _HEX for char in text)
