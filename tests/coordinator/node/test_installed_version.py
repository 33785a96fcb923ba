"""The version of what is installed."""

from importlib.metadata import version

import pytest

from musterd.coordinator.node.installed_version import installed_version


@pytest.mark.parametrize("name", ["muster-coordinator", "muster-client", "structlog"])
def test_it_is_what_importlib_says(name):
    """Of our own wheels, installed or from a checkout, and of others."""
    assert installed_version(name.replace("-", "_")) == version(name)


def test_what_is_not_installed_has_none():
    """And the start of another name is not the name."""
    with pytest.raises(LookupError, match="muster is not installed"):
        installed_version("muster")
