"""Ends a run in which a test stands still and no exception can end it, with what each thread does.

pytest-timeout raises once in the test's thread. That ends neither a test that waits in C code, nor
one that is interrupted where Python goes on regardless (a finalizer, a callback of asyncio), nor a
fixture that waits, after that, for the test's threads.
"""

import faulthandler
import os
from collections.abc import Generator

import pytest

LATER_S = 60.0
"""How long after pytest-timeout had to end a test the run is ended."""

_stderr = pytest.StashKey[int]()


def configure(config: pytest.Config) -> None:
    """Keep the true stderr: what a test writes there is captured."""
    config.stash[_stderr] = os.dup(2)


def watched(item: pytest.Item) -> Generator[None, object, object]:
    """End the process once a phase of this test lasts a minute longer than the test may."""
    marker = item.get_closest_marker("timeout")
    allowed_s = float(marker.args[0] if marker else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(
        allowed_s + LATER_S, file=item.config.stash[_stderr], exit=True
    )
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
