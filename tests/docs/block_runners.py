"""Which test runs which code block of the pages, and whether it did.

A test calls `record_run` with the text of each block that it has run. tests/conftest.py looks at
the end of each test of the table whether one is left out, by a skip, too.
"""

from tests.docs.walkthrough import ROOT, blocks

SHOWN = {"mermaid", "text"}
"""Kinds of blocks that nobody runs."""
WALKS = "tests/docs/test_walkthroughs.py::"
SPARK = "tests/replay/test_engines.py::test_the_spark_queries_of_the_docs_give_what_they_promise"
CLIENT = "tests/client/test_docs_blocks.py::"

RUN = {
    ("README.md", "import asyncio"): (
        "tests/client/test_run.py::"
        "test_a_second_example_takes_over_half_and_who_has_the_lower_token_is_fenced"
    ),
    ("README.md", "muster dev "): f"{WALKS}test_what_the_readme_tells_to_try",
    ("README.md", "muster init --help"): f"{WALKS}test_what_the_readme_tells_to_try",
    ("README.md", "muster export "): f"{WALKS}test_what_the_readme_tells_to_try",
    ("docs/access.md", ""): f"{WALKS}test_every_block_of_the_page_on_rights",
    ("docs/assignors.md", ""): (
        "tests/client/test_docs.py::test_a_function_in_the_documentation_works"
    ),
    ("docs/chaos.md", "#!/bin/sh"): (
        "tests/docs/test_code_blocks.py::test_the_script_that_chaos_calls_on_a_fault"
    ),
    ("docs/cli.md", ""): (
        "tests/cli/test_live_groups.py::test_the_page_s_example_runs_and_ends_where_it_began"
    ),
    ("docs/compat.md", ""): f"{CLIENT}test_the_block_without_asyncio",
    ("docs/election.md", ""): f"{CLIENT}test_the_block_on_elections",
    ("docs/modern.md", ""): f"{CLIENT}test_the_blocks_on_groups_whose_coordinator_assigns",
    ("docs/operations.md", ""): (
        "tests/docs/test_operations.py::test_every_command_of_the_page_runs"
    ),
    ("docs/pause.md", ""): f"{CLIENT}test_the_blocks_on_listeners_and_pauses",
    ("docs/replay.md", "muster export "): f"{WALKS}test_what_the_readme_tells_to_try",
    ("docs/replay.md", 'SELECT "trigger"'): (
        "tests/replay/test_summary.py::test_the_queries_of_the_docs_give_what_they_promise"
    ),
    ("docs/replay.md", 'SELECT "group"'): (
        "tests/replay/test_summary.py::test_the_queries_of_the_docs_give_what_they_promise"
    ),
    ("docs/replay.md", "SELECT `group`, generation"): SPARK,
    ("docs/replay.md", "SELECT `group`, topic"): SPARK,
    ("docs/replay.md", "import pandas"): (
        "tests/replay/test_summary.py::test_the_queries_of_the_docs_give_what_they_promise"
    ),
    ("docs/secure.md", ""): (
        "tests/packaging/test_secure_page.py::"
        "test_a_new_user_makes_three_tls_nodes_and_a_worker_that_may_no_more_than_its_work"
    ),
    ("docs/tasks.md", ""): f"{CLIENT}test_the_blocks_on_tasks",
    ("docs/testing.md", ""): f"{WALKS}test_every_block_of_the_page_on_testing",
    ("docs/tutorial.md", ""): f"{WALKS}test_every_block_of_the_tutorial",
}
"""(page, how its block begins, "" for all of its blocks) -> the test that runs it."""

RAN = set()
"""The texts of the blocks that were run by this process."""


def record_run(text):
    """This block was run, as it stands in its page but for names of this test."""
    RAN.add(text)


def left_out(test, ran=RAN):
    """The blocks that this test runs, by the table, and did not run."""
    return [
        f"{page}, line {block.line}"
        for (page, begin), runner in RUN.items()
        if runner == test
        for block in blocks(ROOT / page)
        if block.is_run and block.kind not in SHOWN
        if block.text.startswith(begin) and block.text not in ran
    ]
