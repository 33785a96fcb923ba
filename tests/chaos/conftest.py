"""Commands of the suite as processes."""

from collections.abc import Callable, Iterator

import pytest

from tests.chaos.group import Started


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    """Starts `muster chaos ...`; it is over when the test is."""
    made: list[Started] = []

    def one(*arguments: str) -> Started:
        made.append(Started(*arguments))
        return made[-1]

    yield one
    for each in made:
        each.close()
