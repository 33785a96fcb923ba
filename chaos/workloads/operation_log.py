"""A worker's history: one file, operations and ownerships as small objects that are ended once."""

import time
from pathlib import Path

from musterd.chaos.history import Generation, Key, Operated, Outcome, StoreWrite
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


class OperationLog:
    """What one process writes down; `client` stands in every line, unless another is named."""

    def __init__(self, path: Path, client: str) -> None:
        """Create the file. Raises RecordingError where it exists."""
        self.client = client
        self.recorder = Recorder(path, client)

    def begin(
        self,
        kind: str,
        key: Key,
        *,
        value: int | None = None,
        member_id: str = "",
        generation: int = -1,
        node: int | None = None,
        client: str = "",
        numbered: bool = False,
        token: int = 0,
    ) -> Note:
        """An operation is about to be sent."""
        number = self.recorder.invoke(
            client or self.client,
            kind,
            key,
            value=value,
            member_id=member_id,
            generation=generation,
            node=node,
            numbered=numbered,
            token=token,
        )
        return Note(self.recorder, number)

    def own(
        self,
        key: Key,
        member_id: str,
        generation: int,
        instance_id: str = "",
        client: str = "",
        token: int = 0,
    ) -> Own:
        """A member was told that it owns this."""
        who = client or self.client
        number = self.recorder.owns(who, key, member_id, generation, instance_id, token)
        return Own(self.recorder, number)

    def told(self, group: str, generation: int, owner: str, assigned: tuple[Key, ...]) -> None:
        """A member was told of its generation, and of what it owns in it."""
        self.recorder.record(
            Generation(
                group,
                generation,
                (owner,),
                time.monotonic_ns(),
                self.client,
                whole=False,
                assigned=assigned,
            )
        )

    def operated(
        self,
        what: str,
        subject: str,
        began_ns: int,
        outcome: Outcome,
        *,
        name: str = "",
        value: int | None = None,
        node: int | None = None,
        error: str = "",
    ) -> None:
        """A call of an operator is over; see `Operated`."""
        now = time.monotonic_ns()
        self.recorder.record(
            Operated(self.client, what, subject, began_ns, now, outcome, name, value, node, error)
        )

    def stored(
        self, client: str, key: Key, token: int, sequence: int, *, accepted: bool, fenced: bool
    ) -> None:
        """A store took a write, or refused it."""
        self.recorder.record(
            StoreWrite(client, key, token, sequence, time.monotonic_ns(), accepted, fenced)
        )

    def close(self) -> None:
        """Nothing more comes."""
        self.recorder.close()
