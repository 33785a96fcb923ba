"""Calls that wait are asked anew a few at a time."""

import asyncio

from musterd.coordinator.api.frame.authorizer import HELD_PER_PASS, PASS_MS, Authorizer, Recheck
from musterd.coordinator.api.frame.identity import Identities
from musterd.coordinator.machine.records.shard_records import ShardState

QUESTION_MS = 2
"""What one question takes here, where it is slow."""


async def asked_by_pass(monkeypatch, calls, question_ms):
    """How many of so many calls that wait were asked in each pass of the loop."""
    loop, state, now_s, asked = asyncio.get_running_loop(), ShardState(), [0.0], [0]
    identities = Identities(lambda: state, lambda: 0)
    access = Authorizer(lambda: state, lambda: True, lambda: False, identities)

    def ask():
        now_s[0] += question_ms / 1_000
        asked[0] += 1

    held = [loop.create_future() for _ in range(calls)]
    for future in held:
        access.hold(future, Recheck(ask, 0), lambda refused: refused)
    asked[0] = 0  # each was asked as its wait began
    passes, before = [], 0
    with monkeypatch.context() as patched:
        patched.setattr(loop, "time", lambda: now_s[0])
        access.changed()
        while asked[0] < calls:
            await asyncio.sleep(0)
            passes.append(asked[0] - before)
            before = asked[0]
    return [one for one in passes if one]


def test_a_pass_ends_by_its_time_where_questions_are_slow(monkeypatch):
    """As those are that verify a JWT anew; all are asked in the end."""
    found = asyncio.run(asked_by_pass(monkeypatch, 10, QUESTION_MS))
    assert max(found) * QUESTION_MS <= PASS_MS + QUESTION_MS
    assert sum(found) == 10


def test_a_pass_ends_by_its_number_where_questions_are_quick(monkeypatch):
    """Whatever the clock says."""
    found = asyncio.run(asked_by_pass(monkeypatch, HELD_PER_PASS + 1, 0))
    assert found == [HELD_PER_PASS, 1]


def test_a_change_after_which_no_call_waits_ends_the_passes():
    """The one that is due finds none; whatever the loop is told of an error fails this."""

    async def scenario():
        loop, state, errors = asyncio.get_running_loop(), ShardState(), []
        loop.set_exception_handler(lambda _loop, context: errors.append(context))
        identities = Identities(lambda: state, lambda: 0)
        access = Authorizer(lambda: state, lambda: True, lambda: False, identities)
        future = loop.create_future()
        access.hold(future, Recheck(lambda: None, 0), lambda refused: refused)
        access.changed()
        access.release(future)
        access.changed()
        await asyncio.sleep(0)
        return errors

    assert asyncio.run(scenario()) == []
