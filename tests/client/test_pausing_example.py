"""docs/pause.py, as it stands, in a process of its own."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


class Worker:
    """The example, what is typed to it, and what it prints."""

    async def start(self, cluster):
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(DOCS / "pause.py"),
            cluster.bootstrap,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(DOCS.parent)},
        )
        return self

    def type(self, line):
        self.process.stdin.write(f"{line}\n".encode())

    async def until(self, wanted):
        """Everything up to the first line that is wanted; it is the last one."""
        lines = []
        while not lines or not wanted(lines[-1]):
            line = await self.process.stdout.readline()
            assert line, f"it ended before; {lines[-10:]}"
            lines.append(line.decode().split())
        return lines


async def test_the_example_does_what_it_is_told(open_cluster):
    """Pause, seek while paused, resume; what is not owned; the end in good order."""
    async with open_cluster(1, topics={}) as (cluster, _):
        worker = await Worker().start(cluster)
        (first,) = await worker.until(lambda line: "assigned" in line)
        assert first == ["meters", "assigned", "0", "1", "2", "3"]
        await worker.until(lambda line: line[:2] == ["read", "1"])
        worker.type("pause 1")
        await worker.until(lambda line: line == ["done", "pause", "1"])
        others = await worker.until(lambda line: line[:2] == ["read", "2"] and int(line[2]) > 20)
        assert not [line for line in others if line[:2] == ["read", "1"]]
        worker.type("seek 1 400")
        worker.type("seek 9 400")
        await worker.until(lambda line: line == ["cannot", "seek", "9", "IllegalGeneration"])
        worker.type("resume 1")
        lines = await worker.until(lambda line: line[:2] == ["read", "1"])
        assert lines[-1] == ["read", "1", "400"]
        worker.process.stdin.close()
        last = await worker.until(lambda line: "revoked" in line)
        assert last[-1] == ["meters", "revoked", "0", "1", "2", "3"]
        assert await worker.process.wait() == 0
        stored = {k.partition: o.value.offset for k, o in cluster.groups["meters"].offsets.items()}
        assert stored[1] > 400
        assert stored[2] > 20
