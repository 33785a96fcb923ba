"""A store that forgot what it had synced is found out by its peers, and counts anew.

A disk may lie, lose the end of what it had synced, or be put back from an older copy. Then the
replica on it has forgotten entries that it acknowledged, and maybe its term and its vote. Raft is
unsafe with such a voter, as it is with a wiped one (store_introduction.py), but here the store's
uuid is the right one. So each store counts its starts, its *life*, on the disk before the first
hello; each frame names the life and the epoch up to which its sender's disk has everything, and
each node sends one to all where that has risen, since a follower has nothing else to tell them; and
each hello names the life and the last starts, with the epoch at which each found the store. Peers
keep the greatest they heard, and take for a loss

- a life that is not above the known one, in another process than the known one, and
- a new life where one that began since the known one found the store at an epoch below one that the
  peer was told of. The last start alone would say little: each one writes, so a second one that
  nobody hears of makes up for what the first one lacked.

A node that is told so (`StoreLost`) notes durably that its store counts anew as of a new life,
greater than all that its peers know of, and says so in each hello. From then on it is treated as a
node that was replaced on purpose (raft/peers.py): in each shard it is a learner, who neither votes,
stands nor counts, until the log of that shard has admitted this life of it in two entries. The
first one is held by *every* other voter before the second is proposed; so each of them has noted
that what earlier lives voted for and acknowledged is void, and has told its term by the answer. The
node holds both, hence the log of a leader whose term is at least the greatest of them, and it
starts with a vote for that leader. Of a majority that lost something nobody is elected, because
none of them counts, until an operator accepts the loss.

Losses that are not found out: of what nobody who runs was told, which is what was acknowledged to a
leader that is away now, up to a tenth of a second before (while two followers have no connection,
longer); of the last second where all that were told ended, and not in good order; and what
`STARTS_MAX` starts in a row made up for while nobody heard of any. Whatever was found or not, what
a peer acknowledged in an earlier life is forgotten when a new life says hello, so that a leader
sends it again.
"""

from dataclasses import dataclass
from struct import Struct

from muster.v1 import peer_pb2 as pb
from musterd.raft.codec import Sender
from musterd.raft.identity import Identity
from musterd.storage import keys
from musterd.storage.store import Family, Store, unpacked

RUN_ID_BYTES = 16
_LIFE = Struct(">16sQQ16s")


@dataclass(slots=True)
class PeerLife:
    """The newest life of one peer's store that is known."""

    store_uuid: bytes
    life: int
    epoch: int
    """Its disk has everything up to here, as it said."""
    run_id: bytes
    """The process that said so."""

    def encode(self) -> bytes:
        return _LIFE.pack(self.store_uuid, self.life, self.epoch, self.run_id)

    @classmethod
    def decode(cls, value: bytes) -> "PeerLife":
        return cls(*unpacked(_LIFE, value, "the life of a peer"))


def _lowest_since(hello: pb.Hello, life: int) -> int:
    """Return the lowest epoch of the starts after `life` that are named.

    Where older ones are not named any more, they found the store at lower epochs, unless it lost
    something: so what was lost may be missed, and nothing is taken for a loss that is none.
    """
    return min((start.epoch for start in hello.starts if start.life > life), default=-1)


class PeerLives:
    """The lives of a node's peers, in memory and in META."""

    def __init__(self, store: Store, identity: Identity) -> None:
        self._store = store
        self._known: dict[int, PeerLife] = {}
        self._noted: dict[int, int] = {}
        """The epoch of each peer that META has."""
        for node in identity.peers:
            value = store.get(Family.META, keys.peer_life_key(node))
            if value is not None:
                self._known[node] = known = PeerLife.decode(value)
                self._noted[node] = known.epoch

    def forgotten(self, hello: pb.Hello) -> int | None:
        """Return the life in which the sender was known, where it has forgotten of it; else None.

        A store that says by itself that it counts anew, as of a life nobody knows, is no news.
        """
        known = self._known.get(hello.node_id)
        if known is None or known.store_uuid != hello.store_uuid or not hello.life:
            return None  # never met, or of a version that counts no lives
        if hello.run_id == known.run_id and hello.life >= known.life:
            return None
        if hello.life <= known.life:
            return known.life
        if hello.lost_life <= known.life and _lowest_since(hello, known.life) < known.epoch:
            return known.life
        return None

    def is_outdated(self, hello: pb.Hello) -> bool:
        """Whether the process that says hello has begun a later life since; it was on its way."""
        known = self._known.get(hello.node_id)
        return known is not None and hello.run_id == known.run_id and hello.life < known.life

    def meet(self, hello: pb.Hello) -> bool:
        """Note the sender's life; True, and hard, where it is not the known one."""
        known = self._known.get(hello.node_id)
        if known is not None and (known.store_uuid, known.life, known.run_id) == (
            hello.store_uuid,
            hello.life,
            hello.run_id,
        ):
            return False
        epoch = hello.starts[-1].epoch if hello.starts else 0
        met = PeerLife(hello.store_uuid, hello.life, epoch, hello.run_id)
        self._known[hello.node_id] = met
        self._keep(hello.node_id, met)
        self._store.mark_hard()
        return True

    def known_life(self, node: int) -> int:
        """The newest life of `node` that is known; 0 where it was never met."""
        known = self._known.get(node)
        return 0 if known is None else known.life

    def hear(self, node: int, sender: Sender) -> bool:
        """Take what a frame says of its sender; False where it comes from another life."""
        known = self._known.get(node)
        if known is None or known.life != sender.life:
            return False
        known.epoch = max(known.epoch, sender.epoch)
        return True

    def note(self) -> None:
        """Note the epochs that rose since the last call. Soft."""
        for node, known in self._known.items():
            if self._noted.get(node, -1) < known.epoch:
                self._keep(node, known)

    def _keep(self, node: int, known: PeerLife) -> None:
        self._noted[node] = known.epoch
        self._store.batch.put(Family.META, keys.peer_life_key(node), known.encode())
