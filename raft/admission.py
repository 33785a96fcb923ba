"""Admits a replaced or forgetful node to its leader's quorum again; raft/peers.py says why."""

from dataclasses import dataclass

from musterd.raft.peers import ReplicaAdmission


@dataclass(slots=True)
class _OpenAdmission:
    """An admission that is under way, of the store in which a node lives now."""

    store_uuid: bytes
    life: int
    """As of which the store counts anew, where it lost something (raft/lives.py)."""
    announced: int
    """Index of the announcement."""
    effective: bool = False


class Admitting:
    """One leadership's admissions in one shard: announce, wait for everybody, make effective.

    What was said of an earlier store of a node counts for nothing, also where that one comes back:
    meanwhile others may count the store that was between.
    """

    def __init__(self) -> None:
        self._begun: dict[int, _OpenAdmission] = {}

    def restart(self) -> None:
        """A new leadership: what an earlier one began counts for nothing."""
        self._begun = {}

    def next_step(
        self, node: int, store_uuid: bytes, life: int, held_by_voters: int, held: int
    ) -> bool | None:
        """Say which ReplicaAdmitted entry to append now.

        False: the announcement. True: the effective one. None: wait.

        `held_by_voters` is the index up to which every other voter, this leader included, holds the
        log durably, `held` that of the newcomer.
        """
        begun = self._begun.get(node)
        if begun is None or (begun.store_uuid, begun.life) != (store_uuid, life):
            return False
        if not begun.effective and min(held_by_voters, held) >= begun.announced:
            return True
        return None

    def counts_elsewhere(self, node: int) -> bool:
        """Whether others may count `node` by now, since its effective entry is in the log."""
        begun = self._begun.get(node)
        return begun is not None and begun.effective

    def appended(self, admission: ReplicaAdmission, index: int) -> None:
        """The entry is in the log at `index`."""
        if admission.effective:
            self._begun[admission.node].effective = True
        else:
            self._begun[admission.node] = _OpenAdmission(
                admission.store_uuid, admission.life, index
            )
