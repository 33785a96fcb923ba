"""Pages that are run from top to bottom, each block of them."""

import asyncio

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
    page = tmp_path / "page.md"
    for text, says in (
        ("```sh\nfalse\n```\n", "page.md, line 1: exit code 1"),
        ("```\nls\n```\n", "a block of kind ''"),
        ("```python\n1 / 0\n```\n", "no file name"),
    ):
        page.write_text(text)
        with pytest.raises(AssertionError, match=says):
            asyncio.run(walk(page, tmp_path))
    page.write_text("<!-- not run: it would install -->\n```sh\nfalse\n```\n\n```sh\ntrue\n```\n")
    assert asyncio.run(walk(page, tmp_path)) == 1
