"""`muster.testing` does what a real cluster does, in each scenario of sdk_scenarios.py."""

import pytest

from tests.client.sdk_scenarios import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
async def test_on_the_kit(open_cluster, name):
    """The same file runs on servers: tests/e2e/test_scenarios.py."""
    async with open_cluster(2, topics={}) as (_, client):
        await SCENARIOS[name](client, name)
