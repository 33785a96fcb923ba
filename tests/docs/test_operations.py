"""docs/operations.md: its commands run, one after the other, in one shell and an empty folder."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.block_runners import record_run

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/operations.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
PORT = re.compile(r"\b(7[0-2]7)(\d|\$\w+|%s)")
"""The ports of the page; of the last digit a shell variable may stand."""
WAIT_S = 500


def _free_tens(count):
    """First ports of `count` ranges of ten that nobody listens on now, drawn from many."""
    found = []
    firsts = list(range(11_000, 32_000, 10))
    random.shuffle(firsts)
    for first in firsts:
        sockets = [socket.socket() for _ in range(10)]
        try:
            for offset, one in enumerate(sockets):
                one.bind(("127.0.0.1", first + offset))
        except OSError:
            continue
        else:
            found.append(first // 10)
        finally:
            for one in sockets:
                one.close()
        if len(found) == count:
            return found
    raise AssertionError("no free ports")


SAVED, RESTORED = "muster topic list -o json", "muster group reset-offsets billing --from-file"
AROUND = {
    SAVED: "muster group reset-offsets billing --topic orders:0,1 --to-offset 40 --execute",
    RESTORED: "muster group delete billing --yes",
}
"""What the test does before two commands of the page, which a reader must not: a group that has
offsets, and one that has none, as in a new cluster."""


def _script():
    tens = dict(zip(("707", "717", "727"), map(str, _free_tens(3)), strict=True))
    body = PORT.sub(
        lambda m: tens[m[1]] + m[2], "\n".join(code for kind, code in BLOCKS if kind == "sh")
    )
    for before, command in AROUND.items():
        assert body.count(f"\n{before}") == 1
        body = body.replace(f"\n{before}", f"\n{command}\n{before}")
    return f"set -euo pipefail\n{body}\necho the end\n"


@pytest.mark.processes
@pytest.mark.faults(weight=4)
def test_every_command_of_the_page_runs(tmp_path):
    """Each exits with 0, and no node is left running."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    with subprocess.Popen(
        ["bash", "-c", _script()],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            said, _ = shell.communicate(timeout=WAIT_S)
        finally:
            _end_all(shell.pid, tmp_path)
    assert shell.returncode == 0, said
    assert said.splitlines()[-1] == "the end"
    for _, text in BLOCKS:
        record_run(text)
    assert (tmp_path / "billing.csv").read_text().splitlines()[-1] == "orders,1,40"
    assert list((tmp_path / "tables").rglob("*.parquet"))
    for log in tmp_path.glob("node-*.log"):
        assert '"event": "stopping", "led": 0' in log.read_text() or log.name == "node-tls.log"


def _end_all(group, folder):
    """The shell's own group, and nothing else; nodes that were stopped are gone already."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        assert list(folder.iterdir())


def test_every_block_of_the_page_is_run():
    """None has another language, under which it would be skipped."""
    assert len(BLOCKS) > 8
    assert {kind for kind, _ in BLOCKS} == {"sh"}


def test_every_chapter_that_the_page_names_exists():
    """Links to alerts.md lead to a heading."""
    chapters = re.findall(r"^## (.+)$", (ROOT / "docs/alerts.md").read_text("utf-8"), re.MULTILINE)
    known = {name.lower() for title in chapters for name in title.split(", ")}
    table = TEXT[TEXT.index("| it looks like") :]
    assert [name for title in chapters for name in title.split(", ") if name not in table] == []
    linked = re.findall(r"alerts\.md#(\w+)", TEXT + (ROOT / "docs/logs.md").read_text("utf-8"))
    assert linked
    assert set(linked) <= known
