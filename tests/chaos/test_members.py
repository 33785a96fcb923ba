"""Members of a workload: what may end a membership, and what fails the run."""

import asyncio

import pytest

from chaos.workloads.kinds import KINDS
from muster.errors import ErrorCode, MusterError
from muster.testing import Cluster, Refuse
from tests.chaos.briefs import brief
from tests.coordinator.local import until

STEP_S = 30
TRACK = "members.track.jsonl"


async def one_member(folder, refusal):
    """A process with one member whose first Join is refused; until it failed or said so."""
    async with Cluster(1, topics={"t": 4}) as cluster:
        cluster.script("JoinGroup", refusal)
        settings = {
            "group": "g",
            "topic": "t",
            "session_ms": 5_000,
            "rebalance_ms": 8_000,
            "instance": "worker-0",
        }
        worker = KINDS["members"](brief("members", folder, cluster.bootstrap, 1, settings))
        try:
            async with asyncio.timeout(STEP_S):
                await worker.start()
            await until(lambda: worker.failed.done() or (folder / TRACK).read_text(), STEP_S)
        finally:
            await worker.stop()
            worker.close()
        if worker.failed.done():
            worker.failed.result()


@pytest.mark.parametrize(
    "code", [ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorCode.GROUP_MAX_SIZE_REACHED]
)
def test_a_membership_that_ends_for_no_good_reason_fails_the_run(code, tmp_path):
    """It does not join again as if nothing had been."""
    with pytest.raises(MusterError, match="planted"):
        asyncio.run(one_member(tmp_path, Refuse(code, "planted")))


def test_a_member_that_is_fenced_ends_and_says_so(tmp_path):
    """Another process came under its instance id, as a run's restarts may have it."""
    asyncio.run(one_member(tmp_path, Refuse(ErrorCode.FENCED_INSTANCE_ID, "planted")))
    assert '"error":"FENCED_INSTANCE_ID"' in (tmp_path / TRACK).read_text()
