"""Members of a workload: what may end a membership, and what fails the run."""

import asyncio
from contextlib import aclosing, nullcontext

import pytest

from muster.errors import ErrorCode, MusterError
from muster.testing import Cluster, Refuse
from muster.testing.groups import Group
from muster.testing.statuses import status
from muster.v1 import group_pb2
from musterd.chaos.check import fences, lost, owners, tokens
from musterd.chaos.history import Expected, Key, Outcome
from musterd.chaos.history_files import read_folder
from musterd.chaos.workloads import member
from musterd.chaos.workloads.operation_log import OperationLog
from musterd.chaos.workloads.raw import RawNodes
from musterd.chaos.workloads.run_worker import KINDS
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


UNRELEASED = Refuse(ErrorCode.UNRELEASED_INSTANCE_ID, "planted")


def test_a_member_whose_instance_id_another_process_keeps_tries_again(tmp_path):
    """Where the coordinator assigns: it does not end, and says so; the id may be free later."""

    async def refused():
        async with Cluster(1, topics={"t": 4}) as cluster:
            cluster.script("ConsumerGroupHeartbeat", *[UNRELEASED] * 40)
            settings = {"group": "g", "topic": "t", "assignment": "server", "instance": "worker-0"}
            settings |= {"session_ms": 1_000, "away_s": (0.0, 0.0)}
            worker = KINDS["members"](brief("members", tmp_path, cluster.bootstrap, 1, settings))
            try:
                async with asyncio.timeout(STEP_S):
                    await worker.start()
                said = (tmp_path / TRACK).read_text
                await until(lambda: worker.failed.done() or said().count(unreleased) > 1, STEP_S)
                assert not worker.failed.done()
            finally:
                await worker.stop()
                worker.close()

    unreleased = '"error":"UNRELEASED_INSTANCE_ID"'
    asyncio.run(refused())


async def _modern_members(folder):
    """Two members work, one leaves and comes back, and both work."""
    async with Cluster(1, topics={"t": 4}) as cluster:
        settings = {"group": "g", "topic": "t", "assignment": "server", "members": 2}
        settings |= {"every_s": 0.01, "whole_share": 0.3, "away_s": (0.0, 0.0)}
        worker = KINDS["members"](brief("members", folder, cluster.bootstrap, 1, settings))
        history = folder / "members.history.jsonl"
        try:
            async with asyncio.timeout(STEP_S):
                await worker.start()
            for _ in range(2):
                enough = history.read_text().count('"outcome":"ok"') + 100
                await until(
                    lambda enough=enough: (
                        worker.failed.done()
                        or (
                            worker.settled()
                            and history.read_text().count('"outcome":"ok"') > enough
                        )
                    ),
                    STEP_S,
                )
                await worker.bounce()
        finally:
            await worker.stop()
            worker.close()
        if worker.failed.done():
            worker.failed.result()


def test_members_of_a_modern_group_write_down_the_token_of_each_partition(tmp_path):
    """Each commit has that of its partition's grant, and the checkers have enough to look at."""
    asyncio.run(_modern_members(tmp_path))
    history = read_folder(tmp_path)
    history.expected = [Expected("g", (("t", 4),), 6_000, 10_000, modern=True)]
    grants = {(one.key, one.member_id, one.token) for one in history.ownerships}
    commits = [one for one in history.commits() if one.outcome is Outcome.OK]
    assert {(one.key, one.member_id, one.token) for one in commits} <= grants
    assert all(one.generation == one.token > 0 for one in history.ownerships)
    assert len({one.token for one in history.ownerships}) > 2
    for check in (owners.check, fences.check, tokens.check):
        verdict = check(history)
        assert verdict.passed, verdict
        assert verdict.looked_at


def supersede(_group, request):
    """A server that says so of the first partition of each commit, and stores nothing."""
    response = group_pb2.OffsetCommitResponse()
    for at, one in enumerate(request.partitions):
        answer = response.partitions.add(topic=one.topic, partition=one.partition)
        if at == 0:
            answer.superseded = True
        else:
            answer.status.CopyFrom(status(ErrorCode.OPERATION_NOT_ATTEMPTED, "it is atomic"))
    return response


async def _commit_until(said, folder, whole_share):
    async with Cluster(1, topics={"t": 4}) as cluster:
        settings = {"group": "g", "topic": "t", "every_s": 0.01, "whole_share": whole_share}
        worker = KINDS["members"](brief("members", folder, cluster.bootstrap, 1, settings))
        history = folder / "members.history.jsonl"
        try:
            async with asyncio.timeout(STEP_S):
                await worker.start()
            await until(lambda: worker.failed.done() or said in history.read_text(), STEP_S)
        finally:
            await worker.stop()
            worker.close()


@pytest.mark.parametrize(
    ("whole_share", "error"), [(0.0, "SUPERSEDED"), (1.0, "OPERATION_NOT_ATTEMPTED")]
)
def test_a_server_that_calls_a_newest_commit_superseded_is_told(
    whole_share, error, tmp_path, monkeypatch
):
    """Of one partition, and of several at once: what it answered stands in the history."""
    monkeypatch.setattr(Group, "commit", supersede)
    asyncio.run(_commit_until(error, tmp_path, whole_share))
    history = read_folder(tmp_path)
    history.operations = [one for one in history.operations if one.error in {"", error}]
    assert "superseded by nothing" in lost.check_lost(history).violations[0].what


async def _commit_once(folder):
    book = OperationLog(folder / "raw.history.jsonl", "raw")
    async with (
        Cluster(1, topics={"t": 4}) as cluster,
        aclosing(RawNodes({cluster.bootstrap: 1}, book)) as raw,
    ):
        await raw.commit(cluster.bootstrap, Key("g", "t", 0), 5)
    book.close()


def test_a_server_that_calls_an_outsiders_commit_superseded_is_told(tmp_path, monkeypatch):
    """A single attempt, without a number."""
    monkeypatch.setattr(Group, "commit", supersede)
    asyncio.run(_commit_once(tmp_path))
    (violation,) = lost.check_lost(read_folder(tmp_path)).violations
    assert "superseded by nothing" in violation.what


@pytest.mark.parametrize("groups", [0, 1])
@pytest.mark.parametrize("error", [RuntimeError, TimeoutError])
def test_a_close_that_fails_or_hangs_fails_the_run_unless_groups_are_many(
    error, groups, tmp_path, monkeypatch
):
    """Of many groups those that cannot leave in time are ended by their session timeouts."""
    monkeypatch.setattr(member, "CLOSE_S", 0.5)

    async def stop(_member):
        if error is RuntimeError:
            raise RuntimeError("planted")
        await asyncio.Event().wait()

    async def stopped():
        async with Cluster(1, topics={"t": 4}) as cluster:
            settings = {"group": "g", "topic": "t", "groups": groups}
            worker = KINDS["members"](brief("members", tmp_path, cluster.bootstrap, 1, settings))
            await worker.start()
            try:
                await worker.stop()
            finally:
                await worker.cancel()
                worker.close()

    monkeypatch.setattr(member.Member, "stop", stop)
    with nullcontext() if groups else pytest.raises(error):
        asyncio.run(stopped())
