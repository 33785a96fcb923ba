"""Runs a page as its reader does: from top to bottom, each of its blocks.

A `python` block begins with `# name.py` and is that file. An `sh` block is run by one shell, which
goes on to the next, so that what one block starts in the background is there in the next. A `text`
block after it is what the reader should see: each of its lines is in the output, where `...` stands
for anything. A block that fails, in any of its commands, or shows something else is run again, as a
reader would do. One of another kind fails the page. A comment right before a block says why it is
not run: `<!-- not run: REASON -->`.
"""

import asyncio
import contextlib
import os
import random
import re
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240
OFFSETS = (0, 1, 2, 100, 101, 102, 200, 201, 202)
"""Of the ports of a cluster of three nodes from its first one."""
FENCE = re.compile(
    r"(?:<!-- not run: (?P<why>[^>]+) -->\n)?^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
TRAP = "trap 'status=$?; ((failed || status == 143)) || failed=$status' ERR"
"""A reader sees each command that fails, not only the last one of a block. 143 is of none: it is
what `wait` says of a process that the reader ended."""
NAME = re.compile(r"# (\w+\.py)\n")


@dataclass(frozen=True)
class Block:
    """One block of a page."""

    kind: str
    text: str
    line: int
    is_run: bool


def blocks(page):
    """All of them, in order."""
    text = page.read_text()
    fences = len(re.findall(r"^\s*```", text, re.MULTILINE))
    assert fences == 2 * len(list(FENCE.finditer(text))), "a fence that is not closed"
    return [
        Block(one["kind"], one["text"], text.count("\n", 0, one.start()) + 1, not one["why"])
        for one in FENCE.finditer(text)
    ]


def is_said(expected, output):
    """Whether each line that is expected is there, in order, with any spaces."""
    lines = iter(" ".join(line.split()) for line in output.splitlines())
    for line in expected.splitlines():
        parts = (re.escape(" ".join(part.split())) for part in line.split("..."))
        wanted = re.compile(r"\s*.*?\s*".join(parts))
        if not any(wanted.fullmatch(told) for told in lines):
            return False
    return True


def first_port():
    """Of a cluster; all of its ports are free. A multiple of ten."""
    while True:
        first = random.randrange(20_000, 30_000, 10)  # below what the kernel gives out by itself
        with contextlib.ExitStack() as stack:
            try:
                for offset in OFFSETS:
                    one = stack.enter_context(socket.socket())
                    one.bind(("127.0.0.1", first + offset))
            except OSError:
                continue
            return first


class Shell:
    """One bash; all that it starts is of its process group, and ends with it.

    `environment`: variables that it has beside this process's own, or that others have otherwise.
    """

    def __init__(self, folder, environment=None):
        self._folder = folder
        self._more = environment or {}

    async def __aenter__(self):
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER")}
        self._bash = await asyncio.create_subprocess_exec(
            "bash",
            cwd=self._folder,
            env={**environment, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
            | self._more,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self._bash.stdin.write(f"{TRAP}\n".encode())
        return self

    async def run(self, text):
        """One block. What it prints, and what its first command that failed returned, or 0."""
        end = "printf '\\n=ended=%s\\n' $((failed ? failed : $?))"
        self._bash.stdin.write(f"failed=0\n{text}\n{end}\n".encode())
        output = []
        while line := (await self._bash.stdout.readline()).decode():
            if line.startswith("=ended="):
                return "".join(output), int(line.removeprefix("=ended="))
            output.append(line)
        raise AssertionError(f"the shell ended: {''.join(output)}")

    async def __aexit__(self, *details):
        self._bash.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._bash.pid, number)
            except ProcessLookupError:
                break
            try:
                await asyncio.wait_for(self._bash.stdout.read(), 15)
            except TimeoutError:
                continue
            break
        await self._bash.wait()


async def walk(
    page,
    folder,
    replaced=(),
    record=lambda _: None,
    before="",
    after=lambda _: None,
    environment=None,
):
    """Run a page in this folder; how many blocks were run.

    `replaced`: pairs of a text of the page that a test cannot take as it stands, and another one.
    `record`: called with each block's text once it was run. `before`: what the shell runs first.
    `after`: called with `Shell.run` at the end of the page, to look at what became of it.
    `environment`: see `Shell`.
    """
    reader = _Reader(page, replaced, record)
    try:
        async with asyncio.timeout(PATIENCE_S), Shell(folder, environment) as shell:
            if before:
                await shell.run(before)
            await reader.read(shell)
            if looks := after(shell.run):
                await looks
    except TimeoutError:
        raise AssertionError(f"{reader.where}: not what it shows: {reader.output}") from None
    return reader.ran


class _Reader:
    def __init__(self, page, replaced, record):
        self._page, self._replaced, self._record = page, replaced, record
        self.ran = 0
        self.where = self.output = ""

    async def read(self, shell):
        found = blocks(self._page)
        for block, follows in zip(found, [*found[1:], None], strict=True):
            self.where = f"{self._page.name}, line {block.line}"
            if not block.is_run or block.kind == "text":
                continue
            self.ran += 1
            text = self._here(block.text)
            if block.kind == "python":
                name = NAME.match(text)
                assert name, f"{self.where}: no file name"
                folder, _ = await shell.run("pwd")
                (Path(folder.strip()) / name[1]).write_text(text)
                self._record(block.text)
                continue
            assert block.kind == "sh", f"{self.where}: a block of kind {block.kind!r}"
            shows = (
                self._here(follows.text) if follows is not None and follows.kind == "text" else ""
            )
            await self._run(shell, text, shows)
            self._record(block.text)

    def _here(self, text):
        for word, other in self._replaced:
            text = text.replace(word, other)
        return text

    async def _run(self, shell, text, shows):
        self.output, code = await shell.run(text)
        while shows and (code or not is_said(shows, self.output)):
            await asyncio.sleep(0.1)  # between two looks
            self.output, code = await shell.run(text)
        assert code == 0, f"{self.where}: exit code {code}: {self.output}"
