"""A token that ends under a call: it is made again with the one that the file has by then."""

import asyncio
from collections import Counter

import grpc
import pytest

import muster
from muster.errors import ErrorCode, GroupAuthorizationFailed
from muster.testing import Cluster, Hang, LoseAnswer
from muster.testing.statuses import status
from muster.testing.streams import Aborted

WHY = "the token has ended"


class Guarded(Cluster):
    """Takes one token; with another one it ends what waits, in the answer or by gRPC's status."""

    def __init__(self, *, in_band, **rest):
        super().__init__(**rest, topics={"t": 4})
        self.refused = Counter()
        self._good, self._in_band, self._changed_token = "one", in_band, asyncio.Event()

    def take(self, token):
        self._good = token
        self._changed_token.set()
        self._changed_token = asyncio.Event()

    def _behaviour(self, node, name, kind):
        behave = super()._behaviour(node, name, kind)

        async def guarded(request, context):
            shown = dict(context.invocation_metadata()).get("authorization")
            if shown != f"Bearer {self._good}":
                self.refused[name] += 1
                raise Aborted(grpc.StatusCode.UNAUTHENTICATED, WHY)
            works = asyncio.ensure_future(behave(request, context))
            ends = asyncio.ensure_future(self._changed_token.wait())
            try:
                await asyncio.wait({works, ends}, return_when=asyncio.FIRST_COMPLETED)
                if works.done():
                    return works.result()
            finally:
                works.cancel()
                ends.cancel()
            self.refused[name] += 1
            if not self._in_band:
                raise Aborted(grpc.StatusCode.UNAUTHENTICATED, WHY)
            refusal = status(ErrorCode.GROUP_AUTHORIZATION_FAILED, WHY)
            return self._refused(kind, name, request, refusal)

        return guarded


@pytest.fixture(params=[True, False], ids=["in-the-answer", "by-grpc"])
def guarded(request, tmp_path):
    """Opens a cluster, and a client with a token's file, for `async with`."""
    file = tmp_path / "token"
    file.write_text("one")

    class Opened:
        def __init__(self, **rest):
            self.cluster = Guarded(in_band=request.param, **rest)

        async def __aenter__(self):
            await self.cluster.__aenter__()
            self.client = muster.Client(self.cluster.bootstrap, token_file=str(file))
            await self.client.open()
            return self.cluster, self.client, file

        async def __aexit__(self, *details):
            await self.client.close()
            await self.cluster.__aexit__(*details)

    return Opened


async def test_a_parked_join_whose_token_ends_is_made_again_with_the_files(guarded):
    """The member comes into its first generation as if nothing had been."""
    async with (
        guarded(initial_delay_ms=1_000) as (cluster, client, file),
        client.group("g", ["t"]) as group,
    ):
        joining = asyncio.ensure_future(group.next_assignment())
        await cluster.until(lambda: bool(cluster.seen("JoinGroup")))
        file.write_text("two")
        cluster.take("two")
        assert (await joining).generation == 1
        assert cluster.refused["JoinGroup"] == 1
        assert len({call.request.join_nonce for call in cluster.seen("JoinGroup")}) == 1


async def test_a_held_heartbeat_whose_token_ends_costs_no_membership(guarded):
    """Three times; the member has joined once, and commits under its first generation."""
    async with guarded() as (cluster, client, file), client.group("g", ["t"]) as group:
        begun = await group.next_assignment()
        for number, token in enumerate(("two", "three", "four")):
            await cluster.until(lambda: cluster.open_calls["Heartbeat"] == 1)
            file.write_text(token)
            cluster.take(token)
            await group.commit({("t", 0): number})
            await cluster.until(lambda: cluster.refused["Heartbeat"] > number)  # noqa: B023
        await cluster.until(lambda: cluster.open_calls["Heartbeat"] == 1)
        assert (group.assignment.generation, group.state) == (begun.generation, "Stable")
        assert len(cluster.seen("JoinGroup")) == 1
        assert cluster.refused["Heartbeat"] == 3


async def test_a_call_that_any_node_takes_is_made_again_too(guarded):
    """As a list of topics."""
    async with guarded() as (cluster, client, file):
        cluster.script("ListTopics", Hang())
        listing = asyncio.ensure_future(client.topics())
        await cluster.until(lambda: bool(cluster.seen("ListTopics")))
        file.write_text("two")
        cluster.take("two")
        assert [topic.name for topic in await listing] == ["t"]
        assert cluster.refused["ListTopics"] == 1


async def test_what_a_refused_attempt_may_have_removed_is_removed(guarded):
    """The topic is gone before the token ends; made again, the call finds none, and is content."""
    async with guarded() as (cluster, client, file):
        cluster.script("DeleteTopic", LoseAnswer())
        deleting = asyncio.ensure_future(client.delete_topic("t"))
        await cluster.until(lambda: bool(cluster.seen("DeleteTopic")))
        while "t" in cluster.topics:
            await asyncio.sleep(0)
        file.write_text("two")
        cluster.take("two")
        await deleting
        assert len(cluster.seen("DeleteTopic")) == 2


async def test_a_credential_that_is_refused_is_shown_once_and_the_error_is_raised(guarded):
    """The file's is the same: one attempt. It is another, refused as well: one more, no third."""
    async with guarded() as (cluster, client, file):
        for written, attempts in (("one", 1), ("wrong", 2)):
            cluster.take("one")
            file.write_text("one")
            cluster.refused.clear()
            cluster.script("OffsetFetch", Hang())
            reading = asyncio.ensure_future(client.committed("g", [("t", 0)]))
            await cluster.until(lambda: cluster.open_calls["OffsetFetch"] == 1)
            file.write_text(written)
            cluster.take("another")
            with pytest.raises(GroupAuthorizationFailed, match=WHY):
                await reading
            assert cluster.refused["OffsetFetch"] == attempts
