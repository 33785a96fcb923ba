"""Groups on a real cluster: offsets are reset, and a watch outlives the coordinator."""

import asyncio
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import muster
from muster.cli.group.offset_file import read_offsets
from musterd.coordinator.node.launcher import Cluster
from tests.docs.block_runners import record_run

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
PATIENCE_S = 60.0
GROUP = "billing"

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """Three nodes that are ready."""
    with Cluster(tmp_path_factory.mktemp("live"), nodes=3, shards=2) as cluster:
        cluster.wait_ready()
        yield cluster


def _muster(live, *args):
    command = [sys.executable, "-m", "muster.cli", *args, f"--bootstrap={live.bootstrap}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def _items(ran):
    return [json.loads(line) for line in ran.stdout.splitlines()]


@contextmanager
def _watching(bootstrap, *args):
    """A watch as a process of its own: yields a function that reads its next line."""
    command = [sys.executable, "-m", "muster.cli", *args, f"--bootstrap={bootstrap}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield lambda: json.loads(running.stdout.readline())
        finally:
            running.kill()


async def _run(live, *args):
    return await asyncio.to_thread(_muster, live, *args)


async def _commit(live, group_id, topic, offsets):
    """Be a member, commit, leave: the ends are 0 and 100."""
    async with muster.Client(live.bootstrap) as client:
        await client.create_topic(topic, len(offsets), exist_ok=True)
        async with client.group(group_id, [topic]) as group:
            assignment = await group.next_assignment()
            entry = muster.OffsetAndMetadata
            await group.commit(
                {
                    key: entry(offsets[key.partition], start_offset=0, end_offset=100)
                    for key in assignment.partitions
                }
            )
            refused = await _run(
                live,
                *("group", "reset-offsets", group_id, "--topic", topic, "--to-offset=0"),
                "--execute",
            )
            assert (refused.returncode, "NON_EMPTY_GROUP" in refused.stderr) == (4, True)
            assert "stop its members first" in refused.stderr


def _stored(live, group_id):
    ran = _muster(live, "group", "offsets", group_id, "-o", "jsonl")
    return {(i["topic"], i["partition"]): i["current_offset"] for i in _items(ran)}


def test_the_page_s_example_runs_and_ends_where_it_began(live, tmp_path):
    """docs/cli.md as a user types it: copy, look, reset, back; a group in use is refused."""
    asyncio.run(_commit(live, GROUP, "orders", {0: 40, 1: 7}))
    before = _stored(live, GROUP)
    assert before == {("orders", 0): 40, ("orders", 1): 7}
    [block] = re.findall(r"```sh\n(.*?)```", DOCS.read_text(), re.DOTALL)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "MUSTER_BOOTSTRAP": live.bootstrap}
    seen = []
    for line in block.splitlines():
        ran = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, (line, ran)
        seen.append(_stored(live, GROUP)["orders", 0])
    record_run(block)
    assert seen == [40, 40, 30, 0, 0, 40]
    assert _stored(live, GROUP) == before == read_offsets(tmp_path / "before.csv")


def test_every_way_to_reset_on_real_nodes(live):
    """Earliest, latest, shift with both ends, an offset for a new group; the ends stay known."""
    asyncio.run(_commit(live, "g", "t", {0: 40}))
    scope = ("group", "reset-offsets", "g", "--topic=t", "--execute", "-o", "jsonl")
    for args, expected in (
        (("--to-latest",), 100),
        (("--to-earliest",), 0),
        (("--shift-by=-1",), 0),
        (("--shift-by=1000",), 100),
        (("--to-offset=7",), 7),
        (("--to-current",), 7),
    ):
        [item] = _items(_muster(live, *scope, *args))
        assert item["new_offset"] == expected, args
        assert item["result"] == ("reset" if item["prior_offset"] != expected else "unchanged")
        assert _stored(live, "g") == {("t", 0): expected}
    ran = _muster(live, "group", "reset-offsets", "new", "--topic=t", "--to-offset=5", "--execute")
    assert (ran.returncode, "there is no group 'new' yet" in ran.stderr) == (0, True)
    assert _stored(live, "new") == {("t", 0): 5}


def test_a_watch_outlives_the_coordinator_it_was_started_with(live):
    """Bootstrapped from the coordinator alone: it is killed, and the next one is shown."""
    asyncio.run(_commit(live, "watched", "t", {0: 40}))
    args = ("group", "watch", "watched", "--interval=0.2", "--output=jsonl")
    victim = None
    while victim is None:  # leadership may move by itself, to where it belongs
        [now] = _items(_muster(live, "group", "state", "watched", "-o", "jsonl"))
        started_with = now["coordinator"]["node_id"]
        with _watching(live.nodes[started_with].endpoint, *args) as next_line:
            if next_line()["coordinator"]["node_id"] != started_with:
                continue
            victim = started_with
            live.kill(victim)
            while next_line()["coordinator"]["node_id"] == victim:
                pass
            live.start(victim)
    live.wait_ready()


async def _tasks_are_listed(live):
    """Two tasks of one worker; one has got somewhere."""
    async with muster.Client(live.bootstrap) as client, client.tasks("crawl") as tasks:
        worked = asyncio.Event()

        @tasks.on_task
        async def work(task):
            if task.name == "news":
                task.commit(7, "page 7", end_offset=9)
                worked.set()
            await task.revoking.wait()

        running = asyncio.create_task(tasks.run(handle_sigterm=False))
        await tasks.put({"news": {"url": "https://example.com"}, "weather": {}})
        await worked.wait()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                news, weather = _items(await _run(live, "task", "list", "crawl", "-o", "jsonl"))
                if news["current_offset"] is not None and weather["consumer_id"]:
                    break
        assert (news["name"], news["current_offset"], news["lag"]) == ("news", 7, 2)
        assert news["config"] == {"url": "https://example.com"}
        assert (weather["name"], weather["current_offset"]) == ("weather", None)
        assert news["consumer_id"] == weather["consumer_id"]
        table = (await _run(live, "task", "list", "crawl")).stdout
        assert '{"url":"https://example.com"}' in table
        tasks.stop()
        await running


def test_the_tasks_of_a_group_are_listed_with_who_has_them(live):
    """A group without tasks is none, and says what to do."""
    asyncio.run(_tasks_are_listed(live))
    other = _muster(live, "task", "list", GROUP)
    assert other.returncode == 3
    assert "error:" in other.stderr


async def _an_election_is_shown(live):
    async with (
        muster.Client(live.bootstrap) as client,
        client.election("primary", value="10.0.0.1:5432") as first,
        client.election("primary", value="10.0.0.2:5432") as second,
    ):
        leadership = await first.lead()
        waiting = asyncio.create_task(second.lead())
        async with asyncio.timeout(PATIENCE_S):
            while True:
                [shown] = _items(await _run(live, "election", "show", "primary", "-o", "jsonl"))
                candidates = [one for one in shown["members"] if one["candidate"]]
                if len(candidates) == 2 and shown["leader_id"]:
                    break
        assert (shown["value"], shown["fencing_token"]) == ("10.0.0.1:5432", leadership.token)
        values = {one["value"]: one["leader"] for one in shown["members"]}
        assert values == {"10.0.0.1:5432": True, "10.0.0.2:5432": False}
        assert "10.0.0.2:5432" in (await _run(live, "election", "show", "primary")).stdout
        waiting.cancel()
        await asyncio.wait([waiting])


def test_an_election_is_shown_with_its_leader_and_candidates(live):
    """Under which token it leads; a group of another kind is no election."""
    asyncio.run(_an_election_is_shown(live))
    assert _muster(live, "election", "show", "crawl").returncode == 3


def test_a_shard_is_handed_over(live):
    """To a node that is named, once; a dry run changes nothing, a wrong number is refused."""
    [before] = _items(_muster(live, *HAND_OVER, "1", "--dry-run", "-o", "jsonl"))
    assert before["leader_after"] is None
    to = next(node for node in live.nodes if node != before["leader_before"])
    done = _muster(live, *HAND_OVER, "1", "--to", str(to), "-o", "jsonl")
    assert done.returncode == 0, done.stderr
    assert _items(done)[0]["leader_after"] == to
    assert _muster(live, *HAND_OVER, "99").returncode == 2
    assert _muster(live, *HAND_OVER, "1", "--to", "9").returncode == 3


HAND_OVER = ("cluster", "transfer-leader")
