"""`pytest --conformance`: the run writes docs/conformance.md, or is held against it.

Golden tests say through the fixture `golden` which file they ran. What was said travels with the
test's report, so it arrives from xdist's workers as it does without them.
"""

import pytest

from tests.conformance.document import write
from tests.conformance.ledger import DOCUMENT, Book, Run, problems

MODES = ("check", "write")
PROPERTY = "golden"


class Conformance:
    """Collects reports where the whole run is seen: in the controller, not in workers."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.run = Run()
        self.found: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test ended, or could not be set up or torn down, or was skipped."""
        if report.when == "call" or report.outcome != "passed":
            golden = [str(value) for name, value in report.user_properties if name == PROPERTY]
            self.run.add(report.nodeid, report.outcome, golden)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Compare or write. A run that was broken off proves nothing either way."""
        if session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        book = Book.read()
        self.found = problems(book, self.run)
        produced = write(book, self.run)
        if self.mode == "write":
            DOCUMENT.write_text(produced, "utf-8")
        elif not DOCUMENT.exists() or DOCUMENT.read_text("utf-8") != produced:
            self.found.append("docs/conformance.md is not what this run shows: make conformance")
        if self.found:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what is wrong."""
        terminalreporter.section(f"conformance: {len(self.found)} problems")
        for line in self.found:
            terminalreporter.line(line)


def add_option(parser: pytest.Parser) -> None:
    """`--conformance=check` belongs to a run of all tests."""
    parser.addoption(
        "--conformance",
        choices=MODES,
        default=None,
        help="hold docs/conformance.md against the golden files that ran, or write it from them",
    )


def configure(config: pytest.Config) -> None:
    """Collect in the process that sees every report."""
    mode = config.getoption("--conformance")
    if mode is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Conformance(mode), "conformance")
