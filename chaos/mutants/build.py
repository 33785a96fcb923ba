"""One broken build: which rule it lacks, and what takes the place of what."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

Patch = tuple[Any, str, Any]
"""A module or class, a name in it, what takes its place."""
_T = TypeVar("_T", bound=Callable[..., Any])


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
        with ExitStack() as patched:
            for patch in self.patches:
                patched.enter_context(replaced(*patch))
            yield


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, an attribute has another value."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class Builds(dict[str, Build]):
    """Broken builds by name, entered where they are written."""

    def add(self, name: str, rule: str, *patches: Patch) -> None:
        """Enter a build that is patched in several places, or by values alone."""
        self[name] = Build(name, rule, patches)

    def add_all(self, *rows: tuple[str, str, Any, str, Any]) -> None:
        """Enter builds of one patch each: name and rule, and the three of `Patch`."""
        for name, rule, owner, attribute, value in rows:
            self.add(name, rule, (owner, attribute, value))

    def replaces(self, name: str, owner: Any, attribute: str = "") -> Callable[[_T], _T]:
        """Decorator: enter a build of what it decorates, whose docstring is the rule.

        It takes the place of `owner.attribute`; "" is the name of the class that it derives from.
        """

        def enter(instead: _T) -> _T:
            name_there = attribute or instead.__base__.__name__  # type: ignore[attr-defined]
            self.add(name, instead.__doc__ or "", (owner, name_there, instead))
            return instead

        return enter


def gives(value: Any) -> Callable[..., Any]:
    """A function or method that gives `value`, whatever it is called with."""
    return lambda *_, **__: value


def gives_later(value: Any) -> Callable[..., Any]:
    """The same as a coroutine function."""

    async def give(*_: object, **__: object) -> Any:
        return value

    return give
