"""A new store is silent until every other node has it in writing: so a wiped node never counts.

A node that lost its disk and was given a new one by `muster init` has forgotten what it voted for
and acknowledged. Its peers refuse it, because each keeps the store uuid of every peer it has met
(raft/peers.py). That is worth nothing where a peer has never met the lost store: a node that was
provisioned, but not started until now, would elect the empty one, and what the others had
acknowledged would be gone. Therefore:

*A store that has never counted neither votes, stands, appends nor acknowledges in any shard until
each of the other nodes has said that it has this store's uuid on its disk, and knows no other one
of that node.* It asks (`Introduce`); a peer answers `Known` when what it noted is synced. After
the last answer the store notes that it is introduced and is never silent again, whoever is away.
And each hello names the stores of peers that its sender has met or heard of, which the receiver
notes: so a replaced node, too, knows the stores that were introduced before its time.

Why it is enough. Call a store *counting* if it was introduced, or replaced and admitted.

1. Every counting store knows each introduced store S of another node, by meeting or hearsay. One
   that was introduced met every other node before it counted, and S was introduced by meeting all.
   One that came later by `replace-node` was admitted by a leader whose hello it had taken; that
   leader counted, so it knew S and named it.
2. S is lost and S' takes its node id, without `replace-node`. No counting store says that it knows
   S' alone: those that met S refuse S', those that heard of S do not vouch for S'. S' is introduced
   only if *every* peer vouches, so only if not one of them counts: all their disks were lost too.
3. With `replace-node`, each peer that takes S' knows that it replaced S and tells it so, in its
   hello and in `Known`. Then S' is a learner, and the admission rules say when it counts.
4. If S was never introduced, it never counted, and nothing is lost with it.

So a silent loss needs the disks of all other nodes, far more than Raft survives. One peer that
remembers keeps a wiped node out; a cluster that lost more than it may stops rather than goes on
empty.

What it costs: the first start of a cluster needs all nodes, once. A replaced node needs nothing of
this, since its peers know that it was replaced. A cluster of one has nobody to ask.
"""

from collections.abc import Callable, Iterable

from musterd.raft.codec import Message
from musterd.raft.peers import PeerBook, Replacement

KINDS = frozenset({"introduce", "known"})
"""Messages about stores, not shards."""

Post = Callable[[int, Message, bool], None]
"""To which node, what, and whether it waits for the sync of all that is pending."""


class StoreIntroduction:
    """One node's side of it: asks while its own store is new, and answers those that ask."""

    def __init__(self, book: PeerBook, post: Post, interval_s: float) -> None:
        self._book = book
        self._post = post
        self._interval_s = interval_s
        self._ask_at = 0.0

    def ask(self, nodes: Iterable[int]) -> None:
        """Ask those of `nodes` that have not answered yet; nobody once introduced."""
        for node in self._book.awaited:
            if node in nodes:
                self._post(node, {"type": "introduce", "term": 0}, False)

    def timer(self, now: float, connected: Iterable[int]) -> None:
        """Ask again now and then: a frame may be lost."""
        if not self._book.introduced and now >= self._ask_at:
            self._ask_at = now + self._interval_s
            self.ask(connected)

    def received(self, node: int, message: Message) -> bool:
        """Handle one of KINDS; True where this store counts from now on."""
        if message["type"] == "introduce":
            self._answer(node)
            return False
        if message["store_uuid"] != self._book.own_uuid:
            return False
        if message["replaced"]:
            mine = Replacement(self._book.own, self._book.own_uuid, message["as_of"])
            return self._book.allow_replacement(mine)
        return self._book.vouched(node)

    def _answer(self, node: int) -> None:
        store_uuid = self._book.store_uuid(node)
        if store_uuid is None:
            return
        last = self._book.replacement(node)
        replaced = last is not None and last.store_uuid == store_uuid
        if replaced or self._book.only_store(node) == store_uuid:
            known = {
                "type": "known",
                "term": 0,
                "store_uuid": store_uuid,
                "replaced": replaced,
                "as_of": 0 if last is None else last.as_of,
            }
            self._post(node, known, True)
        else:
            self._book.refuse(
                f"node {node}",
                f"node {node} presents store {store_uuid.hex()}, but a peer knows it in another "
                "one, so it stays silent: its data directory was wiped or swapped. If that is "
                f"meant: stop it, then `muster cluster replace-node {node} --store-uuid "
                f"{store_uuid.hex()}`",
            )
