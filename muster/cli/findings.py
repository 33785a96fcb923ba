"""What a check of `muster doctor` found, and what to do about it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from muster.cli.errors import CommandError, ExitCode

NODE_GROUP: Final = "muster.node"
"""The entry points by which the server's package adds what is looked at on a node's own machine."""


class Verdict(StrEnum):
    """How bad it is. Only a problem makes `muster doctor` end with 5."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's table. `where`: "here", "node 1", "group billing"."""

    check: str
    where: str
    result: Verdict
    detail: str
    next_step: str = ""


def on_node(name: str) -> Callable[[Path], Any]:
    """The server's function of this name, which takes a node's settings file.

    Raises CommandError where the server is not installed here.
    """
    found = next(iter(entry_points(group=NODE_GROUP, name=name)), None)
    if found is None:
        raise CommandError(
            "a node's own machine is looked at by muster-coordinator, which is not installed here",
            next_step="run this on the node, or leave --config out to look at the cluster",
            exit_code=ExitCode.USAGE,
        )
    function: Callable[[Path], Any] = found.load()
    return function
