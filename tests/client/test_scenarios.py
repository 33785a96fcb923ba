"""`muster.testing` does what a real cluster does, in each scenario of sdk_scenarios.py."""

import pytest

from muster.errors import UnsupportedVersion
from tests.client.sdk_scenarios import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
async def test_on_the_kit(open_cluster, name):
    """The same file runs on servers: tests/e2e/test_scenarios.py."""
    async with open_cluster(2, topics={}) as (_, client):
        await SCENARIOS[name](client, name)


async def test_what_the_kit_has_not_is_said(open_cluster):
    """As docs/testing.md lists it."""
    async with open_cluster(1) as (_, client):
        for call in (
            client.group_settings("g"),
            client.alter_group_settings("g", {"classic.max.size": 5}),
        ):
            with pytest.raises(UnsupportedVersion):
                await call
