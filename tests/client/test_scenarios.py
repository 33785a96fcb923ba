"""`muster.testing` does what a real cluster does, in each scenario of sdk_scenarios.py."""

import pytest

from muster.errors import ErrorCode, UnsupportedVersion
from muster.testing.groups import Group
from muster.v1 import group_pb2
from tests.client.modern_scenarios import MODERN
from tests.client.sdk_scenarios import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
async def test_on_the_kit(open_cluster, name):
    """The same file runs on servers: tests/e2e/test_scenarios.py."""
    async with open_cluster(2, topics={}) as (_, client):
        await SCENARIOS[name](client, name)


@pytest.mark.parametrize("name", MODERN)
async def test_on_the_kit_where_it_assigns(open_cluster, name):
    """The same file runs on servers: tests/e2e/test_modern_sdk.py."""
    async with open_cluster(2, topics={}) as (_, client):
        await MODERN[name](client, name)


async def test_what_the_kit_has_not_is_said(open_cluster):
    """As docs/testing.md lists it."""
    async with open_cluster(1) as (_, client):
        for call in (
            client.group_settings("g"),
            client.alter_group_settings("g", {"classic.max.size": 5}),
        ):
            with pytest.raises(UnsupportedVersion):
                await call


async def test_a_removed_member_is_answered_without_an_id():
    """Its Join was parked; as on servers, where the id is of no use any more."""
    never = {"topics": {}, "creation_versions": {}, "changed": lambda: None}
    group = Group("g", initial_delay_ms=60_000, **never)
    request = group_pb2.JoinGroupRequest(
        group_id="g", client_id="c", join_nonce="1", session_timeout_ms=10_000
    )
    request.protocols.add(name="range")
    parked = group.join(request)
    group.remove("c-1", "member_kicked")
    answer = await parked
    assert (answer.status.code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")
    group.close()
