"""docs/election.py and docs/tasks.py as they stand, and what their documents say."""

import asyncio
import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import muster
from muster.tasks.task_store import (
    CHANGES_MAX,
    DEFINITION_BYTES_MAX,
    TASKS_MAX,
)
from muster.tasks.task_topics import DEFINITIONS, PROGRESS
from muster.tasks.task_work import METADATA_BYTES_MAX

DOCS = Path(__file__).parents[2] / "docs"
SESSION_MS = 4_000


class Program:
    """An example in a process of its own, and what it prints."""

    @classmethod
    async def start(cls, *arguments):
        self = cls()
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *map(str, arguments),
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(DOCS.parent), "PYTHONUNBUFFERED": "1"},
        )
        return self

    async def line(self, pattern):
        """The next line that matches; the match."""
        while line := await self.process.stdout.readline():
            if found := re.fullmatch(pattern, line.decode().strip()):
                return found
        raise AssertionError(f"it ended without {pattern!r}")

    async def end(self, number):
        """Send a signal, and wait; the return code."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        await self.process.communicate()
        return self.process.returncode


async def stopped_at_work(zombie, name):
    """SIGSTOP once it works and has not stored the result yet; on a slow machine, try again.

    The token that it works under.
    """
    while True:
        token = (await zombie.line(rf"{name} (\d+) works"))[1]
        zombie.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.wait_for(zombie.line(f"{name} {token} wrote"), 0.2)
        except TimeoutError:
            return int(token)
        zombie.process.send_signal(signal.SIGCONT)


async def a_killed_and_a_stopped_leader(bootstrap, folder, session_ms):
    """Three programs: the leader is killed; the next one is stopped, and goes on too late.

    The tokens of the three terms.
    """
    path = folder / "state.db"
    programs = {
        name: await Program.start(DOCS / "election.py", bootstrap, path, name, session_ms)
        for name in ("one", "two", "three")
    }

    everyone = list(programs.values())

    async def leader():
        """Who begins to lead first, and its token."""
        waits = {
            asyncio.create_task(p.line(rf"{name} (\d+) leads")): name
            for name, p in programs.items()
        }
        (done, *_), others = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for other in others:
            other.cancel()
        await asyncio.wait(waits)
        return waits[done], int(done.result()[1])

    try:
        first, _ = await leader()
        # On a slow machine a lease may run out, and the same program lead again with a later token.
        token_1 = int((await programs[first].line(rf"{first} (\d+) wrote"))[1])
        await programs.pop(first).end(signal.SIGKILL)
        second, _ = await leader()
        await programs[second].line(rf"{second} \d+ wrote")
        zombie = programs.pop(second)
        token_2 = await stopped_at_work(zombie, second)
        third, _ = await leader()
        token_3 = int((await programs[third].line(rf"{third} (\d+) wrote"))[1])
        # What it was about to write when it was stopped is refused: the store has seen more.
        zombie.process.send_signal(signal.SIGCONT)
        await zombie.line(rf"{second} {token_2} was refused")
        with contextlib.closing(sqlite3.connect(path)) as store:
            ((stored, writer),) = store.execute("SELECT token, writer FROM state").fetchall()
        assert (stored >= token_3, writer) == (True, third)
        return token_1, token_2, token_3
    finally:
        for program in everyone:
            await program.end(signal.SIGKILL)


async def test_the_election_runs_and_its_store_refuses_a_zombie(open_cluster, tmp_path):
    """The document's claims, by its own program."""
    async with open_cluster(1, topics={}, interval_ms=200) as (cluster, _):
        tokens = await a_killed_and_a_stopped_leader(cluster.bootstrap, tmp_path, SESSION_MS)
        assert list(tokens) == sorted(set(tokens))


async def test_the_task_program_runs(open_cluster, capfd):
    """Two workers; a task is put, changed, moved to the other worker, and removed."""
    async with open_cluster(1, topics={}) as (cluster, client):

        async def command(*arguments):
            program = await Program.start(DOCS / "tasks.py", cluster.bootstrap, *arguments)
            printed, _ = await program.process.communicate()
            assert program.process.returncode == 0
            return printed.decode()

        for text, says in (("nojson", "'nojson' is no JSON: "), ("[1]", "'[1]' is no JSON object")):
            program = await Program.start(DOCS / "tasks.py", cluster.bootstrap, "put", "x", text)
            await program.process.communicate()
            assert program.process.returncode == 1
            assert capfd.readouterr().err.startswith(says)
        await command("put", "news", '{"url": "u1", "every_s": 0.01}')
        assert await command("list") == 'news {"every_s": 0.01, "url": "u1"}\n'
        first = await Program.start(DOCS / "tasks.py", cluster.bootstrap, "work")
        await first.line("news visit 5 of u1")
        await command("put", "news", '{"url": "u2", "every_s": 0.01}')
        changed = await first.line(r"news visit (\d+) of u2")
        assert int(changed[1]) > 5
        second = await Program.start(DOCS / "tasks.py", cluster.bootstrap, "work")
        await cluster.until(lambda: len(cluster.groups["pollers"].members) == 2)
        assert await first.end(signal.SIGTERM) == 0
        moved = await second.line(r"news visit (\d+) of u2")
        assert int(moved[1]) > int(changed[1])
        await command("remove", "news")
        assert await command("list") == ""
        assert await second.end(signal.SIGTERM) == 0
        async with client.tasks("pollers") as tasks:
            assert not await tasks.definitions()


def test_the_bounds_in_the_document_are_the_codes():
    """docs/tasks.md, digit by digit."""
    text = " ".join((DOCS / "tasks.md").read_text().split())
    assert (
        f"At most {TASKS_MAX:,} tasks in a group; {CHANGES_MAX} in one change;"
        f" {DEFINITION_BYTES_MAX} bytes each, name and configuration as JSON;"
        f" {METADATA_BYTES_MAX} bytes of metadata with a commit." in text
    )
    assert f"`{DEFINITIONS}`" in text
    assert f"`{PROGRESS}`" in text


def test_what_the_documents_name_is_there():
    """Attributes and methods in the tables."""
    for name in ("lead", "watch", "resign", "leader", "close"):
        assert hasattr(muster.Election, name)
    for name in ("put", "remove", "definitions", "owned", "on_task", "run"):
        assert hasattr(muster.Tasks, name)
    for name in ("run", "check", "is_held", "remaining_s"):
        assert hasattr(muster.Leadership, name)
