"""Every (state, call, error) of the membership against gp-6.7 and gp-6.11.

The expectation is written here anew, from the rules, not from the code.
"""

import itertools

import pytest

from muster.errors import ErrorCode
from muster.group.actions import Fail, Give, Lose, Revoke, SendJoin, SendSync, StartTimer
from muster.group.membership import State
from tests.client.scenario import World

UNKNOWN = 4711
CODES = [*(int(code) for code in ErrorCode if code is not ErrorCode.NONE), UNKNOWN]

STATES = {
    "new": [],
    "waiting": ["start", "join-refused COORDINATOR_NOT_AVAILABLE"],
    "joining": ["start"],
    "syncing": ["start", "joined gen=1"],
    "stable": ["start", "joined gen=1", "synced t-0"],
    "revoking": ["start", "joined gen=1", "synced t-0", "heartbeat REBALANCE_IN_PROGRESS"],
    "losing": ["start", "joined gen=1", "synced t-0", "heartbeat ILLEGAL_GENERATION"],
    "closing": ["start", "joined gen=1", "synced t-0", "close"],
    "leaving": ["start", "joined gen=1", "close"],
    "left": ["start", "joined gen=1", "close", "left"],
    "failed": ["start", "join-refused INVALID_GROUP_ID"],
}
CALLS = ["join-refused", "sync-refused", "heartbeat", "commit"]

IGNORE, REVOKE, LOSE_ID_KEPT, LOSE_ID_DROPPED, FATAL, BACK_OFF = (
    "ignore",
    "revoke",
    "lose, keep the id",
    "lose, drop the id",
    "fatal",
    "back off",
)
NOW, NOW_ID_KEPT, NOW_ID_DROPPED = "join now", "join now, keep the id", "join now, drop the id"

E = ErrorCode
JOIN = {
    E.COORDINATOR_LOAD_IN_PROGRESS: BACK_OFF,
    E.COORDINATOR_NOT_AVAILABLE: BACK_OFF,
    E.NOT_COORDINATOR: BACK_OFF,
    E.REQUEST_TIMED_OUT: BACK_OFF,
    E.KAFKA_STORAGE_ERROR: BACK_OFF,
    E.THROTTLING_QUOTA_EXCEEDED: BACK_OFF,
    E.UNKNOWN_MEMBER_ID: NOW_ID_DROPPED,
    E.ILLEGAL_GENERATION: NOW_ID_KEPT,
    E.MEMBER_ID_REQUIRED: NOW,
    E.REBALANCE_IN_PROGRESS: NOW,
}  # anything else: fatal
SYNC = {
    E.REBALANCE_IN_PROGRESS: NOW,
    E.UNKNOWN_MEMBER_ID: NOW_ID_DROPPED,
    E.ILLEGAL_GENERATION: NOW_ID_KEPT,
    E.FENCED_INSTANCE_ID: FATAL,
    E.GROUP_AUTHORIZATION_FAILED: FATAL,
    E.INCONSISTENT_GROUP_PROTOCOL: FATAL,
    E.INVALID_GROUP_ID: FATAL,
    E.INVALID_REQUEST: FATAL,
    E.UNSUPPORTED_VERSION: FATAL,
}  # anything else: back off and join again
HEARTBEAT = {
    E.REBALANCE_IN_PROGRESS: REVOKE,
    E.UNKNOWN_MEMBER_ID: LOSE_ID_DROPPED,
    E.ILLEGAL_GENERATION: LOSE_ID_KEPT,
    E.FENCED_INSTANCE_ID: FATAL,
    E.GROUP_AUTHORIZATION_FAILED: FATAL,
}  # anything else: ignore
COMMIT = {k: v for k, v in HEARTBEAT.items() if k is not E.GROUP_AUTHORIZATION_FAILED}


def expected(state: str, call: str, code: int) -> str:  # noqa: PLR0911 - a table
    """From the tables above."""
    if call == "join-refused":
        return JOIN.get(code, FATAL) if state == "joining" else IGNORE
    if call == "sync-refused":
        return SYNC.get(code, BACK_OFF) if state == "syncing" else IGNORE
    told = (HEARTBEAT if call == "heartbeat" else COMMIT).get(code, IGNORE)
    match state, told:
        case "stable", _:
            return told
        case "syncing", "lose, keep the id":
            return NOW_ID_KEPT
        case "syncing", "lose, drop the id":
            return NOW_ID_DROPPED
        case (("revoking" | "closing"), ("lose, keep the id" | "lose, drop the id")):
            return told
        case "closing", "fatal":
            return LOSE_ID_DROPPED
        case _, "fatal" if state not in ("leaving", "left", "failed"):
            return FATAL
        case "losing", "lose, drop the id":
            return "drop the id"
    return IGNORE


def observed(world: World, line: str) -> str:
    """What the machine did with one input, in the tables' words."""
    before = world.machine.identity
    actions = world.machine.handle(world.parse(line))
    kinds = {type(action) for action in actions}
    after = world.machine.identity
    if Fail in kinds:
        assert world.machine.state is State.FAILED
        return FATAL
    change = ""
    if after != before:
        dropped = not after.member_id
        change = ", drop the id" if dropped else ", keep the id"
        assert after.generation == -1
    if Lose in kinds:
        assert change
        return f"lose{change}"
    if Revoke in kinds:
        assert not change
        return REVOKE
    if SendJoin in kinds:
        return f"join now{change}"
    if StartTimer in kinds:
        assert not change
        return BACK_OFF
    assert not kinds & {Give, SendSync}
    return change.removeprefix(", ") or IGNORE


@pytest.mark.parametrize("state", STATES)
def test_every_error_in_every_state_has_the_reaction_of_the_rules(state):
    """All calls times all error numbers, one of them unknown to this build."""
    for call, code in itertools.product(CALLS, CODES):
        world = World()
        for line in STATES[state]:
            world.run(line)
        named = "c-n1/1" if world.machine.identity.member_id == "c-n1" else "-/-1"
        if state == "losing":
            named = "c-n1/-1"
        as_ = f" as={named}" if call in ("heartbeat", "commit") and named != "-/-1" else ""
        wanted = expected(state, call, code)
        if code == E.ILLEGAL_GENERATION and state == "joining" and wanted == NOW_ID_KEPT:
            wanted = NOW  # before the first answer there is no generation to reset
        if code == E.UNKNOWN_MEMBER_ID and wanted == NOW_ID_DROPPED and state == "joining":
            wanted = NOW
        if code == E.MEMBER_ID_REQUIRED and wanted == NOW:
            as_, wanted = " member=c-given", NOW_ID_KEPT
        got = observed(world, f"{call} {code}{as_}")
        assert got == wanted, f"{state}, {call}, {code}: {got}, not {wanted}"


@pytest.mark.parametrize("code", CODES)
def test_an_unknown_member_never_joins_again_under_its_old_nonce(code):
    """Whatever a Join is refused with: the nonce changes exactly with the membership."""
    world = World()
    world.run("start")
    actions = world.machine.handle(world.parse(f"join-refused {code} member=c-x"))
    joins = [action for action in actions if isinstance(action, SendJoin)]
    for join in joins:
        assert (join.join_nonce == "n1") == (code != E.UNKNOWN_MEMBER_ID)


# ---- the same while a cooperative member holds an assignment

HELD = ["start", "joined gen=1", "synced t-0 t-1", "heartbeat REBALANCE_IN_PROGRESS"]
HOLDING = {
    "waiting": [*HELD, "join-refused COORDINATOR_NOT_AVAILABLE"],
    "joining": HELD,
    "syncing": [*HELD, "joined gen=2"],
    "stable": [*HELD, "joined gen=2", "synced t-0 t-1"],
    "moving": [*HELD, "joined gen=2", "synced t-0"],
    "closing": [*HELD, "close"],
}
HELD_IS_LOST = {
    NOW: LOSE_ID_KEPT,  # MEMBER_ID_REQUIRED: the member that held it is not there
    NOW_ID_KEPT: LOSE_ID_KEPT,
    NOW_ID_DROPPED: LOSE_ID_DROPPED,
}


def expected_holding(state: str, call: str, code: int) -> str:
    """Nothing is revoked for a round; where joining starts anew, what was held is lost."""
    if code == E.REBALANCE_IN_PROGRESS:
        due = {"join-refused": "joining", "sync-refused": "syncing"}.get(call, "stable")
        return NOW if state == due else IGNORE
    if state == "stable" and call in ("heartbeat", "commit"):
        return expected("stable", call, code)
    if state == "moving":
        return expected("revoking", call, code)
    told = expected(state, call, code)
    return HELD_IS_LOST.get(told, told)


@pytest.mark.parametrize("state", HOLDING)
def test_every_error_while_a_cooperative_member_holds_partitions(state):
    """It goes on with them unless it was fenced or failed for good; then they are lost, at once."""
    for call, code in itertools.product(CALLS, CODES):
        world = World("cooperative-sticky")
        for line in HOLDING[state]:
            world.run(line)
        held = world.machine.held
        assert held is not None
        member = " member=c-given" if code == E.MEMBER_ID_REQUIRED else ""
        wanted = expected_holding(state, call, code)
        got = observed(world, f"{call} {code}{member}")
        assert got == wanted, f"{state}, {call}, {code}: {got}, not {wanted}"
        if wanted.startswith("lose") or wanted == FATAL:
            assert world.machine.held is None
            assert not world.machine.held_since
        else:
            assert world.machine.held is held
