"""The node's core loop as a plain object: deliver, tick, persist, send, reply.

It has no sockets, no asyncio and no clock of its own, so the simulator runs it as it is. Its owner
gives it a `Link` to send through, and calls `receive` for frames, `timer` now and then, and `turn`
whenever `on_wake` says so (docs/adr/0001-one-loop.md). Everything happens on one thread.
"""

import uuid
from collections.abc import Callable
from random import Random
from typing import Protocol

from muster.v1 import peer_pb2 as pb
from musterd.invariant import invariant
from musterd.levels import LEVEL
from musterd.raft import codec, hello, pysyncobj_pin, store_introduction
from musterd.raft.codec import CodecError, Message
from musterd.raft.contract import ClientReach, NodeId, Room, ShardId, StateMachine
from musterd.raft.disk_room import DiskRoom
from musterd.raft.durable_mark import DurableMark
from musterd.raft.identity import Identity, load_identity
from musterd.raft.journal import Journal
from musterd.raft.lives import PeerLives
from musterd.raft.notices import Notice, PeerConnected, PeerLost
from musterd.raft.outbox import DriverStats, Link, Outbox
from musterd.raft.peer_levels import PeerLevels
from musterd.raft.peers import Loss, PeerBook, Replacement
from musterd.raft.progress import PeerBudget
from musterd.raft.replica.replica import Replica
from musterd.raft.settings import SECOND_MS, RaftSettings
from musterd.raft.start_loading import StartLoading
from musterd.raft.sync_watch import SyncWatch
from musterd.storage.store import Store

__all__ = ["Driver", "DriverStats", "Link", "Participant"]


_OF_STORES = store_introduction.KINDS | {"store_lost"}
"""Messages about stores, not shards."""


class Participant(Protocol):
    """Work that belongs into the turn, such as a shard's timers and proposals."""

    def before_tick(self, now: float) -> None:
        """After delivery, before the replicas tick: propose here, and it leaves in this turn."""
        ...

    def after_apply(self, now: float) -> None:
        """Last in the turn: what was applied may be answered."""
        ...


class Driver:
    """One node: its store, replicas, timers and queues. A `Host` (host.py)."""

    def __init__(
        self,
        store: Store,
        machines: Callable[[ShardId], StateMachine],
        link: Link,
        clock: Callable[[], float],
        rng: Random,
        settings: RaftSettings | None = None,
        client_endpoint: str = "",
        make_journal: Callable[[Store, ShardId, RaftSettings], Journal] = Journal,
        level: int = LEVEL,
    ) -> None:
        """Open `store` and check it; raises CorruptStoreError or IdentityError.

        `machines(shard)` gives each shard's state machine; turns load it. `clock` is
        monotonic seconds greater than 0. `client_endpoint` is told to the peers. `make_journal`:
        whoever looks on makes journals that tell. `level`: the highest that this build knows.
        """
        self.store = store
        self.clock = clock
        self.rng = rng
        self.link = link
        self.settings = settings or RaftSettings()
        self.identity: Identity = load_identity(store)
        self.book = PeerBook(store, self.identity)
        self.stats = DriverStats()
        self.participants: list[Participant] = []
        self._told_to_wake: Callable[[], None] = _sleep
        self.urgent = False
        """The turn that is wanted serves an election: whoever gives turns shall not delay it."""
        self._client_endpoint = client_endpoint
        self.levels = PeerLevels(self.identity, level)
        self.draining, self.rooms = False, DiskRoom()
        self._reaches: dict[int, ClientReach] = {}  # of this node and of connected peers
        self._budgets = {node: PeerBudget(self.settings.peer_bytes) for node in self.identity.peers}
        self._snapshot_slots = self.settings.snapshot_sends
        self.run_id = uuid.uuid4().bytes
        """Drawn by this process, for its hellos."""
        self.lives = PeerLives(store, self.identity)
        self._forgetful: dict[int, Message] = {}
        """Peers whose stores are in a life that forgot something, and what they are told."""
        self._reach = codec.Reach()
        self._tag = codec.sender_tag(self.identity.store_uuid)
        self._outbox = Outbox(link, self.sender, self.settings, self.stats)
        self._introduction = store_introduction.StoreIntroduction(
            self.book, self._post_for_store, self._seconds(self.settings.introduce_ms)
        )
        self._dirty: dict[ShardId, None] = {}
        self._in_turn = False
        self.apply_until, self.apply_over = 0.0, False
        self._connected_at: dict[int, float] = {}
        self.notice_observers: list[Callable[[Notice], None]] = []
        self.loss_observers: list[Callable[[int, Loss], None]] = []
        # Called with a node, this one or a peer, and the loss of its store, where that is news.
        now = clock()
        self._tell_at = self._lives_at = self._epoch_at = now
        self._told_epoch = 0
        self._sync_watch = SyncWatch(now)
        self._soft_since: float | None = None
        self._looked_at, self._balance_at = now, now + self._seconds(self.settings.balance_ms)
        self._age_at = now + self._seconds(self.settings.log_memory_ms)
        self._drain_at = self._room_at = self._replaced_at = now
        self.replicas: dict[ShardId, Replica] = {}
        self.loading = StartLoading(
            self.replicas, lambda shard: self.preferred_leader(shard) == self.identity.node_id
        )
        for number in range(self.identity.shards):
            shard = ShardId(number)
            journal = make_journal(store, shard, self.settings)
            self.replicas[shard] = Replica(self, shard, journal, machines(shard))
        self._marks = DurableMark(
            store, self.identity, {s: r.journal for s, r in self.replicas.items()}
        )
        self._marks.check()
        store.on_synced(self._on_synced)

    def _seconds(self, milliseconds: int) -> float:
        return milliseconds / SECOND_MS

    def on_wake(self, wake: Callable[[], None]) -> None:
        """From now on `wake()` is called whenever a turn is wanted, however often; give one."""
        self._told_to_wake = wake

    def wake(self) -> None:
        self._told_to_wake()

    def start(self) -> None:
        """Set the first election deadlines; the turns load the state machines, one by one."""
        pysyncobj_pin.use_clock(self.clock)
        self.loading.start()
        self._set_first_deadlines()

    def stop(self) -> None:
        """No turn follows. What peers said of their disks goes into the store's last write."""
        self.lives.note()

    def _set_first_deadlines(self) -> None:
        self._looked_at = self.clock()
        first, spread = self.settings.first_election_ms, self.settings.election_min_ms
        for shard, replica in self.replicas.items():
            preferred = self.preferred_leader(shard) == self.identity.node_id
            delay = first if preferred else first + spread
            replica.set_first_deadline(delay + int(self.rng.random() * spread))
        self.mark_all()

    # Host (raft/host.py).

    def post(self, shard: ShardId, node: int, message: Message, hold: bool) -> None:
        """Queue a message of `shard` for `node`."""
        self._outbox.post((node, shard, message), hold)
        self._wake()

    def _post_for_store(self, node: int, message: Message, hold: bool) -> None:
        self.post(ShardId(0), node, message, hold)  # every cluster has a shard 0

    def mark(self, shard: ShardId) -> None:
        """Tick the shard in the next turn (or this one, if its ticks have not begun)."""
        self._dirty[shard] = None
        self._wake()

    def mark_all(self) -> None:
        """Tick every shard in the next turn."""
        for shard in self.replicas:
            self._dirty[shard] = None
        self._wake()

    def _wake(self) -> None:
        if not self._in_turn:
            self._told_to_wake()

    def tell(self, notice: Notice) -> None:
        """Tell whoever watches this node; see `Host.tell`."""
        for observe in self.notice_observers:
            observe(notice)

    def budget(self, node: int) -> PeerBudget:
        """Bytes in flight to a peer."""
        return self._budgets[node]

    def take_snapshot_slot(self) -> bool:
        """At most settings.snapshot_sends snapshots are sent at a time."""
        if self._snapshot_slots <= 0:
            return False
        self._snapshot_slots -= 1
        return True

    def free_snapshot_slot(self) -> None:
        """A snapshot is sent, or given up."""
        self._snapshot_slots += 1

    # The network's side.

    def hello(self, lane: "pb.Lane.ValueType") -> pb.Hello:
        """Return the first message that this node sends on a connection."""
        return hello.make_hello(
            self.identity,
            self.book,
            self.store,
            self._client_endpoint,
            lane,
            self.run_id,
            self.levels.own,
        )

    def raise_active_level(self, level: int) -> None:
        """The cluster is at this level: builds that do not know it are turned away."""
        for node in self.levels.raise_active(level):
            self.link.hang_up(node)
        self._wake()

    def sender(self) -> codec.Sender:
        """Return the description of this node that a frame carries if it leaves now.

        What is soft binds nobody. Were its epochs named, peers that note them, which is soft, would
        keep each other's disks busy for ever.
        """
        store = self.store
        epoch = min(store.synced_epoch, store.hard_epoch)
        return codec.Sender(self._tag, store.life, epoch, self.room, self.reach)

    def accept_hello(self, peer: pb.Hello) -> str | None:
        """Judge a peer's hello: None if it is welcome, else the reason, which is also kept."""
        reason = hello.refusal(self.identity, self.book, peer, self.levels.own)
        if reason is None and self.lives.is_outdated(peer):
            return f"node {peer.node_id} said hello before it knew that its store forgot"
        if reason is None:
            self.book.meet(peer.node_id, peer.store_uuid)
            for said in hello.replacements(self.identity, peer):
                self.allow_replacement(said)
            reason = hello.refusal(self.identity, self.book, peer, self.levels.own)
            # it may name its own successor
        if reason is not None:
            if peer.store_uuid == self.book.store_uuid(peer.node_id):  # else anybody may say it
                self.levels.refused(peer)
            self.book.refuse(f"node {peer.node_id}", reason)
            if hello.is_another_store(self.identity, self.book, peer):
                self.book.refused_stores[peer.node_id] = peer.store_uuid
                self._ask_who_was_replaced(peer.node_id)
            return reason
        self.levels.meet(peer)
        self._meet_life(peer)
        for one in peer.known:
            self.book.hear(one.node_id, one.store_uuid)
        self.book.refused_stores.pop(peer.node_id, None)
        if peer.client_endpoint:
            self.book.endpoints[peer.node_id] = peer.client_endpoint
        self._wake()
        return None

    def _ask_who_was_replaced(self, node: int) -> None:
        """Hang up on everybody else: the next hellos say whether the store of `node` was replaced.

        Whoever is not introduced has no log that would say so, and may wait for `node` alone.
        """
        now = self.clock()
        if self.book.introduced or now < self._replaced_at:
            return
        self._replaced_at = now + self._seconds(self.settings.replaced_ms)
        for other in list(self._connected_at):
            if other != node:
                self.link.hang_up(other)

    def _meet_life(self, peer: pb.Hello) -> None:
        """Note in which life a peer's store is; or, if it forgot something, that it has to be told.

        Until it says hello in a life that knows of the loss, nothing that it sends is heard.
        """
        node = peer.node_id
        if peer.lost_life:
            self._lose(node, Loss(peer.lost_life, peer.loss_accepted))
        known_life = self.lives.forgotten(peer)
        if known_life is not None:
            self._forgetful[node] = {
                "type": "store_lost",
                "term": 0,
                "life": peer.life,
                "known_life": known_life,
            }
            self._start_anew(node)
            return
        self._forgetful.pop(node, None)
        if self.lives.meet(peer):
            self._start_anew(node)

    def _start_anew(self, node: int) -> None:
        for replica in self.replicas.values():
            replica.peer_started_anew(node)

    def _lose(self, node: int, loss: Loss) -> bool:
        """Note a loss; True where it was news."""
        news = self.book.lose(node, loss)
        if news:
            for observe in self.loss_observers:
                observe(node, loss)
        return news

    def _told_of_loss(self, peer: int, message: Message) -> None:
        """A peer knows that this store forgot something: it counts anew, as of a life above all.

        Raises CodecError for a life that is too far ahead (`Reach` in raft/codec.py).
        """
        own, store = self.identity.node_id, self.store
        if message["life"] != store.life:
            self.link.hang_up(peer)  # it judged an older hello than the last
            return
        self._reach.check("a word of this store's life", store.life, message["known_life"])
        store.raise_life(max(store.life, message["known_life"]) + 1)
        self._lose(own, Loss(store.life, accepted=False))
        for replica in self.replicas.values():
            replica.lose()
        for node in self.identity.peers:
            self.link.hang_up(node)  # the next hello says so

    def accept_loss(self) -> bool:
        """An operator says that this store shall count with what it has.

        False where it counts everywhere, or does not for another reason than a loss.

        It may have forgotten votes, so it goes on in terms that it cannot have voted in.
        """
        own = self.identity.node_id
        loss = self.book.loss(own)
        if loss is None or not self.book.learner_shards(own):
            return False
        learners = [replica for replica in self.replicas.values() if replica.learner]
        if not self._lose(own, Loss(loss.life, accepted=True)):
            return False
        for replica in learners:
            replica.skip_terms()
        for node in self.identity.peers:
            self.link.hang_up(node)
        return True

    def connected(self, node: int) -> None:
        """The control connection to `node` stands."""
        pysyncobj_pin.use_clock(self.clock)
        self._connected_at[node] = self.clock()
        self.levels.connected(node)
        self.tell(PeerConnected(NodeId(node)))
        for replica in self.replicas.values():
            replica.peer_connected(node)
        self._introduction.ask((node,))
        self._tell_forgetful()
        self.link.send(node, codec.encode_frame(self.sender(), ()), False)
        self._wake()

    def disconnected(self, node: int, control: bool) -> None:
        """A connection to `node` broke. The control connection's break is silence of a leader."""
        if not control:
            return
        pysyncobj_pin.use_clock(self.clock)
        if self._connected_at.pop(node, None) is not None:
            self.tell(PeerLost(NodeId(node)))
        self.rooms.forget(node)
        self.levels.lost(node)
        self._reaches.pop(node, None)
        self.stats.leaders_lost += 1
        self.urgent = True
        settings = self.settings
        survivors = [one for one in self.identity.nodes if one != node]
        for shard, replica in self.replicas.items():
            delay = 0.0
            if survivors[shard % len(survivors)] != self.identity.node_id:
                spread = settings.bystander_max_ms - settings.bystander_min_ms
                delay = settings.bystander_min_ms + self.rng.random() * spread
            replica.peer_disconnected(node)
            replica.leader_lost(node, delay)
        self._wake()

    @property
    def connected_nodes(self) -> tuple[int, ...]:
        """Peers whose control connection stands."""
        return tuple(self._connected_at)

    def _see_to_lives(self, now: float) -> None:
        if self._forgetful and now >= self._tell_at:
            self._tell_at = now + self._seconds(self.settings.introduce_ms)
            self._tell_forgetful()
        if now >= self._lives_at:
            self._lives_at = now + self._seconds(self.settings.lives_ms)
            self.lives.note()
        if now >= self._epoch_at:
            self._epoch_at = now + self._seconds(self.settings.epoch_ms)
            self._tell_epoch()

    def _tell_epoch(self) -> None:
        """Say what this disk has to all, since a follower has nothing else to tell the others."""
        sender = self.sender()
        if sender.epoch != self._told_epoch:
            self._told_epoch = sender.epoch
            for node in self._connected_at:
                self.link.send(node, codec.encode_frame(sender, ()), False)

    def _tell_forgetful(self) -> None:
        for node, message in self._forgetful.items():
            self._post_for_store(node, message, False)

    def receive(self, node: int, frame: bytes) -> None:
        """Deliver one frame from `node`. Raises CodecError: close the connection then."""
        pysyncobj_pin.use_clock(self.clock)
        sender, messages = codec.decode_frame(frame)
        if not self._is_heard(node, sender):
            # Who forgot something may know of a loss of this store all the same, and nobody else.
            forgetful = node in self._forgetful and self._is_known(node, sender)
            messages = [
                (shard, message)
                for shard, message in messages
                if forgetful and message["type"] == "store_lost"
            ]
            if not messages:
                self.stats.strangers += 1
                return
        self.rooms.hear(node, sender.room)
        self._reaches[node] = sender.reach
        self.stats.frames_in += 1
        self.stats.bytes_in += len(frame)
        for number, message in messages:
            shard = ShardId(number)
            replica = self.replicas.get(shard)
            if replica is None:
                raise CodecError("unknown_shard", f"a message for shard {number}")
            self.stats.messages_in += 1
            if message["type"] in _OF_STORES:
                self._receive_of_store(node, message)
                continue
            if not self.book.introduced:
                continue
            term = replica.term
            replica.receive(node, message)
            if replica.term != term or replica.hastens(message):
                self.urgent = True
            if replica.wants_tick(message, term):
                self._dirty[shard] = None
        if self._dirty:
            self._wake()

    def _receive_of_store(self, node: int, message: Message) -> None:
        if message["type"] == "store_lost":
            self._told_of_loss(node, message)
        elif self._introduction.received(node, message):
            self._set_first_deadlines()

    def _is_heard(self, node: int, sender: codec.Sender) -> bool:
        """Whether a frame comes from the store, and the life of it, that `node` is known in."""
        if node in self._forgetful or not self._is_known(node, sender):
            return False
        if sender.life > self.lives.known_life(node):
            self.link.hang_up(node)  # its hello was on its way when that life began
        return self.lives.hear(node, sender)

    def _is_known(self, node: int, sender: codec.Sender) -> bool:
        """Whether a frame comes from the store that `node` is known in, in whatever life."""
        known = self.book.store_uuid(node)
        return known is not None and codec.sender_tag(known) == sender.tag

    def allow_replacement(self, said: Replacement) -> None:
        """The cluster decided (ReplaceNode in shard 0) that a node lives in a new store.

        Called whenever shard 0 applies or reloads that, and when a peer says so that did; repeated
        calls change nothing, nor do old news. From now on only the new store may connect, as a
        learner; what the old one said is void.
        """
        if not self.book.allow_replacement(said):
            return
        if said.node == self.identity.node_id:
            return
        pysyncobj_pin.use_clock(self.clock)
        self.link.hang_up(said.node)
        self._start_anew(said.node)
        self._wake()

    # The turn.

    def turn(self) -> None:
        """One turn of all shards that have work."""
        pysyncobj_pin.use_clock(self.clock)
        self._in_turn, self.urgent = True, False
        try:
            now = self.clock()
            self._look_at_clock(now)
            for participant in self.participants:
                participant.before_tick(now)
            self.loading.turn()
            self.apply_until = self.clock() + self.settings.apply_ms / SECOND_MS
            dirty, self._dirty = self._dirty, {}
            starved: list[ShardId] = []
            served = False
            for shard in dirty:
                replica = self.replicas[shard]
                self.apply_over = served and self.clock() > self.apply_until
                applied = replica.applied_index
                replica.doTick(0)
                served = served or replica.busy or replica.applied_index > applied
                if replica.busy:
                    self._dirty[shard] = None
                    if self.apply_over:
                        starved.append(shard)
            if starved:  # or whoever comes first would have all the time in every turn
                self._dirty = {**dict.fromkeys(starved), **self._dirty}
            self.stats.turns += 1
            self.stats.ticks += len(dirty)
            stalled = self._persist(now)
            if not stalled:
                store = self.store
                self._outbox.flush(store.hard_epoch, store.synced_epoch, self._connected_at)
            for participant in self.participants:
                participant.after_apply(now)
        finally:
            self._in_turn = False
        if self._dirty and not stalled:
            self.wake()

    def _look_at_clock(self, now: float) -> None:
        """Tell the replicas for how long this node stood still: a step counts `step_ms` at most.

        So late a turn is under way before what came meanwhile is read, and a leader that counted
        its own stall would find everybody silent, and step down with nobody to replace it. After
        more than an election somebody has replaced it.
        """
        settings, since = self.settings, self._looked_at
        self._looked_at = now
        step_s = self._seconds(settings.step_ms)
        if step_s < now - since <= self._seconds(settings.election_max_ms):
            for replica in self.replicas.values():
                replica.stood_still(since, step_s)

    def _persist(self, now: float) -> bool:
        """Write what is due; True where the database asks to wait, so nothing may leave.

        Between two writes of all there are those of new entries of the log alone.
        A full disk may take long: what depends on no write leaves meanwhile, so that this node is
        heard. What does is held until this batch is synced, as ever.
        """
        if not self._write_due(now):
            return False
        store = self.store
        target = store.pending_epoch
        whole = self._whole_write_due(now, 1 / 2)
        if (store.write() if whole else store.write_hard()) < target:
            self.stats.write_stalls += 1
            if self.room is Room.NONE:
                return False
            self._outbox.keep()
            return store.hard_epoch >= target
        if not store.pending_bytes:
            self._soft_since = None
        return False

    def _on_synced(self, epoch: int) -> None:
        """The disk has everything up to `epoch`: held messages leave, leaders may commit."""
        invariant(epoch <= self.store.written_epoch, "an epoch was synced before it was written")
        self._outbox.synced(self.store.synced_epoch, self._connected_at)
        self._sync_watch.synced(self.store.synced_epoch)
        for shard, replica in self.replicas.items():
            if replica.waits_for_sync:
                self._dirty[shard] = None
                self.urgent = self.urgent or replica.rising
        self._marks.renew(self.clock(), self._seconds(self.settings.mark_ms))
        if self._dirty:
            self._wake()

    # Time.

    def timer(self) -> float:
        """Do what is due; returns in how many seconds to call again at the latest."""
        now = self.clock()
        pysyncobj_pin.use_clock(self.clock)
        self._look_at_clock(now)
        wait = self._seconds(self.settings.timer_ms)
        for shard, replica in self.replicas.items():
            due = replica.due
            if due < now:
                self._dirty[shard] = None
            elif due - now < wait:
                wait = due - now
        self._watch_disk(now)
        if now >= self._balance_at:
            self._balance_at = now + self._seconds(self.settings.balance_ms)
            self._balance(now)
        if now >= self._age_at:
            self._age_at = now + self._seconds(self.settings.log_memory_ms)
            for replica in self.replicas.values():
                replica.journal.age()
        if self.draining and now >= self._drain_at:
            self._drain_at = now + self._seconds(self.settings.drain_retry_ms)
            self._hand_over_all()
        if self.room is not Room.ENOUGH and now >= self._room_at:
            self._room_at = now + self._seconds(self.settings.drain_retry_ms)
            self._give_way()
        self._introduction.timer(now, self._connected_at)
        self._see_to_lives(now)
        self._marks.renew(now, self._seconds(self.settings.mark_ms))
        if self._dirty or self._outbox.waiting or self._write_due(now):
            self._wake()
        return max(wait, 0.001)

    def _write_due(self, now: float) -> bool:
        """Whether the pending batch must be written now: hard, long, or old enough."""
        store = self.store
        if not store.pending_bytes:
            self._soft_since = None
            return False
        if self._soft_since is None:
            self._soft_since = now
        return store.hard_epoch > store.written_epoch or self._whole_write_due(now, 1)

    def _whole_write_due(self, now: float, share: float) -> bool:
        """Whether all that is pending is long, or its oldest part older than a share of `soft_ms`.

        A write that has to be synced takes along what has waited for half as long, so that under
        load none is written for that alone, and no sync of it is in the way.
        """
        since = now if self._soft_since is None else self._soft_since
        return (
            self.store.pending_bytes >= self.settings.write_bytes
            or now - since >= self._seconds(self.settings.soft_ms) * share
        )

    @property
    def unsynced_s(self) -> float:
        """How long the oldest hard write has been unsynced, while this process ran: seconds."""
        return self._sync_watch.age_s

    @property
    def disk_hangs(self) -> bool:
        """Whether a sync takes so long that this node leads nothing until it returns.

        A full disk is not meant: it takes no entry, and is waited for.
        """
        return self.room is not Room.NONE and self.unsynced_s >= self._seconds(
            self.settings.sync_stall_ms
        )

    @property
    def disk_is_lost(self) -> bool:
        """Whether a sync takes so long that the process has to end; not meant is a full disk."""
        return self.room is not Room.NONE and self.unsynced_s >= self._seconds(
            self.settings.sync_end_ms
        )

    def _watch_disk(self, now: float) -> None:
        hung_before = self.disk_hangs
        self._sync_watch.look(now, self.store.hard_epoch, self.store.synced_epoch)
        if self.disk_hangs:
            for shard in self.led():
                self.replicas[shard].leave(hand_over=not hung_before)

    # Room on disks.

    @property
    def room(self) -> Room:
        """The room on this node's disk."""
        return self.rooms.own

    def set_room(self, room: Room) -> None:
        """Set the room on this node's disk; every peer is told at once."""
        if room is not self.room:
            self.rooms.own = room
            self._tell_all()

    def _tell_all(self) -> None:
        """Say how this node stands, now."""
        for node in self._connected_at:
            self.link.send(node, codec.encode_frame(self.sender(), ()), False)
        self._wake()

    def _give_way(self) -> None:
        """Hand shards over to a node with more room, where a majority has it.

        A low disk refuses growth alone: no reason to go where clients get no answer at all.
        """
        reachable_only = self.room is Room.LOW and self.reach is not ClientReach.FAILS
        for shard in self.led():
            enough = self.replicas[shard].majority_room
            if enough >= self.room:
                continue
            for node in self._connected_at:
                if reachable_only and self.reach_of(node) is ClientReach.FAILS:
                    continue
                if self.rooms.of(node) <= enough and self._transfer(shard, NodeId(node)):
                    break

    # Whether clients reach the nodes.

    @property
    def reach(self) -> ClientReach:
        """Whether clients reach this node."""
        return self.reach_of(self.identity.node_id)

    def set_reach(self, reach: ClientReach) -> None:
        """Whether clients reach this node, as of now: every peer is told at once.

        Where they do not, its shards go to connected nodes that they reach; to no other node.
        """
        if reach is not self.reach:
            self._reaches[self.identity.node_id] = reach
            self._balance_at = self.clock()
            self._tell_all()

    def reach_of(self, node: int) -> ClientReach:
        """Whether clients reach a node, as it said last; of one that is not connected: unknown."""
        return self._reaches.get(node, ClientReach.UNKNOWN)

    def _hand_to_reached(self, now: float) -> None:
        if self.reach is not ClientReach.FAILS:
            return
        reached = [
            node
            for node in sorted(self._connected_at)
            if self.reach_of(node) is ClientReach.OK and self._may_lead_more(node, now)
        ]
        for shard in self.led() if reached else ():
            turn = shard % len(reached)
            for node in (*reached[turn:], *reached[:turn]):
                if self._transfer(shard, NodeId(node)):
                    break

    # Leadership.

    def preferred_leader(self, shard: ShardId) -> NodeId:
        """Where a shard's leader belongs while all nodes are well."""
        nodes = self.identity.nodes
        return NodeId(nodes[shard % len(nodes)])

    def led(self) -> list[ShardId]:
        """The shards that this node leads."""
        return [shard for shard, replica in self.replicas.items() if replica.leads]

    def _balance(self, now: float) -> None:
        """Hand over at most a few shards whose preferred leader is well and has everything."""
        if self.draining:
            return
        self._hand_to_reached(now)
        moved = 0
        for shard in self.led():
            preferred = self.preferred_leader(shard)
            if preferred == self.identity.node_id or not self._may_lead_more(preferred, now):
                continue
            if self.reach_of(preferred) is ClientReach.FAILS:
                continue
            if moved < self.settings.balance_shards and self._transfer(shard, preferred):
                moved += 1

    def _may_lead_more(self, node: int, now: float) -> bool:
        """Whether a peer has been connected for long enough, and its disk has room."""
        since = self._connected_at.get(node)
        stable = self._seconds(self.settings.balance_connected_ms)
        return since is not None and now - since >= stable and self.rooms.of(node) is Room.ENOUGH

    def _transfer(self, shard: ShardId, to: NodeId | None) -> bool:
        begun = self.replicas[shard].transfer_leadership(to)
        self.stats.transfers += begun
        return begun

    def drain(self) -> None:
        """Before a stop: refuse proposals and hand all leadership over; watch `led()`."""
        self.draining = True
        for replica in self.replicas.values():
            replica.drain()
        self._hand_over_all()

    def _hand_over_all(self) -> None:
        for shard in self.led():
            if not self.replicas[shard].waiting:
                self._transfer(shard, None)


def _sleep() -> None:
    """Nobody wants to be woken: turns are called by hand."""
