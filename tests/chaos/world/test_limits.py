"""A limit of memory is set so that it is felt. Files of a control group stand in for the kernel."""

import errno
from pathlib import Path
from unittest.mock import Mock

import pytest

from musterd.chaos.world.equipment.cgroups import Controller
from musterd.chaos.world.equipment.limits import SPARE_BYTES, LimitError, Limits

MIB = 1 << 20


class Group:
    """A group of version 1 that frees what it can at a refusal, and then takes some growth."""

    def __init__(self, used, dropped, growth=0):
        self.used, self._dropped, self._growth = used, dropped, growth
        self.limit = None

    def __truediv__(self, name):
        files = {"memory.usage_in_bytes": "read_text", "memory.limit_in_bytes": "write_text"}
        return Mock(**{files[name]: getattr(self, files[name])})

    def read_text(self):
        return f"{self.used}\n"

    def write_text(self, what):
        self.used = max(self._dropped, min(self.used, int(what)))
        if int(what) < self.used + self._growth:
            raise OSError(errno.EBUSY, "busy")
        self.limit = int(what)


def limited(group, limit_bytes):
    """The limit that it got, by what it is told and by what the kernel has."""
    limits = Limits(Mock())
    limits._controllers["memory"] = Controller("memory", 1, Path("unused"))
    limits._groups[0] = {"memory": group}
    told = limits.limit_memory(0, limit_bytes)
    assert told == group.limit
    return told


def test_a_limit_that_the_kernel_takes_is_as_it_was_wanted():
    """What can be dropped is dropped for it."""
    assert limited(Group(90 * MIB, 60 * MIB), 70 * MIB) == 70 * MIB


def test_a_limit_below_what_cannot_be_dropped_leaves_next_to_nothing():
    """So little that a process which goes on working reaches it."""
    assert limited(Group(90 * MIB, 75 * MIB), 70 * MIB) == 75 * MIB + SPARE_BYTES


def test_a_process_that_grows_meanwhile_gets_a_little_more():
    """No limit at all would be no fault."""
    got = limited(Group(90 * MIB, 75 * MIB, growth=3 * SPARE_BYTES), 70 * MIB)
    assert got == 75 * MIB + 4 * SPARE_BYTES


def test_a_limit_that_is_never_taken_is_an_error():
    """With the file and what was tried last."""
    with pytest.raises(LimitError, match="too little"):
        limited(Group(90 * MIB, 75 * MIB, growth=1 << 40), 70 * MIB)
