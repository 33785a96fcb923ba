"""The modern member's decisions: inputs in, actions out (gp-6.10)."""

import itertools

import pytest

from muster.errors import ErrorCode
from muster.group.actions import (
    AbandonCalls,
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
from muster.group.consumer_membership import ConsumerMembership
from muster.group.membership import IMMEDIATE_RETRIES_MAX, State
from muster.types import Phase, TopicPartition

E = ErrorCode
SESSION_MS = 10_000


def key(text):
    """The partition `t-0`."""
    topic, number = text.rsplit("-", 1)
    return TopicPartition(topic, int(number))


class World:
    """One member of group g, client id c, and nothing left to chance."""

    def __init__(self, instance_id=""):
        numbers = itertools.count(1)
        self.machine = ConsumerMembership(
            MemberConfig("g", "c", (), instance_id),
            session_timeout_ms=SESSION_MS,
            draw_nonce=lambda: f"n{next(numbers)}",
            jitter=lambda: 0.5,
        )
        self.sent = None
        self.timer = None
        self.version = 0

    def do(self, given):
        """One input; what it brings."""
        actions = self.machine.handle(given)
        for action in actions:
            if isinstance(action, SendConsumerHeartbeat):
                self.sent = action
            if isinstance(action, StartTimer):
                self.timer = action
        return actions

    def heard(self, epoch, grants="", *, version=None):
        """`t-0@5 t-1@6!`: partition, token, and whether it is to be revoked."""
        self.version = self.version + 1 if version is None else version
        granted = {}
        for word in grants.split():
            name, _, token = word.partition("@")
            phase = Phase.REVOKING if token.endswith("!") else Phase.ACTIVE
            granted[key(name)] = Granted(int(token.rstrip("!")), phase)
        return self.do(ConsumerHeard(self.sent.call_id, epoch, self.version, granted))

    def refused(self, code, message=""):
        return self.do(ConsumerRefused(self.sent.call_id, Refusal(int(code), message)))

    def told(self, code):
        """By a held heartbeat."""
        named = Identity("c-n1", self.version)
        return self.do(HeartbeatAnswered(named, Refusal(int(code))))

    def stable(self, grants="t-0@5 t-1@5", epoch=3):
        self.do(Start())
        self.heard(epoch, grants)
        return self

    @property
    def owned(self):
        return None if self.sent.owned is None else [str(one) for one in self.sent.owned]


def only(actions, kind):
    """The one action of a kind."""
    (found,) = [action for action in actions if isinstance(action, kind)]
    return found


def kinds(actions):
    return [type(action) for action in actions]


def names(assignment):
    return [str(one) for one in assignment.partitions]


def test_it_joins_with_an_id_of_its_own_and_says_everything():
    """Epoch 0; it holds nothing."""
    world = World()
    sent = only(world.do(Start()), SendConsumerHeartbeat)
    assert (sent.member_id, sent.member_epoch, sent.full, sent.owned) == ("c-n1", 0, True, None)
    assert world.do(Start()) == []
    actions = world.heard(3, "t-0@5 t-1@6")
    assert only(actions, KeepAlive).identity == Identity("c-n1", 1)
    given = only(actions, Give).assignment
    assert (names(given), given.generation) == (["t-0", "t-1"], 3)
    assert (given.token(key("t-0")), given.token(key("t-1")), given.fencing_token) == (5, 6, -1)
    assert world.machine.identity == Identity("c-n1", 3)
    assert world.machine.is_settled


def test_news_are_asked_for_and_what_is_revoked_is_confirmed_at_once():
    """The others go on; nothing new is given until what moves is given up."""
    world = World().stable()
    sent = only(world.told(E.REBALANCE_IN_PROGRESS), SendConsumerHeartbeat)
    assert (sent.member_epoch, sent.full, world.owned) == (3, False, ["t-0", "t-1"])
    actions = world.heard(3, "t-0@5 t-1@5!")
    assert names(only(actions, Revoke).assignment) == ["t-1"]
    assert Give not in kinds(actions)
    assert names(world.machine.held) == ["t-0"]
    assert set(world.machine.held_since) == {key("t-0"), key("t-1")}
    actions = world.do(Released())
    assert names(only(actions, Give).assignment) == ["t-0"]
    assert only(actions, SendConsumerHeartbeat).owned == (key("t-0"),)
    actions = world.heard(4, "t-0@5")
    assert kinds(actions) == [KeepAlive]
    assert world.machine.committing(world.machine.held).generation == 4


def test_what_is_revoked_may_be_committed_under_its_token_until_it_is_released():
    """The token that it had when the work was done, and no other."""
    world = World().stable()
    before = world.machine.held
    world.told(E.REBALANCE_IN_PROGRESS)
    world.heard(3, "t-0@5 t-1@5!")
    assert world.machine.keeps(before, key("t-1"))
    assert world.machine.keeps(world.machine.held, key("t-1"))
    world.do(Released())
    assert not world.machine.keeps(before, key("t-1"))
    assert world.machine.keeps(before, key("t-0"))


def test_a_partition_with_another_token_is_lost_and_begun_anew():
    """The others are not touched; it is given again when the user has let go of it."""
    world = World().stable()
    before = world.machine.held
    world.told(E.REBALANCE_IN_PROGRESS)
    actions = world.heard(4, "t-0@5 t-1@9")
    assert names(only(actions, Drop).assignment) == ["t-1"]
    assert names(only(actions, Give).assignment) == ["t-0"]
    assert not world.machine.is_settled
    given = only(world.do(Dropped((key("t-1"),))), Give).assignment
    assert (names(given), given.token(key("t-1"))) == (["t-0", "t-1"], 9)
    assert not world.machine.keeps(before, key("t-1"))
    assert world.machine.keeps(before, key("t-0"))


def test_a_partition_that_is_gone_is_lost():
    """As where its topic was deleted."""
    world = World().stable()
    world.told(E.REBALANCE_IN_PROGRESS)
    actions = world.heard(4, "t-0@5")
    assert names(only(actions, Drop).assignment) == ["t-1"]
    assert kinds(world.do(Dropped((key("t-1"),)))) == []
    assert world.machine.is_settled


def test_a_partition_that_is_taken_back_before_it_was_released_begins_anew():
    """Its task may have ended already."""
    world = World().stable()
    world.told(E.REBALANCE_IN_PROGRESS)
    world.heard(3, "t-0@5 t-1@5!")
    world.told(E.REBALANCE_IN_PROGRESS)
    assert kinds(world.heard(4, "t-0@5 t-1@5")) == [KeepAlive]
    given = only(world.do(Released()), Give).assignment
    assert names(given) == ["t-0", "t-1"]


def test_a_partition_that_was_never_begun_is_released_at_once():
    """It came and went between two calls."""
    world = World().stable("t-0@5")
    world.told(E.REBALANCE_IN_PROGRESS)
    actions = world.heard(4, "t-0@5 t-1@9!")
    assert only(actions, SendConsumerHeartbeat).owned == (key("t-0"),)
    actions = world.heard(4, "t-0@5 t-1@9!", version=world.version)
    assert kinds(actions) == [StartTimer], "no server makes a member spin"


def test_each_call_says_up_to_which_token_the_member_was_told_of_its_grants():
    """What it says before it was told of a grant, and comes late, is not to release that."""
    world = World()
    world.do(Start())
    assert world.sent.known_token == 0
    world.heard(3, "t-0@5 t-1@6")
    world.told(E.REBALANCE_IN_PROGRESS)
    assert world.sent.known_token == 6
    world.heard(3, "t-0@5 t-1@6 t-2@7!")
    assert (world.owned, world.sent.known_token) == (["t-0", "t-1"], 7)
    world.refused(E.UNKNOWN_MEMBER_ID)
    world.do(Released())
    assert (world.sent.member_epoch, world.sent.known_token) == (0, 0)


def test_a_grant_that_is_to_begin_is_not_said_to_be_released():
    """The task under the former token has not ended, and the new one begins after it."""
    world = World().stable("t-0@5 t-1@5")
    world.told(E.REBALANCE_IN_PROGRESS)
    dropped = only(world.heard(4, "t-0@5 t-1@7"), Drop).assignment
    world.told(E.REBALANCE_IN_PROGRESS)
    assert (world.owned, world.sent.known_token) == (["t-0", "t-1"], 7)
    world.heard(4, "t-0@5 t-1@7", version=world.version)
    assert names(only(world.do(Dropped(dropped.partitions)), Give).assignment) == ["t-0", "t-1"]


def test_a_grant_that_is_taken_back_before_it_begins_is_released_at_once():
    """The task under the former token has no right to it, whoever has it next."""
    world = World().stable("t-0@5 t-1@5")
    world.told(E.REBALANCE_IN_PROGRESS)
    world.heard(4, "t-0@5 t-1@7")
    world.told(E.REBALANCE_IN_PROGRESS)
    world.heard(4, "t-0@5 t-1@7!")
    assert (world.owned, world.sent.known_token) == (["t-0"], 7)


def test_what_is_released_later_is_said_at_once():
    """Though the coordinator did not take what was released before, as more is awaited."""
    world = World().stable("t-0@5 t-1@5 t-2@5")
    world.told(E.REBALANCE_IN_PROGRESS)
    world.heard(3, "t-0@5 t-1@5 t-2@5!")
    world.told(E.REBALANCE_IN_PROGRESS)
    world.heard(3, "t-0@5 t-1@5! t-2@5!")
    actions = world.do(Released())
    assert names(only(actions, Revoke).assignment) == ["t-1"]
    assert world.owned == ["t-0", "t-1"]
    assert kinds(world.heard(3, "t-0@5 t-1@5! t-2@5!", version=world.version)) == []
    assert only(world.do(Released()), SendConsumerHeartbeat).owned == (key("t-0"),)


def test_a_group_whose_members_assign_is_said():
    """It would be waited for without end."""
    world = World()
    world.do(Start())
    error = only(world.refused(E.GROUP_ID_NOT_FOUND, "stop them first"), Fail).error
    assert error.message == "stop them first"
    assert error.hint.startswith("mend what keeps it a classic group")


def test_it_is_not_settled_while_more_is_to_come():
    """Who gets nothing is not told of that: it asks, when somebody wants to know."""
    world = World()
    world.do(Start())
    world.do(ConsumerHeard(world.sent.call_id, 3, 1, {}, incomplete=True))
    assert not world.machine.is_settled
    assert kinds(world.do(Ask())) == [SendConsumerHeartbeat]
    world.do(ConsumerHeard(world.sent.call_id, 3, 1, {}))
    assert world.machine.is_settled
    assert world.do(Ask()) == []


def test_one_call_is_open_at_a_time():
    """What comes up meanwhile is asked when it is answered."""
    world = World().stable()
    world.told(E.REBALANCE_IN_PROGRESS)
    assert world.told(E.REBALANCE_IN_PROGRESS) == []
    assert world.do(Resubscribe(frozenset({"t"}))) == []
    sent = only(world.heard(4, "t-0@5 t-1@5"), SendConsumerHeartbeat)
    assert sent.full


def test_after_an_error_the_next_call_says_everything():
    """And after a pause."""
    world = World().stable()
    world.told(E.REBALANCE_IN_PROGRESS)
    actions = world.refused(E.REQUEST_TIMED_OUT)
    assert kinds(actions) == [StartTimer]
    assert world.told(E.REBALANCE_IN_PROGRESS) == []
    sent = only(world.do(TimerFired(world.timer.timer_id)), SendConsumerHeartbeat)
    assert sent.full
    assert world.owned == ["t-0", "t-1"]
    world.heard(4, "t-0@5 t-1@5")
    assert not only(world.told(E.REBALANCE_IN_PROGRESS), SendConsumerHeartbeat).full


def test_what_is_released_is_said_though_it_waits_after_an_error():
    """Another member waits for that."""
    world = World().stable()
    world.told(E.REBALANCE_IN_PROGRESS)
    world.heard(3, "t-0@5 t-1@5!")
    world.told(E.REBALANCE_IN_PROGRESS)
    assert kinds(world.refused(E.REQUEST_TIMED_OUT)) == [StartTimer]
    assert only(world.do(Released()), SendConsumerHeartbeat).owned == (key("t-0"),)
    assert world.do(TimerFired(world.timer.timer_id)) == []


def test_a_member_that_is_fenced_after_other_errors_joins_again_after_a_pause():
    """So that a coordinator that refuses everything is not called in a circle (gp-6.11)."""
    world = World().stable()
    world.told(E.REBALANCE_IN_PROGRESS)
    for _ in range(IMMEDIATE_RETRIES_MAX):
        world.refused(E.REQUEST_TIMED_OUT)
        world.do(TimerFired(world.timer.timer_id))
    assert kinds(world.refused(E.UNKNOWN_MEMBER_ID)) == [StopKeepAlive, Lose]
    assert kinds(world.do(Released())) == [StartTimer]
    sent = only(world.do(TimerFired(world.timer.timer_id)), SendConsumerHeartbeat)
    assert (sent.member_id, sent.member_epoch) == ("c-n1", 0)


@pytest.mark.parametrize("code", [E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID])
@pytest.mark.parametrize("by", ["call", "heartbeat"])
def test_a_fenced_member_loses_everything_and_joins_again_under_its_id(code, by):
    """Also what it was giving up; the lease of another may have begun."""
    world = World().stable()
    world.told(E.REBALANCE_IN_PROGRESS)
    world.heard(3, "t-0@5 t-1@5!")
    if by == "call":
        world.told(E.REBALANCE_IN_PROGRESS)
        actions = world.refused(code)
    else:
        actions = world.told(code)
    assert kinds(actions) == [StopKeepAlive, Lose]
    assert names(actions[1].assignment) == ["t-0", "t-1"]
    assert world.machine.held is None
    assert not world.machine.held_since
    sent = only(world.do(Released()), SendConsumerHeartbeat)
    assert (sent.member_id, sent.member_epoch, sent.full) == ("c-n1", 0, True)
    assert names(only(world.heard(7, "t-0@9"), Give).assignment) == ["t-0"]


def test_an_answer_of_a_membership_that_is_over_changes_nothing():
    """It names a call, or a version, that does not count any more."""
    world = World().stable()
    world.told(E.REBALANCE_IN_PROGRESS)
    world.told(E.UNKNOWN_MEMBER_ID)
    assert world.heard(9, "t-0@5") == []
    assert world.machine.held is None
    world.do(Released())
    world.heard(9, "t-0@8")
    before = Identity("c-n1", world.version - 1)
    assert world.do(HeartbeatAnswered(before, Refusal(int(E.UNKNOWN_MEMBER_ID)))) == []
    assert names(world.machine.held) == ["t-0"]


FATAL = [
    E.FENCED_INSTANCE_ID,
    E.INVALID_REQUEST,
    E.GROUP_MAX_SIZE_REACHED,
    E.UNSUPPORTED_ASSIGNOR,
    E.UNSUPPORTED_VERSION,
    E.GROUP_AUTHORIZATION_FAILED,
    E.INVALID_REGULAR_EXPRESSION,
]


@pytest.mark.parametrize("code", FATAL)
@pytest.mark.parametrize("state", ["joining", "stable"])
def test_what_joining_again_does_not_mend_is_fatal(code, state):
    """With the message; what it had is lost."""
    world = World()
    if state == "stable":
        world.stable()
        world.told(E.REBALANCE_IN_PROGRESS)
    else:
        world.do(Start())
    actions = world.refused(code, "no")
    error = only(actions, Fail).error
    assert (error.code, error.message) == (code, "no")
    assert (Lose in kinds(actions)) == (state == "stable")
    assert world.machine.state is State.FAILED


@pytest.mark.parametrize("code", [4711, *(c for c in E if c is not E.NONE)])
def test_no_other_number_ends_a_member_that_has_joined(code):
    """It loses what it has, or it asks again; one that is not known is not fatal."""
    world = World().stable()
    world.told(E.REBALANCE_IN_PROGRESS)
    actions = world.refused(code)
    fatal = {
        *FATAL,
        E.INCONSISTENT_GROUP_PROTOCOL,
        E.INVALID_GROUP_ID,
        E.INVALID_SESSION_TIMEOUT,
        E.TOPIC_AUTHORIZATION_FAILED,
    }
    fenced = {
        E.FENCED_MEMBER_EPOCH,
        E.UNKNOWN_MEMBER_ID,
        E.GROUP_ID_NOT_FOUND,
        E.ILLEGAL_GENERATION,
    }
    if code in fatal:
        assert Fail in kinds(actions)
    elif code in fenced:
        assert Lose in kinds(actions)
    else:
        assert kinds(actions) == [StartTimer]


def test_a_newcomer_tries_again_until_the_open_round_of_a_classic_group_is_over():
    """However often it is refused: the group becomes a modern one between two rounds."""
    world = World()
    world.do(Start())
    for _ in range(20):
        assert kinds(world.refused(E.REBALANCE_IN_PROGRESS, "a round is open")) == [StartTimer]
        sent = only(world.do(TimerFired(world.timer.timer_id)), SendConsumerHeartbeat)
        assert (sent.member_epoch, sent.full) == (0, True)
    world.heard(3, "t-0@5")
    assert world.machine.state is State.STABLE


def test_an_instance_id_that_is_held_is_waited_for_a_session_long():
    """Then two processes use one id, and this one is too many."""
    world = World("i")
    world.do(Start())
    waited_ms = 0
    while True:
        actions = world.refused(E.UNRELEASED_INSTANCE_ID, "held")
        if Fail in kinds(actions):
            break
        waited_ms += world.timer.delay_ms
        world.do(TimerFired(world.timer.timer_id))
    assert waited_ms >= SESSION_MS
    assert only(actions, Fail).error.code == E.UNRELEASED_INSTANCE_ID


@pytest.mark.parametrize("code", [E.STALE_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID])
def test_a_commit_that_is_refused_makes_it_ask(code):
    """The answer says what it has lost."""
    world = World().stable()
    named = Identity("c-n1", 3)
    assert kinds(world.do(CommitRefused(named, Refusal(int(code))))) == [SendConsumerHeartbeat]
    other = Identity("c-n9", 3)
    assert World().stable().do(CommitRefused(other, Refusal(int(code)))) == []


def test_it_leaves_when_all_is_given_up():
    """Epoch -1, and then it is over."""
    world = World().stable()
    actions = world.do(Close("bye"))
    assert names(only(actions, Revoke).assignment) == ["t-0", "t-1"]
    assert world.machine.held_since
    actions = world.do(Released())
    assert only(actions, SendConsumerLeave) == SendConsumerLeave("c-n1", None, "bye")
    assert kinds(world.do(LeaveAnswered())) == [StopKeepAlive, AbandonCalls, Ended]
    assert world.machine.state is State.LEFT
    assert world.do(Start()) == []


def test_what_it_hears_while_it_closes_begins_nothing():
    """Nor is it told of that later: the member is about to be none."""
    world = World().stable()
    world.told(E.REBALANCE_IN_PROGRESS)
    world.do(Close())
    assert world.heard(4, "t-0@5 t-1@5! t-2@9") == []
    assert names(world.machine.held) == ["t-0", "t-1"]
    assert SendConsumerLeave in kinds(world.do(Released()))


def test_a_member_without_partitions_gives_up_its_assignment_too():
    """Its listener is told, and what runs for it ends."""
    world = World().stable("")
    assert names(only(world.do(Close()), Revoke).assignment) == []


def test_closing_while_something_is_given_up_gives_up_the_rest():
    """One thing after the other."""
    world = World().stable()
    world.told(E.REBALANCE_IN_PROGRESS)
    world.heard(3, "t-0@5 t-1@5!")
    assert world.do(Close("bye")) == []
    assert names(only(world.do(Released()), Revoke).assignment) == ["t-0"]
    assert SendConsumerLeave in kinds(world.do(Released()))


@pytest.mark.parametrize(("leave", "back_in_ms"), [(None, SESSION_MS), (True, None)])
def test_a_static_member_that_closes_is_back_within_a_session(leave, back_in_ms):
    """Unless it is told to leave; with leave=False nothing is said."""
    world = World("i").stable()
    world.do(Close("bye", leave))
    assert only(world.do(Released()), SendConsumerLeave).back_in_ms == back_in_ms
    silent = World("i").stable()
    silent.do(Close("bye", leave=False))
    assert SendConsumerLeave not in kinds(silent.do(Released()))


def test_a_member_that_is_away_comes_back_under_its_id():
    """Epoch -2; closing it meanwhile sends nothing."""
    world = World().stable()
    world.do(Away(30_000, "deploy"))
    actions = world.do(Released())
    assert only(actions, SendConsumerLeave) == SendConsumerLeave("c-n1", 30_000, "deploy")
    world.do(LeaveAnswered())
    assert world.machine.state is State.AWAY
    sent = only(world.do(Start()), SendConsumerHeartbeat)
    assert (sent.member_id, sent.member_epoch) == ("c-n1", 0)
    assert names(only(world.heard(3, "t-0@9 t-1@9"), Give).assignment) == ["t-0", "t-1"]
    world.do(Away(30_000))
    world.do(Released())
    world.do(LeaveAnswered())
    assert SendConsumerLeave not in kinds(world.do(Close()))
    assert world.machine.state is State.LEFT


def test_a_member_that_is_fenced_while_it_closes_says_no_goodbye():
    """Nobody is there."""
    world = World().stable()
    world.do(Close())
    assert Lose in kinds(world.told(E.UNKNOWN_MEMBER_ID))
    assert kinds(world.do(Released())) == [StopKeepAlive, AbandonCalls, Ended]


def test_closing_while_it_joins_leaves():
    """The call may have been taken."""
    world = World()
    world.do(Start())
    assert SendConsumerLeave in kinds(world.do(Close()))
