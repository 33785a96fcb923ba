"""Small commits do not wait behind the large ones of other clients."""

import asyncio
from dataclasses import replace

import pytest

from musterd.coordinator.api.limits import requests_under_way
from musterd.coordinator.api.limits.requests_under_way import AT_ONCE_BYTES_MAX, ParseQueue
from musterd.coordinator.machine.commands import ExpireMember, OffsetCommit, PartitionCommit
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import Committed
from musterd.coordinator.runtime.answers import NotHere
from musterd.coordinator.runtime.calls import NodeCallLimits
from musterd.coordinator.runtime.large_commits import HELD_MAX, LARGE, UNDER_WAY_MAX, LargeCommits
from musterd.coordinator.runtime.timeouts import COMMIT_WAIT_MS_MAX, LARGE_STALLED_MS
from tests.coordinator.fakes import Rig, commit, join


def wide(group, partitions, offset=1):
    """A commit of so many partitions."""
    wanted = tuple(PartitionCommit("t", p, offset, "", None) for p in range(partitions))
    return replace(commit("", -1, offset, group=group), partitions=wanted)


def leading(call_limits=None):
    """A shard that leads, whose log applies nothing before it is told to."""
    rig = Rig(call_limits=call_limits)
    rig.log.lead()
    rig.turn()
    rig.apply, rig.log.run = rig.log.run, lambda: None
    return rig


def under_way(rig):
    """Of the commits in the log, those that are not applied: group, partitions."""
    return [
        (one.command.group_id, one.work)
        for entry in rig.proposer._in_flight
        for one in entry.pending
        if isinstance(one.command, OffsetCommit)
    ]


def test_a_small_commit_passes_the_large_ones_that_wait():
    """It shares the queue with them, and is in the log at once."""
    rig = leading()
    for number in range(3):
        rig.ask(number, wide(f"large-{number}", UNDER_WAY_MAX))
    rig.ask("small", wide("small", LARGE))
    rig.turn()
    assert under_way(rig) == [("large-0", UNDER_WAY_MAX), ("small", LARGE)]
    rig.log.run = rig.apply
    rig.drain()
    assert list(rig.answers) == [0, "small", 1, 2]


def test_commits_of_one_group_keep_their_order_however_large_they_are():
    """What came after a large one that waits does not pass it."""
    rig = leading()
    rig.ask("first", wide("other", UNDER_WAY_MAX))
    rig.ask("large", wide("g", LARGE + 1, offset=1))
    rig.ask("small", wide("g", 1, offset=2))
    rig.ask("large again", wide("g", LARGE + 1, offset=3))
    rig.ask("small again", wide("g", 1, offset=4))
    rig.turn()
    assert under_way(rig) == [("other", UNDER_WAY_MAX)]
    rig.log.run = rig.apply
    rig.drain()
    assert list(rig.answers) == ["first", "large", "small", "large again", "small again"]
    offsets = rig.shard.state.groups["g"].offsets
    assert [offsets["t", p].offset for p in (0, 1)] == [4, 3]


def test_the_shards_of_a_node_take_turns_with_what_is_large():
    """One is under way in all of them; the shard that waits for longest is woken, and goes next."""
    call_limits = NodeCallLimits()
    rigs = [leading(call_limits) for _ in range(3)]
    for rig in rigs:
        for number in range(2):
            rig.ask(number, wide(f"g{number}", UNDER_WAY_MAX))
    order = []
    for _ in range(6):
        for rig in rigs:
            rig.turn()
        at_it = [rig for rig in rigs if under_way(rig)]
        assert len(at_it) == 1
        busy = at_it[0]
        order.append(rigs.index(busy))
        wakes = [rig.wakes for rig in rigs]
        busy.apply()
        assert all(
            rig.wakes > before or not rig.proposer.waiting
            for rig, before in zip(rigs, wakes, strict=True)
        )
    assert order == [0, 1, 2, 0, 1, 2]


def test_a_shard_that_cannot_go_on_does_not_stop_the_others():
    """Its large commit waits for a quorum; after a while nobody waits for that one."""
    call_limits = NodeCallLimits()
    stuck, rig = leading(call_limits), leading(call_limits)
    stuck.ask(0, wide("g", UNDER_WAY_MAX))
    stuck.turn()
    rig.clock_ms = stuck.clock_ms
    rig.ask(0, wide("g", UNDER_WAY_MAX))
    rig.turn()
    assert under_way(rig) == []
    stuck.ask(1, wide("g", LARGE + 1))  # what comes is no progress
    rig.turn(ms=LARGE_STALLED_MS // 2)
    stuck.ask(2, wide("g", LARGE + 1))
    stuck.turn(ms=LARGE_STALLED_MS + 10)
    assert under_way(stuck) == [("g", UNDER_WAY_MAX)]
    rig.turn(ms=LARGE_STALLED_MS // 2 + 10)
    assert under_way(rig) == [("g", UNDER_WAY_MAX)]
    rig.apply()
    rig.ask(1, wide("g", UNDER_WAY_MAX))
    stuck.turn()  # it asks again, and has not had a turn for longer
    rig.turn()
    assert under_way(rig) == [("g", UNDER_WAY_MAX)]


def test_old_offsets_are_swept_at_the_pace_of_what_is_large(monkeypatch):
    """No caller waits for sweeps, so they would pile up: the next waits until the last has ended.

    Nor do they wait for ever, where callers have large commits under way all the time.
    """
    rig, looks = leading(), []

    def look_around(clock_ms):
        looks.append(clock_ms)
        rig.proposer.offer(wide("g", UNDER_WAY_MAX), 1_000)

    monkeypatch.setattr(rig.shard.leadership, "_look_around", look_around)
    for number in range(2):
        rig.ask(number, wide(f"g{number}", UNDER_WAY_MAX))
    rig.run(ms=100)
    assert len(looks) == 1
    rig.log.run = rig.apply
    for _ in range(5):
        rig.turn()
    assert len(looks) > 1


@pytest.mark.parametrize("proposed", [True, False])
def test_what_fails_is_counted_no_more(proposed):
    """Leadership is lost, or never comes to be used: the other shards go on."""
    call_limits = NodeCallLimits()
    gone = leading(call_limits)
    gone.ask(0, wide("g", HELD_MAX // 2))
    gone.ask(1, wide("g", HELD_MAX // 2))
    assert call_limits.large.full()
    if proposed:
        gone.turn()
        assert under_way(gone)
    gone.log.follow()
    assert not call_limits.large.full()
    assert all(one.held == one.under_way == 0 for one in call_limits.large.shares)
    assert all(isinstance(answer, NotHere) for answer in gone.answers.values())


def test_members_expire_although_large_commits_wait_all_the_time():
    """The queue never runs empty then, and a dead member would keep its partitions."""
    rig = leading()
    rig.log.run = rig.apply
    rig.ask("join", join("a", session_ms=1_000))
    rig.run(ms=1_000)
    for number in range(LIMITS.queue_max_partitions // LIMITS.commit_max_partitions):
        rig.ask(number, wide(f"large-{number}", LIMITS.commit_max_partitions))
    offered = []
    rig.log.run = lambda: None
    patched = rig.proposer.offer

    def offer(command, *rest, **more):
        offered.append(command)
        return patched(command, *rest, **more)

    rig.proposer.offer = offer
    for _ in range(200):
        rig.turn()
    assert rig.proposer.waiting
    assert any(isinstance(one, ExpireMember) for one in offered)


def test_large_commits_wait_to_be_parsed_while_enough_are_held():
    """Unparsed they cost nothing but their bytes; they go on in their order, other requests do."""

    async def main():
        large = LargeCommits()
        queue = ParseQueue(large.full)
        large.subscribe(queue.look)
        share = large.share(lambda: None)
        share.hold(HELD_MAX)
        order = []

        async def parse(name, *, commit):
            assert await queue.turn(AT_ONCE_BYTES_MAX + 1, commit=commit)
            order.append(name)

        tasks = [asyncio.create_task(parse(n, commit=n < 3)) for n in range(4)]
        await tasks[3]
        assert order == [3]
        share.begin(HELD_MAX)
        share.end(HELD_MAX, begun=True)
        await asyncio.gather(*tasks)
        assert order == [3, 0, 1, 2]

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_commit_that_waits_too_long_to_be_parsed_is_refused():
    """Before its caller gives it up and does not know what became of it."""

    async def main():
        queue = ParseQueue(lambda: True)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        waiting = asyncio.create_task(queue.turn(AT_ONCE_BYTES_MAX + 1, commit=True))
        while not waiting.done():
            await asyncio.sleep(0.01)
            queue.look()
        assert not await waiting
        assert loop.time() - began_s >= COMMIT_WAIT_MS_MAX / 1_000

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_commit_that_has_waited_long_is_parsed_where_there_is_room_now(monkeypatch):
    """The loop may have stood still: the node is not full any more."""

    async def main():
        full = True
        queue = ParseQueue(lambda: full)
        waiting = asyncio.create_task(queue.turn(AT_ONCE_BYTES_MAX + 1, commit=True))
        await asyncio.sleep(0)
        full = False
        monkeypatch.setattr(requests_under_way, "COMMIT_WAIT_MS_MAX", 0)
        queue.look()
        assert await waiting

    asyncio.run(asyncio.wait_for(main(), 10))


def test_large_commits_are_all_answered_and_nothing_of_the_account_is_left():
    """Ten shards, more than any of them may have under way."""
    call_limits = NodeCallLimits()
    rigs = [leading(call_limits) for _ in range(10)]
    for rig in rigs:
        rig.log.run = rig.apply
        for number in range(5):
            rig.ask(number, wide(f"g{number}", LIMITS.commit_max_partitions))
    for _ in range(50):
        for rig in rigs:
            rig.turn()
    assert all(isinstance(a, Committed) for rig in rigs for a in rig.answers.values())
    assert sum(len(rig.answers) for rig in rigs) == 50
    assert all(one.held == one.under_way == 0 for one in call_limits.large.shares)
