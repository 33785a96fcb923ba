"""What a machine cannot give a test: it is skipped on a developer's, and fails in CI."""

import os

import pytest


def refuse(reason: str) -> None:
    """End the test where there is a reason: no namespaces, no loop disks, no clocks of a node.

    `.ci/run` sets CI, and its machine has all of them: nothing is excepted there, or a whole layer
    of the suite could be left out and nobody would see it.
    """
    if reason and os.environ.get("CI"):
        pytest.fail(f"CI is set, and this machine lacks what the test needs: {reason}")
    if reason:
        pytest.skip(reason)
