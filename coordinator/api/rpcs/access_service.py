"""The RPCs of rules and bearer tokens, which shard 0 keeps (docs/adr/0027, docs/access.md)."""

from collections.abc import Iterable
from typing import Any

import structlog

from muster.v1 import access_pb2 as pb
from muster.v1 import access_pb2_grpc
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.handler import (
    CLUSTER_SHARD,
    ActiveCall,
    ClusterService,
    handler,
    with_status,
)
from musterd.coordinator.api.frame.identity import new_token
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.machine.access import (
    AclRule,
    Operation,
    Pattern,
    Resource,
    Token,
    TokenScope,
    authorize,
    deciding_rules,
)
from musterd.coordinator.machine.commands import (
    AlterAcls,
    Command,
    CreateToken,
    RevokeToken,
)
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.records.shard_records import ShardState
from musterd.coordinator.machine.replies import Done, Refused

log = structlog.get_logger()

ACCESS_LEVEL = 6
"""The level from which on a cluster has rules and tokens (musterd/levels.py)."""

ENTRIES_PER_RULE = 2
NO_SUPERUSER = (
    "No superuser is configured on this node, so that nobody could change the rules after the "
    "first one: set `superusers` on every node, then repeat this."
)
SCOPED = Refused(
    Error.CLUSTER_AUTHORIZATION_FAILED,
    "A token with scopes cannot change rules or tokens: it could give itself more.",
)


class AccessService(ClusterService, access_pb2_grpc.AccessServicer):
    """Serves `muster.v1.Access`."""

    @property
    def _state(self) -> ShardState:
        return self.core.shards[CLUSTER_SHARD].state

    # ---- rules

    @handler(Kind.ORDINARY, bounds.ALTER_ACLS, with_status(pb.AlterAclsResponse))
    async def AlterAcls(
        self, request: pb.AlterAclsRequest, call: ActiveCall
    ) -> pb.AlterAclsResponse:
        """Add and remove rules, all or nothing. The first needs a superuser in the settings."""
        self._may_change(call)
        added, removed = (_rules(call, rules) for rules in (request.added, request.removed))
        command = AlterAcls(added, removed, request.opens)
        await call.confirmed(self.core.shards[CLUSTER_SHARD])
        if added and self.core.access.is_open and not self.core.access.identities.superusers:
            call.invalid(NO_SUPERUSER)
        call.changed(self._rules_now(), self._rules_now)
        done = await call.ask(command, call.size, Done)
        self._tell(call, command, changed=done.changed)
        return pb.AlterAclsResponse(changed=done.changed, access_version=self._state.access_version)

    @handler(Kind.ORDINARY, bounds.NONE, with_status(pb.DescribeAclsResponse), reads=True)
    async def DescribeAcls(
        self, request: pb.DescribeAclsRequest, call: ActiveCall
    ) -> pb.DescribeAclsResponse:
        """All rules of this node's copy."""
        del request
        response = pb.DescribeAclsResponse(access_version=self._state.access_version)
        async with call.slices() as slices:
            await slices.turn(ENTRIES_PER_RULE * len(self._state.rules))
            for rule in sorted(self._state.rules, key=_order):
                response.rules.append(_told_rule(rule))
                await slices.did(ENTRIES_PER_RULE)
        return response

    @handler(Kind.ORDINARY, bounds.NONE, with_status(pb.TestAccessResponse))
    async def TestAccess(
        self, request: pb.TestAccessRequest, call: ActiveCall
    ) -> pb.TestAccessResponse:
        """What the rules of this node's copy say; the principal need not exist."""
        operation, resource = _kinds(call, request)
        if max(len(request.principal), len(request.name)) > LIMITS.id_max_bytes:
            call.invalid(f"A principal, and a name, have at most {LIMITS.id_max_bytes} bytes.")
        async with call.slices() as slices:
            await slices.turn(ENTRIES_PER_RULE * len(self._state.rules))
            allowed, reason = self._test(request.principal, operation, resource, request.name)
        return pb.TestAccessResponse(allowed=allowed, reason=reason)

    def _test(
        self, principal: str, operation: Operation, resource: Resource, name: str
    ) -> tuple[bool, str]:
        state = self._state
        if not state.rules:
            return True, "There are no rules: the cluster is open."
        if principal in self.core.access.identities.superusers:
            return True, "It is a superuser of this node."
        found = deciding_rules(iter(state.rules), principal, operation, resource, name)
        if authorize(state.rule_index, principal, operation, resource, name):
            return True, f"{len(found)} rules allow it, and none denies it."
        denials = sum(rule.deny for rule in found)
        return False, f"{denials} rules deny it." if denials else "No rule allows it."

    # ---- tokens

    @handler(Kind.ORDINARY, bounds.CREATE_TOKEN, with_status(pb.CreateTokenResponse))
    async def CreateToken(
        self, request: pb.CreateTokenRequest, call: ActiveCall
    ) -> pb.CreateTokenResponse:
        """Draw a token here; only its hash goes into the log."""
        self._may_change(call)
        scopes = tuple(
            TokenScope(*_kinds(call, one), _pattern(call, one), one.name) for one in request.scopes
        )
        token_id, text, secret_hash = new_token()
        command = CreateToken(
            token_id, request.principal, secret_hash, request.expires_wall_ms, scopes
        )
        call.changed(None, {"token_id": token_id})
        await call.ask(command, call.size, Done)
        self._tell(call, command, changed=True)
        return pb.CreateTokenResponse(
            token_id=token_id, token=text, access_version=self._state.access_version
        )

    @handler(Kind.ORDINARY, bounds.NONE, with_status(pb.ListTokensResponse), reads=True)
    async def ListTokens(
        self, request: pb.ListTokensRequest, call: ActiveCall
    ) -> pb.ListTokensResponse:
        """All tokens of this node's copy, without their secrets."""
        del request
        tokens = self._state.tokens
        response = pb.ListTokensResponse(access_version=self._state.access_version)
        async with call.slices() as slices:
            await slices.turn(ENTRIES_PER_RULE * len(tokens))
            for token_id, token in sorted(tokens.items(), key=lambda one: one[0]):
                told = response.tokens.add(
                    token_id=token_id,
                    principal=token.principal,
                    created_wall_ms=token.created_wall_ms,
                    expires_wall_ms=token.expires_wall_ms,
                )
                for scope in token.scopes:
                    told.scopes.append(_told_scope(scope))
                await slices.did(ENTRIES_PER_RULE)
        return response

    @handler(Kind.ORDINARY, bounds.NONE, with_status(pb.RevokeTokenResponse))
    async def RevokeToken(
        self, request: pb.RevokeTokenRequest, call: ActiveCall
    ) -> pb.RevokeTokenResponse:
        """A token that is not there is good no more, too."""
        self._may_change(call)
        if len(request.token_id) > LIMITS.id_max_bytes:
            call.invalid("A token's id has 16 hex digits.")
        command = RevokeToken(request.token_id)
        token = self._state.tokens.get(request.token_id)
        call.changed(token and _noted(token), None)
        done = await call.ask(command, bounds.command_size(len(request.token_id.encode())), Done)
        self._tell(call, command, changed=done.changed)
        return pb.RevokeTokenResponse(access_version=self._state.access_version)

    # ---- both

    def _may_change(self, call: ActiveCall) -> None:
        if call.identity is not None and call.identity.scopes:
            call.refuse(SCOPED, call)
        call.needs_level(ACCESS_LEVEL)

    def _rules_now(self) -> dict[str, object]:
        """What the audit trail says of the rules before and after a change, beside the change."""
        return {"rules": len(self._state.rules), "access_version": self._state.access_version}

    def _tell(self, call: ActiveCall, command: Command, *, changed: bool) -> None:
        """Log who changed what; of a token there is no secret in the command."""
        if changed:
            log.info(
                "access changed",
                what=type(command).__name__,
                principal=call.principal,
                peer=call.peer,
                access_version=self._state.access_version,
            )


def _order(rule: AclRule) -> tuple[Any, ...]:
    return rule.principal, rule.resource, rule.name, rule.pattern, rule.operation, rule.deny


def _rules(call: ActiveCall, told: Iterable[pb.AclRule]) -> tuple[AclRule, ...]:
    rules: list[AclRule] = []
    for one in told:
        operation, resource = _kinds(call, one)
        pattern = _pattern(call, one)
        rules.append(AclRule(one.principal, operation, resource, pattern, one.name, one.deny))
    return tuple(rules)


def _kinds(call: ActiveCall, one: Any) -> tuple[Operation, Resource]:
    try:
        return Operation(one.operation), Resource(one.resource)
    except ValueError:
        call.invalid("A rule needs an operation and a kind of resource that this node knows.")


def _pattern(call: ActiveCall, one: Any) -> Pattern:
    try:
        return Pattern(one.pattern)
    except ValueError:
        call.invalid("A name is literal or a prefix.")


def _noted(token: Token) -> dict[str, object]:
    """What the audit trail says of a token."""
    return {
        "principal": token.principal,
        "expires_wall_ms": token.expires_wall_ms,
        "scopes": len(token.scopes),
    }


def _told_rule(rule: AclRule) -> pb.AclRule:
    return pb.AclRule(
        principal=rule.principal,
        operation=rule.operation.value,  # type: ignore[arg-type]  # the same numbers
        resource=rule.resource.value,  # type: ignore[arg-type]
        pattern=rule.pattern.value,  # type: ignore[arg-type]
        name=rule.name,
        deny=rule.deny,
    )


def _told_scope(scope: TokenScope) -> pb.TokenScope:
    return pb.TokenScope(
        operation=scope.operation.value,  # type: ignore[arg-type]  # the same numbers
        resource=scope.resource.value,  # type: ignore[arg-type]
        pattern=scope.pattern.value,  # type: ignore[arg-type]
        name=scope.name,
    )
