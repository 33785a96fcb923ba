"""What is no matter of course is a warning; what is, is not."""

import logging

import pytest

from muster.errors import ErrorCode
from muster.testing import Refuse


def warnings(caplog):
    """What the SDK warned of."""
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


async def test_the_life_of_an_election_and_of_a_group_warns_of_nothing(open_cluster, caplog):
    """Elected, resigned, elected, closed; joined beside another, closed."""
    caplog.set_level(logging.INFO, "muster")
    async with open_cluster(1) as (_, client):
        async with client.election("e", "http://one") as election:
            await election.lead()
            await election.resign()
            await election.lead()
        async with client.group("g", ["t"]) as first:
            await first.next_assignment()
            async with client.group("g", ["t"]) as second:
                await second.next_assignment()
    assert "this member leads no more: resigned" in caplog.text
    assert warnings(caplog) == []


@pytest.mark.parametrize(("refusals", "warned"), [(1, False), (4, True)])
async def test_a_join_that_waits_is_a_warning_after_several_in_vain(
    open_cluster, caplog, refusals, warned
):
    """One is what a full disk that is being cleared gives."""
    caplog.set_level(logging.INFO, "muster")
    async with open_cluster(1) as (cluster, client):
        refusal = Refuse(ErrorCode.KAFKA_STORAGE_ERROR)
        cluster.script("JoinGroup", *[refusal] * refusals)
        async with client.group("g", ["t"]) as group:
            await group.next_assignment()
    assert caplog.text.count("group g: joins in ") == refusals
    assert bool(warnings(caplog)) == warned
