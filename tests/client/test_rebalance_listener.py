"""What a rebalance listener is told, in which order, and what may go wrong in it (rule sc-K15)."""

import asyncio

import pytest

from muster import FunctionAssignor, TopicPartition
from muster.errors import IllegalGeneration
from muster.group.handover import Handover
from muster.types import Assignment
from tests.client.listeners import Calls, Journal

T = tuple(TopicPartition("t", i) for i in range(4))


async def test_eager_everything_is_revoked_before_each_round_and_assigned_after_it(open_cluster):
    """Both are told of the whole assignment, and it is the one that next_assignment returns."""
    async with open_cluster(1) as (cluster, client):
        states = []

        class Told(Journal):
            def _write(self, what, assignment):
                super()._write(what, assignment)
                states.append((what, cluster.groups["g"].generation, group.assignment is None))

        journal = Told()
        group = client.group("g", ["t"], listener=journal)
        first = await group.next_assignment()
        other = client.group("g", ["t"])
        second, _ = await asyncio.gather(group.next_assignment(), other.next_assignment())
        await group.close()
        assert journal.told == [
            ("assigned", 1, T),
            ("revoked", 1, T),
            ("assigned", 2, second.partitions),
            ("revoked", 2, second.partitions),
        ]
        assert first.partitions == T
        assert states[1] == ("revoked", 1, False), "before the round ends, and still owned"


def as_wished(members, _partition_counts):
    """Each gets the partitions of t that its user data names."""
    return {m.member_id: [T[int(i)] for i in m.user_data.split()] for m in members}


async def test_cooperative_what_moves_is_revoked_before_what_is_new_is_assigned(open_cluster):
    """One round may bring both: c leaves t-3 to a, and a leaves t-0 to b."""
    async with open_cluster(1, initial_delay_ms=2_000) as (_, client):
        wishes = {"a": b"0 1 2", "b": b"", "c": b"3"}
        assignor = FunctionAssignor("as-wished", as_wished, cooperative=True)
        journals = {name: Journal() for name in wishes}
        groups = {
            name: client.group(
                "g",
                ["t"],
                assignor=assignor,
                user_data=lambda name=name: wishes[name],
                listener=journals[name],
            )
            for name in wishes
        }
        await asyncio.gather(*(group.next_assignment() for group in groups.values()))
        generation = groups["a"].assignment.generation
        assert journals["a"].told == [("assigned", generation, T[:3])]
        assert journals["b"].told == [("assigned", generation, ())]
        wishes |= {"a": b"1 2 3", "b": b"0"}
        await groups["c"].close()
        for name in "ab":
            while (await groups[name].next_assignment()).generation < generation + 2:
                pass
        assert journals["a"].told[1:] == [
            ("revoked", generation + 1, (T[0],)),
            ("assigned", generation + 1, (T[3],)),
            ("assigned", generation + 2, ()),
        ]
        nothing, moved = ("assigned", generation + 1, ()), ("assigned", generation + 2, (T[0],))
        # a may begin the second round before b has asked what it has in the first: nothing.
        assert journals["b"].told[1:] in ([nothing, moved], [moved])


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_lost_names_everything_and_nothing_is_committed(open_cluster, assignor):
    """Not even what was buffered; and revoked is not called."""
    async with open_cluster(1) as (cluster, client):

        async def lost(group, assignment):
            journal._write("lost", assignment)
            with pytest.raises(IllegalGeneration):
                await group.commit({T[0]: 1})
            with pytest.raises(IllegalGeneration):
                group.pause([T[0]])
            group.stop()

        journal = Journal(lost=lost)
        group = client.group(
            "g", ["t"], assignor=assignor, commit_interval_ms=3_600_000, listener=journal
        )

        @group.on_partition
        async def work(p):
            p.commit(7)
            begun.append(p)
            await asyncio.Event().wait()

        begun = []
        running = asyncio.create_task(group.run())
        while len(begun) < len(T):
            await asyncio.sleep(0.001)
        cluster.remove_member("g", group.member_id)
        await running
        assert journal.told == [("assigned", 1, T), ("lost", 1, T)]
        assert not cluster.seen("OffsetCommit")


async def test_who_owned_nothing_loses_nothing(open_cluster):
    """Kafka does not call lost for nothing, either; the member joins again all the same."""
    async with open_cluster(1) as (cluster, client):
        journal = Journal()
        greedy = client.group("g", ["t"], assignor=as_wished, user_data=b"0 1 2 3")
        await greedy.next_assignment()
        group = client.group("g", ["t"], assignor=as_wished, listener=journal)
        first, _ = await asyncio.gather(group.next_assignment(), greedy.next_assignment())
        assert not first.partitions
        cluster.remove_member("g", first.member_id)
        again = await group.next_assignment()
        assert again.member_id != first.member_id
        assert {what for what, _ in journal.lines} == {"assigned"}


async def test_what_is_revoked_is_the_assignment_that_was_given(open_cluster):
    """A worker tells by `is` that its own work ends."""
    async with open_cluster(1) as (_, client):
        given, told = [], []
        listener = Calls(
            assigned=lambda _group, one: given.append(one),
            revoked=lambda _group, one: told.append(one),
        )
        group = client.group("g", ["t"], listener=listener)
        offered = await group.next_assignment()
        other = client.group("g", ["t"])
        await asyncio.gather(group.next_assignment(), other.next_assignment())
        assert told[0] is given[0] is offered


async def test_what_was_buffered_is_committed_before_revoked_is_called(open_cluster):
    """And what the listener commits comes after it."""
    async with open_cluster(1) as (cluster, client):
        seen = []

        async def revoked(group, assignment):
            seen.append({k: o.value.offset for k, o in cluster.groups["g"].offsets.items()})
            await group.commit({T[1]: 9}, assignment=assignment)

        group = client.group(
            "g", ["t"], commit_interval_ms=3_600_000, listener=Calls(revoked=revoked)
        )

        @group.on_partition
        async def work(p):
            p.commit(7)
            group.stop()

        await group.run()
        assert seen
        assert set(seen[0].values()) == {7}
        assert cluster.groups["g"].offsets[T[1]].value.offset == 9


async def test_they_are_called_one_after_the_other(open_cluster):
    """The group is lost while assigned still runs: lost waits for it, and nothing is offered."""
    async with open_cluster(1) as (cluster, client):
        begun, go_on, order = asyncio.Event(), asyncio.Event(), []

        async def assigned(_group, assignment):
            order.append(("assigned", assignment.generation))
            begun.set()
            await go_on.wait()
            order.append(("done", assignment.generation))

        def lost(_group, assignment):
            order.append(("lost", assignment.generation))

        group = client.group("g", ["t"], listener=Calls(assigned=assigned, lost=lost))
        waiting = asyncio.create_task(group.next_assignment())
        await begun.wait()
        cluster.remove_member("g", group.member_id)
        while group.state != "Releasing":
            await asyncio.sleep(0.001)
        assert order == [("assigned", 1)]
        go_on.set()
        second = await waiting
        assert order[:3] == [("assigned", 1), ("done", 1), ("lost", 1)]
        assert second.generation > 1


async def last(group):
    """Take assignments until there are no more."""
    while True:
        await group.next_assignment()


async def test_an_error_in_revoked_of_a_cooperative_round_closes_the_group(open_cluster):
    """What is left is revoked, too, and the others get everything."""
    async with open_cluster(1) as (_, client):
        told = []

        def revoked(_group, assignment):
            told.append(assignment.partitions)
            if len(told) == 1:
                raise LookupError("shelf")

        cooperative = "cooperative-sticky"
        group = client.group("g", ["t"], assignor=cooperative, listener=Calls(revoked=revoked))
        await group.next_assignment()
        other = client.group("g", ["t"], assignor=cooperative)
        joining = asyncio.create_task(other.next_assignment())
        second = asyncio.create_task(last(group))
        with pytest.raises(LookupError, match="shelf"):
            await second
        await group.close()
        await joining
        while len(other.assignment.partitions if other.assignment else ()) < len(T):
            await other.next_assignment()
        moved, rest = told
        assert sorted(moved + rest) == list(T)


async def test_what_was_taken_back_before_it_was_told_is_not_revoked():
    """The next round may begin with the answer that brings the assignment of the one before."""
    journal = Journal()
    held = [Assignment("g", 1, "m", T[:1], "range", False, 1)]
    handover = Handover(
        None, journal, held=lambda: held[0], in_doubt=lambda: False, timeout_ms=1_000
    )
    assert await handover.give(held[0])
    assert handover.begin_to_take(held[0], lost=False)
    await handover.take(held[0], lambda: True)
    held[0] = Assignment("g", 2, "m", T[:2], "range", False, 2)
    assert handover.begin_to_take(held[0], lost=False)
    assert not await handover.give(held[0])
    await handover.take(held[0], lambda: True)
    assert journal.told == [("assigned", 1, T[:1]), ("revoked", 1, T[:1]), ("revoked", 2, ())]
