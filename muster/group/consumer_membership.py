"""The member's side of the modern protocol (gp-6.10): the coordinator assigns. Without I/O.

The states are those of membership.py; it is never in SYNCING, and while it is JOINING it holds
nothing. A partition that the member works on goes through

    granted -> given to the user, under the token of its grant
    told to be revoked -> the user gives it up, commits under that token -> released, and said so
    gone from the grants, or there with another token -> lost: dropped at once, and begun anew

What the member works on, or is about to begin, is told with each call (`owned`): that is the
confirmation. It counts up to the largest token that the member was told of. One call is open at a
time; what comes up meanwhile goes into the next. After a call that failed the next one says
everything anew. An answer of a call that does not count any more is dropped.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from muster.errors import ErrorCode, GroupIdNotFound, MusterError
from muster.group.actions import (
    AbandonCalls,
    Action,
    Ask,
    Away,
    Close,
    CommitRefused,
    ConsumerHeard,
    ConsumerRefused,
    Drop,
    Dropped,
    Ended,
    Fail,
    Give,
    Granted,
    HeartbeatAnswered,
    Identity,
    Input,
    KeepAlive,
    LeaveAnswered,
    Lose,
    MemberConfig,
    Refusal,
    Released,
    Resubscribe,
    Revoke,
    SendConsumerHeartbeat,
    SendConsumerLeave,
    Start,
    StartTimer,
    StopKeepAlive,
    TimerFired,
)
from muster.group.membership import (
    BACK_OFF_IN_JOIN,
    IMMEDIATE_RETRIES_MAX,
    NO_MEMBER_THERE,
    State,
    is_unknown,
    one_line,
)
from muster.net import backoff
from muster.types import Assignment, Phase, TopicPartition

MOVES = "they move to other members"
GONE = "the coordinator gave them to others, or a topic was deleted"
"""Reasons of what is taken back, for people."""

_STAYS_CLASSIC = (
    "mend what keeps it a classic group (`muster group config` shows its settings), or stop its "
    "members first"
)
_FENCED = frozenset(
    {
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)
_FATAL = frozenset(
    {
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
_FATAL_IN_HEARTBEAT = frozenset(
    {ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED}
)
_MENDS_IN_JOIN = BACK_OFF_IN_JOIN | {ErrorCode.REBALANCE_IN_PROGRESS}
"""The group is a classic one of which a round is open, and a modern one after it (gp-1.11)."""
_ASKS = frozenset({*_FENCED, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH})
"""A commit that is refused so makes the member ask where it stands."""

_JOINED = (State.STABLE, State.RELEASING)
_OVER = (State.LEAVING, State.LEFT, State.AWAY, State.FAILED)


class ConsumerMembership:
    """One member of one modern group. `handle` is the only way in; it never raises."""

    def __init__(
        self,
        config: MemberConfig,
        *,
        session_timeout_ms: int,
        draw_nonce: Callable[[], str],
        jitter: backoff.Jitter,
    ) -> None:
        self.state = State.UNJOINED
        self.identity = Identity("", -1)
        self.assignment: Assignment | None = None
        self._config = config
        self._session_timeout_ms = session_timeout_ms
        self._draw_nonce = draw_nonce
        self._jitter = jitter
        self._member_id = ""  # "" = not drawn yet; it is kept from membership to membership
        self._is_member = False  # as far as it can tell
        self._call_id = 0
        self._asked = False  # the call that counts is open
        self._again = False  # another one is due after it
        self._full = True  # the next one says everything
        self._confirmed: AbstractSet[TopicPartition] = frozenset()  # to be released, and it is
        self._timer_id = 0
        self._waits = False  # for a timer, before the next call
        self._failures = 0
        self._unreleased_ms = 0  # waited for another process to let go of the instance id
        self._version = 0
        self._incomplete = False
        self._grants: Mapping[TopicPartition, Granted] = {}
        self._tokens: dict[TopicPartition, int] = {}  # of what it works on
        self._releasing: frozenset[TopicPartition] = frozenset()  # what an open Revoke names
        self._dropping: frozenset[TopicPartition] = frozenset()  # what open Drops name
        self._given: Assignment | None = None
        self._lost = False  # a Lose is open
        self._gives_up = False  # an open Revoke names everything
        self._wait_ms = 0  # before the next join, once what was lost is let go of
        self._reason = ""
        self._failed_with = 0
        self._is_closing = False
        self._is_closed = False  # else it is away at the end
        self._leaves: bool | None = None
        self._back_in_ms: int | None = None
        self._out: list[Action] = []

    @property
    def held(self) -> Assignment | None:
        """The assignment that the user may work under; None once it is lost."""
        return None if self._lost else self.assignment

    @property
    def held_since(self) -> Mapping[TopicPartition, int]:
        """The partitions that may be committed, each with the token of its grant."""
        return {} if self._lost else self._tokens

    @property
    def is_settled(self) -> bool:
        """True where it is a member, gives nothing up, and no more is to come."""
        return self.state is State.STABLE and not self._dropping and not self._incomplete

    def keeps(self, under: Assignment, partition: TopicPartition) -> bool:
        """True where it still works on the partition under the token that it had then."""
        token = self.held_since.get(partition)
        return token is not None and under.fencing_tokens.get(partition) == token

    def committing(self, held: Assignment) -> Assignment:
        """Return this assignment with the epoch that the member has now."""
        return replace(held, generation=self.identity.generation)

    def handle(self, given: Input) -> list[Action]:  # noqa: C901, PLR0912 - one arm per input
        """Take one input, and return what the caller must do now, in order."""
        self._out = []
        match given:
            case Start():
                self._on_start()
            case ConsumerHeard():
                self._on_heard(given)
            case ConsumerRefused():
                self._on_refused(given)
            case HeartbeatAnswered():
                self._on_heartbeat(given)
            case CommitRefused():
                self._on_commit_refused(given)
            case Released():
                self._on_released()
            case Dropped():
                self._on_dropped(given)
            case TimerFired():
                self._on_timer(given)
            case Resubscribe():
                self._full = True
                self._ask()
            case Ask():
                if self._incomplete:
                    self._ask()
            case Close():
                self._on_close(given)
            case Away():
                self._on_away(given)
            case LeaveAnswered():
                self._on_leave_answered()
            case _:
                pass  # a classic member's
        return self._out

    # ---- calls

    def _on_start(self) -> None:
        if self.state is State.AWAY:
            self._is_closing = False
            self._back_in_ms = None
            self._join()
        elif self.state is State.UNJOINED and self._call_id == 0:
            self._join()

    def _join(self) -> None:
        if not self._member_id:
            self._member_id = f"{self._config.client_id}-{self._draw_nonce()}"
        self.state = State.JOINING
        self._full = True
        self._send()

    def _ask(self) -> None:
        """Say and hear what is new, as soon as no other call is open."""
        if self._asked:
            self._again = True
        elif self.state in _JOINED and self._is_member and not self._waits:
            self._send()

    def _send(self) -> None:
        joins = self.state is State.JOINING
        full, self._full = self._full, False
        owned = None if joins else tuple(sorted({*self._tokens, *self._to_begin()}))
        known_token = max((grant.token for grant in self._grants.values()), default=0)
        self._asked, self._again, self._waits = True, False, False
        self._confirmed = self._revoked() - self._tokens.keys()
        self._is_member = True
        self._call_id += 1
        self._timer_id += 1
        epoch = 0 if joins else self.identity.generation
        self._out.append(
            SendConsumerHeartbeat(self._call_id, self._member_id, epoch, full, owned, known_token)
        )

    def _to_begin(self) -> Iterator[TopicPartition]:
        """Yield what it was granted, and begins once what it had of that before is let go of."""
        for key in self._releasing | self._dropping:
            grant = self._grants.get(key)
            if grant is not None and grant.phase is Phase.ACTIVE:
                yield key

    def _on_heard(self, answer: ConsumerHeard) -> None:
        if not self._counts(answer.call_id):
            return
        self._failures = self._unreleased_ms = 0
        is_new = self.state is State.JOINING
        self.identity = Identity(self._member_id, answer.member_epoch)
        if self.state is State.CLOSING:
            return
        if is_new or answer.version != self._version:
            self._version = answer.version
            self._out.append(KeepAlive(Identity(self._member_id, self._version)))
        if is_new:
            self.state = State.STABLE
        self._grants, self._incomplete = answer.grants, answer.incomplete
        self._reconcile()
        self._go_on()

    def _counts(self, call_id: int) -> bool:
        """Return whether this answers the open call, which it ends."""
        if not self._asked or call_id != self._call_id:
            return False
        self._asked = False
        return True

    def _go_on(self) -> None:
        """Send what is due after an answer."""
        revoked = self._revoked()
        released = revoked - self._tokens.keys()
        if self._again or released - self._confirmed:
            self._send()
        elif released and released == revoked:  # that was said, and it does not see it yet
            self._wait(Refusal(ErrorCode.REBALANCE_IN_PROGRESS), self._next_wait_ms())

    def _revoked(self) -> set[TopicPartition]:
        return {key for key, grant in self._grants.items() if grant.phase is Phase.REVOKING}

    def _on_refused(self, answer: ConsumerRefused) -> None:
        if not self._counts(answer.call_id):
            return
        self._full = True
        refusal = answer.refusal
        joins = self.state is State.JOINING
        mends = refusal.code in _MENDS_IN_JOIN or (is_unknown(refusal.code) and refusal.retriable)
        if refusal.code in _FENCED and not (joins and refusal.code == ErrorCode.GROUP_ID_NOT_FOUND):
            self._on_fenced(refusal)
        elif refusal.code == ErrorCode.UNRELEASED_INSTANCE_ID:
            self._wait_for_release(refusal)
        elif refusal.code in _FATAL or (joins and not mends):
            self._fail(_join_error(refusal))
        else:
            self._wait(refusal, self._next_wait_ms())

    def _wait_for_release(self, refusal: Refusal) -> None:
        """Try again while the holder of the instance id may be gone: for a session's time.

        After that it is still heard, and this process is one too many: the membership fails.
        """
        if self._unreleased_ms >= self._session_timeout_ms:
            self._fail(refusal.error)
            return
        delay_ms = self._next_wait_ms()
        self._unreleased_ms += delay_ms
        self._wait(refusal, delay_ms)

    def _next_wait_ms(self) -> int:
        self._failures += 1
        return backoff.JOIN.delay_ms(self._failures, self._jitter)

    def _wait(self, refusal: Refusal, delay_ms: int) -> None:
        """Call again after this long."""
        if self.state is State.CLOSING:
            return
        if self.state is State.JOINING:
            self.state = State.UNJOINED
        self._waits = True
        self._timer_id += 1
        self._out.append(StartTimer(self._timer_id, delay_ms, refusal.reason))

    def _on_timer(self, fired: TimerFired) -> None:
        if fired.timer_id != self._timer_id:
            return
        self._waits = False
        if self.state is State.UNJOINED:
            self._join()
        elif not self._asked:
            self._ask()

    # ---- owning

    def _reconcile(self) -> None:
        """Begin what the grants ask for: drop, revoke, give."""
        grants = self._grants
        gone: dict[TopicPartition, int] = {}
        for key, token in list(self._tokens.items()):
            grant = grants.get(key)
            if grant is None or grant.token != token:
                del self._tokens[key]
                if key not in self._releasing:
                    gone[key] = token
        if gone:
            self._dropping |= gone.keys()
            self._out.append(Drop(self._named(gone, gone), GONE))
        busy = self._releasing | self._dropping
        for key, grant in grants.items():
            if grant.phase is Phase.ACTIVE and key not in busy:
                self._tokens[key] = grant.token
        if not self._releasing:
            revoked = [key for key in self._tokens if grants[key].phase is Phase.REVOKING]
            if revoked:
                self._releasing = frozenset(revoked)
                self.state = State.RELEASING
                self._out.append(Revoke(self._named(revoked, self._tokens), MOVES))
        self._renew(
            sorted(
                key
                for key in self._tokens
                if key not in self._releasing and grants[key].phase is Phase.ACTIVE
            )
        )

    def _renew(self, partitions: list[TopicPartition]) -> None:
        """Give these to the user, unless they are what it has; not while it gives up others."""
        if self.assignment is None or self.assignment.partitions != tuple(partitions):
            self.assignment = self._named(partitions, self._tokens)
        if not self._releasing and self._given is not self.assignment:
            self._given = self.assignment
            self._out.append(Give(self.assignment))

    def _named(
        self, partitions: Collection[TopicPartition], tokens: Mapping[TopicPartition, int]
    ) -> Assignment:
        return Assignment(
            group_id=self._config.group_id,
            generation=self.identity.generation,
            member_id=self._member_id,
            partitions=tuple(sorted(partitions)),
            protocol_name="",
            is_group_leader=False,
            fencing_token=-1,
            fencing_tokens=dict(tokens),
        )

    def _on_released(self) -> None:
        if self._lost or self._gives_up:
            self._lost = self._gives_up = False
            self.assignment = self._given = None
            self._tokens = {}
        for key in self._releasing:
            self._tokens.pop(key, None)
        self._releasing = frozenset()
        if self.state is State.CLOSING:
            self._give_up()
        elif self.state is State.RELEASING and self.assignment is None:
            self.state = State.JOINING
            if self._wait_ms:
                self._wait(Refusal(ErrorCode.UNKNOWN_MEMBER_ID, self._reason), self._wait_ms)
            else:
                self._join()
        elif self.state is State.RELEASING:
            self.state = State.STABLE
            self._reconcile()
            self._waits = False  # others wait for this
            self._ask()

    def _on_dropped(self, given: Dropped) -> None:
        self._dropping -= frozenset(given.partitions)
        if self.state is State.CLOSING:
            if not self._releasing and not self._lost and not self._gives_up:
                self._give_up()
        elif self.state in _JOINED and not self._lost:
            self._reconcile()

    def _on_heartbeat(self, answer: HeartbeatAnswered) -> None:
        if answer.identity != Identity(self._member_id, self._version):
            return
        code = answer.refusal.code
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._ask()
        elif code in _FENCED:
            self._on_fenced(answer.refusal)
        elif code in _FATAL_IN_HEARTBEAT and self.state not in _OVER:
            self._fail(answer.refusal.error)

    def _on_commit_refused(self, answer: CommitRefused) -> None:
        if answer.identity.member_id != self._member_id:
            return
        if answer.refusal.code in _ASKS:
            self._ask()
        elif answer.refusal.code == ErrorCode.FENCED_INSTANCE_ID and self.state not in _OVER:
            self._fail(answer.refusal.error)

    def _on_fenced(self, refusal: Refusal) -> None:
        """Lose what it worked on, as it is no member any more, and join again under its id."""
        if self.state in _OVER or self.state is State.UNJOINED or self._lost:
            return
        if self.state is State.JOINING:
            self._wait(refusal, self._next_wait_ms())
            return
        self._failures += 1
        late = self._failures - IMMEDIATE_RETRIES_MAX
        self._wait_ms = backoff.JOIN.delay_ms(late, self._jitter) if late > 0 else 0
        was_closing = self.state is State.CLOSING
        self._forget()
        self._out.append(StopKeepAlive())
        if not was_closing:
            self._reason = refusal.reason
        self._lose(refusal.reason)
        self.state = State.CLOSING if was_closing else State.RELEASING

    def _forget(self) -> None:
        self.identity = Identity(self._member_id, -1)
        self._is_member = self._asked = self._again = self._waits = False
        self._call_id += 1
        self._timer_id += 1
        self._version = 0
        self._grants = {}

    def _lose(self, reason: str) -> None:
        """Have everything dropped, also what is being given up; do so once."""
        if self.assignment is None or self._lost:
            return
        self._lost = True
        self._out.append(Lose(self._named(self._tokens, self._tokens), reason))

    def _fail(self, error: MusterError) -> None:
        self._failed_with = error.code
        is_closing = self.state is State.CLOSING
        is_member = self.state is not State.JOINING and not is_closing
        self._forget()
        self._is_member = is_member
        self._out.append(StopKeepAlive())
        self._lose(str(error))
        if is_closing:
            return  # closing goes on, and has nobody to say goodbye to
        self.state = State.FAILED
        self._is_closing = True  # only Close leads on
        self._reason = one_line(error)
        self._out.append(Fail(error))

    # ---- leaving

    def _on_close(self, given: Close) -> None:
        if not self._is_closing:
            self._reason = given.reason
        self._is_closing = self._is_closed = True
        if given.leave is not None:
            self._leaves = given.leave
        if self.state is State.AWAY or (
            self.state is State.FAILED and self._failed_with in NO_MEMBER_THERE
        ):
            self._end()
        else:
            self._begin_to_close()

    def _on_away(self, given: Away) -> None:
        if self.state is State.AWAY:
            self._end()  # it has not joined since, and says nothing new
        if self._is_closing:
            return
        self._is_closing = True
        self._reason = given.reason
        self._back_in_ms = given.back_in_ms
        self._begin_to_close()

    def _begin_to_close(self) -> None:
        match self.state:
            case State.CLOSING | State.LEAVING | State.LEFT:
                pass
            case State.RELEASING:
                self._timer_id += 1
                self.state = State.CLOSING  # Released leads on
            case State.FAILED:
                self._leave()
            case _:
                self._timer_id += 1
                self._give_up()

    def _give_up(self) -> None:
        """Give up what it still works on, and then leave."""
        if self.assignment is not None:
            self.state = State.CLOSING
            self.assignment = self._named(self._tokens, self._tokens)
            self._releasing = frozenset(self._tokens)
            self._gives_up = True
            self._out.append(Revoke(self.assignment, self._reason))
        elif self._dropping:
            self.state = State.CLOSING
        else:
            self._leave()

    def _leave(self) -> None:
        """Say goodbye; a static member is away for a session unless asked, so that it may be back.

        That is what a classic one is that says nothing (KIP-345).
        """
        back_in_ms = self._back_in_ms
        if back_in_ms is None and self._leaves is None and self._config.instance_id:
            back_in_ms = self._session_timeout_ms
        if not self._is_member or (self._leaves is False and self._back_in_ms is None):
            self._end()
            return
        self.state = State.LEAVING
        self._call_id += 1
        self._asked = self._is_member = False
        self._out += [
            StopKeepAlive(),
            AbandonCalls(),
            SendConsumerLeave(self._member_id, back_in_ms, self._reason),
        ]

    def _on_leave_answered(self) -> None:
        if self.state is State.LEAVING:
            self._end()

    def _end(self) -> None:
        self.state = State.LEFT if self._is_closed else State.AWAY
        self._forget()
        self.assignment = self._given = None
        self._out += [StopKeepAlive(), AbandonCalls(), Ended()]


def _join_error(refusal: Refusal) -> MusterError:
    """Return the exception for the user; a group that is there says why it stays a classic one."""
    if refusal.code == ErrorCode.GROUP_ID_NOT_FOUND:
        return GroupIdNotFound(refusal.message, hint=_STAYS_CLASSIC)
    return refusal.error
