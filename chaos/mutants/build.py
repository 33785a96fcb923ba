"""One broken build: which rule it lacks, and what takes the place of what."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Patch = tuple[Any, str, Any]
"""A module or class, a name in it, what takes its place."""


@dataclass(frozen=True, slots=True)
class Build:
    """The shipped code has no switches: a build is patched into it from outside.

    `rule` says in one line what this build does wrong.
    """

    name: str
    rule: str
    patches: tuple[Patch, ...]

    def install(self) -> None:
        """For the rest of this process."""
        for owner, name, value in self.patches:
            getattr(owner, name)  # a patch of what is not there would prove nothing
            setattr(owner, name, value)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Nodes that start inside run this build."""
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in self.patches]
        self.install()
        try:
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)
