"""Commands of the suite as processes; what needs network namespaces is skipped without them."""

from collections.abc import Callable, Iterator

import pytest

from musterd.chaos.world.networks.netns import Netns
from tests import machine_lacks
from tests.chaos.group import Started


@pytest.fixture(scope="session")
def netns_works() -> None:
    """Skips where this machine has no network namespaces for us."""
    machine_lacks.refuse(Netns().lacks())


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
