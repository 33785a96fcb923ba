"""A worker's history: one file, operations and ownerships as small objects that are ended once."""

import time
from pathlib import Path
from typing import Any

from musterd.chaos.history import Generation, Key, Operated, Outcome
from musterd.chaos.recording import Recorder


class Note:
    """One operation under way."""

    __slots__ = ("_number", "_recorder")

    def __init__(self, recorder: Recorder, number: int) -> None:
        """`number`: the recorder's."""
        self._recorder = recorder
        self._number = number

    def end(
        self,
        outcome: Outcome,
        *,
        value: int | None = None,
        node: int | None = None,
        error: str = "",
    ) -> Outcome:
        """It is over; returns the outcome."""
        self._recorder.end(self._number, outcome, value=value, node=node, error=error)
        return outcome


class Own:
    """One partition in one member's hands."""

    __slots__ = ("_number", "_recorder", "_revoking")

    def __init__(self, recorder: Recorder, number: int) -> None:
        """`number`: the recorder's."""
        self._recorder = recorder
        self._number = number
        self._revoking = False

    def revoking(self) -> None:
        """The member was told to give it up."""
        if not self._revoking:
            self._recorder.revoking(self._number)
        self._revoking = True

    def released(self, how: str) -> None:
        """It works on it no more: revoked | lost | left."""
        self._recorder.released(self._number, how)


class OperationLog(Recorder):
    """What one process writes down; `client` stands in every line, unless another is named."""

    def __init__(self, path: Path, client: str) -> None:
        """Create the file. Raises RecordingError where it exists."""
        super().__init__(path, client)
        self.client = client

    def begin(self, kind: str, key: Key, *, client: str = "", **fields: Any) -> Note:
        """An operation is about to be sent; `fields` are those of `Recorder.invoke`."""
        return Note(self, self.invoke(client or self.client, kind, key, **fields))

    def own(
        self, key: Key, member_id: str, generation: int, *, client: str = "", **fields: Any
    ) -> Own:
        """A member was told that it owns this; `fields` are those of `Recorder.owns`."""
        return Own(self, self.owns(client or self.client, key, member_id, generation, **fields))

    def told(self, group: str, generation: int, owner: str, assigned: tuple[Key, ...]) -> None:
        """A member was told of its generation, and of what it owns in it."""
        now = time.monotonic_ns()
        told = Generation(
            group, generation, (owner,), now, self.client, whole=False, assigned=assigned
        )
        self.record(told)

    def formed(
        self, group: str, generation: int, members: tuple[str, ...], source: str, asked_ns: int
    ) -> None:
        """A generation has these members and no other, as `source` says who was asked then."""
        now = time.monotonic_ns()
        told = Generation(group, generation, members, now, source, whole=True, asked_ns=asked_ns)
        self.record(told)

    def operated(
        self, what: str, subject: str, began_ns: int, outcome: Outcome, **fields: Any
    ) -> None:
        """A call of an operator is over; `fields` are those of `Operated`."""
        now = time.monotonic_ns()
        self.record(Operated(self.client, what, subject, began_ns, now, outcome, **fields))
