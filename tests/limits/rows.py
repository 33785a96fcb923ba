"""How a limit's test says which limit it is about, and that it looks below, at and above it."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from musterd.coordinator.machine.limits import Limits

FIELDS = frozenset(field.name for field in fields(Limits))
ENTRY = "entry_bytes"
"""Of one log entry (raft/contract.py); no replicated number, because the log itself refuses."""

TESTED: dict[str, list[str]] = {}
"""Limit to the tests about it."""


def limit(*names: str) -> Callable[[Any], Any]:
    """Marks a test about these limits and gives it `step`: -1, 0 and 1, beside the limit."""
    unknown = set(names) - FIELDS - {ENTRY}
    if unknown:
        raise ValueError(f"no such limit: {sorted(unknown)}")

    def mark(test: Any) -> Any:
        for name in names:
            TESTED.setdefault(name, []).append(test.__name__)
        return pytest.mark.parametrize("step", [-1, 0, 1], ids=["under", "at", "over"])(test)

    return mark
