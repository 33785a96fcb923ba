"""What is too much is refused before a Python object is made of every entry of it.

A message of 4 MiB, which was taken once, holds two million entries; to translate them held the
node's loop for seconds, and its shards went to other leaders (a single call, no flood).
"""

import asyncio

import pytest

from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.api.rpcs import translate
from tests.coordinator.local import local_node

FIRST_JOIN = {"group_id": "g", "join_nonce": "0" * 32, "session_timeout_ms": 10_000}
REQUESTS = {
    "join": (
        "JoinGroup",
        pb.JoinGroupRequest(**FIRST_JOIN, subscribed_topics=["t"] * 10_001),
    ),
    "join of protocols": (
        "JoinGroup",
        pb.JoinGroupRequest(**FIRST_JOIN, protocols=[pb.JoinGroupRequest.Protocol()] * 101),
    ),
    "sync": (
        "SyncGroup",
        pb.SyncGroupRequest(group_id="g", assignments=[pb.SyncGroupRequest.Assignment()] * 2_001),
    ),
    "leave": (
        "LeaveGroup",
        pb.LeaveGroupRequest(group_id="g", members=[pb.LeaveGroupRequest.Member()] * 2_001),
    ),
    "commit": (
        "OffsetCommit",
        pb.OffsetCommitRequest(
            group_id="g", partitions=[pb.OffsetCommitRequest.Partition()] * 1_001
        ),
    ),
}


@pytest.mark.parametrize("wrong", ["too many", "too large", "no group"])
@pytest.mark.parametrize("name", REQUESTS)
def test_too_much_and_no_group_are_refused_untranslated(monkeypatch, name, wrong):
    """By count, by size and by group id, without the translation being called."""

    def unwanted(*_):
        raise AssertionError(f"{name} was translated")

    method, request = REQUESTS[name]
    code, says = ErrorCode.INVALID_REQUEST, "at most"
    if wrong == "too large":
        request, says = type(request)(group_id="g" * 800_000), "takes"
    elif wrong == "no group":
        request, code, says = type(request)(), ErrorCode.INVALID_GROUP_ID, "has 0"

    async def ask():
        async with local_node() as node:
            monkeypatch.setattr(translate, name.split()[0], unwanted)
            return await getattr(node.groups, method)(request)

    answer = asyncio.run(asyncio.wait_for(ask(), 60))
    assert (answer.status.code, says in answer.status.message) == (code, True), answer.status
