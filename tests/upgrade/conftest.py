"""The builds that nodes are upgraded from and to, and the figures of the upgrades at the end."""

import pytest

from tests.upgrade import builds


@pytest.fixture(scope="session")
def trees(tmp_path_factory):
    """(old build, new build) of each pair."""
    made = tmp_path_factory.mktemp("builds")
    former, later = builds.former(made / "former"), builds.next_one(made / "next")
    return {"former": (former, builds.ROOT), "next": (builds.ROOT, later)}


FIGURES = "figures"
"""The property of a test that has them, as JSON."""


def pytest_terminal_summary(terminalreporter):
    """A line for each upgrade that has figures, whichever process measured them."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == FIGURES and report.when == "call":
                    terminalreporter.write_line(value)
