"""What all tests share: `--rewrite`, which writes golden files anew."""

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest --rewrite`: read the diff before you commit it. CI refuses the flag."""
    parser.addoption(
        "--rewrite",
        action="store_true",
        default=False,
        help="write golden files anew instead of comparing them",
    )


def pytest_configure(config: pytest.Config) -> None:
    """A run that rewrites its own expectations proves nothing."""
    if config.getoption("--rewrite") and os.environ.get("CI"):
        raise pytest.UsageError("--rewrite is forbidden where CI is set")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """True where golden files are to be written anew."""
    return bool(request.config.getoption("--rewrite"))
