# ruff: noqa: D103  # docs/errors.toml says what each case is
"""Bad requests of which it takes thousands: one more than a group has room for."""

from concurrent.futures import ThreadPoolExecutor

from coordinator.machine.limits import LIMITS
from muster.v1 import admin_pb2
from muster.v1 import group_pb2 as pb
from tests.bad_input.registry import case
from tests.bad_input.requests import fresh, refused
from tests.bad_input.world import PARKED_S, World, patiently, wait_for

THREADS = 16


def joins(world: World, group, count, **changes):
    """So many first Joins."""
    return [pb.JoinGroupRequest(**world.join_fields(group, **changes)) for _ in range(count)]


@case("many_members")
def many_members(world: World):
    """All at once, into a first round that stays open: which one is refused is nobody's choice."""
    group = fresh("crowd")
    node_id = world.coordinator(group).node_id
    stub, operator = world.groups(node_id), world.admin(node_id)
    patience = {"classic.initial.rebalance.delay.ms": "60000"}
    altered = admin_pb2.AlterGroupConfigsRequest.Group(group_id=group)
    altered.settings.extend(
        admin_pb2.AlterGroupConfigsRequest.Setting(name=name, value=value)
        for name, value in patience.items()
    )
    answer = operator.AlterGroupConfigs(
        admin_pb2.AlterGroupConfigsRequest(groups=[altered]), timeout=PARKED_S
    )
    assert answer.results[0].status.code == 0
    asked = joins(world, group, LIMITS.group_max_members + 1, rebalance_timeout_ms=120_000)
    calls = [stub.JoinGroup.future(one, timeout=PARKED_S) for one in asked]

    def members():
        wanted = admin_pb2.DescribeGroupsRequest(group_ids=[group])
        described = patiently(lambda: operator.DescribeGroups(wanted, timeout=PARKED_S))
        return len(described.groups[0].members)

    wait_for(lambda: members() == LIMITS.group_max_members, "a full group")
    (turned_away,) = wait_for(lambda: [call for call in calls if call.done()], "a refusal")
    # Before they are cancelled: a Join that breaks off leaves its member two seconds.
    assert members() == LIMITS.group_max_members, "all others are in the group"
    for call in calls:
        call.cancel()
    return refused(turned_away.result())


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
