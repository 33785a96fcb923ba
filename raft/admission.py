"""How a leader brings a replaced node back into its shard's quorum; raft/peers.py says why so."""

from raft.peers import Admission


class Admitting:
    """One leadership's admissions in one shard: announce, wait for everybody, make effective."""

    def __init__(self) -> None:
        self._announced: dict[bytes, int] = {}
        self._effective: set[bytes] = set()

    def restart(self) -> None:
        """A new leadership: what an earlier one began counts for nothing."""
        self._announced, self._effective = {}, set()

    def next_step(self, store_uuid: bytes, held_by_all: int) -> bool | None:
        """Say which ReplicaAdmitted entry to append now.

        False: the announcement. True: the effective one. None: wait.

        `held_by_all` is the index up to which every voter, this leader included, and the newcomer
        hold the log durably.
        """
        announced = self._announced.get(store_uuid)
        if announced is None:
            return False
        if store_uuid not in self._effective and held_by_all >= announced:
            return True
        return None

    def appended(self, admission: Admission, index: int) -> None:
        """The entry is in the log at `index`."""
        if admission.effective:
            self._effective.add(admission.store_uuid)
        else:
            self._announced[admission.store_uuid] = index
