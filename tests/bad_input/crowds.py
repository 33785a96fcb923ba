# ruff: noqa: D103  # docs/errors.toml says what each case is
"""Bad requests of which it takes thousands: one more than a group has room for."""

import time
from concurrent.futures import ThreadPoolExecutor

import grpc

from coordinator.machine.limits import LIMITS
from muster.v1 import group_pb2 as pb
from tests.bad_input.registry import case
from tests.bad_input.requests import fresh, refused
from tests.bad_input.world import PARKED_S, POLL_S, World, patiently

THREADS = 16


def joins(world: World, group, count, **changes):
    """So many first Joins."""
    return [pb.JoinGroupRequest(**world.join_fields(group, **changes)) for _ in range(count)]


@case("many_members")
def many_members(world: World):
    """All at once: which one is refused is nobody's choice."""
    group = fresh("crowd")
    stub = world.groups(world.coordinator(group).node_id)
    asked = joins(world, group, LIMITS.group_max_members + 1, rebalance_timeout_ms=20_000)
    calls = [(one, stub.JoinGroup.future(one, timeout=PARKED_S)) for one in asked]
    answers = []
    while calls:
        time.sleep(POLL_S)
        ended = [(one, call) for one, call in calls if call.done()]
        calls = [(one, call) for one, call in calls if not call.done()]
        for one, call in ended:
            error = call.exception()
            if error is None:
                answers.append(call.result())
            elif error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:  # the node or its door
                calls.append((one, stub.JoinGroup.future(one, timeout=PARKED_S)))
            else:
                raise error
    refusals = [answer for answer in answers if answer.status.code]
    assert len(refusals) == 1, "all others are in the group"
    assert len({answer.generation for answer in answers}) == 2, "in one generation"
    return refused(refusals[0])


@case("many_ids")
def many_ids(world: World):
    group = fresh("crowd")
    stub = world.groups(world.coordinator(group).node_id)
    asked = joins(world, group, LIMITS.group_max_pending, join_nonce="")

    def ask(one):
        return patiently(lambda: stub.JoinGroup(one, timeout=PARKED_S))

    with ThreadPoolExecutor(THREADS) as pool:
        given = list(pool.map(ask, asked))
    assert len({answer.member_id for answer in given}) == LIMITS.group_max_pending
    return refused(ask(asked[0]))
