"""Whatever is asked of groups, the export folds to what the live state is."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from musterd.coordinator.machine.commands import AddPartitions, CreateTopic, ShardLevel
from musterd.coordinator.machine.evolve_history import rounds_of
from musterd.coordinator.machine.shard_state import recount, reweigh
from musterd.levels import LEVEL
from musterd.replay.local import run_local
from tests.export.exports import SMALL, open_exporter
from tests.export.node import FakeNode, Script
from tests.replay.results import table

ACTIONS = (
    "join",
    "rejoin",
    "rejoin_all",
    "fire",
    "sync",
    "settle",
    "modern_join",
    "confirm",
    "assign",
    "leave",
    "expire",
    "commit",
    "simple",
    "topic",
    "noop",
    "cut",
    "checkpoint",
)


def modern_node():
    """A shard that knows modern groups, with the topic that they read."""
    node = FakeNode()
    node.run(ShardLevel(LEVEL), CreateTopic("t", 6))
    return node


steps = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 2), st.integers(0, 5)), max_size=60
)


def act(node, scripts, exporter, action, which, number):  # noqa: C901, PLR0912  # a table
    """One step; most make sense, some are refused, which is history too."""
    script = scripts[which]
    group = script.group
    members = members_of(group) if group else []
    member = members[number % len(members)] if members else "nobody"
    node.advance(number * 37)
    match action:
        case "join":
            script.join("abc"[which], nonce=number + 1, meta=b"")
        case "rejoin" if members:
            script.rejoin(member, meta=b"")
        case "rejoin_all":
            for each in members:
                script.rejoin(each, meta=b"")
        case "modern_join":
            script.hear(f"m{number % 2}", 0)
        case "confirm" if group and group.modern and members:
            held = group.modern.members[member].assigned.get("t", {})
            script.hear(member, owns=tuple(held))
        case "assign" if group:
            script.assign()
        case "fire" if group:
            script.fire()
        case "sync" if group:
            script.sync(member)
        case "settle" if group and group.phase == "CompletingRebalance":
            script.settle()
        case "leave" if group:
            script.leave(member)
        case "expire" if members:
            script.expire(member)
        case "commit" if group:
            node.run(
                script.commit_command(member, number, partitions=(number,)),
                scripts[0].commit_command("", number),
            )
        case "simple":
            script.commit("", number)
        case "topic":
            node.run(CreateTopic(f"t{which}", number + 1), AddPartitions(f"t{which}", number + 2))
        case "noop":
            node.raw(b"\x01")
        case "cut":
            exporter.drain()
            for _, shard in exporter._shards.values():
                shard.close(exporter._clock())
        case "checkpoint":
            node.checkpoint()
        case _:
            pass


def members_of(group):
    """The ids of a group's members, of whichever kind it is."""
    return list(group.modern.members if group.modern else group.members)


CONVERTED = [
    *(("join", 0, 0), ("fire", 0, 0), ("settle", 0, 0), ("modern_join", 0, 0)),
    *(("assign", 0, 0), ("commit", 0, 0)),
]
"""Steps to a modern group with one member of each kind."""

OUTCOMES = {"published": "stable", "open": "open", "superseded": "superseded"}


def rounds_told(folder):
    """What the table says of each round."""
    for row in table(folder / "out", "rebalances"):
        outcome = OUTCOMES.get(row["outcome"], row["outcome"])
        told = (row["trigger"], row["cause_member_id"], row["reason"], outcome)
        times = (row["join_ms"], row["sync_ms"] if outcome == "stable" else None)
        yield (row["group"], row["round"], row["generation"] or 0, *told, *times)


def rounds_kept(live):
    """What the groups' own history says of each."""
    for group in live.groups.values():
        for number, record in rounds_of(group):
            if record.moves is not None:
                continue  # a plan; the table has its epoch
            ended = record.ended.value
            told = (record.trigger.name.lower(), record.culprit.member_id, record.reason or None)
            times = (record.joining_ms, record.syncing_ms if ended == "stable" else None)
            yield (group.group_id, number, record.generation, *told, ended, *times)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
@given(steps=steps)
@example(steps=[("join", 0, 0), ("fire", 0, 0), ("leave", 0, 0)])  # ends with an emptied group
@example(steps=[*CONVERTED, ("rejoin_all", 0, 0), ("assign", 0, 0)])
@example(steps=[*CONVERTED, ("leave", 0, 1), ("rejoin_all", 0, 0), ("settle", 0, 0)])
def test_an_export_folds_to_the_live_digest(steps):
    """At every checkpoint and at the end.

    Every command decides the same again; tables agree with the state, also on the last rounds.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        node = modern_node()
        exporter = open_exporter(node, folder / "export", folder / "data", SMALL)
        scripts = [Script(node, name) for name in ("g0", "g1", "g2")]
        for step in steps:
            act(node, scripts, exporter, *step)
        node.checkpoint()
        exporter.drain()
        exporter.close()
        asked = sum(1 for action, _, _ in steps if action == "checkpoint") + 1

        report = run_local(folder / "export", folder / "out", prove=True, say=lambda _: None)

        assert report.sound, report.failed
        assert report.checkpoints == asked
        assert report.unproven == 0
        live = node.state()
        assert live.digest == recount(live)
        assert live.bytes == reweigh(live)[0]
        open_sessions = {
            (row["group"], row["member_id"])
            for row in table(folder / "out", "member_sessions")
            if row["end"] == "open"
        }
        assert open_sessions == {
            (group.group_id, member)
            for group in live.groups.values()
            for member in members_of(group)
        }
        owned = {
            (row["group"], row["topic"], row["partition"]): (row["member_id"], row["token"])
            for row in table(folder / "out", "ownership")
            if row["released"] == "open"
        }
        granted = {
            (group.group_id, grant.topic, grant.partition): (one.member_id, grant.token)
            for group in live.groups.values()
            if group.modern
            for one in group.modern.members.values()
            for grant in one.grants()
        }
        assert owned.items() >= granted.items()
        last = {}
        for row in table(folder / "out", "commits"):
            if row["outcome"] == "committed":
                last[row["group"], row["topic"], row["partition"]] = row["offset"]
        assert last == {
            (group.group_id, *place): offset.offset
            for group in live.groups.values()
            for place, offset in group.offsets.items()
        }
        assert set(rounds_told(folder)) >= set(rounds_kept(live))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
@given(steps=steps, at=st.integers(0, 60))
def test_a_fold_from_a_base_reaches_the_same_digests(steps, at):
    """The log is trimmed somewhere; what the export starts from is a base."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        node = modern_node()
        idle = open_exporter(node, folder / "other", folder / "other-data", SMALL)
        scripts = [Script(node, name) for name in ("g0", "g1", "g2")]
        for step in steps[:at]:
            act(node, scripts, idle, *step)
        node.run(CreateTopic("last", 1))
        node.trim(node.replicas[0].last - 1)
        exporter = open_exporter(node, folder / "export", folder / "data", SMALL)
        for step in steps[at:]:
            act(node, scripts, exporter, *step)
        node.checkpoint()
        exporter.drain()
        exporter.close()
        report = run_local(folder / "export", folder / "out", prove=True, say=lambda _: None)
        assert report.sound, report.failed
        assert report.checkpoints >= 1
