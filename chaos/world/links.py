"""The conductor's half of a network whose links are in the hands of one child process.

The other half is `serve_links`, in that child: one JSON object per command and answer.
"""

import tempfile
from dataclasses import asdict
from typing import Any, Protocol

from musterd.chaos.child import Child, ChildError, ChildRefusedError, Message, answer, commands
from musterd.chaos.world.errors import WorldError
from musterd.chaos.world.network import Network, Shape

_READY_S, _ANSWER_S = 20.0, 10.0
_VERBS = frozenset({"shape", "heal", "heal_all", "reset", "half_open", "counts"})


class Links(Protocol):
    """What the child does; each answer is the fields of its reply."""

    def shape(self, source: str, target: str, shape: dict[str, Any]) -> Message:
        """See Network.shape; `shape` has the fields of a Shape."""

    def heal(self, source: str, target: str) -> Message:
        """See Network.heal."""

    def heal_all(self) -> Message:
        """See Network.heal_all."""

    def reset(self, source: str, target: str) -> Message:
        """See Network.reset: `connections`, how many."""

    def half_open(self, source: str, target: str) -> Message:
        """See Network.half_open: `connections`, how many."""

    def counts(self) -> Message:
        """`counts`: [source, target, what, how many] of shaped links."""


async def serve_links(links: Links) -> None:
    """In the child: do what the conductor says until it hangs up."""
    async for message in commands():
        verb = message.pop("verb")
        if verb not in _VERBS:
            answer(error=f"there is no verb {verb!r}")
            continue
        try:
            reply: Message = getattr(links, verb)(**message)
        except (WorldError, OSError, LookupError, TypeError) as error:
            answer(error=f"{verb} {message}: {error!r}")
        else:
            answer(**reply)


class ChildNetwork(Network):
    """A network whose links a child process works on."""

    def __init__(self) -> None:
        """Not open yet."""
        self._child: Child | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def launch(self, module: str, given: Message) -> Message:
        """Start the child; returns what it said when it was ready. Raises WorldError."""
        self._child = Child(module, given)
        try:
            return self._child.ready(_READY_S)
        except ChildError as error:
            self.close()
            raise WorldError(str(error)) from error

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            child.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()

    def folder(self) -> str:
        """A folder that goes with this network."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="muster-net-")
        return self._folder.name

    @property
    def child_pid(self) -> int:
        """The process id of the child. Raises WorldError where the network is not open."""
        return self._open_child().pid

    def shape(self, source: str, target: str, shape: Shape) -> None:
        """From now on what goes from source to target is treated so."""
        self._link("shape", source, target, shape=asdict(shape))

    def heal(self, source: str, target: str) -> None:
        """What goes from source to target passes as at the start."""
        self._link("heal", source, target)

    def heal_all(self) -> None:
        """The same for every link."""
        self._ask("heal_all")

    def reset(self, source: str, target: str) -> int:
        """Reset every connection between the two, at both ends."""
        return int(self._link("reset", source, target)["connections"])

    def half_open(self, dead: str, alive: str) -> int:
        """Connections end at `dead` and `alive` is not told."""
        return int(self._link("half_open", dead, alive)["connections"])

    def counts(self) -> dict[tuple[str, str, str], int]:
        """(source, target, passed | delayed | dropped | doubled | held) -> what shaped links did.

        Packets or, behind proxies, chunks: since the start.
        """
        counts = self._ask("counts")["counts"]
        return {(source, target, what): count for source, target, what, count in counts}

    def _link(self, verb: str, source: str, target: str, **more: object) -> Message:
        if source == target or not {source, target} <= set(self.places):
            raise WorldError(f"there is no link {source}>{target}")
        return self._ask(verb, source=source, target=target, **more)

    def _ask(self, verb: str, **fields: object) -> Message:
        try:
            return self._open_child().ask(verb, _ANSWER_S, **fields)
        except ChildRefusedError as error:
            raise WorldError(str(error)) from error
        except ChildError as error:
            # A late answer would be taken for that of the next question.
            if self._child is not None:
                self._child.close()
                self._child = None
            raise WorldError(str(error)) from error

    def _open_child(self) -> Child:
        if self._child is None:
            raise WorldError("the network is not open")
        return self._child
