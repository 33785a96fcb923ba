"""Every limit has a test below, at and above it (arch-5)."""

import pytest

from tests.limits import (
    rows,
    test_large_groups,
    test_machine,
    test_modern,
    test_settings,
    test_shard,
    test_waits,
    test_wire,
)

MODULES = (
    *(test_large_groups, test_machine, test_modern, test_settings),
    *(test_shard, test_waits, test_wire),
)


@pytest.mark.parametrize("name", sorted(rows.FIELDS | {rows.ENTRY}))
def test_every_limit_has_a_test(name):
    """A new field of machine/limits.py needs one."""
    tests = rows.TESTED.get(name, [])
    assert tests
    assert all(any(hasattr(module, test) for module in MODULES) for test in tests)


def test_a_limit_that_does_not_exist_is_not_tested():
    """A renamed field takes its test along."""
    with pytest.raises(ValueError, match="no such limit"):
        rows.limit("group_max_cats")
