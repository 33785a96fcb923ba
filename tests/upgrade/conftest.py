"""The builds that nodes are upgraded from and to."""

import pytest

from tests.upgrade import builds


@pytest.fixture(scope="session")
def trees(tmp_path_factory):
    """(old build, new build) of each pair."""
    made = tmp_path_factory.mktemp("builds")
    former, later = builds.former(made / "former"), builds.next_one(made / "next")
    return {"former": (former, builds.ROOT), "next": (builds.ROOT, later)}
