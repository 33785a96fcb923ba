"""Asks the rules about calls: before they begin, before the log, and when the rules change.

A call that waits is asked again, too, when the token or certificate that let it in has ended.

The rules are those of this node's copy of shard 0. A cluster without any is open. A copy that was
never current is no rules at all, nor is one in quarantine where superusers are configured: then
nobody but superusers, operators and nodes passes, since an empty copy looks like a cluster without
rules, and rules may have come while the node was down. On a node that listens on loopback alone and
has neither a secret nor superusers everybody is an operator until a rule is known, and passes.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from musterd.coordinator.api.frame.identity import CallerContext, Identities, Identity, ToldCaller
from musterd.coordinator.api.frame.rpc_rules import RpcRule
from musterd.coordinator.machine import plain_partitions
from musterd.coordinator.machine.access import Operation, Resource, authorize
from musterd.coordinator.machine.commands import (
    Command,
    ConsumerGroupHeartbeat,
    JoinGroup,
    OffsetCommit,
    OffsetDelete,
)
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.records.shard_records import ShardState
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.runtime.timeouts import CREDENTIALS_LOOK_MS

MS: Final = 1_000
HELD_PER_PASS: Final = 500
"""Calls that wait and are asked anew in one pass of the loop, after a change of the rules."""
PASS_MS: Final = 5
"""After so much of a pass, in milliseconds, the rest waits for the next: JWTs take signatures."""

NOT_CURRENT: Final = "This node's copy of the rules is not current yet: repeat the call."

_FAILED: Final = {
    Resource.GROUP: (Error.GROUP_AUTHORIZATION_FAILED, "group "),
    Resource.TOPIC: (Error.TOPIC_AUTHORIZATION_FAILED, "topic "),
    Resource.CLUSTER: (Error.CLUSTER_AUTHORIZATION_FAILED, "the cluster"),
}

Question = tuple[Operation, Resource, str]
Questions = Callable[[], Iterable[Question]]


@dataclass(frozen=True, slots=True)
class Recheck:
    """The question about a call that was let in, as long as it waits."""

    ask: Callable[[], Refused | None]
    ends_wall_ms: int
    """When what it was let in by ends; 0: never."""

    def __call__(self) -> Refused | None:
        """Why it is refused by now, or None."""
        return self.ask()


class Authorizer:
    """The rules of one node's copy, as calls ask them."""

    def __init__(
        self,
        state: Callable[[], ShardState],
        is_current: Callable[[], bool],
        is_quarantined: Callable[[], bool],
        identities: Identities,
    ) -> None:
        """`state` is shard 0's; the next two are about that copy."""
        self.identities = identities
        self._state = state
        self._is_current = is_current
        self._is_quarantined = is_quarantined
        self._was_current = identities.all_are_operators
        self._held: dict[asyncio.Future[Any], tuple[Recheck, Callable[[Refused], Any]]] = {}
        self._left: list[asyncio.Future[Any]] = []
        self._ending: dict[asyncio.Future[Any], int] = {}
        """Those that wait and whose credential ends, with the time in milliseconds since 1970."""
        self._look_due: asyncio.TimerHandle | None = None
        self.denied_total = 0
        self.unauthenticated_total = 0

    @property
    def version(self) -> int:
        """The access_version of this node's copy: it rises with each change."""
        return self._state().access_version

    @property
    def rules(self) -> int:
        """How many rules this node's copy has."""
        return len(self._state().rules)

    @property
    def is_open(self) -> bool:
        """Whether no rule is known here: everybody may do everything but operators' calls."""
        return not self._state().rules

    @property
    def is_closed(self) -> bool:
        """Whether this copy is no rules to go by: see above."""
        if not self._was_current:
            self._was_current = self._is_current()
        return not self._was_current or (
            bool(self.identities.superusers) and self._is_quarantined()
        )

    @property
    def is_guarded(self) -> bool:
        """Whether callers have to be somebody."""
        return bool(self._state().rules) or self.is_closed

    def identify(self, context: CallerContext) -> Identity | str:
        """Who makes a call; or why nobody known does."""
        found = self.identities.of(context)
        if isinstance(found, str):
            self.unauthenticated_total += 1
        return found

    def passes_closed(self, identity: Identity) -> bool:
        """Whether this caller is served though this copy cannot be gone by.

        A token is looked up in that copy: it may have been revoked since.
        """
        return identity.is_operator and not identity.by_token

    def allows(
        self, identity: Identity, operation: Operation, resource: Resource, name: str = ""
    ) -> bool:
        """Whether this caller may do this."""
        if not identity.covers(operation, resource, name):
            return False
        if identity.is_operator:
            return True
        return authorize(self._state().rule_index, identity.principal, operation, resource, name)

    def refusal(
        self, identity: Identity, operation: Operation, resource: Resource, name: str = ""
    ) -> Refused | None:
        """Why this caller may not do this, or None. It says nothing about whether there is one."""
        if self.allows(identity, operation, resource, name):
            return None
        self.denied_total += 1
        return refused_right(identity, operation, resource, name)

    def recheck(
        self,
        context: CallerContext,
        questions: Questions,
        identity: Identity | None,
        version: tuple[int, int],
    ) -> Recheck:
        """What to ask about a call that waits, as long as it does.

        `identity`: who made it, as it was let in; None: nobody asked. `version`: that of the rules
        and keys before that. It costs nothing where they have not changed and the caller's
        credential has not ended.
        """
        ends_wall_ms = identity.expires_wall_ms if identity else 0
        caller = ToldCaller(context, has_certificates=self.identities.has_client_ca)

        def ask() -> Refused | None:
            has_ended = 0 < ends_wall_ms <= self.identities.wall_ms()
            if (self.identities.version == version and not has_ended) or not self.is_guarded:
                return None
            identity = self.identities.of(caller)
            if isinstance(identity, str):
                resource = next((one for _, one, _ in questions()), Resource.GROUP)
                return Refused(_FAILED[resource][0], identity)
            for operation, resource, name in questions():
                refused = self.refusal(identity, operation, resource, name)
                if refused is not None:
                    return refused
            return None

        return Recheck(ask, ends_wall_ms)

    # ---- calls that wait

    @property
    def waiting(self) -> int:
        """How many calls wait and are asked anew when the rules change."""
        return len(self._held)

    def hold(
        self, future: "asyncio.Future[Any]", recheck: Recheck, answer: Callable[[Refused], Any]
    ) -> None:
        """End the wait for `future` with `answer` once the right to it is gone.

        To be let go with `release`.
        """
        self._held[future] = recheck, answer
        if recheck.ends_wall_ms:
            self._ending[future] = recheck.ends_wall_ms
            self._look_again(future.get_loop())
        self.look(future)

    def release(self, future: "asyncio.Future[Any]") -> None:
        """The wait is over."""
        self._held.pop(future, None)
        self._ending.pop(future, None)

    def _look_again(self, loop: asyncio.AbstractEventLoop) -> None:
        """See to it that the end of a credential is noticed, as long as such calls wait."""
        if self._ending and self._look_due is None:
            self._look_due = loop.call_later(CREDENTIALS_LOOK_MS / MS, self._look_at_ends, loop)

    def _look_at_ends(self, loop: asyncio.AbstractEventLoop) -> None:
        self._look_due = None
        now_ms = self.identities.wall_ms()
        ended = [future for future, at in self._ending.items() if at <= now_ms]
        self._ask([*self._left, *ended])
        self._look_again(loop)

    def changed(self) -> None:
        """Shard 0 has applied a change of rules or tokens: ask all calls that wait, a few at once.

        As many calls wait as are parked and held on a node at most.
        """
        self._ask(list(self._held))

    def _ask(self, left: "list[asyncio.Future[Any]]") -> None:
        is_looking = bool(self._left)
        self._left = left
        if self._left and not is_looking:
            self._left[0].get_loop().call_soon(self._look)

    def _look(self) -> None:
        if not self._left:  # the rules changed again, and by then no call waited
            return
        loop = self._left[0].get_loop()
        end_s, asked = loop.time() + PASS_MS / MS, 0
        for future in self._left[:HELD_PER_PASS]:
            self.look(future)
            asked += 1
            if loop.time() >= end_s:
                break
        self._left = self._left[asked:]
        if self._left:
            loop.call_soon(self._look)

    def look(self, future: "asyncio.Future[Any]") -> None:
        """Ask a call that waits, and end its wait where its right is gone."""
        held = self._held.get(future)
        if held is None or future.done():
            return
        recheck, answer = held
        refused = recheck()
        if refused is not None:
            future.set_result(answer(refused))


def refused_right(
    identity: Identity, operation: Operation, resource: Resource, name: str
) -> Refused:
    """The refusal for a right that this caller lacks."""
    error, what = _FAILED[resource]
    named = what if resource is Resource.CLUSTER else what + quoted(name)
    right = operation.name.lower()
    return Refused(error, f"{quoted(identity.principal)} has no right to {right} on {named}.")


def questions_of(rule: RpcRule, command: Command) -> Questions:
    """What is asked of a command."""

    def asked() -> Iterable[Question]:
        name: str = getattr(command, "group_id", "") or getattr(command, "name", "")
        yield rule.operation, rule.resource, "" if rule.resource is Resource.CLUSTER else name
        if rule.topics:
            for topic in topics_of(command):
                yield Operation.DESCRIBE, Resource.TOPIC, topic

    return asked


EVERY_TOPIC: Final = ""
"""No topic's name: only a scope about all topics says anything of it. A token with scopes needs one
to subscribe by pattern: the rules are asked of each topic, and know nothing of scopes."""


def topics_of(command: Command) -> Iterable[str]:
    """The topics that a command names, each once."""
    match command:
        case JoinGroup():
            return dict.fromkeys(command.subscribed_topics)
        case ConsumerGroupHeartbeat():
            return dict.fromkeys(command.topics or ())
        case OffsetCommit():
            return plain_partitions.topics_of(command)
        case OffsetDelete():
            return dict.fromkeys(one.topic for one in command.partitions)
        case _:
            return ()
