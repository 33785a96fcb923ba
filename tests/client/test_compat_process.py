"""The synchronous consumer and the life of a process: exit, Ctrl-C, fork, its documentation."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from muster.compat.config import parse

ROOT = Path(__file__).parents[2]
HEAD = """
import os, signal, sys, threading, time
from muster.compat import Consumer, TopicPartition
config = {"bootstrap.servers": sys.argv[1], "group.id": "g"}
def joined():
    consumer = Consumer(config)
    consumer.subscribe(["t"])
    consumer.poll(30)
    assert len(consumer.assignment()) == 4
    return consumer
def say(*words):
    print(*words, flush=True)
"""


async def start(cluster, code, **environment):
    """Run this after HEAD in a process of its own."""
    # Whoever runs the tests in the background of a shell ignores Ctrl-C, and so would the child.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            HEAD + code,
            cluster.bootstrap,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environment},
        )
    finally:
        signal.signal(signal.SIGINT, inherited)


async def ended(worker):
    """Its code, and what it printed."""
    out, err = await worker.communicate()
    return worker.returncode, out.decode(), err.decode()


async def test_a_process_ends_although_nothing_was_closed(open_cluster):
    """The member leaves, so its partitions go to others at once; no callback is called."""
    async with open_cluster(1) as (cluster, _):
        code = (
            "c = joined()\n"
            "c._dispatcher.callbacks['revoked'] = lambda *_: say('revoked')\n"
            "say('end')"
        )
        code, out, err = await ended(await start(cluster, code))
        assert (code, out) == (0, "end\n"), err
        assert "were not closed" in err
        assert not cluster.groups["g"].members
        assert len(cluster.seen("LeaveGroup")) == 1


async def test_a_process_ends_with_its_error_although_the_cluster_is_gone(open_cluster):
    """The traceback is the user's; leaving has a limit."""
    async with open_cluster(1) as (cluster, _):
        worker = await start(cluster, "c = joined()\nsay('on')\nsys.stdin.read()\n1 / 0")
        await worker.stdout.readline()
        await cluster.kill(1)
        worker.stdin.close()
        code, _, err = await ended(worker)
        assert code == 1
        assert "ZeroDivisionError" in err


async def test_ctrl_c_ends_a_waiting_call(open_cluster):
    """poll, and a call that has no answer; `with` closes in good order."""
    async with open_cluster(1) as (cluster, _):
        worker = await start(
            cluster,
            """
try:
    with joined() as consumer:
        say("waits")
        consumer.poll()
except KeyboardInterrupt:
    say("interrupted")
""",
        )
        assert await worker.stdout.readline() == b"waits\n"
        worker.send_signal(signal.SIGINT)
        code, out, err = await ended(worker)
        assert (code, out) == (0, "interrupted\n"), err
        assert not cluster.groups["g"].members


async def test_a_fork_is_refused_and_the_parent_goes_on(open_cluster):
    """In the child: its parent's consumer, and a new one. Both say what to do."""
    async with open_cluster(1) as (cluster, _):
        worker = await start(
            cluster,
            """
consumer = joined()
child = os.fork()
if child == 0:
    for call in (lambda: consumer.commit(offsets=[TopicPartition("t", 0, 1)]), consumer.close,
                 lambda: Consumer(config).subscribe(["t"])):
        try:
            call()
        except Exception as error:
            say("child", type(error).__name__, "spawn" in str(error))
    sys.exit(3)
_, status = os.waitpid(child, 0)
say("child ended", os.waitstatus_to_exitcode(status))
consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
consumer.close()
""",
            GRPC_ENABLE_FORK_SUPPORT="0",  # its handlers crash the child sometimes
        )
        code, out, err = await ended(worker)
        assert code == 0, err
        assert out == "child InvalidRequest True\n" * 3 + "child ended 3\n"
        assert {o.value.offset for o in cluster.groups["g"].offsets.values()} == {1}


def test_importing_it_starts_no_thread():
    """Nor does making a consumer."""
    code = "import threading\nfrom muster.compat import Consumer\n"
    code += "c = Consumer({'bootstrap.servers': '127.0.0.1:1', 'group.id': 'g'})\n"
    code += "c.close()\nprint(threading.active_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


async def example(cluster):
    """docs/compat.py in a process of its own."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "docs" / "compat.py"),
        cluster.bootstrap,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


async def test_the_example_runs(open_cluster):
    """Two workers: the first one stops in the middle, and the second one goes on where it was."""
    async with open_cluster(1, topics={"numbers": 2}) as (cluster, _):
        first = await example(cluster)
        first_lines = [(await first.stdout.readline()).decode().split() for _ in range(12)]
        first.send_signal(signal.SIGTERM)
        out, _ = await first.communicate()
        assert first.returncode == 0
        first_lines += [line.split() for line in out.decode().splitlines()]
        assert not cluster.groups["sums"].members
        second = await example(cluster)
        second_lines = []
        reads = sum(line[0] == "read" for line in first_lines)
        while reads < 100:
            second_lines.append((await second.stdout.readline()).decode().split())
            reads += second_lines[-1][0] == "read"
        second.send_signal(signal.SIGTERM)
        await second.communicate()
        assert second.returncode == 0
        for partition in ("0", "1"):
            read = [
                int(line[2])
                for line in first_lines + second_lines
                if line[:2] == ["read", partition]
            ]
            assert read == list(range(50)), "each number once, in order"
        tokens = {line[3] for line in first_lines if line[0] == "read"}
        assert max(map(int, tokens)) < min(int(x[3]) for x in second_lines if x[0] == "read")
        stored = {one.value.offset for one in cluster.groups["sums"].offsets.values()}
        assert stored == {50}


def test_the_table_of_settings_is_what_is_taken():
    """Each key that docs/configuration.md has of muster.compat, with its default."""
    needed = {"bootstrap.servers": "n:1", "group.id": "g"}
    text = (ROOT / "docs" / "configuration.md").read_text()
    table = text.partition("### `muster.compat.Consumer`")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z._]+)` \| ([^|\n]*) \|", table, re.MULTILINE)
    keys = {key for key, _ in rows}
    assert {"socket.timeout.ms", "on_commit", "muster.token", "group.instance.id"} <= keys
    defaults = {key: default.strip("`") for key, default in rows}
    plain = parse(needed)
    assert plain.group["session_timeout_ms"] == int(defaults["session.timeout.ms"])
    assert plain.rebalance_timeout_ms == int(defaults["max.poll.interval.ms"])
    assert plain.request_timeout_ms == int(defaults["socket.timeout.ms"])
    values = {"security.protocol": "plaintext", "on_commit": print, "enable.auto.commit": False}
    for key in keys - needed.keys():
        value = values[key] if key in values else "x" if defaults[key] == "none" else defaults[key]
        ssl = {f"ssl.{one}.location": "x" for one in ("ca", "certificate", "key")}
        more = {"security.protocol": "ssl", **ssl} if key in ssl else {}
        if key == "group.remote.assignor":
            more = {"group.protocol": "consumer"}
        assert parse({**needed, **more, key: value}).group_id == "g"
