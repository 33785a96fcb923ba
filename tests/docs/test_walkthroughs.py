"""Pages that are run from top to bottom, each block of them."""

import asyncio

import pytest

from muster.cli.errors import ExitCode
from musterd.coordinator.node.launcher import Cluster
from tests.docs.block_runners import record_run
from tests.docs.walkthrough import (
    PATIENCE_S,
    ROOT,
    Shell,
    blocks,
    first_port,
    is_said,
    walk,
)

DOCS = ROOT / "docs"


def test_every_block_of_the_page_on_testing(tmp_path):
    """The worker, its tests, and pytest over them."""
    assert asyncio.run(walk(DOCS / "testing.md", tmp_path, record=record_run)) == 6


def test_what_a_page_shows_is_looked_for_in_order():
    """Lines with any spaces, `...` for anything; a page that shows something else fails."""
    output = "GROUP   STATE\nbilling   Stable  2\n"
    assert is_said("GROUP ...\nbilling Stable ...\n", output)
    assert not is_said("billing Stable 3\n", output)
    assert not is_said("billing ...\nGROUP ...\n", output)


def test_a_block_that_fails_or_is_of_no_kind_fails_the_page(tmp_path):
    """And one that says why it is not run does not."""
    page = tmp_path / "page"
    for text, says in (
        ("```sh\nfalse\n```\n", "page, line 1: exit code 1"),
        ("```sh\ntrue\n(exit 3)\nfalse\ntrue\n```\n", "page, line 1: exit code 3"),
        ("```sh\nfalse && true\n```\n", "page, line 1: exit code 1"),
        ("```\nls\n```\n", "a block of kind ''"),
        ("```python\n1 / 0\n```\n", "no file name"),
    ):
        page.write_text(text)
        with pytest.raises(AssertionError, match=says):
            asyncio.run(walk(page, tmp_path))
    left_out = "<!-- not run: it would install -->\n```sh\nfalse\n```\n\n"
    page.write_text(f"{left_out}```sh\nfalse || true\n```\n")
    assert asyncio.run(walk(page, tmp_path)) == 1


@pytest.mark.processes
def test_every_block_of_the_tutorial(tmp_path):
    """From `muster dev` to the end; only its ports are others."""
    first = first_port()
    replaced = [("muster dev ", f"muster dev --port {first} ")]
    replaced += [(f"127.0.0.1:{7070 + i}", f"127.0.0.1:{first + i}") for i in range(3)]
    assert asyncio.run(walk(DOCS / "tutorial.md", tmp_path, replaced, record_run)) == 20


@pytest.mark.deploy
@pytest.mark.processes
def test_every_block_of_the_page_on_rights(tmp_path):
    """A cluster that is open, with a secret and a superuser, is closed; then rights count."""
    (tmp_path / "admin.secret").write_text("0123456789abcdef\n")
    flags = (f"--admin-secret-file={tmp_path / 'admin.secret'}", "--superusers=ann")

    async def look(run):
        codes = {}
        for who, variables in {
            "billing-worker": "MUSTER_TOKEN_FILE=worker.token",
            "nobody": "-u MUSTER_TOKEN_FILE",
        }.items():
            _, codes[who, "rules"] = await run(f"env {variables} muster acl list")
            _, codes[who, "topic"] = await run(f"env {variables} muster topic describe orders")
        assert codes == {
            ("billing-worker", "rules"): ExitCode.NOT_PERMITTED,
            ("billing-worker", "topic"): ExitCode.OK,
            ("nobody", "rules"): ExitCode.NOT_PERMITTED,
            ("nobody", "topic"): ExitCode.NOT_PERMITTED,
        }

    with Cluster(tmp_path / "cluster", shards=2, flags=flags) as cluster:
        cluster.wait_ready()
        before = f"export MUSTER_BOOTSTRAP={cluster.bootstrap}; muster topic create orders -p 1"
        page = DOCS / "access.md"
        assert asyncio.run(walk(page, tmp_path, (), record_run, before, look)) == 2


SHOWN = {
    "tail -n 4 worker.log": "orders ... offset ... token 1",
    "muster group describe billing-eu": (
        "billing-eu ... Stable ...\nbilling-eu ... orders(0,1,2,3) ..."
    ),
    "muster group offsets billing-eu": "billing-eu orders 0 ...\nbilling-eu orders 3 ...",
}
"""What a reader of the README waits for."""


@pytest.mark.processes
def test_what_the_readme_tells_to_try(tmp_path):
    """Each line of "Try it" on real nodes; then what it and docs/replay.md say of the history.

    What differs is the ports, the directory, the number of shards, and `--follow`, with which an
    export goes on.
    """
    first, data = first_port(), tmp_path / "data"
    replaced = [
        ("muster dev ", f"muster dev --port {first} --dir {data} --shards 2 "),
        ("127.0.0.1:7070", f"127.0.0.1:{first}"),
        ("docs/example.py", str(DOCS / "example.py")),
        (" --follow", ""),
        ("DIR", str(data / "node-0")),
    ]
    readme, replay = blocks(ROOT / "README.md"), blocks(DOCS / "replay.md")

    def lines(page, begin):
        (block,) = (one for one in page if one.is_run and one.text.startswith(begin))
        text = block.text
        for word, other in replaced:
            text = text.replace(word, other)
        yield from text.splitlines()
        record_run(block.text)

    async def play():
        async with asyncio.timeout(PATIENCE_S), Shell(tmp_path) as shell:
            await shell.run(f"export MUSTER_BOOTSTRAP=127.0.0.1:{first}")
            for line in lines(readme, "muster dev "):
                command = line.split("  #")[0].split(" #")[0].strip()
                if command.endswith("&"):
                    hidden = "" if ">" in command else "> background.log"
                    await shell.run(f"{command[:-1]} {hidden} 2>&1 &")
                else:
                    await until_it_works(shell, command, SHOWN.get(command, ""))
                if command.startswith("muster dev"):
                    await until_it_works(shell, "muster cluster status")
            for page, begin in (
                (readme, "muster init --help"),
                (readme, "muster export "),
                (replay, "muster export "),
            ):
                for command in lines(page, begin):
                    output, code = await shell.run(f"rm -rf history; {command}")
                    assert code == 0, (command, output)
            await shell.run("kill %2; wait %2; kill %1; wait")

    asyncio.run(play())
    assert list((tmp_path / "history").rglob("*.parquet"))


async def until_it_works(shell, command, shows=""):
    """Whoever types it while the cluster or the worker starts types it again."""
    output, code = await shell.run(command)
    while code or not is_said(shows, output):
        await asyncio.sleep(0.1)  # between two looks
        output, code = await shell.run(command)
