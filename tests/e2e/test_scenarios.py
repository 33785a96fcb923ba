"""The scenarios of tests/client/sdk_scenarios.py on servers: what `muster.testing` has to do."""

import asyncio

import pytest

import muster
from tests.client.sdk_scenarios import SCENARIOS
from tests.e2e.test_sdk import dev_cluster

pytestmark = pytest.mark.processes


async def run_all(folder):
    """Side by side, each with a group and a topic of its own; by name what failed."""
    async with dev_cluster(folder) as nodes, muster.Client(",".join(nodes)) as client:
        outcomes = await asyncio.gather(
            *(scenario(client, name) for name, scenario in SCENARIOS.items()),
            return_exceptions=True,
        )
        return {
            name: error
            for name, error in zip(SCENARIOS, outcomes, strict=True)
            if error is not None
        }


def test_every_scenario_on_servers(tmp_path):
    """The same file runs on the kit: tests/client/test_scenarios.py."""
    failed = asyncio.run(run_all(tmp_path))
    if failed:
        raise ExceptionGroup(", ".join(failed), list(failed.values()))
