"""A pytest plugin, `-p tests.broken_build`: tests run on a broken build (chaos/mutants/unit.py).

The environment names the build; `--outcomes FILE` has a line of JSON for each test, its id and how
it ended.
"""

import json
from pathlib import Path

import pytest

from musterd.chaos.mutants import unit


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--outcomes FILE`."""
    parser.addoption("--outcomes", type=Path, help="write how each test ended, as lines of JSON")


def pytest_configure() -> None:
    """Before any test module is imported."""
    unit.install_named()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed assertion of the test itself is told from all other ends."""
    report = yield
    if report.when == "call" or not report.passed:
        is_own = report.when == "call" and _is_asserted(call.excinfo)
        how = unit.FAILED if is_own else unit.PASSED if report.passed else _otherwise(call)
        with item.config.getoption("--outcomes").open("a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, how]) + "\n")
    return report


def _is_asserted(excinfo):
    """By `assert` or `pytest.raises`; a time limit ends a test by `pytest.fail`, too."""
    error = None if excinfo is None else excinfo.value
    if isinstance(error, pytest.fail.Exception):
        return "DID NOT RAISE" in error.msg
    return isinstance(error, AssertionError)


def _otherwise(call):
    return f"{call.when}: {call.excinfo.typename}"
