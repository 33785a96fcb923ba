"""Pages that are run from top to bottom, each block of them."""

import asyncio
import contextlib
import random
import socket

import pytest

from tests.docs.walkthrough import ROOT, is_said, walk

DOCS = ROOT / "docs"
OFFSETS = (0, 1, 2, 100, 101, 102, 200, 201, 202)
"""Of the ports of a cluster of three nodes from its first one."""


def test_every_block_of_the_page_on_testing(tmp_path):
    """The worker, its tests, and pytest over them."""
    assert asyncio.run(walk(DOCS / "testing.md", tmp_path)) == 6


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
        ("```\nls\n```\n", "a block of kind ''"),
        ("```python\n1 / 0\n```\n", "no file name"),
    ):
        page.write_text(text)
        with pytest.raises(AssertionError, match=says):
            asyncio.run(walk(page, tmp_path))
    page.write_text("<!-- not run: it would install -->\n```sh\nfalse\n```\n\n```sh\ntrue\n```\n")
    assert asyncio.run(walk(page, tmp_path)) == 1


def first_port():
    """Of a cluster; all of its ports are free."""
    while True:
        first = random.randrange(20_000, 30_000)  # below what the kernel gives out by itself
        with contextlib.ExitStack() as stack:
            try:
                for offset in OFFSETS:
                    one = stack.enter_context(socket.socket())
                    one.bind(("127.0.0.1", first + offset))
            except OSError:
                continue
            return first


@pytest.mark.processes
def test_every_block_of_the_tutorial(tmp_path):
    """From `muster dev` to the end; only its ports are others."""
    first = first_port()
    replaced = [("muster dev ", f"muster dev --port {first} ")]
    replaced += [(f"127.0.0.1:{7070 + i}", f"127.0.0.1:{first + i}") for i in range(3)]
    assert asyncio.run(walk(DOCS / "tutorial.md", tmp_path, replaced)) == 20
