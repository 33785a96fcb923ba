"""A node's durable record of its peers: their stores, and which of them count in which shard.

A wiped node must not vote (arch-6.2). Each node remembers the store uuid of every peer it has met
and refuses another one; a store that its peers do not know yet is silent
(raft/store_introduction.py). After `muster cluster replace-node` the new uuid may connect, but it
is a *learner*: in each shard it counts towards a quorum again only when that shard's log has
admitted it.

Admission takes two entries of kind ReplicaAdmitted, both proposed by one leader in one term T:

1. announced: from the moment this entry is in a voter's log, that voter counts nobody under this
   node id in the shard. The newcomer is not counted for its commit.
2. effective: proposed once *every* other voter and the newcomer hold entry 1 durably in term T.
   So every entry that was ever committed with the help of the lost store is on every other voter,
   and whoever was elected with the lost store's vote was elected in a term before T, or is the
   leader of T, for whom the newcomer's vote of T is set. That stays true until the node gets
   another store. So whoever has entry 2 in its log counts the newcomer, whether the entry is
   committed or not: if the leader dies before it could say so, a voter and the newcomer can still
   elect another one. The leader of T itself counts the newcomer only when it has applied entry 2,
   so that another voter has the entry by then, or when it leads no more.

One side may have entry 1 alone, because it was down when entry 2 was proposed, while the leader is
gone. Then only the other side can lead, and it gets the votes:

- A voter that has entry 1 votes for the newcomer. No learner stands, so that one has entry 2. (A
  store that was admitted earlier, taken out, and put back may take itself for a voter. It gets a
  vote only if its log reaches the voter's entry 1; before that comes entry 1 of the store that was
  between, which made it a learner.)
- A newcomer that has entry 1 votes, in terms after T. Its vote is counted by those who have
  entry 2. It holds the log up to entry 1 and judges a candidate's log as any voter does.

Whose store is whose is said by entries of shard 0's log, and by peers, in their hellos, that have
applied them. Each of these statements is true as of an index of that log, and the later one holds.
Otherwise a node that reads the log from its beginning would turn away the newest store of a node
that was replaced twice, until it has read on; and for good, where the other node leads shard 0.

The last entry in the log holds, applied or not: an entry 1 that is applied when entry 2 is in the
log takes nothing back, and an entry 2 brings nobody back whose successor's entry 1 is there. What
is cut from the log is void: where an entry 2 can be cut, nothing was committed with the newcomer's
help, and where an entry 1 can be cut, there was no entry 2.

Two entries instead of one with a special commit rule: were one other voter to die between, a single
entry would block the shard's commits until that voter came back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct

from google.protobuf.message import DecodeError

from muster.v1 import peer_pb2 as pb
from musterd.raft.codec import CodecError
from musterd.raft.identity import STORE_UUID_BYTES, Identity
from musterd.storage import keys
from musterd.storage.store import CorruptStoreError, Family, Store, unpacked

_AS_OF_BYTES = 8
_LOSS = Struct(">Q?")
REFUSALS_MAX = 32
HEARD_MAX = 2
"""Stores of one peer that are kept from hearsay: two are enough to know that it is not clear."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Node `node` lives in `store_uuid`, in no earlier store, as of index `as_of` of shard 0."""

    node: int
    store_uuid: bytes
    as_of: int


@dataclass(frozen=True, slots=True)
class ReplicaAdmission:
    """One ReplicaAdmitted entry: which store of a replaced node may count, and who says so."""

    node: int
    store_uuid: bytes
    term: int
    leader: int
    effective: bool
    life: int = 0
    """The store is admitted as of this life, before which it lost something (raft/lives.py)."""

    def encode(self) -> bytes:
        """For the log, the store and snapshots."""
        return pb.Admission(
            node_id=self.node,
            store_uuid=self.store_uuid,
            term=self.term,
            leader=self.leader,
            effective=self.effective,
            life=self.life,
        ).SerializeToString()


def decode_admission(data: bytes) -> ReplicaAdmission:
    """The admission in these bytes; CodecError where they are none."""
    one = pb.Admission()
    try:
        one.ParseFromString(data)
    except DecodeError as error:
        raise CodecError("garbage", "an admission that is no protobuf") from error
    return ReplicaAdmission(
        one.node_id, one.store_uuid, one.term, one.leader, one.effective, one.life
    )


def _stored_admission(value: bytes) -> ReplicaAdmission:
    try:
        return decode_admission(value)
    except CodecError as error:
        raise CorruptStoreError("an admission in the store cannot be read") from error


@dataclass(frozen=True, slots=True)
class Loss:
    """The store of a node lost what it had synced and counts anew as of `life` (raft/lives.py)."""

    life: int
    accepted: bool
    """An operator said that it shall count all the same."""


class PeerBook:
    """Peers' store uuids, replacements and admissions of one node, in memory and in META."""

    def __init__(self, store: Store, identity: Identity) -> None:
        self._store = store
        self._identity = identity
        self._uuids: dict[int, bytes] = {identity.node_id: identity.store_uuid}
        self._heard: dict[int, tuple[bytes, ...]] = {}
        """Stores of a peer that other peers know, and that are not the one met here."""
        self._replaced: dict[int, Replacement] = {}
        self._losses: dict[int, Loss] = {}
        """The last one of each node, this one included."""
        self._vouchers: set[int] = set()
        """Peers that said that they have this node's store on their disk."""
        self.introduced = False
        """Whether this node's store may count at all; see raft/store_introduction.py."""
        self._admissions: dict[tuple[int, int], ReplicaAdmission] = {}
        """By shard and node, the last one in the log."""
        self._admitted: dict[tuple[int, int], ReplicaAdmission] = {}
        """The last one that is applied."""
        self.endpoints: dict[int, str] = {}
        """The client endpoint that each peer advertised when it last connected."""
        self.refusals: dict[str, str] = {}
        """Why the last connection from an address or node was refused; for `cluster status`."""
        self.refusal_observers: list[Callable[[str, str], None]] = []
        """Called with who was turned away and why, where that is news."""
        self.refused_stores: dict[int, bytes] = {}
        """Node -> the store uuid it presented last that is not its own: `replace-node` takes it."""
        self._load()

    def _load(self) -> None:
        for node in self._identity.nodes:
            known = self._store.get(Family.META, keys.peer_key(node))
            if known is not None:
                self._uuids[node] = known
            heard = self._store.get(Family.META, keys.heard_key(node)) or b""
            each = range(0, len(heard), STORE_UUID_BYTES)
            self._heard[node] = tuple(heard[at : at + STORE_UUID_BYTES] for at in each)
            replaced = self._store.get(Family.META, keys.replaced_key(node))
            if replaced is not None:
                store_uuid, as_of = replaced[:STORE_UUID_BYTES], replaced[STORE_UUID_BYTES:]
                self._replaced[node] = Replacement(node, store_uuid, int.from_bytes(as_of, "big"))
        for node in self._identity.nodes:
            self._load_loss(node)
        if self._uuids[self._identity.node_id] != self._identity.store_uuid:
            raise CorruptStoreError("the store uuid of this node is not the one it wrote")
        noted = self._store.get(Family.META, keys.INTRODUCED) is not None
        replaces = self.own in self._replaced and not self._ousted
        self.introduced = noted or replaces or not self._identity.peers
        for shard in range(self._identity.shards):
            prefix = keys.admitted_prefix(shard)
            for _, value in self._store.scan(Family.META, prefix, keys.after(prefix)):
                admission = _stored_admission(value)
                self._admitted[shard, admission.node] = admission
        self._admissions.update(self._admitted)

    def _load_loss(self, node: int) -> None:
        value = self._store.get(Family.META, keys.lost_key(node))
        if value is not None and value[_LOSS.size :] == self._store_now(node):
            self._losses[node] = Loss(*unpacked(_LOSS, value, "the loss of a store"))

    # Whether this node's own store counts.

    @property
    def own(self) -> int:
        """The id of the node that keeps this book."""
        return self._identity.node_id

    @property
    def own_uuid(self) -> bytes:
        """The uuid of this node's store."""
        return self._identity.store_uuid

    @property
    def awaited(self) -> list[int]:
        """Peers without whose word this node's store counts nowhere; none once introduced."""
        if self.introduced:
            return []
        return [node for node in self._identity.peers if node not in self._vouchers]

    def vouched(self, node: int) -> bool:
        """`node` has this node's store on its disk; True if it was the last one. Hard."""
        if self.introduced:
            return False
        self._vouchers.add(node)
        if self.awaited:
            return False
        self.introduce()
        return True

    def introduce(self) -> None:
        """Note that every peer knows this node's store. Hard."""
        self.introduced = True
        self._store.batch.put(Family.META, keys.INTRODUCED, b"")
        self._store.mark_hard()

    # Who counts.

    def counts(self, shard: int, node: int) -> bool:
        """Whether votes and acknowledgements of `node` count in `shard`."""
        if not self._replaced and not self._admissions and not self._losses:
            return True  # asked for each peer and tick; nothing was ever replaced or lost here
        return self.is_admitted(shard, node) or self._is_accepted(shard, node)

    def is_admitted(self, shard: int, node: int) -> bool:
        """Whether `node` was never replaced and lost nothing, or was admitted to `shard` since."""
        admission = self._admissions.get((shard, node))
        if admission is None:
            return node not in self._replaced and node not in self._losses
        return admission.effective and self._is_present(admission)

    def _is_accepted(self, shard: int, node: int) -> bool:
        """Whether `node` counts because an operator said so."""
        loss = self._losses.get(node)
        if loss is None or not loss.accepted:
            return False
        admission = self._admissions.get((shard, node))
        if admission is None:
            return node not in self._replaced
        return admission.store_uuid == self._store_now(node)

    def is_announced(self, shard: int, node: int) -> bool:
        """Whether the shard's log has at least begun to admit the store in which `node` is now.

        As of its last loss, if it had one.
        """
        admission = self._admissions.get((shard, node))
        return admission is not None and self._is_present(admission)

    def _is_present(self, admission: ReplicaAdmission) -> bool:
        """Whether an admission is of the store that its node lives in, and of no life before."""
        node = admission.node
        return admission.store_uuid == self._store_now(node) and admission.life >= self.life(node)

    def announced_itself(self, shard: int) -> ReplicaAdmission | None:
        """Return the log's admission of this node's own store; None where that is void.

        So where the log does not name it, where it is not introduced, and where another store took
        its place.
        """
        if not self.introduced or self._ousted or not self.is_announced(shard, self.own):
            return None
        return self._admissions[shard, self.own]

    def _store_now(self, node: int) -> bytes | None:
        # A newcomer may have the shard's log and not yet shard 0's news of earlier replacements.
        replaced = self._replaced.get(node)
        return self._uuids.get(node) if replaced is None else replaced.store_uuid

    def newcomers(self, shard: int) -> list[tuple[int, bytes, int]]:
        """List nodes that the shard has yet to admit: (node, store uuid, life).

        They were replaced, or their stores lost something.
        """
        if not self._replaced and not self._losses:
            return []
        return [
            (node, store_uuid, self.life(node))
            for node in self._identity.peers
            if (node in self._replaced or node in self._losses)
            and not self.is_admitted(shard, node)
            and (store_uuid := self._store_now(node)) is not None
        ]

    def learner_shards(self, node: int) -> int:
        """In how many shards `node` does not count (yet), as far as this node knows."""
        shards = range(self._identity.shards)
        if node == self.own:
            return sum(self.is_learner(shard) for shard in shards)
        return sum(not self.counts(shard, node) for shard in shards)

    def is_learner(self, shard: int) -> bool:
        """Whether this node itself does not count in the shard (yet).

        Its store is new and not introduced, or replaced an earlier one or lost something and is not
        admitted, or was replaced itself and will not count again.
        """
        return not self.introduced or self._ousted or not self.counts(shard, self.own)

    @property
    def _ousted(self) -> bool:
        """Whether another store took the place of this node's own."""
        replaced = self._replaced.get(self.own)
        return replaced is not None and replaced.store_uuid != self.own_uuid

    # Losses.

    def loss(self, node: int) -> Loss | None:
        """The last loss of the store in which `node` lives, if it had one."""
        return self._losses.get(node)

    def life(self, node: int) -> int:
        """As of which life `node` has to be admitted; 0 where it lost nothing."""
        loss = self._losses.get(node)
        return 0 if loss is None else loss.life

    def lose(self, node: int, loss: Loss) -> bool:
        """The store of `node` lost what it had synced. True, and hard, where that is news."""
        known, store_uuid = self._losses.get(node), self._store_now(node)
        old = known is not None and (known.life, known.accepted) >= (loss.life, loss.accepted)
        if old or store_uuid is None:
            return False
        self._losses[node] = loss
        value = _LOSS.pack(loss.life, loss.accepted) + store_uuid
        self._store.batch.put(Family.META, keys.lost_key(node), value)
        self._store.mark_hard()
        return True

    def announce(self, shard: int, admission: ReplicaAdmission) -> None:
        """An admission is in the log, committed or not; called in the order of the log.

        Until it is effective nobody counts as its node; from then on the newcomer does.
        """
        self._admissions[shard, admission.node] = admission

    def forget_unapplied(self, shard: int) -> None:
        """Go back to what is applied; `announce` says what the log holds behind that."""
        for node in self._identity.nodes:
            applied = self._admitted.get((shard, node))
            if applied is None:
                self._admissions.pop((shard, node), None)
            else:
                self._admissions[shard, node] = applied

    def admit(self, shard: int, admission: ReplicaAdmission) -> None:
        """A ReplicaAdmitted entry was applied, or came with a snapshot."""
        self._admissions[shard, admission.node] = admission
        self._admitted[shard, admission.node] = admission
        key = keys.admitted_key(shard, admission.node)
        self._store.batch.put(Family.META, key, admission.encode())

    def admissions(self, shard: int) -> list[ReplicaAdmission]:
        """Return the admissions that a snapshot of the shard must carry: those that are written."""
        found = []
        for node in self._identity.nodes:
            stored = self._store.get(Family.META, keys.admitted_key(shard, node))
            if stored is not None:
                found.append(_stored_admission(stored))
        return found

    # Whose store is whose.

    def allow_replacement(self, said: Replacement) -> bool:
        """Note that a node's store was replaced; True if that is news, and hard then.

        What was true earlier than what is known changes nothing.
        """
        node, store_uuid = said.node, said.store_uuid
        before = self._replaced.get(node)
        if before is not None and said.as_of <= before.as_of:
            return False
        self._replaced[node] = said
        value = store_uuid + said.as_of.to_bytes(_AS_OF_BYTES, "big")
        self._store.batch.put(Family.META, keys.replaced_key(node), value)
        if before is not None and before.store_uuid == store_uuid:
            return False
        if node != self.own:
            self._remember(node, store_uuid)
            self._vouchers.discard(node)
            self._losses.pop(node, None)
        elif store_uuid == self.own_uuid:
            self.introduced = True  # from now on it is the shards that admit it
        self._store.mark_hard()
        return True

    def store_uuid(self, node: int) -> bytes | None:
        """The store uuid that `node` must present, if it was met before."""
        return self._uuids.get(node)

    def known(self) -> list[tuple[int, bytes]]:
        """Every store of a peer that was met here or heard of: (node, store uuid)."""
        met = [(node, uuid) for node, uuid in self._uuids.items() if node != self.own]
        return met + [(node, uuid) for node, heard in self._heard.items() for uuid in heard]

    def hear(self, node: int, store_uuid: bytes) -> None:
        """A peer knows `node` in this store. Hard where that is news."""
        heard = self._heard.get(node)
        if heard is None or node == self.own or store_uuid in (self._uuids.get(node), *heard):
            return
        if len(heard) < HEARD_MAX and len(store_uuid) == STORE_UUID_BYTES:
            self._heard[node] = (*heard, store_uuid)
            self._store.batch.put(Family.META, keys.heard_key(node), b"".join(self._heard[node]))
            self._store.mark_hard()

    def only_store(self, node: int) -> bytes | None:
        """The store that `node` was met in, unless somebody knows it in another one."""
        met = self._uuids.get(node)
        return met if set(self._heard.get(node, ())) <= {met} else None

    def replacement(self, node: int) -> Replacement | None:
        """The last time that the store of `node` was replaced, if it was."""
        return self._replaced.get(node)

    def replacements(self) -> list[Replacement]:
        """The last one of each node, as far as known here."""
        return list(self._replaced.values())

    def meet(self, node: int, store_uuid: bytes) -> None:
        """`node` presented this uuid and was accepted; from now on no other one is."""
        if self._uuids.get(node) != store_uuid:
            self._remember(node, store_uuid)
            self._store.mark_hard()

    def _remember(self, node: int, store_uuid: bytes) -> None:
        self._uuids[node] = store_uuid
        self._store.batch.put(Family.META, keys.peer_key(node), store_uuid)

    def refuse(self, who: str, reason: str) -> None:
        """Keep why `who` was turned away; the oldest are forgotten."""
        news = self.refusals.pop(who, None) != reason
        self.refusals[who] = reason
        while len(self.refusals) > REFUSALS_MAX:
            del self.refusals[next(iter(self.refusals))]
        if news:
            for observe in self.refusal_observers:
                observe(who, reason)

    def settled(self, who: str) -> None:
        """A connection with `who` stands: what was wrong before is over."""
        self.refusals.pop(who, None)
